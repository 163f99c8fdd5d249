//! A run: ordered by one process, carried out by another that outlives it.
//!
//! The order travels in a nameless file, so that no secret is on disk or in a list of processes. The
//! process that carries it out says one line, that it began or why not, and nothing more; from then
//! on the store tells. The run lock of the node and the lock of the store are taken by the one process that
//! needs them, for as long as it lives: between two that want them nothing can go wrong.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::config::bus;
use super::ddl::Action;
use super::reply::{Failure, clipped};
use super::run_store::{PATIENCE, Record, RunResult, RunStore, RunStoreError, briefs, fitting};
use ccm_core::engine::{Checked, EventIds, Level, Line, Mode, Session, Sink, Standing};
use ccm_core::facts::{Gatherer, Places};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::registration::Entry;
use ccm_core::model::request::parse_ensure;
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RunId, RunSummary};
use ccm_core::run::bus::StopReason;
use ccm_core::run::environment::Surroundings;
use ccm_core::run::executor::Local;
use ccm_core::run::handover::{Handover, HandoverError};
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::run::{
    self, Governors, Host, OutsideData, Place, Request, RunError, RunLock, run_of,
};
use ccm_core::system::runner::{detach, lead_session};
use ccm_core::system::{Cause, Clock, Command, FileLock, LockError, RandomError, files};
use ccm_nats::{Bus, registration};
use ccm_template::env::Facts;
use ccm_value::{Value, json};

/// The longest order: a request with facts.
const MAX_ORDER: u64 = 64 * 1024 * 1024;

/// How long a process may take to say that it began; it waits a second for each lock.
const START_LIMIT: Duration = Duration::from_secs(5);

/// The longest reason for an early end that is remembered; a manifest can have many problems.
const MAX_ERROR: usize = 8 * 1024;

/// The longest first word.
const MAX_WORD: usize = 4096;

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    /// The text of an ensure request, and what it is about.
    Ensure {
        request: String,
        label: String,
    },
    Apply(ManifestSource),
}

impl Task {
    /// Returns what is applied, as people may see it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Ensure { label, .. } => label.clone(),
            Self::Apply(manifest) => manifest.shown(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Ensure { .. } => Action::Ensure,
            Self::Apply(_) => Action::Apply,
        }
    }
}

/// A run to be carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Where the node's daemon keeps its state.
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub identity: NodeName,
    pub run_id: RunId,
    pub task: Task,
    pub noop: bool,
    pub health_check_only: bool,
    /// Data that whoever asks insists on.
    pub data: Value,
    /// What Choria knows of the node.
    pub facts: Value,
    pub nats_server: Option<String>,
    pub nats_context: Option<String>,
    pub cfengine_module: Option<String>,
    /// The collective whose governors limit the run.
    pub choria_collective: Token,
    pub caller: String,
    pub request_id: String,
}

