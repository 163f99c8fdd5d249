//! History of runs, from the run summaries and events in the event stream.
//!
//! Node and outcome are those of the subjects, which NATS permissions protect; a summary of another
//! node is unreadable. Unreadable summaries are counted.

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use serde::Serialize;

pub use super::records::UnreadableEvents;
use super::records::{self, BadRecord};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{NameError, NodeName, Token};
use ccm_core::model::run::{RunId, RunOutcome, RunSummary};
use ccm_nats::event_feed::{ReadOptions, StoredEvent};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::text::timestamp;

/// Type of run summaries in subjects.
const RUN: &str = "run";

/// Maximum number of events that are searched for those of one run.
const MAX_SEARCHED: usize = 20_000;

/// How far the clock of a node may be ahead of that of the NATS server. The id of a run has the
/// second in which it began on the node; events are found by the time of their storage.
const MAX_CLOCK_OFFSET: TimeDelta = TimeDelta::minutes(15);

/// Why runs can't be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// Which runs to read.
#[derive(Clone, Debug)]
pub struct RunQuery {
    /// Runs of these nodes; of all nodes if empty.
    pub nodes: Vec<NodeName>,
    /// Runs with these outcomes; with any if empty.
    pub outcomes: Vec<RunOutcome>,
    /// Runs stored at or after this time.
    pub since: DateTime<Utc>,
    /// Maximum number of runs, the newest ones.
    pub limit: usize,
}

/// The runs of a query, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    pub runs: VecDeque<RunSummary>,
    /// Number of earlier runs that are left out.
    pub omitted: usize,
    pub unreadable: UnreadableEvents,
}

impl RunQuery {
    /// Reads the newest runs. `visit` is called with every run, also with those that are left out.
    pub async fn read(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        mut visit: impl FnMut(&RunSummary),
    ) -> Result<Runs, HistoryError> {
        let mut found = Runs::default();
        let reading = self.for_each(connection, subjects, |run| {
            visit(&run);
            if found.runs.len() >= self.limit {
                found.runs.pop_front();
                found.omitted += 1;
            }
            found.runs.push_back(run);
            true
        });
        found.unreadable = reading.await?;
        Ok(found)
    }

    /// Calls `each` for every run, the oldest first, until it returns false. Returns the runs that can't
    /// be read.
    pub async fn for_each(
        &self,
        connection: &Connection,
        subjects: &Subjects,
        mut each: impl FnMut(RunSummary) -> bool,
    ) -> Result<UnreadableEvents, HistoryError> {
        let nodes: Vec<Token> = self.nodes.iter().map(NodeName::token).collect();
        let outcome = match self.outcomes.as_slice() {
            [outcome] => Some(outcome.as_str().parse()?),
            _ => None,
        };
        let node = match nodes.as_slice() {
            [node] => Some(node),
            _ => None,
        };
        let options = ReadOptions {
            filter: subjects.events_matching(node, Some(&RUN.parse()?), outcome.as_ref()),
            since: Some(self.since),
            follow: false,
        };
        let mut unreadable = UnreadableEvents::default();
        let reading = connection.read_events(&options, |stored| {
            match self.run_of(subjects, &nodes, &stored) {
                Some(Ok(run)) => each(run),
                Some(Err(reason)) => {
                    unreadable.add(stored, reason);
                    true
                }
                None => true,
            }
        });
        reading.await?;
        Ok(unreadable)
    }

    /// Parses a run summary if its subject matches.
    fn run_of(
        &self,
        subjects: &Subjects,
        nodes: &[Token],
        stored: &StoredEvent,
    ) -> Option<Result<RunSummary, BadRecord>> {
        let (node, _, outcome) = subjects.parse_event(&stored.subject)?;
        let is_node = nodes.is_empty() || nodes.contains(&node);
        let is_outcome =
            self.outcomes.is_empty() || self.outcomes.iter().any(|it| it.as_str() == outcome);
        if !is_node || !is_outcome {
            return None;
        }
        Some(parse_run(&stored.body, &node))
    }
}

/// Parses a run summary, which must be of the node of its subject.
fn parse_run(body: &[u8], node: &Token) -> Result<RunSummary, BadRecord> {
    let run: RunSummary = records::parse_json(body)?;
    match run.identity.token() == *node {
        true => Ok(run),
        false => Err(BadRecord::OtherNode(run.identity)),
    }
}

/// A run with its events.
#[derive(Clone, Debug)]
pub struct RunEvents {
    pub run: RunSummary,
    /// Outcomes and events, in the order of the run.
    pub events: Vec<(String, TransactionEvent)>,
    /// Number of events that can't be read.
    pub unreadable: usize,
}

/// Reads a run and its events; none if the run is not stored. The events of a node are stored in
/// order, and the summary of a run after its events.
pub async fn read_run(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeName,
    id: &RunId,
) -> Result<Option<RunEvents>, HistoryError> {
    let token = node.token();
    let options = ReadOptions {
        filter: subjects.events_matching(Some(&token), None, None),
        since: id.time().checked_sub_signed(MAX_CLOCK_OFFSET),
        follow: false,
    };
    let mut events: VecDeque<(String, TransactionEvent)> = VecDeque::new();
    let mut unreadable = 0;
    let mut found = None;
    let reading = connection.read_events(&options, |stored| {
        let Some((_, type_name, outcome)) = subjects.parse_event(&stored.subject) else {
            return true;
        };
        if type_name == RUN {
            match parse_run(&stored.body, &token) {
                Ok(run) if run.run_id == *id => found = Some(run),
                // What can't be read and was stored before is of an earlier run.
                Ok(_) => unreadable = 0,
                Err(_) => unreadable += 1,
            }
            return found.is_none();
        }
        match records::parse_json(&stored.body) {
            Ok(event) => {
                if events.len() >= MAX_SEARCHED {
                    events.pop_front();
                }
                events.push_back((outcome, event));
            }
            Err(_) => unreadable += 1,
        }
        true
    });
    reading.await?;
    Ok(found.map(|run| {
        events.retain(|(_, event)| is_part_of(event, &run));
        RunEvents {
            run,
            events: events.into(),
            unreadable,
        }
    }))
}

