//! The subjects that Choria's own tools listen on. They are given, not chosen: nothing of our
//! prefix or collective is in them.

use super::Subject;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::Token;

/// Returns where news of the lifecycle of a component goes, such as `startup`.
pub fn lifecycle(news: &'static str, component: &Token) -> Subject {
    Subject(format!("choria.lifecycle.event.{news}.{component}"))
}

/// Returns where watchers of a type tell their state.
pub fn watcher_state(type_name: &'static str) -> Subject {
    Subject(format!("choria.machine.watcher.{type_name}.state"))
}

/// Returns where a slot in a governor is asked for.
pub fn governor(collective: &Token, name: &GovernorName) -> Subject {
    Subject(format!("{collective}.governor.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_those_the_tools_listen_on() {
        let token = |text: &str| text.parse::<Token>().unwrap();
        for (subject, text) in [
            (
                lifecycle("startup", &token("ccm")),
                "choria.lifecycle.event.startup.ccm",
            ),
            (
                watcher_state("nagios"),
                "choria.machine.watcher.nagios.state",
            ),
            (
                governor(&token("mcollective"), &"deploys".parse().unwrap()),
                "mcollective.governor.deploys",
            ),
        ] {
            assert_eq!(subject.as_str(), text);
            assert!(text.parse::<Subject>().is_ok());
        }
    }
}
