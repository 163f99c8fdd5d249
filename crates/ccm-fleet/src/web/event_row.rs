//! Event rows: events and run summaries as one line each, small enough to keep thousands.
//!
//! Texts come from nodes, so they are reduced to one line of printable characters. The line of a
//! resource event is made by [`super::super::node_reply`]; rows are kept in `live_state`.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::super::node_reply::event_line;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::health::HealthStatus;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::output::last_lines;
use ccm_core::model::run::RunSummary;
use ccm_nats::Subjects;
use ccm_nats::event_feed::StoredEvent;
use ccm_value::text::timestamp;

/// Maximum length of a text, in characters.
const MAX_TEXT: usize = 300;

/// Maximum number of lines of output; lines are shortened.
const MAX_OUTPUT_LINES: usize = 5;

/// Type of run summaries in subjects.
const RUN: &str = "run";

/// One event as a row of the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EventRow {
    /// Sequence number of the live state.
    pub(super) number: u64,
    pub(super) node: NodeName,
    #[serde(rename = "type")]
    pub(super) type_name: String,
    /// Name of the resource, or source of the run.
    pub(super) name: String,
    pub(super) outcome: String,
    pub(super) text: String,
    /// End of what its command printed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) output: String,
    #[serde(with = "timestamp")]
    pub(super) at: DateTime<Utc>,
    pub(super) millis: u64,
    /// The worst of its health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) health: Option<HealthStatus>,
}

/// A parsed event; `run` is set if it is a run summary.
pub(super) struct ParsedEvent {
    pub(super) row: EventRow,
    pub(super) run: Option<RunSummary>,
}

impl EventRow {
    /// Parses a stored event; none if its subject is not that of a node of the collective.
    pub(super) fn parse(subjects: &Subjects, stored: &StoredEvent) -> Option<ParsedEvent> {
        let (token, type_name, outcome) = subjects.parse_event(&stored.subject)?;
        let node = name_of(&token)?;
        let mut row = Self {
            number: 0,
            text: format!("{type_name} {outcome}"),
            output: String::new(),
            node,
            type_name,
            name: String::new(),
            outcome,
            at: stored.time,
            millis: 0,
            health: None,
        };
        let mut run = None;
        if row.type_name == RUN {
            let summary: Option<RunSummary> = serde_json::from_slice(&stored.body).ok();
            // The run must have the identity of the subject.
            run = summary.filter(|run| run.identity == row.node);
            if let Some(run) = &run {
                row.set_run(run);
            }
        } else if let Ok(event) = serde_json::from_slice::<TransactionEvent>(&stored.body) {
            row.set_event(&event);
        }
        Some(ParsedEvent { row, run })
    }

    fn set_run(&mut self, run: &RunSummary) {
        let error = match run.error.as_str() {
            "" => String::new(),
            error => format!(": {error}"),
        };
        self.name = short(&run.source);
        self.text = short(&format!("run {} {}{error}", run.source, self.outcome));
        self.at = run.timestamp;
        self.millis = millis(run.summary.total_duration);
    }

    fn set_event(&mut self, event: &TransactionEvent) {
        self.name = short(&event.name);
        self.text = short(&event_line(event));
        self.output = last_lines(&event.output, MAX_OUTPUT_LINES).join("\n");
        self.at = event.timestamp;
        self.millis = millis(event.duration);
        let checks = event.health_check.iter();
        let results = checks.map(|it| it.as_ref().map_or(HealthStatus::Unknown, |it| it.status));
        self.health = results.max_by_key(|status| severity(*status));
    }

    pub(super) fn is_failure(&self) -> bool {
        self.outcome == "failed"
    }

    pub(super) fn is_run(&self) -> bool {
        self.type_name == RUN
    }

    #[cfg(test)]
    pub(super) fn example(number: u64, node: &str, name: &str, outcome: &str) -> Self {
        Self {
            number,
            node: node.parse().unwrap(),
            type_name: "file".into(),
            name: name.into(),
            outcome: outcome.into(),
            text: format!("file#{name} {outcome}"),
            output: String::new(),
            at: DateTime::UNIX_EPOCH,
            millis: 1,
            health: None,
        }
    }
}

fn severity(status: HealthStatus) -> u8 {
    match status {
        HealthStatus::Ok => 0,
        HealthStatus::Unknown => 1,
        HealthStatus::Warning => 2,
        HealthStatus::Critical => 3,
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the node of a token. Node names have no `_`, so a token maps back to the name.
pub(super) fn name_of(token: &Token) -> Option<NodeName> {
    token.as_str().replace('_', ".").parse().ok()
}

/// Returns a text as one line of printable characters, cut to [`MAX_TEXT`].
pub(super) fn short(text: &str) -> String {
    let plain = |c: char| match c.is_control() {
        true => ' ',
        false => c,
    };
    let mut line: String = text.trim().chars().take(MAX_TEXT).map(plain).collect();
    if text.trim().chars().nth(MAX_TEXT).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects() -> Subjects {
        Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap()
    }

    fn stored(subject: &str, body: &str) -> StoredEvent {
        StoredEvent {
            subject: subject.into(),
            body: body.to_owned().into(),
            time: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_event_that_can_not_be_parsed_is_described_by_its_subject() {
        let stored = stored("ccm.v1.lab.event.web1_lan.file.changed", "{");
        let event = EventRow::parse(&subjects(), &stored).unwrap();
        assert_eq!(event.row.node.as_str(), "web1.lan");
        assert_eq!(event.row.text, "file changed");
        assert!(event.run.is_none());
    }

    #[test]
    fn events_of_other_collectives_are_ignored() {
        let stored = stored("ccm.v1.prod.event.web1.file.changed", "{}");
        assert!(EventRow::parse(&subjects(), &stored).is_none());
    }

    #[test]
    fn a_run_with_the_identity_of_another_node_is_ignored() {
        let run = crate::fixture::run("db1", ccm_core::model::run::RunOutcome::Failed, 1);
        let body = serde_json::to_string(&run).unwrap();
        let stored = stored("ccm.v1.lab.event.web1.run.failed", &body);
        let event = EventRow::parse(&subjects(), &stored).unwrap();
        assert!(event.run.is_none());
    }

    #[test]
    fn control_characters_and_long_texts_are_cut() {
        let text = short(&format!("a\u{1b}[2J\nb{}", "é".repeat(1000)));
        assert!(text.starts_with("a [2J b"), "{text}");
        assert_eq!(text.chars().count(), MAX_TEXT + 1);
    }
}
