//! Filtering and formatting of stored events.
//!
//! The node, type and outcome are taken from the subject, which NATS permissions protect. The body
//! is data from a node and is only displayed.

use chrono::{DateTime, Utc};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Args;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::run::RunSummary;
use ccm_fleet::node_reply::event_line;
use ccm_nats::event_feed::StoredEvent;
use ccm_nats::{Subject, Subjects};
use ccm_value::text::{go_time, to_the_second};

/// Event filter; an empty list matches everything.
pub(super) struct EventFilter {
    nodes: Vec<Token>,
    types: Vec<Token>,
    outcomes: Vec<Token>,
}

impl EventFilter {
    pub(super) fn of(args: &Args) -> Self {
        Self {
            nodes: args
                .named
                .iter()
                .chain(&args.node)
                .map(NodeName::token)
                .collect(),
            types: args.type_name.clone(),
            outcomes: args
                .outcome
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
        }
    }

    /// Returns the narrowest subject that covers the filter.
    pub(super) fn subject(&self, subjects: &Subjects) -> Subject {
        fn single(words: &[Token]) -> Option<&Token> {
            match words {
                [word] => Some(word),
                _ => None,
            }
        }
        subjects.events_matching(
            single(&self.nodes),
            single(&self.types),
            single(&self.outcomes),
        )
    }

    /// Parses a stored event if it matches the filter.
    pub(super) fn event(
        &self,
        subjects: &Subjects,
        sequence: u64,
        stored: &StoredEvent,
    ) -> Option<Event> {
        let (node, type_name, outcome) = subjects.parse_event(&stored.subject)?;
        let among = |words: &[Token], word: &str| {
            words.is_empty() || words.iter().any(|one| one.as_str() == word)
        };
        let is_match = among(&self.nodes, node.as_str())
            && among(&self.types, &type_name)
            && among(&self.outcomes, &outcome);
        is_match.then(|| Event {
            sequence,
            node: node.as_str().replace('_', "."),
            type_name,
            outcome,
            stored: stored.time,
            body: serde_json::from_slice(&stored.body).unwrap_or(Value::Null),
        })
    }
}

/// Event with the fields of its subject.
pub(super) struct Event {
    sequence: u64,
    node: String,
    type_name: String,
    outcome: String,
    stored: DateTime<Utc>,
    body: Value,
}

impl Event {
    /// Returns the event as JSON. `time` is when it was stored.
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

    /// Returns the event as a line of text without control characters, which a terminal would
    /// interpret.
    pub(super) fn line(&self) -> String {
        let (at, text) = self.description();
        let at = to_the_second(&at.unwrap_or(self.stored));
        let line = format!("{at} {} {text}", self.node);
        line.replace(char::is_control, " ")
    }

    /// Returns the time of the event, if the body has one, and its description.
    fn description(&self) -> (Option<DateTime<Utc>>, String) {
        if self.type_name == "run" {
            if let Ok(run) = RunSummary::deserialize(&self.body) {
                let error = match run.error.as_str() {
                    "" => String::new(),
                    error => format!(": {error}"),
                };
                let text = format!("run {} {}{error}", run.source, self.outcome);
                return (Some(run.timestamp), text);
            }
        } else if let Ok(event) = TransactionEvent::deserialize(&self.body) {
            return (Some(event.timestamp), event_line(&event));
        }
        (None, format!("{} {}", self.type_name, self.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_with_several_values_is_applied_locally() {
        let subjects = Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap();
        let token = |text: &str| text.parse::<Token>().unwrap();
        let filter = EventFilter {
            nodes: vec![token("web1"), token("web2_lan")],
            types: vec![token("file")],
            outcomes: Vec::new(),
        };
        assert_eq!(
            filter.subject(&subjects).as_str(),
            "ccm.v1.lab.event.*.file.*"
        );
        let stored = |subject: &str| StoredEvent {
            subject: subject.into(),
            body: "{}".into(),
            time: DateTime::UNIX_EPOCH,
        };
        let found = |node: &str, type_name: &str| {
            let subject = format!("ccm.v1.lab.event.{node}.{type_name}.changed");
            filter.event(&subjects, 7, &stored(&subject))
        };
        assert_eq!(found("web2_lan", "file").unwrap().node, "web2.lan");
        assert!(found("db1", "file").is_none());
        assert!(found("web1", "exec").is_none());
    }

    #[test]
    fn an_event_without_a_body_is_described_by_its_subject() {
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
