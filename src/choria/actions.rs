//! RPC actions: converts validated inputs to engine calls, and results to outputs.
//!
//! Read-only actions are executed in this process. Changes are made in a detached process, see
//! `run`, because the server kills an agent that exceeds its timeout.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::audit::{self, AuditTarget};
use super::config::{Config, nats_client};
use super::external_protocol::Request;
use super::run::{RunSpec, Task, busy, facts_of, template_context};
use ccm_agent::choria_rpc::ddl::Action;
use ccm_agent::choria_rpc::inputs::{ActionInput, ApplyInput, EnsureInput, StatusInput};
use ccm_agent::choria_rpc::outputs::{
    FactsOutput, PingOutput, StatusOutput, apply_output, ensure_output, failure_of, run_status,
};
use ccm_agent::choria_rpc::reply::{ActionReply, Failure};
use ccm_agent::choria_rpc::run_store::{Record, RunStore, State};
use ccm_core::engine::EventIds;
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunId;
use ccm_core::run::pause::PauseStore;
use ccm_core::run::{self, RunLock};
use ccm_core::system::{Clock, files};

/// Poll interval while waiting for a run; doubles from the first to the last value.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Audit reason for invalid inputs, whose error may contain values of the request.
const MALFORMED: &str = "malformed request";

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
        let input = match ActionInput::parse(action, self.request.data()) {
            Ok(input) => input,
            Err(failure) => {
                self.audit(&AuditTarget::default(), Some(MALFORMED))?;
                return Err(failure);
            }
        };
        match input {
            ActionInput::Apply(input) => self.apply(input, &store),
            ActionInput::Ensure(input) => self.ensure(input, &store),
            ActionInput::Facts(query) => self.facts(query.as_deref()),
            ActionInput::Ping => self.ping(&store),
            ActionInput::RunStatus(id) => self.run_status(id, &store),
            ActionInput::Status(input) => self.status(&input),
        }
    }

    /// Refuses a request before its action is known to be valid, and returns the reason.
    pub(super) fn refuse(&self, refusal: Failure) -> Failure {
        let reason = refusal.to_string();
        let recorded = files::create_private_dir(&self.config.run_dir())
            .map_err(Failure::unknown)
            .and_then(|()| self.audit(&AuditTarget::default(), Some(&reason)));
        match recorded {
            Ok(()) => refusal,
            Err(error) => Failure::aborted(format!("{reason}; {error}")),
        }
    }

    fn audit(&self, about: &AuditTarget, denied: Option<&str>) -> Result<(), Failure> {
        let directory = self.config.run_dir();
        let origin = self.request.origin();
        let clock = &*self.clock;
        audit::record(&directory, self.identity, &origin, about, denied, clock)?;
        Ok(())
    }

    fn apply(&self, input: ApplyInput, store: &RunStore) -> Result<ActionReply, Failure> {
        let health_check_only = input.mode.health_check_only;
        let spec = RunSpec {
            noop: (input.mode.noop || self.config.noop) && !health_check_only,
            health_check_only,
            data: input.data,
            governor: input.governor,
            ..self.run_spec(Task::Apply(input.manifest))?
        };
        let (record, state) = self.start(&spec, store, input.wait)?;
        let failure = failure_of(&record, state);
        Ok(ActionReply::new(&apply_output(&record, state)?)?.failing(failure))
    }

    fn ensure(&self, input: EnsureInput, store: &RunStore) -> Result<ActionReply, Failure> {
        let spec = RunSpec {
            noop: input.noop || self.config.noop,
            ..self.run_spec(Task::Ensure {
                request: input.request,
                label: input.resource.label(),
            })?
        };
        let (record, state) = self.start(&spec, store, input.wait)?;
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

    fn run_status(&self, id: Option<RunId>, store: &RunStore) -> Result<ActionReply, Failure> {
        self.audit(
            &AuditTarget {
                noop: true,
                run_id: id.clone(),
                ..AuditTarget::default()
            },
            None,
        )?;
        run_status(store, id)
    }

    fn status(&self, input: &StatusInput) -> Result<ActionReply, Failure> {
        let about = AuditTarget {
            label: input.label.clone(),
            noop: true,
            run_id: None,
        };
        let resource = match &input.resource {
            Ok(resource) => resource,
            Err(reason) => {
                self.audit(&about, Some(MALFORMED))?;
                return Err(Failure::invalid(reason));
            }
        };
        self.audit(&about, None)?;
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
        let state = run::inspect(resource, env.env(Path::new("/")), module, &*self.clock)
            .map_err(Failure::aborted)?;
        ActionReply::new(&StatusOutput::of(&state)?)
    }

    /// Returns our own facts, without Choria's.
    fn facts(&self, query: Option<&str>) -> Result<ActionReply, Failure> {
        self.audit(
            &AuditTarget {
                label: query.unwrap_or_default().into(),
                noop: true,
                run_id: None,
            },
            None,
        )?;
        let facts = facts_of(&ccm_value::Value::Null, self.clock.clone());
        ActionReply::new(&FactsOutput::of(&facts, query)?)
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
        let identity = self.identity.as_str();
        ActionReply::new(&PingOutput::of(identity, self.paused(), current, store)?)
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
