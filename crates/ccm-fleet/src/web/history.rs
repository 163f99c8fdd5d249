//! History of runs: the runs of a node with their events, changes and failures per day, and the nodes
//! that have been failing for the longest time. Read from the event stream on request by
//! [`crate::run_history`].
//!
//! The history of the whole fleet is kept for a short time, so that several open pages read it once.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::api::{ApiError, ApiResult, AppState};
use super::event_row::short;
use crate::node_reply::event_line;
use crate::run_history::{DayCounter, FailingSince, HistoryError, RunQuery, read_run};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::NodeName;
use ccm_core::model::run::{RunId, RunOutcome, RunSummary};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::{Connection, Subjects};
use ccm_value::text::go_time;

/// Number of days of the history.
const DAYS: u16 = 14;

/// Default and maximum number of runs of a node.
const DEFAULT_RUNS: usize = 50;
const MAX_RUNS: usize = 1_000;

/// Maximum number of events of a run.
const MAX_EVENTS: usize = 2_000;

/// Maximum number of runs that are counted for the fleet.
const MAX_COUNTED: u64 = 500_000;

/// Maximum number of failing nodes, and number of those that are read at the same time.
const MAX_FAILING: usize = 50;
const MAX_CONCURRENT: usize = 8;

/// Time for which the history of the fleet is kept.
const MAX_AGE: Duration = Duration::from_secs(15);

/// Reads runs from the event stream.
pub(super) struct HistoryReader {
    connection: Connection,
    subjects: Subjects,
    /// The last history of the fleet.
    fleet: Mutex<Option<(Instant, Value)>>,
}

impl HistoryReader {
    pub(super) fn new(connection: Connection, subjects: Subjects) -> Self {
        Self {
            connection,
            subjects,
            fleet: Mutex::const_new(None),
        }
    }

    /// Reads the history of the fleet. `failing` are the nodes whose last run failed.
    async fn fleet(&self, failing: Vec<NodeName>) -> Result<Value, HistoryError> {
        let mut counter = DayCounter::new(SystemClock.now(), DAYS);
        let since = counter.since();
        let mut count = 0;
        let mut unreadable = 0;
        for outcome in [RunOutcome::Changed, RunOutcome::Failed] {
            let query = RunQuery {
                nodes: Vec::new(),
                outcomes: vec![outcome],
                since,
                limit: 0,
            };
            let counting = query.for_each(&self.connection, &self.subjects, |run| {
                count += 1;
                counter.add(&run);
                count < MAX_COUNTED
            });
            unreadable += counting.await?.count;
        }
        let total = failing.len();
        let streaks = iter(failing.into_iter().take(MAX_FAILING)).map(|node| self.streak(node));
        let streaks: Vec<_> = streaks.buffered(MAX_CONCURRENT).collect().await;
        let streaks: Result<Vec<_>, HistoryError> = streaks.into_iter().collect();
        let mut streaks: Vec<FailingSince> = streaks?.into_iter().flatten().collect();
        streaks.sort_by_key(|it| (it.since, Reverse(it.runs)));
        Ok(json!({
            "days": counter.days(),
            "complete": count < MAX_COUNTED,
            "unreadable": unreadable,
            "failing": streaks,
            "failing_nodes": total,
        }))
    }

    /// Returns since when the runs of a node have failed.
    async fn streak(&self, node: NodeName) -> Result<Option<FailingSince>, HistoryError> {
        let query = RunQuery {
            nodes: vec![node],
            outcomes: Vec::new(),
            since: DayCounter::new(SystemClock.now(), DAYS).since(),
            limit: 0,
        };
        let mut streak: Option<FailingSince> = None;
        let reading = query.for_each(&self.connection, &self.subjects, |run| {
            streak = FailingSince::after(streak.take(), &run);
            true
        });
        reading.await?;
        Ok(streak.map(|mut streak| {
            streak.error = short(&streak.error);
            streak
        }))
    }
}

fn history_error(err: HistoryError) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, err)
}

/// History of the fleet.
pub(super) async fn fleet(State(app): State<Arc<AppState>>) -> ApiResult {
    // Other requests wait for the result instead of reading it again.
    let mut last = app.history.fleet.lock().await;
    if let Some((at, document)) = &*last
        && at.elapsed() < MAX_AGE
    {
        return Ok(Json(document.clone()));
    }
    let failing = app.shared.read().failing_nodes();
    let document = app.history.fleet(failing).await.map_err(history_error)?;
    *last = Some((Instant::now(), document.clone()));
    Ok(Json(document))
}

/// Query of the runs of a node.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RunsQuery {
    limit: Option<usize>,
}

/// Runs of a node, the newest first, and its changes per day.
pub(super) async fn runs(
    State(app): State<Arc<AppState>>,
    Path(name): Path<String>,
    query: Result<Query<RunsQuery>, QueryRejection>,
) -> ApiResult {
    let Query(query) = query.map_err(ApiError::bad_query)?;
    let node: NodeName = name.parse().map_err(ApiError::bad)?;
    let mut counter = DayCounter::new(SystemClock.now(), DAYS);
    let reader = &app.history;
    let query = RunQuery {
        nodes: vec![node],
        outcomes: Vec::new(),
        since: counter.since(),
        limit: query.limit.unwrap_or(DEFAULT_RUNS).min(MAX_RUNS),
    };
    let count = |run: &RunSummary| counter.add(run);
    let found = query.read(&reader.connection, &reader.subjects, count);
    let found = found.await.map_err(history_error)?;
    let runs: Vec<&RunSummary> = found.runs.iter().rev().collect();
    Ok(Json(json!({
        "runs": runs,
        "omitted": found.omitted,
        "unreadable": found.unreadable.count,
        "days": counter.days(),
    })))
}

/// A run of a node with its events.
pub(super) async fn run(
    State(app): State<Arc<AppState>>,
    Path((name, id)): Path<(String, String)>,
) -> ApiResult {
    let node: NodeName = name.parse().map_err(ApiError::bad)?;
    let parsed: RunId = id.parse().map_err(ApiError::bad)?;
    let reader = &app.history;
    // Older events are not searched, since there may be many.
    if parsed.time() < DayCounter::new(SystemClock.now(), DAYS + 1).since() {
        return Err(ApiError::not_found("run", &id));
    }
    let found = read_run(&reader.connection, &reader.subjects, &node, &parsed).await;
    let found = found.map_err(history_error)?;
    let found = found.ok_or_else(|| ApiError::not_found("run", &id))?;
    let omitted = found.events.len().saturating_sub(MAX_EVENTS);
    let events = found.events.iter().take(MAX_EVENTS).map(event_document);
    let events: Vec<Value> = events.collect();
    Ok(Json(json!({
        "run": found.run,
        "events": events,
        "omitted": omitted,
        "unreadable": found.unreadable,
    })))
}

/// Returns an event with everything that its command printed.
fn event_document((outcome, event): &(String, TransactionEvent)) -> Value {
    json!({
        "type": event.type_name,
        "name": event.name,
        "outcome": outcome,
        "text": short(&event_line(event)),
        "output": event.output,
        "at": go_time(&event.timestamp),
        "millis": u64::try_from(event.duration.as_millis()).unwrap_or(u64::MAX),
    })
}
