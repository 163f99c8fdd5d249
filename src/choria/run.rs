//! Detached runs: started by the agent process, executed by a process that outlives it.
//!
//! The run spec is passed in an anonymous file, so that secrets are neither on disk nor in the
//! process list. The detached process prints one line when it has started or failed to; after that
//! its progress is in the run store. It holds the node's run lock and the store's lock until it
//! exits.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::audit::{self, AuditError, AuditTarget, Origin};
use super::config::nats_client;
use ccm_agent::choria_rpc::ddl::Action;
use ccm_agent::choria_rpc::reply::{Failure, clipped};
use ccm_agent::choria_rpc::run_store::{
    LOCK_TIMEOUT, MAX_ERROR, Record, RunResult, RunStore, RunStoreError,
};
use ccm_core::engine::{Availability, CompletedCheck, EventIds, Level, Line, Mode, Session, Sink};
use ccm_core::facts::{FactPaths, Gatherer};
use ccm_core::model::event::{Summary, TransactionEvent};
use ccm_core::model::governor::{GovernorClaim, GovernorName, SlotProgress};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::registration::Entry;
use ccm_core::model::request::parse_ensure;
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RunId, RunSummary};
use ccm_core::run::environment::TemplateContext;
use ccm_core::run::executor::LocalExecutor;
use ccm_core::run::handover::{Handover, HandoverError};
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::run::nats_client::StopCheck;
use ccm_core::run::secret_key;
use ccm_core::run::{
    self, ExternalData, Governors, ManifestDir, Request, RunContext, RunError, RunLock, run_id_of,
};
use ccm_core::system::runner::{detach, lead_session};
use ccm_core::system::{Accounts, Cause, Clock, Command, FileLock, LockError, RandomError, files};
use ccm_nats::{BlockingClient, registration};
use ccm_template::env::Facts;
use ccm_value::{Value, json};

/// Size limit of a run spec: a request with facts.
const MAX_SPEC: u64 = 64 * 1024 * 1024;

/// Time limit for the start of a detached process, which waits up to a second for each lock.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Size limit of the start reply.
const MAX_START_REPLY: usize = 4096;

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    /// Ensure request as JSON, and the label of its resource.
    Ensure {
        request: String,
        label: String,
    },
    Apply(ManifestSource),
}

impl Task {
    /// Returns a description without secrets.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Ensure { label, .. } => label.clone(),
            Self::Apply(manifest) => manifest.display_name(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Ensure { .. } => Action::Ensure,
            Self::Apply(_) => Action::Apply,
        }
    }
}

/// Specification of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunSpec {
    /// State directory of the agent daemon.
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub identity: NodeName,
    pub run_id: RunId,
    pub task: Task,
    pub noop: bool,
    pub health_check_only: bool,
    /// Data from the request, which overrides all other data.
    pub data: Value,
    /// Governor of the request, for manifests that name none.
    pub governor: Option<GovernorClaim>,
    /// Choria's facts of the node.
    pub facts: Value,
    pub nats_server: Option<String>,
    pub nats_context: Option<String>,
    pub cfengine_module: Option<String>,
    /// Collective of the governors that limit the run.
    pub choria_collective: Token,
    pub origin: Origin,
}

/// Line that a detached process prints when it has started or failed to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StartReply {
    Begun,
    /// Another run is active.
    Busy {
        run: Option<RunId>,
        holder: String,
    },
    Failed(String),
}

