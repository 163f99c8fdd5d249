//! Subjects defined by Choria, independent of our prefix and collective.

use super::Subject;
use crate::NatsError;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::{NodeName, Token};

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

/// Returns the subject of requests to all nodes with an agent.
pub fn broadcast(collective: &Token, agent: &str) -> Result<Subject, NatsError> {
    format!("{collective}.broadcast.agent.{agent}").parse()
}

/// Returns the subject of requests to one node.
pub fn directed(collective: &Token, node: &NodeName) -> Result<Subject, NatsError> {
    format!("{collective}.node.{node}").parse()
}

/// Returns the subject of a reply as its request names it: that of a client in one of the
/// collectives, or of a federation broker. Other subjects are refused, so that nobody makes a node
/// publish where only nodes may.
pub fn reply(collectives: &[Token], text: &str) -> Option<Subject> {
    let is_client = |collective: &Token| {
        let rest = text.strip_prefix(collective.as_str());
        rest.is_some_and(|rest| rest.starts_with(".reply."))
    };
    let is_known = text.starts_with("choria.federation.") || collectives.iter().any(is_client);
    let is_plain = !text.contains(['*', '>']);
    text.parse().ok().filter(|_| is_known && is_plain)
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
            (
                broadcast(&token("mcollective"), "rpcutil").unwrap(),
                "mcollective.broadcast.agent.rpcutil",
            ),
            (
                directed(&token("ops"), &"web1.example.net".parse().unwrap()).unwrap(),
                "ops.node.web1.example.net",
            ),
        ] {
            assert_eq!(subject.as_str(), text);
            assert!(text.parse::<Subject>().is_ok());
        }
    }

    #[test]
    fn replies_go_to_clients_and_federation_brokers_only() {
        let collectives = ["mcollective".parse().unwrap(), "ops".parse().unwrap()];
        for text in [
            "mcollective.reply.0123.4567",
            "ops.reply.0123.4567",
            "choria.federation.eu.collective",
        ] {
            assert_eq!(reply(&collectives, text).unwrap().as_str(), text);
        }
        for text in [
            "",
            "dev.null",
            "other.reply.0123.4567",
            "opsx.reply.0123",
            "ops.reply.*",
            "ops.reply.>",
            "ops.reply.a b",
            "ops.broadcast.agent.ccm",
            "ccm.v1.default.all.apply",
        ] {
            assert!(reply(&collectives, text).is_none(), "{text}");
        }
    }
}