/// The first and only word of the process that carries out an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Begun,
    /// Another run is going on.
    Busy {
        run: Option<RunId>,
        holder: String,
    },
    Failed(String),
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DetachedError {
    #[error("could not leave the session: {0}")]
    Session(Cause),
    #[error("could not read the order: {0}")]
    Read(#[source] std::io::Error),
    #[error("invalid order: {0}")]
    Order(#[from] serde_json::Error),
    #[error("busy: {holder}")]
    Busy { run: Option<RunId>, holder: String },
    #[error(transparent)]
    RunStore(#[from] RunStoreError),
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Returns the refusal of a node that is busy with a run, or with something else.
pub(super) fn busy(run: Option<&RunId>, holder: &str) -> Failure {
    match run {
        Some(id) => Failure::aborted(format!("run {id} is going on: wait for its end")),
        None => Failure::aborted(format!("another run is going on: {holder}")),
    }
}

impl Order {
    /// Starts the process that carries this out, and returns when it has begun.
    pub(super) fn start(&self, program: &Path, path: Option<&str>) -> Result<(), Failure> {
        let program = program.to_str();
        let program =
            program.ok_or_else(|| Failure::unknown("the path of this program is not UTF-8"))?;
        let order = serde_json::to_vec(self).map_err(Failure::unknown)?;
        let command = Command {
            input: order,
            path: path.map(str::to_owned),
            ..Command::new(program, ["choria", "run"])
        };
        let process = detach(&command).map_err(Failure::unknown)?;
        let word = process
            .first_line(MAX_WORD, START_LIMIT)
            .map_err(Failure::unknown)?;
        match serde_json::from_slice(&word) {
            Ok(Word::Begun) => Ok(()),
            Ok(Word::Busy { run, holder }) => Err(busy(run.as_ref(), &holder)),
            Ok(Word::Failed(reason)) => Err(Failure::unknown(reason)),
            Err(_) => Err(Failure::unknown("the run did not begin")),
        }
    }

    fn mode(&self) -> Mode {
        Mode {
            noop: self.noop,
            health_check_only: self.health_check_only,
            diff: false,
        }
    }

    fn bus(&self) -> Bus {
        bus(self.nats_server.clone(), self.nats_context.clone())
    }

    /// Makes the run, and returns what happened until it was over or something stood in its way.
    fn perform(
        &self,
        ids: &RefCell<EventIds>,
        clock: &Arc<dyn Clock>,
        handing: &mut Handing,
    ) -> (Session, Option<RunError>) {
        match &self.task {
            Task::Ensure { request, .. } => {
                let session = Session::memory(clock.now());
                let resource = match parse_ensure(request) {
                    Ok(resource) => resource,
                    Err(error) => return (session, Some(error.into())),
                };
                let (session, event) = self.with_host(ids, clock, |host| {
                    run::ensure(resource, self.mode(), session, host, handing)
                });
                (session, event.err())
            }
            Task::Apply(manifest) => {
                let request = Request {
                    data: self.data.clone(),
                    request_id: self.request_id.clone(),
                    caller: self.caller.clone(),
                    ..Request::new(self.run_id.clone(), manifest.clone(), self.mode())
                };
                let completed =
                    self.with_host(ids, clock, |host| run::apply(&request, host, handing));
                (completed.session, completed.error)
            }
        }
    }

    /// Gives a run what it works with.
    fn with_host<T>(
        &self,
        ids: &RefCell<EventIds>,
        clock: &Arc<dyn Clock>,
        run: impl FnOnce(&Host<'_>) -> T,
    ) -> T {
        let bus = self.bus();
        let surroundings = surroundings(&self.facts, &bus, clock.clone());
        let env = |place: Place<'_>| Ok(surroundings.env(place.directory));
        let data = |_: &Facts| Ok(OutsideData::default());
        let gate = |_: &Resource, _: &str, _: Mode| Ok(());
        let next_id = || ids.borrow_mut().next(clock.now());
        let goes_on: StopReason = Arc::new(|| None);
        run(&Host {
            identity: &self.identity,
            // The daemon knows which one it is.
            collective: &Token::default_collective(),
            clock: &**clock,
            bus: &bus,
            executor: &Local,
            base: Path::new("/"),
            state_dir: Some(&self.state_dir),
            cfengine_module: self.cfengine_module.as_deref(),
            governors: Governors {
                collective: self.choria_collective.clone(),
                default: None,
                ignored: false,
                give_up: goes_on.clone(),
                // The process has no log; the governor's own events tell it.
                evicted: Arc::new(|_, _| {}),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: goes_on,
            cancel: None,
            next_id: &next_id,
        })
    }

    fn result(&self, session: &Session, error: Option<&RunError>) -> RunResult {
        let is_invalid = error.is_some_and(RunError::is_invalid);
        let error = error.map(ToString::to_string).unwrap_or_default();
        let error = clipped(&error, MAX_ERROR);
        let summary = session.summary();
        let (events, omitted) = briefs(session.events());
        let event = match (&self.task, session.events()) {
            (Task::Ensure { .. }, [event]) => fitting(event).ok(),
            _ => None,
        };
        RunResult {
            outcome: RunSummary::outcome_of(&summary, self.noop, &error),
            error,
            is_invalid,
            summary,
            events,
            omitted,
            event,
        }
    }

    fn record(&self, clock: &dyn Clock) -> Record {
        Record {
            run_id: self.run_id.clone(),
            action: self.task.action().as_str().into(),
            source: self.task.shown(),
            noop: self.noop,
            health_check_only: self.health_check_only,
            caller: self.caller.clone(),
            request_id: self.request_id.clone(),
            started: clock.now(),
            ended: None,
            result: None,
            untold: String::new(),
        }
    }
}

/// Carries out the order that comes in, in this process, and says one line when it has begun or
/// why it did not.
pub fn carry_out(
    order: impl Read,
    mut tell: impl Write,
    clock: Arc<dyn Clock>,
) -> Result<(), DetachedError> {
    let ids = RefCell::new(EventIds::new()?);
    let begun = begin(order, &*clock);
    let word = match &begun {
        Ok(_) => Word::Begun,
        Err(DetachedError::Busy { run, holder }) => Word::Busy {
            run: run.clone(),
            holder: holder.clone(),
        },
        Err(error) => Word::Failed(error.to_string()),
    };
    let word = json::compact(&word)? + "\n";
    // Whoever asked may be gone already; the run was ordered all the same.
    let _ = tell.write_all(word.as_bytes()).and_then(|()| tell.flush());
    drop(tell);
    let (order, store, record, _locks) = begun?;
    let mut handing = Handing::begin(&order, record.started);
    let (session, error) = order.perform(&ids, &clock, &mut handing);
    let result = order.result(&session, error.as_ref());
    // Events are safe before anybody hears that the run is over.
    let untold = handing.finish();
    let record = Record {
        ended: Some(clock.now()),
        result: Some(result),
        untold: untold
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default(),
        ..record
    };
    Ok(store.end(&record)?)
}

fn begin(
    order: impl Read,
    clock: &dyn Clock,
) -> Result<(Order, RunStore, Record, [FileLock; 2]), DetachedError> {
    lead_session().map_err(DetachedError::Session)?;
    let mut text = Vec::new();
    order
        .take(MAX_ORDER)
        .read_to_end(&mut text)
        .map_err(DetachedError::Read)?;
    let order: Order = serde_json::from_slice(&text)?;
    let store = RunStore::open(&order.run_dir)?;
    files::create_private_dir(&order.state_dir).map_err(RunStoreError::from)?;
    // Who holds the run lock is alone with the store, too, but for another state directory.
    let run_lock = RunLock::of(&order.state_dir).take(&order.run_id, PATIENCE, clock);
    let run_lock = not_busy(run_lock)?;
    let lock = not_busy(store.lock(&order.run_id, clock))?;
    let record = order.record(clock);
    store.begin(&record)?;
    Ok((order, store, record, [run_lock, lock]))
}

fn not_busy(lock: Result<FileLock, LockError>) -> Result<FileLock, DetachedError> {
    match lock {
        Err(LockError::Held { holder, .. }) => Err(DetachedError::Busy {
            run: run_of(&holder),
            holder: holder.to_string(),
        }),
        lock => Ok(lock.map_err(RunStoreError::from)?),
    }
}

/// Returns what templates see besides their data.
pub(super) fn surroundings(choria: &Value, bus: &Bus, clock: Arc<dyn Clock>) -> Surroundings {
    Surroundings {
        facts: facts_of(choria, clock),
        environ: Value::empty_map(),
        bus: Arc::new(bus.clone()),
        registration_stream: registration::STREAM.into(),
    }
}

/// Returns our facts, gathered when a template names them, and Choria's where we have none of that
/// name: manifests that were written for Choria's own watcher find what they know.
pub(super) fn facts_of(choria: &Value, clock: Arc<dyn Clock>) -> Facts {
    let gather =
        Arc::new(Gatherer::new(Places::from_env(&Default::default()), clock)).into_source();
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

/// Hands what happens over to the daemon of the node, if it has one.
struct Handing {
    to: Result<Option<Handover>, HandoverError>,
    /// How the run ended: of a single resource there is nothing beside its event.
    run: Option<RunSummary>,
}

impl Handing {
    fn begin(order: &Order, started: DateTime<Utc>) -> Self {
        Self {
            to: Handover::begin(&order.state_dir, &order.run_id, started),
            run: None,
        }
    }

    /// Returns when all that happened is safe, or the first thing that went wrong.
    fn finish(self) -> Result<(), HandoverError> {
        match self.to? {
            Some(handover) => handover.finish(self.run),
            None => Ok(()),
        }
    }

    /// Hands something over. A run does not fail because that is not possible.
    fn hand(&mut self, over: impl FnOnce(&mut Handover) -> Result<(), HandoverError>) {
        if let Ok(Some(handover)) = &mut self.to
            && let Err(error) = over(handover)
        {
            self.to = Err(error);
        }
    }
}

impl Sink for Handing {
    fn event(&mut self, event: &TransactionEvent, _manifest: Option<&str>) {
        self.hand(|handover| handover.event(event));
    }

    /// Hands over what the node's log should hold; the rest is told by events.
    fn line(&mut self, line: &Line) {
        if line.level >= Level::Warn {
            self.hand(|handover| handover.line(line));
        }
    }

    fn checked(&mut self, checked: &Checked<'_>) {
        self.hand(|handover| handover.checked(checked));
    }

    fn services(&mut self, entries: &[Entry], standing: Standing) {
        self.hand(|handover| handover.services(entries, standing));
    }

    fn finished(&mut self, run: &RunSummary) {
        self.run = Some(RunSummary {
            error: clipped(&run.error, MAX_ERROR),
            ..run.clone()
        });
    }

    fn diff(&mut self, _text: &str) {}
}
