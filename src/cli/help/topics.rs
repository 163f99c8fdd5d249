//! `ccm help TOPIC`: short texts about concepts. Each names the page of the book with more.

/// Topics: name, summary and text.
pub(super) const TOPICS: [(&str, &str, &str); 4] = [
    (
        "manifest",
        "Resources, data and templates in one YAML file",
        include_str!("topics/manifest.txt"),
    ),
    (
        "selection",
        "Flags and expressions that select nodes",
        include_str!("topics/selection.txt"),
    ),
    (
        "rollout",
        "Waves, limits, and the states of a rollout",
        include_str!("topics/rollout.txt"),
    ),
    (
        "trust",
        "Who can send requests to nodes",
        include_str!("topics/trust.txt"),
    ),
];

/// Returns the text of a topic.
pub(in crate::cli) fn topic(name: &str) -> Option<&'static str> {
    let found = TOPICS.iter().find(|(topic, ..)| *topic == name);
    found.map(|(_, _, text)| *text)
}

/// Returns the list of topics for the help of the program.
pub(super) fn topic_list() -> String {
    let mut text = String::from("Topics (ccm help TOPIC):\n");
    for (name, summary, _) in TOPICS {
        text.push_str(&format!("  {name:12}  {summary}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;
    use ccm_core::model::TypeName;

    #[test]
    fn the_topic_about_manifests_lists_every_type() {
        let text = topic("manifest").unwrap_or_default();
        let (_, list) = text.split_once("Resource types:").unwrap_or_default();
        let (list, _) = list.split_once('.').unwrap_or_default();
        let listed: Vec<&str> = list.split(',').map(str::trim).collect();
        assert_eq!(listed, TypeName::ALL.map(TypeName::as_str));
    }

    #[test]
    fn no_topic_has_the_name_of_a_command() {
        for (name, ..) in TOPICS {
            assert!(Cli::command().find_subcommand(name).is_none(), "{name}");
        }
    }

    #[test]
    fn topics_fit_on_a_terminal() {
        for (name, _, text) in TOPICS {
            assert!(text.lines().all(|line| line.len() <= 80), "{name}");
            assert!(text.lines().count() <= 60, "{name}");
        }
    }
}