/// Reason why a run was not started.
#[derive(Debug, thiserror::Error)]
pub enum DetachedError {
    #[error("could not leave the session: {0}")]
    Session(Cause),
    #[error("could not read the run spec: {0}")]
    Read(#[source] std::io::Error),
    #[error("invalid run spec: {0}")]
    Spec(#[from] serde_json::Error),
    #[error("busy: {holder}")]
    Busy { run: Option<RunId>, holder: String },
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    RunStore(#[from] RunStoreError),
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Returns the failure for a node that is busy with another run.
pub(super) fn busy(run: Option<&RunId>, holder: &str) -> Failure {
    match run {
        Some(id) => Failure::aborted(format!("run {id} is still running: wait for it to end")),
        None => Failure::aborted(format!("another run is active: {holder}")),
    }
}

impl RunSpec {
    /// Starts a detached process for the run, and returns when the run has started.
    pub(super) fn start(&self, program: &Path, path: Option<&str>) -> Result<(), Failure> {
        let program = program.to_str();
        let program =
            program.ok_or_else(|| Failure::unknown("the path of this program is not UTF-8"))?;
        let spec = serde_json::to_vec(self).map_err(Failure::unknown)?;
        let command = Command {
            input: spec,
            path: path.map(str::to_owned),
            ..Command::new(program, ["choria", "run"])
        };
        let process = detach(&command).map_err(Failure::unknown)?;
        let reply = process
            .first_line(MAX_START_REPLY, START_LIMIT)
            .map_err(Failure::unknown)?;
        match serde_json::from_slice(&reply) {
            Ok(StartReply::Begun) => Ok(()),
            Ok(StartReply::Busy { run, holder }) => Err(busy(run.as_ref(), &holder)),
            Ok(StartReply::Failed(reason)) => Err(Failure::unknown(reason)),
            Err(_) => Err(Failure::unknown("the run did not start")),
        }
    }

    fn mode(&self) -> Mode {
        Mode {
            noop: self.noop,
            health_check_only: self.health_check_only,
            diff: false,
        }
    }

    fn nats_client(&self) -> BlockingClient {
        nats_client(self.nats_server.clone(), self.nats_context.clone())
    }

    /// Executes the run and returns its session, and the error that ended it early.
    fn execute(
        &self,
        ids: &RefCell<EventIds>,
        clock: &Arc<dyn Clock>,
        forwarder: &mut EventForwarder,
    ) -> (Session, Option<RunError>) {
        match &self.task {
            Task::Ensure { request, .. } => {
                let session = Session::memory(clock.now());
                let resource = match parse_ensure(request) {
                    Ok(resource) => resource,
                    Err(error) => return (session, Some(error.into())),
                };
                let (session, event) = self.with_host(ids, clock, |host| {
                    run::ensure(resource, self.mode(), session, host, forwarder)
                });
                (session, event.err())
            }
            Task::Apply(manifest) => {
                let request = Request {
                    data: self.data.clone(),
                    governor: self.governor.clone(),
                    request_id: self.origin.request_id.clone(),
                    caller: self.origin.caller.clone(),
                    ..Request::new(self.run_id.clone(), manifest.clone(), self.mode())
                };
                let completed =
                    self.with_host(ids, clock, |host| run::apply(&request, host, forwarder));
                (completed.session, completed.error)
            }
        }
    }

    /// Builds the `RunContext` and calls `run` with it.
    fn with_host<T>(
        &self,
        ids: &RefCell<EventIds>,
        clock: &Arc<dyn Clock>,
        run: impl FnOnce(&RunContext<'_>) -> T,
    ) -> T {
        let nats = self.nats_client();
        let template_context = template_context(&self.facts, &nats, clock.clone(), &self.state_dir);
        let env = |manifest: ManifestDir<'_>| Ok(template_context.env(manifest.directory));
        let data = |_: &Facts| Ok(ExternalData::default());
        let gate = |_: &Resource, _: &str, _: Mode| Ok(());
        let next_id = || ids.borrow_mut().next(clock.now());
        let never_stop: StopCheck = Arc::new(|| None);
        run(&RunContext {
            identity: &|| self.identity.clone(),
            // The daemon sets the collective when it imports the events.
            collective: &Token::default_collective(),
            clock: &**clock,
            accounts: Accounts::default(),
            nats: &nats,
            executor: &LocalExecutor {
                has_supervisor: true,
            },
            base: Path::new("/"),
            state_dir: Some(&self.state_dir),
            cfengine_module: self.cfengine_module.as_deref(),
            governors: Governors {
                collective: self.choria_collective.clone(),
                default: None,
                ignored: false,
                give_up: never_stop.clone(),
                // The process has no log, and the run continues.
                lost: Arc::new(|_, _, _| {}),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: never_stop,
            cancel: None,
            next_id: &next_id,
        })
    }

    fn result(&self, session: &Session, error: Option<&RunError>) -> RunResult {
        let is_invalid = error.is_some_and(RunError::is_invalid);
        let error = error.map(ToString::to_string).unwrap_or_default();
        let events = session.events();
        let result = RunResult::of(session.summary(), events, &error, is_invalid, self.noop);
        match &self.task {
            Task::Ensure { .. } => result.with_event(events),
            Task::Apply(_) => result,
        }
    }

    /// Records that the run is allowed.
    fn audit(&self, clock: &dyn Clock) -> Result<(), AuditError> {
        let about = AuditTarget {
            label: self.task.shown(),
            noop: self.noop,
            run_id: Some(self.run_id.clone()),
        };
        let (directory, identity) = (&self.run_dir, &self.identity);
        audit::record(directory, identity, &self.origin, &about, None, clock)
    }

    fn record(&self, clock: &dyn Clock) -> Record {
        Record {
            run_id: self.run_id.clone(),
            action: self.task.action().as_str().into(),
            source: self.task.shown(),
            noop: self.noop,
            health_check_only: self.health_check_only,
            caller: self.origin.caller.clone(),
            request_id: self.origin.request_id.clone(),
            started: clock.now(),
            ended: None,
            result: None,
            waiting_for: String::new(),
            handover_error: String::new(),
        }
    }
}

/// Executes the run spec read from `input` in this process. Writes one line to `output` when the
/// run has started or failed to.
pub fn run_detached(
    input: impl Read,
    mut output: impl Write,
    clock: Arc<dyn Clock>,
) -> Result<(), DetachedError> {
    let ids = RefCell::new(EventIds::new()?);
    let started = begin(input, &*clock);
    let reply = match &started {
        Ok(_) => StartReply::Begun,
        Err(DetachedError::Busy { run, holder }) => StartReply::Busy {
            run: run.clone(),
            holder: holder.clone(),
        },
        Err(error) => StartReply::Failed(error.to_string()),
    };
    let reply = json::compact(&reply)? + "\n";
    // The starting process may have ended already; the run continues anyway.
    let _ = output
        .write_all(reply.as_bytes())
        .and_then(|()| output.flush());
    drop(output);
    let (spec, store, record, _locks) = started?;
    let mut forwarder = EventForwarder::begin(&spec, &store, &record);
    let (session, error) = spec.execute(&ids, &clock, &mut forwarder);
    let result = spec.result(&session, error.as_ref());
    // Events are stored before the record says that the run has ended.
    let forwarded = forwarder.finish();
    let record = Record {
        ended: Some(clock.now()),
        result: Some(result),
        handover_error: forwarded
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default(),
        ..record
    };
    Ok(store.end(&record)?)
}

fn begin(
    input: impl Read,
    clock: &dyn Clock,
) -> Result<(RunSpec, RunStore, Record, [FileLock; 2]), DetachedError> {
    lead_session().map_err(DetachedError::Session)?;
    let mut text = Vec::new();
    input
        .take(MAX_SPEC)
        .read_to_end(&mut text)
        .map_err(DetachedError::Read)?;
    let spec: RunSpec = serde_json::from_slice(&text)?;
    let store = RunStore::open(&spec.run_dir)?;
    files::create_private_dir(&spec.state_dir).map_err(RunStoreError::from)?;
    // Runs with another state directory may use the same store, so it has its own lock.
    let run_lock = RunLock::of(&spec.state_dir).take(&spec.run_id, LOCK_TIMEOUT, clock);
    let run_lock = not_busy(run_lock)?;
    let lock = not_busy(store.lock(&spec.run_id, clock))?;
    let record = spec.record(clock);
    store.begin(&record)?;
    if let Err(error) = spec.audit(clock) {
        // The run is refused, and its record must not say that it is lost.
        let summary = Summary::of(Some(clock.now()), &[]);
        let result = RunResult::of(summary, &[], &error.to_string(), false, spec.noop);
        store.end(&Record {
            ended: Some(clock.now()),
            result: Some(result),
            ..record
        })?;
        return Err(error.into());
    }
    Ok((spec, store, record, [run_lock, lock]))
}

fn not_busy(lock: Result<FileLock, LockError>) -> Result<FileLock, DetachedError> {
    match lock {
        Err(LockError::Held { holder, .. }) => Err(DetachedError::Busy {
            run: run_id_of(&holder),
            holder: holder.to_string(),
        }),
        lock => Ok(lock.map_err(RunStoreError::from)?),
    }
}

/// Returns the environment of templates.
pub(super) fn template_context(
    choria: &Value,
    nats: &BlockingClient,
    clock: Arc<dyn Clock>,
    state_dir: &Path,
) -> TemplateContext {
    TemplateContext {
        facts: facts_of(choria, clock),
        environ: Value::empty_map(),
        nats: Arc::new(nats.clone()),
        registration_stream: registration::STREAM.into(),
        // A key that can't be read opens nothing; what needs it says so.
        secrets: secret_key::secrets(&secret_key::path_in(state_dir)).unwrap_or_default(),
    }
}

/// Returns our facts, gathered on first use, and Choria's facts under names that we do not use, for
/// manifests written for Choria's own CCM watcher.
pub(super) fn facts_of(choria: &Value, clock: Arc<dyn Clock>) -> Facts {
    let gather = Arc::new(Gatherer::new(
        FactPaths::from_env(&Default::default()),
        clock,
    ))
    .into_source();
    let choria = choria.clone();
    Facts::Lazy(Arc::new(move |section| {
        let ours = gather(section);
        match section {
            None => match choria.as_map() {
                Some(_) => choria.merge_shallow(&ours),
                None => ours,
            },
            Some(name) => match (ours.get(name), choria.get(name)) {
                (None, Some(theirs)) => [(name, theirs.clone())].into_iter().collect(),
                _ => ours,
            },
        }
    }))
}

/// Forwards events to the agent daemon of the node, if there is one, and records what the run waits
/// for.
struct EventForwarder {
    /// Store and record of the run, for what it waits for.
    store: RunStore,
    record: Record,
    to: Result<Option<Handover>, HandoverError>,
    /// Run summary; `None` for a single resource.
    run: Option<RunSummary>,
}

impl EventForwarder {
    fn begin(spec: &RunSpec, store: &RunStore, record: &Record) -> Self {
        Self {
            store: store.clone(),
            record: record.clone(),
            to: Handover::begin(&spec.state_dir, &spec.run_id, record.started),
            run: None,
        }
    }

    /// Finishes the handover, or returns its first error.
    fn finish(self) -> Result<(), HandoverError> {
        match self.to? {
            Some(handover) => handover.finish(self.run),
            None => Ok(()),
        }
    }

    /// Forwards an item. An error is kept for `finish` and does not fail the run.
    fn forward(&mut self, write: impl FnOnce(&mut Handover) -> Result<(), HandoverError>) {
        if let Ok(Some(handover)) = &mut self.to
            && let Err(error) = write(handover)
        {
            self.to = Err(error);
        }
    }
}

impl Sink for EventForwarder {
    fn event(&mut self, event: &TransactionEvent, _manifest: Option<&str>) {
        self.forward(|handover| handover.event(event));
    }

    /// Forwards warnings and errors for the node's log; events cover the rest.
    fn line(&mut self, line: &Line) {
        if line.level >= Level::Warn {
            self.forward(|handover| handover.line(line));
        }
    }

    fn checked(&mut self, checked: &CompletedCheck<'_>) {
        self.forward(|handover| handover.checked(checked));
    }

    fn services(&mut self, entries: &[Entry], standing: Availability) {
        self.forward(|handover| handover.services(entries, standing));
    }

    fn slot(&mut self, governor: &GovernorName, progress: SlotProgress) {
        self.record.waiting_for = match progress {
            SlotProgress::Waiting => format!("governor {governor}"),
            _ => String::new(),
        };
        // Only for display; the record is written again at the end.
        let _ = self.store.update(&self.record);
    }

    fn finished(&mut self, run: &RunSummary) {
        self.run = Some(RunSummary {
            error: clipped(&run.error, MAX_ERROR),
            ..run.clone()
        });
    }

    fn diff(&mut self, _text: &str) {}
}
