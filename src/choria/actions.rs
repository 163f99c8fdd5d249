//! RPC actions: converts validated inputs to engine calls, and results to outputs.
//!
//! Read-only actions are executed in this process. Changes are made in a detached process, see
//! `run`, because the server kills an agent that exceeds its timeout.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::audit::{self, AuditTarget};
use super::config::{Config, nats_client};
use super::ddl::{self, Action, Ddl};
use super::external_protocol::Request;
use super::outputs::{
    FactsOutput, NO_RUN, PingOutput, StatusOutput, apply_output, ensure_output, failure_of, no_run,
    summary,
};
use super::reply::{ActionReply, Failure};
use super::run::{RunSpec, Task, busy, facts_of, template_context};
use super::run_store::{Record, RunStore, State};
use ccm_core::engine::{EventIds, resource_from_request};
use ccm_core::model::governor::{GovernorClaim, GovernorName, GovernorTimeout};
use ccm_core::model::node::NodeName;
use ccm_core::model::request::{ENSURE_REQUEST, STATUS_REQUEST, parse_ensure, parse_status};
use ccm_core::model::run::RunId;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::run::pause::PauseStore;
use ccm_core::run::{self, RunLock};
use ccm_core::system::{Clock, files};
use ccm_template::path;
use ccm_value::json;

/// Part of the DDL's timeout, in seconds, that is left for starting the run and sending the reply.
const REPLY_MARGIN: u64 = 10;

/// Default time in seconds that `ensure` waits for its run.
const ENSURE_WAIT: u64 = 10;

/// Poll interval while waiting for a run; doubles from the first to the last value.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Size limit of Choria's facts file.
const MAX_FACTS: u64 = 16 * 1024 * 1024;

/// Request with its environment.
pub(super) struct ActionRequest<'a> {
    pub request: &'a Request,
    pub config: &'a Config,
    pub identity: &'a NodeName,
    /// Choria's facts file.
    pub facts: Option<&'a Path>,
    /// Path of this program.
    pub program: &'a Path,
    /// `PATH` set by the Choria server.
    pub path: Option<&'a str>,
    pub clock: Arc<dyn Clock>,
}

