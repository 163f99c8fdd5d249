//! Events as the page shows them: one line each, small enough to keep thousands.
//!
//! Events are the words of nodes. Texts are cut to one line of plain characters; what a line says
//! is decided by [`super::super::node_reply`]. Where events are kept is `live`.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::super::node_reply::line_of;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::health::HealthStatus;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::run::RunSummary;
use ccm_nats::Subjects;
use ccm_nats::event_feed::Stored;
use ccm_value::text::timestamp;

/// The longest text that is kept of a node's words.
const MAX_TEXT: usize = 300;

/// The type that summaries of runs have in subjects.
const RUN: &str = "run";

/// One event, told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EventRow {
    /// Grows from event to event.
    pub(super) number: u64,
    pub(super) node: NodeName,
    #[serde(rename = "type")]
    pub(super) type_name: String,
    /// The resource, or what was applied.
    pub(super) name: String,
    pub(super) outcome: String,
    pub(super) text: String,
    #[serde(with = "timestamp")]
    pub(super) at: DateTime<Utc>,
    pub(super) millis: u64,
    /// The worst of its health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) health: Option<HealthStatus>,
}

/// An event as it is heard, with the run that it sums up, if it does.
pub(super) struct Told {
    pub(super) happening: EventRow,
    pub(super) run: Option<RunSummary>,
}

impl EventRow {
    /// Reads a stored event; nothing comes of what names no node of ours.
    pub(super) fn read(subjects: &Subjects, stored: &Stored) -> Option<Told> {
        let (token, type_name, outcome) = subjects.read_event(&stored.subject)?;
        let node = name_of(&token)?;
        let mut happening = Self {
            number: 0,
            text: format!("{type_name} {outcome}"),
            node,
            type_name,
            name: String::new(),
            outcome,
            at: stored.time,
            millis: 0,
            health: None,
        };
        let mut run = None;
        if happening.type_name == RUN {
            let summary: Option<RunSummary> = serde_json::from_slice(&stored.body).ok();
            // Nobody speaks for another node.
            run = summary.filter(|run| run.identity == happening.node);
            if let Some(run) = &run {
                happening.tell_run(run);
            }
        } else if let Ok(event) = serde_json::from_slice::<TransactionEvent>(&stored.body) {
            happening.tell(&event);
        }
        Some(Told { happening, run })
    }

    fn tell_run(&mut self, run: &RunSummary) {
        let error = match run.error.as_str() {
            "" => String::new(),
            error => format!(": {error}"),
        };
        self.name = short(&run.source);
        self.text = short(&format!("run {} {}{error}", run.source, self.outcome));
        self.at = run.timestamp;
        self.millis = millis(run.summary.total_duration);
    }

    fn tell(&mut self, event: &TransactionEvent) {
        self.name = short(&event.name);
        self.text = short(&line_of(event));
        self.at = event.timestamp;
        self.millis = millis(event.duration);
        let checks = event.health_check.iter();
        let results = checks.map(|it| it.as_ref().map_or(HealthStatus::Unknown, |it| it.status));
        self.health = results.max_by_key(|status| badness(*status));
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
            at: DateTime::UNIX_EPOCH,
            millis: 1,
            health: None,
        }
    }
}

fn badness(status: HealthStatus) -> u8 {
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

/// Returns the node of a token. Names hold no `_`, so a token leads back to its name.
pub(super) fn name_of(token: &Token) -> Option<NodeName> {
    token.as_str().replace('_', ".").parse().ok()
}

/// Returns a text as one line of plain characters, cut where it gets long.
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

    fn stored(subject: &str, body: &str) -> Stored {
        Stored {
            subject: subject.into(),
            body: body.to_owned().into(),
            time: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_event_that_cannot_be_read_is_told_by_its_subject() {
        let stored = stored("ccm.v1.lab.event.web1_lan.file.changed", "{");
        let told = EventRow::read(&subjects(), &stored).unwrap();
        assert_eq!(told.happening.node.as_str(), "web1.lan");
        assert_eq!(told.happening.text, "file changed");
        assert!(told.run.is_none());
    }

    #[test]
    fn events_of_other_collectives_are_not_ours() {
        let stored = stored("ccm.v1.prod.event.web1.file.changed", "{}");
        assert!(EventRow::read(&subjects(), &stored).is_none());
    }

    #[test]
    fn a_run_that_speaks_for_another_node_says_nothing() {
        let run = super::super::fixture::run("db1", ccm_core::model::run::RunOutcome::Failed, 1);
        let body = serde_json::to_string(&run).unwrap();
        let stored = stored("ccm.v1.lab.event.web1.run.failed", &body);
        let told = EventRow::read(&subjects(), &stored).unwrap();
        assert!(told.run.is_none());
    }

    #[test]
    fn hostile_texts_become_one_short_line() {
        let text = short(&format!("a\u{1b}[2J\nb{}", "é".repeat(1000)));
        assert!(text.starts_with("a [2J b"), "{text}");
        assert_eq!(text.chars().count(), MAX_TEXT + 1);
    }
}
