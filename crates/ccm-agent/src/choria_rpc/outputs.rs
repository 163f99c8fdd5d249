//! Outputs of the actions, with the field names of the DDL, built from run records.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::reply::{ActionReply, Failure};
use super::run_store::{Record, RunResult, RunStore, State};
use ccm_core::model::run::RunId;
use ccm_template::env::Facts;
use ccm_template::path;
use ccm_value::text::go_time;

/// State if there never was a run.
const NO_RUN: &str = "none";

/// Output of `apply` and `run_status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ApplyOutput {
    pub run_id: String,
    pub action: String,
    pub source: String,
    pub state: String,
    pub outcome: String,
    pub noop: bool,
    pub started: String,
    pub ended: String,
    pub total: usize,
    pub changed: usize,
    pub failed: usize,
    pub error: String,
    pub waiting_for: String,
    pub summary: Value,
    pub events: Value,
    pub omitted: usize,
}

/// Output of `ensure`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EnsureOutput {
    pub run_id: String,
    pub state: String,
    pub changed: bool,
    pub failed: bool,
    pub skipped: bool,
    pub noop: bool,
    pub ensure: String,
    pub message: String,
    pub event: Value,
}

/// Output of `status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusOutput {
    pub ensure: String,
    pub state: Value,
}

/// Output of `facts`: one of both.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FactsOutput {
    /// Result of a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// All facts, without a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<Value>,
}

/// Output of `ping`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PingOutput {
    pub identity: String,
    pub version: String,
    pub paused: bool,
    pub pause_reason: String,
    pub current_run: String,
    pub last_run: String,
    pub state: String,
    pub summary: Value,
}

impl StatusOutput {
    /// Returns the output for the state of a resource.
    pub fn of(state: &ccm_core::model::state::State) -> Result<Self, Failure> {
        Ok(Self {
            ensure: state.common.ensure.clone(),
            state: serde_json::to_value(state).map_err(Failure::unknown)?,
        })
    }
}

impl FactsOutput {
    /// Returns the fact that a query finds, or all facts without a query.
    pub fn of(facts: &Facts, query: Option<&str>) -> Result<Self, Failure> {
        let found = match query {
            None => Some(facts.all()),
            Some(query) => {
                // Gather only one section if the query starts with its plain name.
                let first = query.split(['.', '|']).next().unwrap_or_default();
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let root = if !first.is_empty() && first.chars().all(is_plain) {
                    let section = facts.section(first);
                    section.map(|section| [(first, section)].into_iter().collect())
                } else {
                    Some(facts.all())
                };
                root.and_then(|root: ccm_value::Value| path::find(&root, query))
            }
        };
        let found = found.ok_or_else(|| Failure::aborted("no fact matches the query"))?;
        let found = serde_json::to_value(&found).map_err(Failure::unknown)?;
        // Clients summarize `value`, which would repeat all facts.
        let (value, facts) = match query {
            Some(_) => (Some(found), None),
            None => (None, Some(found)),
        };
        Ok(Self { value, facts })
    }
}

impl PingOutput {
    /// Returns the output of a node. `pause` is the reason of its pause, `current` its active run.
    pub fn of(
        identity: &str,
        pause: Option<String>,
        current: Option<RunId>,
        store: &RunStore,
    ) -> Result<Self, Failure> {
        let (last_run, state) = match store.latest().map_err(Failure::unknown)? {
            Some((record, state)) => (record.run_id.to_string(), state.as_str()),
            None => (String::new(), NO_RUN),
        };
        let over = store.latest_ended().map_err(Failure::unknown)?;
        let result = over.and_then(|(record, _)| record.result);
        Ok(Self {
            identity: identity.into(),
            version: crate::VERSION.into(),
            paused: pause.is_some(),
            pause_reason: pause.unwrap_or_default(),
            current_run: current.map(|id| id.to_string()).unwrap_or_default(),
            last_run,
            state: state.into(),
            summary: summary(result.as_ref())?,
        })
    }
}

