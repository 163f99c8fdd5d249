//! One stored event: whether it is wanted, and how it is shown to people and to machines.
//!
//! An event is the words of a node. What its subject says is believed, because the servers check
//! who may write there; what its body says is shown.

use chrono::{DateTime, Utc};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Args;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::run::RunSummary;
use ccm_fleet::node_reply::line_of;
use ccm_nats::event_feed::Stored;
use ccm_nats::{Subject, Subjects};
use ccm_value::text::{go_time, to_the_second};

/// Which events are wanted; of each kind any will do, and none given means all.
pub(super) struct Wanted {
    nodes: Vec<Token>,
    types: Vec<Token>,
    outcomes: Vec<Token>,
}

impl Wanted {
    pub(super) fn of(args: &Args) -> Self {
        Self {
            nodes: args.node.iter().map(NodeName::token).collect(),
            types: args.type_name.clone(),
            outcomes: args
                .outcome
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
        }
    }

    /// Returns the narrowest subject that covers them; servers send nothing else.
    pub(super) fn subject(&self, subjects: &Subjects) -> Subject {
        fn single(words: &[Token]) -> Option<&Token> {
            match words {
                [word] => Some(word),
                _ => None,
            }
        }
        subjects.events_like(
            single(&self.nodes),
            single(&self.types),
            single(&self.outcomes),
        )
    }

    /// Reads a stored event, if it is wanted.
    pub(super) fn event(
        &self,
        subjects: &Subjects,
        sequence: u64,
        stored: &Stored,
    ) -> Option<Event> {
        let (node, type_name, outcome) = subjects.read_event(&stored.subject)?;
        let among = |words: &[Token], word: &str| {
            words.is_empty() || words.iter().any(|one| one.as_str() == word)
        };
        let is_wanted = among(&self.nodes, node.as_str())
            && among(&self.types, &type_name)
            && among(&self.outcomes, &outcome);
        is_wanted.then(|| Event {
            sequence,
            node: node.as_str().replace('_', "."),
            type_name,
            outcome,
            stored: stored.time,
            body: serde_json::from_slice(&stored.body).unwrap_or(Value::Null),
        })
    }
}

/// An event, with what its subject says about it.
pub(super) struct Event {
    sequence: u64,
    node: String,
    type_name: String,
    outcome: String,
    stored: DateTime<Utc>,
    body: Value,
}

impl Event {
    /// Returns the event for machines. `time` is when it was stored.
    pub(super) fn document(&self) -> Value {
        json!({
            "seq": self.sequence,
            "time": go_time(&self.stored),
            "node": self.node,
            "type": self.type_name,
            "outcome": self.outcome,
            "event": self.body,
        })
    }

    /// Returns the event as a line for people. Events are the words of nodes: nothing in them
    /// reaches a terminal as a command.
    pub(super) fn line(&self) -> String {
        let (at, what) = self.told();
        let at = to_the_second(&at.unwrap_or(self.stored));
        let line = format!("{at} {} {what}", self.node);
        line.replace(char::is_control, " ")
    }

    /// Returns when it happened, as far as it says, and what.
    fn told(&self) -> (Option<DateTime<Utc>>, String) {
        if self.type_name == "run" {
            if let Ok(run) = RunSummary::deserialize(&self.body) {
                let error = match run.error.as_str() {
                    "" => String::new(),
                    error => format!(": {error}"),
                };
                let what = format!("run {} {}{error}", run.source, self.outcome);
                return (Some(run.timestamp), what);
            }
        } else if let Ok(event) = TransactionEvent::deserialize(&self.body) {
            return (Some(event.timestamp), line_of(&event));
        }
        (None, format!("{} {}", self.type_name, self.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_wishes_of_a_kind_are_sorted_out_here() {
        let subjects = Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap();
        let token = |text: &str| text.parse::<Token>().unwrap();
        let wanted = Wanted {
            nodes: vec![token("web1"), token("web2_lan")],
            types: vec![token("file")],
            outcomes: Vec::new(),
        };
        assert_eq!(
            wanted.subject(&subjects).as_str(),
            "ccm.v1.lab.event.*.file.*"
        );
        let stored = |subject: &str| Stored {
            subject: subject.into(),
            body: "{}".into(),
            time: DateTime::UNIX_EPOCH,
        };
        let found = |node: &str, type_name: &str| {
            let subject = format!("ccm.v1.lab.event.{node}.{type_name}.changed");
            wanted.event(&subjects, 7, &stored(&subject))
        };
        assert_eq!(found("web2_lan", "file").unwrap().node, "web2.lan");
        assert!(found("db1", "file").is_none());
        assert!(found("web1", "exec").is_none());
    }

    #[test]
    fn an_event_that_says_nothing_is_told_by_its_subject() {
        let event = Event {
            sequence: 7,
            node: "web1".into(),
            type_name: "fi\u{1b}le".into(),
            outcome: "changed".into(),
            stored: DateTime::UNIX_EPOCH,
            body: Value::Null,
        };
        assert_eq!(event.line(), "1970-01-01T00:00:00Z web1 fi le changed");
    }
}