/// Reports whether an event happened during a run. A node has one run at a time.
fn is_part_of(event: &TransactionEvent, run: &RunSummary) -> bool {
    run.summary.start_time <= event.timestamp && event.timestamp <= run.timestamp
}

/// Changes and failures of one day, in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Day {
    /// As `2027-01-15`.
    pub day: String,
    /// Number of runs that changed something or failed.
    pub runs: u64,
    /// Numbers of changed and of failed resources.
    pub changed: u64,
    pub failed: u64,
}

/// Counts runs per day, including days without runs.
#[derive(Clone, Debug)]
pub struct DayCounter(BTreeMap<NaiveDate, Day>);

impl DayCounter {
    /// Returns a counter for the last days until `now`.
    pub fn new(now: DateTime<Utc>, days: u16) -> Self {
        let last = now.date_naive();
        let days = (0..i64::from(days)).filter_map(|age| {
            let day = last.checked_sub_signed(TimeDelta::days(age))?;
            let empty = Day {
                day: day.to_string(),
                runs: 0,
                changed: 0,
                failed: 0,
            };
            Some((day, empty))
        });
        Self(days.collect())
    }

    /// Returns the start of the first day.
    pub fn since(&self) -> DateTime<Utc> {
        let first = self.0.keys().next();
        let start = first.and_then(|day| day.and_hms_opt(0, 0, 0));
        start.map_or(DateTime::UNIX_EPOCH, |start| start.and_utc())
    }

    /// Counts a run. Noop runs changed nothing.
    pub fn add(&mut self, run: &RunSummary) {
        let is_counted = matches!(run.outcome, RunOutcome::Changed | RunOutcome::Failed);
        let Some(day) = self.0.get_mut(&run.timestamp.date_naive()) else {
            return;
        };
        if !is_counted || run.noop {
            return;
        }
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let summary = &run.summary;
        day.runs += 1;
        day.changed = day
            .changed
            .saturating_add(number(summary.changed_resources));
        // A run that ended early has failed without a failed resource.
        let failures = match run.outcome {
            RunOutcome::Failed => summary.failed_resources.max(1),
            _ => summary.failed_resources,
        };
        day.failed = day.failed.saturating_add(number(failures));
    }

    /// Returns the days, the oldest first.
    pub fn days(self) -> Vec<Day> {
        self.0.into_values().collect()
    }
}

/// Consecutive failed runs of a node, up to its last run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailingSince {
    pub node: NodeName,
    /// Time of the first of them.
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
    pub runs: u64,
    /// Error of the last one.
    pub error: String,
}

impl FailingSince {
    /// Returns the streak of failures after another run of the node; none if the run did not fail.
    pub fn after(previous: Option<Self>, run: &RunSummary) -> Option<Self> {
        match run.outcome {
            RunOutcome::Failed => {}
            // Nothing was applied, so nothing is known.
            RunOutcome::Skipped | RunOutcome::Noop => return previous,
            RunOutcome::Changed | RunOutcome::Stable => return None,
        }
        Some(Self {
            node: run.identity.clone(),
            since: previous.as_ref().map_or(run.timestamp, |it| it.since),
            runs: previous.map_or(0, |it| it.runs).saturating_add(1),
            error: run.error.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::run;

    const DAY: i64 = 86_400;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    #[test]
    fn days_without_runs_are_listed_and_other_days_are_ignored() {
        let mut counter = DayCounter::new(at(3 * DAY + 10), 3);
        assert_eq!(counter.since(), at(DAY));
        for (second, outcome, changed) in [
            (5, RunOutcome::Changed, 9),
            (DAY + 1, RunOutcome::Changed, 2),
            (DAY + 2, RunOutcome::Changed, 3),
            (DAY + 3, RunOutcome::Stable, 0),
            (3 * DAY + 1, RunOutcome::Failed, 1),
        ] {
            let mut run = run("web1", outcome, second);
            run.summary.changed_resources = changed;
            counter.add(&run);
        }
        let days = counter.days();
        let counts = days.iter().map(|it| (it.runs, it.changed, it.failed));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(2, 5, 0), (0, 0, 0), (1, 1, 1)]
        );
    }

    #[test]
    fn a_streak_of_failures_begins_after_the_last_good_run() {
        let runs = [
            (1, RunOutcome::Failed),
            (2, RunOutcome::Stable),
            (3, RunOutcome::Failed),
            (4, RunOutcome::Skipped),
            (5, RunOutcome::Failed),
        ];
        let found = runs.iter().fold(None, |streak, (second, outcome)| {
            FailingSince::after(streak, &run("web1", *outcome, *second))
        });
        let found = found.unwrap();
        assert_eq!((found.since, found.runs), (at(3), 2));
        assert_eq!(
            FailingSince::after(Some(found), &run("web1", RunOutcome::Changed, 6)),
            None
        );
    }
}