/// Returns the output of `run_status` for a run, or for the latest one.
pub fn run_status(store: &RunStore, id: Option<RunId>) -> Result<ActionReply, Failure> {
    let found = match &id {
        Some(id) => store.find(id),
        None => store.latest(),
    };
    match (found.map_err(Failure::unknown)?, id) {
        (Some((record, state)), _) => ActionReply::new(&apply_output(&record, state)?),
        (None, Some(id)) => Err(Failure::invalid(format!("run {id} is not known"))),
        (None, None) => ActionReply::new(&no_run()),
    }
}

/// Returns the failure of a run, if it failed.
pub fn failure_of(record: &Record, state: State) -> Option<Failure> {
    let id = &record.run_id;
    match (state, &record.result) {
        (State::Lost, _) => Some(Failure::aborted(format!(
            "run {id} was lost: its process is gone"
        ))),
        (State::Failed, Some(result)) if result.is_invalid => Some(Failure::invalid(&result.error)),
        (State::Failed, Some(result)) if !result.error.is_empty() => {
            Some(Failure::aborted(format!("run {id}: {}", result.error)))
        }
        (State::Failed, Some(RunResult { events, .. })) => Some(match events.first() {
            Some(event) => {
                Failure::aborted(format!("{} failed: {}", event.resource, event.message))
            }
            None => Failure::aborted(format!("run {id} failed")),
        }),
        _ => None,
    }
}

/// Returns the output for a run.
pub fn apply_output(record: &Record, state: State) -> Result<ApplyOutput, Failure> {
    let result = record.result.as_ref();
    let count = |count: fn(&RunResult) -> usize| result.map(count).unwrap_or_default();
    let events = result.map(|result| serde_json::to_value(&result.events));
    let events = events.transpose().map_err(Failure::unknown)?;
    Ok(ApplyOutput {
        run_id: record.run_id.to_string(),
        action: record.action.clone(),
        source: record.source.clone(),
        state: state.as_str().into(),
        outcome: result
            .map(|result| result.outcome.as_str().to_owned())
            .unwrap_or_default(),
        noop: record.noop,
        started: go_time(&record.started),
        ended: record.ended.as_ref().map(go_time).unwrap_or_default(),
        total: count(|result| result.summary.total_resources),
        changed: count(|result| result.summary.changed_resources),
        failed: count(|result| result.summary.failed_resources),
        error: result
            .map(|result| result.error.clone())
            .unwrap_or_default(),
        waiting_for: match state {
            State::Running => record.waiting_for.clone(),
            _ => String::new(),
        },
        summary: summary(result)?,
        events: events.unwrap_or_else(|| Vec::<Value>::new().into()),
        omitted: count(|result| result.omitted),
    })
}

fn summary(result: Option<&RunResult>) -> Result<Value, Failure> {
    match result {
        Some(result) => serde_json::to_value(&result.summary).map_err(Failure::unknown),
        None => Ok(Map::new().into()),
    }
}

/// Returns the output for a run of one resource.
pub fn ensure_output(record: &Record, state: State) -> EnsureOutput {
    let result = record.result.as_ref();
    let event = result.and_then(|result| result.event.as_ref());
    let field = |key: &str| event.and_then(|event| event.get(key));
    let is = |key: &str| field(key).and_then(Value::as_bool).unwrap_or_default();
    let message = match (state, result) {
        (State::Running, _) => format!("still running: query run_status for {}", record.run_id),
        (_, Some(result)) if !result.error.is_empty() => result.error.clone(),
        // A stable resource has no message.
        (_, result) => result
            .and_then(|result| result.events.first())
            .map(|brief| brief.message.clone())
            .unwrap_or_default(),
    };
    EnsureOutput {
        run_id: record.run_id.to_string(),
        state: state.as_str().into(),
        changed: is("changed"),
        failed: is("failed") || state == State::Failed,
        skipped: is("skipped"),
        noop: record.noop,
        ensure: field("final_ensure")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .into(),
        message,
        event: event.cloned().unwrap_or_else(|| Map::new().into()),
    }
}

/// Returns the output if there never was a run.
fn no_run() -> ApplyOutput {
    ApplyOutput {
        state: NO_RUN.into(),
        summary: Map::new().into(),
        events: Vec::<Value>::new().into(),
        ..ApplyOutput::default()
    }
}