impl ActionRequest<'_> {
    /// Executes the action.
    pub(super) fn execute(&self) -> Result<ActionReply, Failure> {
        let store = RunStore::open(&self.config.run_dir()).map_err(Failure::unknown)?;
        let action = match Action::named(&self.request.action) {
            Ok(action) => action,
            Err(unknown) => {
                let reason = unknown.to_string();
                self.audit(&AuditTarget::default(), Some(&reason))?;
                return Err(Failure::UnknownAction(reason));
            }
        };
        if !self.config.activate {
            // The server had activated the agent before.
            let reason = "the agent is not active on this node".to_owned();
            self.audit(&AuditTarget::default(), Some(&reason))?;
            return Err(Failure::Aborted(reason));
        }
        if !self.config.actions.contains(&action) {
            let reason = format!("action {} is not enabled on this node", action.as_str());
            self.audit(&AuditTarget::default(), Some(&reason))?;
            return Err(Failure::Aborted(reason));
        }
        let data = self.request.inputs()?;
        ddl::check(action, &data)?;
        match action {
            Action::Apply => self.apply(&data, &store),
            Action::Ensure => self.ensure(&data, &store),
            Action::Facts => self.facts(&data),
            Action::Ping => self.ping(&store),
            Action::RunStatus => self.run_status(&data, &store),
            Action::Status => self.status(data),
        }
    }

    fn audit(&self, about: &AuditTarget, denied: Option<&str>) -> Result<(), Failure> {
        let directory = self.config.run_dir();
        let origin = self.request.origin();
        let clock = &*self.clock;
        audit::record(&directory, self.identity, &origin, about, denied, clock)?;
        Ok(())
    }

    fn apply(&self, data: &Map<String, Value>, store: &RunStore) -> Result<ActionReply, Failure> {
        let what = match (text(data, "source"), text(data, "manifest")) {
            (Some(source), None) => ManifestSource::Source(source.into()),
            (None, Some(manifest)) => ManifestSource::Text(manifest.into()),
            (None, None) => return Err(Failure::MissingData("source or manifest".into())),
            (Some(_), Some(_)) => {
                return Err(Failure::invalid("source and manifest exclude each other"));
            }
        };
        let health_check_only = flag(data, "health_check_only");
        if flag(data, "noop") && health_check_only {
            return Err(Failure::invalid(
                "noop and health_check_only exclude each other",
            ));
        }
        let wait = wait_of(data, 0)?;
        let spec = RunSpec {
            noop: (flag(data, "noop") || self.config.noop) && !health_check_only,
            health_check_only,
            data: plain(data.get("data"))?,
            governor: governor_of(data)?,
            ..self.run_spec(Task::Apply(what))?
        };
        let (record, state) = self.start(&spec, store, wait)?;
        let failure = failure_of(&record, state);
        Ok(ActionReply::new(&apply_output(&record, state)?)?.failing(failure))
    }

    fn ensure(&self, data: &Map<String, Value>, store: &RunStore) -> Result<ActionReply, Failure> {
        let wait = wait_of(data, ENSURE_WAIT)?;
        let request = ensure_request(data)?;
        let resource = parse_ensure(&request).map_err(Failure::invalid)?;
        let spec = RunSpec {
            noop: flag(data, "noop") || self.config.noop,
            ..self.run_spec(Task::Ensure {
                request,
                label: resource.label(),
            })?
        };
        let (record, state) = self.start(&spec, store, wait)?;
        let failure = failure_of(&record, state);
        Ok(ActionReply::new(&ensure_output(&record, state))?.failing(failure))
    }

    /// Returns the spec of a run with changes allowed and without data.
    fn run_spec(&self, task: Task) -> Result<RunSpec, Failure> {
        Ok(RunSpec {
            state_dir: self.config.state_dir.clone(),
            run_dir: self.config.run_dir(),
            identity: self.identity.clone(),
            run_id: EventIds::new()
                .map_err(Failure::aborted)?
                .next(self.clock.now()),
            task,
            noop: false,
            health_check_only: false,
            data: ccm_value::Value::Null,
            governor: None,
            facts: self.choria_facts()?,
            nats_server: self.config.nats_server.clone(),
            nats_context: self.config.nats_context.clone(),
            cfengine_module: self.config.cfengine_module.clone(),
            choria_collective: self.config.choria_collective.clone(),
            origin: self.request.origin(),
        })
    }

    /// Starts a run and returns its record after it ended or the wait expired.
    fn start(
        &self,
        spec: &RunSpec,
        store: &RunStore,
        wait: Duration,
    ) -> Result<(Record, State), Failure> {
        // A refused run has no id. An allowed one is recorded by its own process.
        let about = AuditTarget {
            label: spec.task.shown(),
            noop: spec.noop,
            run_id: None,
        };
        if let Err(refusal) = self.try_start(spec, store) {
            self.audit(&about, Some(&refusal.to_string()))?;
            return Err(refusal);
        }
        self.watch(&spec.run_id, store, wait)
    }

    fn try_start(&self, spec: &RunSpec, store: &RunStore) -> Result<(), Failure> {
        let is_read_only = spec.noop || spec.health_check_only;
        if let Some(reason) = self.paused().filter(|_| !is_read_only) {
            return Err(Failure::Aborted(format!("the node is paused: {reason}")));
        }
        // Fail early if a run of this agent is active. A run of the daemon may end while the new
        // process waits for the lock.
        if let Some(id) = store.current().map_err(Failure::unknown)? {
            return Err(busy(Some(&id), ""));
        }
        spec.start(self.program, self.path)
    }

    fn watch(
        &self,
        id: &RunId,
        store: &RunStore,
        wait: Duration,
    ) -> Result<(Record, State), Failure> {
        let start = self.clock.monotonic();
        let mut interval = MIN_POLL_INTERVAL;
        loop {
            let found = store.find(id).map_err(Failure::unknown)?;
            let (record, state) =
                found.ok_or_else(|| Failure::unknown(format!("run {id} has no record")))?;
            let left = wait.saturating_sub(self.clock.monotonic().saturating_sub(start));
            if state != State::Running || left.is_zero() {
                return Ok((record, state));
            }
            self.clock.sleep(interval.min(left));
            interval = (interval * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Returns the reason of the pause, if the node is paused.
    fn paused(&self) -> Option<String> {
        let file = self.config.state_dir.join("pause.json");
        match PauseStore::open(&file, self.clock.clone()) {
            // Treat an unreadable pause file as a pause.
            (_, Some(error)) => Some(error.to_string()),
            (store, None) => store.current().map(|pause| pause.reason),
        }
    }

    fn run_status(
        &self,
        data: &Map<String, Value>,
        store: &RunStore,
    ) -> Result<ActionReply, Failure> {
        let id = text(data, "run_id").map(str::parse::<RunId>).transpose();
        let id = id.map_err(Failure::invalid)?;
        self.audit(
            &AuditTarget {
                noop: true,
                run_id: id.clone(),
                ..AuditTarget::default()
            },
            None,
        )?;
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

    fn status(&self, mut data: Map<String, Value>) -> Result<ActionReply, Failure> {
        let mut properties = hash(&mut data, "properties");
        for key in ["name", "provider"] {
            if let Some(value) = data.get(key) {
                put_once(&mut properties, key, value)?;
            }
        }
        data.shift_remove("provider");
        data.insert("protocol".into(), STATUS_REQUEST.into());
        data.insert("properties".into(), properties.into());
        let request = json::compact(&data).map_err(Failure::unknown)?;
        let request = parse_status(&request).map_err(Failure::invalid)?;
        self.audit(
            &AuditTarget {
                label: format!("{}#{}", request.type_name, request.name),
                noop: true,
                run_id: None,
            },
            None,
        )?;
        let resource = resource_from_request(&request).map_err(Failure::invalid)?;
        let nats = nats_client(
            self.config.nats_server.clone(),
            self.config.nats_context.clone(),
        );
        let env = template_context(
            &self.choria_facts()?,
            &nats,
            self.clock.clone(),
            &self.config.state_dir,
        );
        let module = self.config.cfengine_module.as_deref();
        let state = run::inspect(&resource, env.env(Path::new("/")), module, &*self.clock)
            .map_err(Failure::aborted)?;
        ActionReply::new(&StatusOutput {
            ensure: state.common.ensure.clone(),
            state: serde_json::to_value(&state).map_err(Failure::unknown)?,
        })
    }

    /// Returns our own facts, without Choria's.
    fn facts(&self, data: &Map<String, Value>) -> Result<ActionReply, Failure> {
        let query = text(data, "query");
        self.audit(
            &AuditTarget {
                label: query.unwrap_or_default().into(),
                noop: true,
                run_id: None,
            },
            None,
        )?;
        let facts = facts_of(&ccm_value::Value::Null, self.clock.clone());
        let found = match query {
            None => Some(facts.all()),
            Some(query) => {
                // Gather only one section if the query starts with its plain name.
                let first = query.split(['.', '|']).next().unwrap_or_default();
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let root = if !first.is_empty() && first.chars().all(is_plain) {
                    facts
                        .section(first)
                        .map(|section| [(first, section)].into_iter().collect())
                } else {
                    Some(facts.all())
                };
                root.and_then(|root: ccm_value::Value| path::find(&root, query))
            }
        };
        let found = found.ok_or_else(|| Failure::aborted("no fact matches the query"))?;
        let found = serde_json::to_value(&found).map_err(Failure::unknown)?;
        // Clients summarize `value`, which would repeat all facts.
        ActionReply::new(&match query {
            Some(_) => FactsOutput {
                value: Some(found),
                facts: None,
            },
            None => FactsOutput {
                value: None,
                facts: Some(found),
            },
        })
    }

    fn ping(&self, store: &RunStore) -> Result<ActionReply, Failure> {
        self.audit(
            &AuditTarget {
                noop: true,
                ..AuditTarget::default()
            },
            None,
        )?;
        let run_lock = RunLock::of(&self.config.state_dir);
        let current = run_lock.current().map_err(Failure::unknown)?;
        let (last_run, state) = match store.latest().map_err(Failure::unknown)? {
            Some((record, state)) => (record.run_id.to_string(), state.as_str()),
            None => (String::new(), NO_RUN),
        };
        let over = store.latest_ended().map_err(Failure::unknown)?;
        let result = over.and_then(|(record, _)| record.result);
        let pause = self.paused();
        ActionReply::new(&PingOutput {
            identity: self.identity.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            paused: pause.is_some(),
            pause_reason: pause.unwrap_or_default(),
            current_run: current.map(|id| id.to_string()).unwrap_or_default(),
            last_run,
            state: state.into(),
            summary: summary(result.as_ref())?,
        })
    }

    /// Reads the facts file of the Choria server; an empty file contains no facts.
    fn choria_facts(&self) -> Result<ccm_value::Value, Failure> {
        let Some(file) = self.facts else {
            return Ok(ccm_value::Value::Null);
        };
        let text = files::read_to_string(file, MAX_FACTS)
            .map_err(|error| Failure::aborted(format!("could not read Choria's facts: {error}")))?;
        if text.trim().is_empty() {
            return Ok(ccm_value::Value::Null);
        }
        serde_json::from_str(&text)
            .map_err(|error| Failure::aborted(format!("could not read Choria's facts: {error}")))
    }
}

/// Returns the ensure request for the inputs as JSON.
fn ensure_request(data: &Map<String, Value>) -> Result<String, Failure> {
    let parts = ["type", "name", "ensure", "provider", "properties"];
    if let Some(request) = data.get("request") {
        if let Some(other) = parts.iter().find(|name| data.contains_key(**name)) {
            let text = format!("request and {other} exclude each other");
            return Err(Failure::InvalidData(text));
        }
        return json::compact(request).map_err(Failure::unknown);
    }
    for name in ["type", "name"] {
        if !data.contains_key(name) {
            return Err(Failure::MissingData(name.into()));
        }
    }
    let mut properties = hash(&mut data.clone(), "properties");
    for name in ["name", "ensure", "provider"] {
        if let Some(value) = data.get(name) {
            put_once(&mut properties, name, value)?;
        }
    }
    let request = serde_json::json!({
        "protocol": ENSURE_REQUEST,
        "type": data.get("type"),
        "properties": properties,
    });
    json::compact(&request).map_err(Failure::unknown)
}

/// Adds a property that is also an input; giving both is an error.
fn put_once(properties: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), Failure> {
    match properties.insert(name.into(), value.clone()) {
        None => Ok(()),
        Some(_) => {
            let text = format!("{name} is given twice, as an input and in properties");
            Err(Failure::InvalidData(text))
        }
    }
}

/// Returns the `wait` input.
fn wait_of(data: &Map<String, Value>, default: u64) -> Result<Duration, Failure> {
    let timeout = Ddl::embedded().map_err(Failure::unknown)?.metadata.timeout;
    let most = timeout.saturating_sub(REPLY_MARGIN);
    let seconds = match data.get("wait") {
        None => Some(default),
        Some(value) => value.as_u64().filter(|seconds| *seconds <= most),
    };
    let invalid = || Failure::invalid(format!("wait must be from 0 to {most} seconds"));
    Ok(Duration::from_secs(seconds.ok_or_else(invalid)?))
}

/// Returns the claim of the `governor` and `governor_timeout` inputs.
fn governor_of(data: &Map<String, Value>) -> Result<Option<GovernorClaim>, Failure> {
    let name = text(data, "governor").map(str::parse::<GovernorName>);
    let timeout = text(data, "governor_timeout").map(str::parse::<GovernorTimeout>);
    let timeout = timeout.transpose().map_err(Failure::invalid)?;
    match (name.transpose().map_err(Failure::invalid)?, timeout) {
        (Some(name), timeout) => Ok(Some(GovernorClaim {
            name,
            timeout: timeout.unwrap_or_default(),
        })),
        (None, Some(_)) => Err(Failure::invalid("governor_timeout requires governor")),
        (None, None) => Ok(None),
    }
}

fn text<'d>(data: &'d Map<String, Value>, name: &str) -> Option<&'d str> {
    data.get(name).and_then(Value::as_str)
}

fn flag(data: &Map<String, Value>, name: &str) -> bool {
    data.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// Removes a map from the inputs; returns an empty one if it is not given.
fn hash(data: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match data.shift_remove(name) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Converts an input to a value for templates.
fn plain(value: Option<&Value>) -> Result<ccm_value::Value, Failure> {
    match value {
        Some(value) => serde_json::from_value(value.clone()).map_err(Failure::unknown),
        None => Ok(ccm_value::Value::Null),
    }
}
