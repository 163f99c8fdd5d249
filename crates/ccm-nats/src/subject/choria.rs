//! Subjects defined by Choria, independent of our prefix and collective.

use super::Subject;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::Token;

/// Returns the subject of a lifecycle event of a component, such as `startup`.
pub fn lifecycle(event: &'static str, component: &Token) -> Subject {
    Subject(format!("choria.lifecycle.event.{event}.{component}"))
}

/// Returns the subject of state events of watchers of a type.
pub fn watcher_state(type_name: &'static str) -> Subject {
    Subject(format!("choria.machine.watcher.{type_name}.state"))
}

/// Returns the subject of a governor.
pub fn governor(collective: &Token, name: &GovernorName) -> Subject {
    Subject(format!("{collective}.governor.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_equal_those_of_choria() {
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
