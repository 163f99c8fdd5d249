//! A run: ordered by one process, carried out by another that outlives it.
//!
//! The order travels in a nameless file, so that no secret is on disk or in a list of processes. The
//! process that carries it out says one line, that it began or why not, and nothing more; from then
//! on the book tells. The turn of the node and the lock of the book are taken by the one process that
//! needs them, for as long as it lives: between two that want them nothing can go wrong.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::book::{Book, BookError, PATIENCE, Record, RunResult, briefs, fitting};
use super::config::bus;
use super::ddl::Action;
use super::reply::{Failure, clipped};
use crate::agent::handover::{Handover, HandoverError};
use crate::agent::sources::{self, Fetched};
use crate::agent::turn::{Turns, named_in};
use crate::engine::{Engine, EventIds, Line, Machine, Mode, Owed, Scope, Session, Sink};
use crate::facts::{Gatherer, Places};
use crate::hiera::Layers;
use crate::manifest::{self, Input, Manifest};
use crate::model::Value;
use crate::model::event::TransactionEvent;
use crate::model::json;
use crate::model::node::{NodeName, Token};
use crate::model::request::parse_ensure;
use crate::model::resource::Phase;
use crate::model::run::{RUN_SUMMARY, RunId, RunSummary, Trigger};
use crate::model::secret::redact_url;
use crate::nats::{Bus, registration};
use crate::system::runner::{detach, lead_session};
use crate::system::{
    Accounts, Cause, Clock, Command, Digest, FileLock, LockError, SystemRunner, files,
};
use crate::template::env::Facts;
use crate::template::expr::Cache;
use crate::template::{Env, resolve};

/// The longest order: a request with facts.
const MAX_ORDER: u64 = 64 * 1024 * 1024;

/// The largest manifest that is read, and the largest file that a template may read.
const MAX_MANIFEST: u64 = 256 * 1024 * 1024;
const MAX_READ: u64 = 16 * 1024 * 1024;

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
    Apply(What),
}

/// Where a manifest is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// A source as people write it: a path, a bundle, a URL.
    Source(String),
    /// The manifest itself.
    Text(String),
}

impl Task {
    /// Returns what is applied, as people may see it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Ensure { label, .. } => label.clone(),
            Self::Apply(what) => what.shown(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Ensure { .. } => Action::Ensure,
            Self::Apply(_) => Action::Apply,
        }
    }
}

impl What {
    fn shown(&self) -> String {
        match self {
            Self::Source(source) => redact_url(source).into_owned(),
            Self::Text(_) => "inline".into(),
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
    pub caller: String,
    pub request_id: String,
}

/// The first and only word of the process that carries out an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Begun,
    /// It is another run's turn.
    Busy(String),
    Failed(String),
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DetachedError {
    #[error("could not leave the session: {0}")]
    Session(Cause),
    #[error("could not read the order: {0}")]
    Read(std::io::Error),
    #[error("invalid order: {0}")]
    Order(#[from] serde_json::Error),
    #[error("busy: {0}")]
    Busy(String),
    #[error(transparent)]
    Book(#[from] BookError),
}

/// Why there is no result: what was asked for can't be, or something stood in its way.
enum Trouble {
    Invalid(String),
    Failed(String),
}

fn invalid(reason: impl ToString) -> Trouble {
    Trouble::Invalid(reason.to_string())
}

fn failed(reason: impl ToString) -> Trouble {
    Trouble::Failed(reason.to_string())
}

/// Returns the refusal of a node that is busy with something.
pub(super) fn busy(holder: &str) -> Failure {
    match named_in(holder) {
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
            Ok(Word::Busy(holder)) => Err(busy(&holder)),
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

    /// Returns what templates see. Relative paths start at `directory`.
    fn env(&self, directory: &Path, bus: &Bus, clock: &Arc<dyn Clock>) -> Env {
        let (bus, registry) = (bus.clone(), bus.clone());
        Env {
            facts: facts_of(&self.facts, clock.clone()),
            environ: Value::empty_map(),
            data: Value::empty_map(),
            working_dir: directory.to_owned(),
            read_file: Some(Arc::new(|path: &Path| {
                files::read_to_string(path, MAX_READ).map_err(|err| err.to_string())
            })),
            kv_get: Some(Arc::new(move |bucket: &str, key: &str| {
                bus.kv_get(bucket, key).map_err(|err| err.to_string())
            })),
            registrations: Some(Arc::new(move |words| {
                registry
                    .registrations(registration::STREAM, words)
                    .map_err(|err| err.to_string())
            })),
            ..Env::default()
        }
    }

    /// Does it, and returns what happened until it was over or something stood in its way.
    fn perform(&self, clock: &Arc<dyn Clock>, teller: &mut Teller) -> (Session, Option<Trouble>) {
        let mut session = Session::memory(clock.now());
        let trouble = match &self.task {
            Task::Ensure { request, .. } => self.ensure(request, &mut session, clock, teller),
            Task::Apply(what) => self.apply(what, &mut session, clock, teller),
        };
        (session, trouble.err())
    }

    fn ensure(
        &self,
        request: &str,
        session: &mut Session,
        clock: &Arc<dyn Clock>,
        teller: &mut Teller,
    ) -> Result<(), Trouble> {
        let mut resource = parse_ensure(request).map_err(invalid)?;
        let env = self.env(Path::new("/"), &self.bus(), clock);
        let scope = Scope::new(env, self.mode());
        resolve::resource(&mut resource, Phase::Early, &scope.env, &Cache::default())
            .map_err(invalid)?;
        resource.complete().map_err(invalid)?;
        let runner = SystemRunner::new();
        let mut engine = Engine::new(machine(&runner, &**clock), std::mem::take(session), teller);
        let event = engine.apply(&scope, &resource.into()).map_err(invalid);
        let result = match event {
            Ok(event) => engine.record(&scope, event).map_err(failed),
            Err(trouble) => Err(trouble),
        };
        *session = engine.into_session();
        result
    }

    fn apply(
        &self,
        what: &What,
        session: &mut Session,
        clock: &Arc<dyn Clock>,
        teller: &mut Teller,
    ) -> Result<(), Trouble> {
        let (env, manifest, _kept) = self.load(what, clock)?;
        let mut scope = Scope::new(env, self.mode());
        scope.external = self.data.clone();
        let owed = Owed::open(&self.owed_file(what)?).map_err(failed)?;
        let runner = SystemRunner::new();
        let mut engine =
            Engine::new(machine(&runner, &**clock), std::mem::take(session), teller).owing(owed);
        let result = engine.run(&scope, &manifest).map_err(failed);
        *session = engine.into_session();
        result
    }

    fn load(
        &self,
        what: &What,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Env, Manifest, Option<Fetched>), Trouble> {
        let bus = self.bus();
        let (text, directory, kept) = match what {
            What::Source(source) => {
                let temporary = std::env::temp_dir();
                let fetched = sources::fetch(source, Path::new("/"), &temporary, &**clock, &bus)
                    .map_err(failed)?;
                let text =
                    files::read_to_string(&fetched.manifest_path, MAX_MANIFEST).map_err(failed)?;
                (text, fetched.directory.clone(), Some(fetched))
            }
            What::Text(text) => (text.clone(), PathBuf::from("/"), None),
        };
        let mut env = self.env(&directory, &bus, clock);
        let input = Input {
            text: &text,
            source: &what.shown(),
            layers: Layers {
                external: self.data.clone(),
                ..Layers::default()
            },
        };
        let manifest = manifest::load(input, &mut env, &Cache::default()).map_err(invalid)?;
        Ok((env, manifest, kept))
    }

    /// Returns where the refreshes are noted that runs of this source owe.
    fn owed_file(&self, what: &What) -> Result<PathBuf, Trouble> {
        let directory = self.run_dir.join("owed");
        files::create_private_dir(&directory).map_err(failed)?;
        // Every inline manifest is a source of its own.
        let key = match what {
            What::Text(text) => Digest::of(text.as_bytes()),
            What::Source(_) => Digest::of(what.shown().as_bytes()),
        };
        Ok(directory.join(key.to_string()))
    }

    fn result(&self, session: &Session, trouble: Option<Trouble>) -> RunResult {
        let (error, is_invalid) = match trouble {
            None => (String::new(), false),
            Some(Trouble::Invalid(reason)) => (reason, true),
            Some(Trouble::Failed(reason)) => (reason, false),
        };
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

    /// Returns what the fleet hears of a run when it is over: of a single resource, nothing beside
    /// its event.
    fn summary(&self, result: &RunResult, clock: &dyn Clock) -> Option<RunSummary> {
        if matches!(self.task, Task::Ensure { .. }) {
            return None;
        }
        let now = clock.now();
        Some(RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: EventIds::default().next(now),
            run_id: self.run_id.clone(),
            identity: self.identity.clone(),
            // The daemon knows which one it is.
            collective: Token::default_collective(),
            source: self.task.shown(),
            trigger: Trigger::Request,
            outcome: result.outcome,
            noop: self.noop,
            health_check_only: self.health_check_only,
            generation: None,
            request_id: self.request_id.clone(),
            caller: self.caller.clone(),
            error: result.error.clone(),
            timestamp: now,
            summary: result.summary.clone(),
        })
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
    let begun = begin(order, &*clock);
    let word = match &begun {
        Ok(_) => Word::Begun,
        Err(DetachedError::Busy(holder)) => Word::Busy(holder.clone()),
        Err(error) => Word::Failed(error.to_string()),
    };
    let word = json::compact(&word)? + "\n";
    // Whoever asked may be gone already; the run was ordered all the same.
    let _ = tell.write_all(word.as_bytes()).and_then(|()| tell.flush());
    drop(tell);
    let (order, book, record, _locks) = begun?;
    let mut teller = Teller::begin(&order, record.started);
    let (session, trouble) = order.perform(&clock, &mut teller);
    let result = order.result(&session, trouble);
    // Events are safe before anybody hears that the run is over.
    let untold = teller.finish(order.summary(&result, &*clock));
    let record = Record {
        ended: Some(clock.now()),
        result: Some(result),
        untold: untold
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default(),
        ..record
    };
    Ok(book.end(&record)?)
}

fn begin(
    order: impl Read,
    clock: &dyn Clock,
) -> Result<(Order, Book, Record, [FileLock; 2]), DetachedError> {
    lead_session().map_err(DetachedError::Session)?;
    let mut text = Vec::new();
    order
        .take(MAX_ORDER)
        .read_to_end(&mut text)
        .map_err(DetachedError::Read)?;
    let order: Order = serde_json::from_slice(&text)?;
    let book = Book::open(&order.run_dir)?;
    files::create_private_dir(&order.state_dir).map_err(BookError::from)?;
    // Who has the turn is alone with the book, too, but for another state directory.
    let turn = Turns::of(&order.state_dir).take(&order.run_id, PATIENCE, clock);
    let turn = not_busy(turn)?;
    let lock = not_busy(book.lock(&order.run_id, clock))?;
    let record = order.record(clock);
    book.begin(&record)?;
    Ok((order, book, record, [turn, lock]))
}

fn not_busy(lock: Result<FileLock, LockError>) -> Result<FileLock, DetachedError> {
    match lock {
        Err(LockError::Held { holder, .. }) => Err(DetachedError::Busy(holder)),
        lock => Ok(lock.map_err(BookError::from)?),
    }
}

fn machine<'m>(runner: &'m SystemRunner, clock: &'m dyn Clock) -> Machine<'m> {
    Machine {
        runner,
        clock,
        accounts: Accounts::default(),
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

/// Hands events over to the daemon of the node, if it has one. Lines nobody watches.
struct Teller(Result<Option<Handover>, HandoverError>);

impl Teller {
    fn begin(order: &Order, started: DateTime<Utc>) -> Self {
        Self(Handover::begin(&order.state_dir, &order.run_id, started))
    }

    /// Returns when all that happened is safe, or the first thing that went wrong.
    fn finish(self, run: Option<RunSummary>) -> Result<(), HandoverError> {
        match self.0? {
            Some(handover) => handover.finish(run),
            None => Ok(()),
        }
    }
}

impl Sink for Teller {
    fn event(&mut self, event: &TransactionEvent, _manifest: Option<&str>) {
        // A run does not fail because nobody hears of it.
        if let Ok(Some(handover)) = &mut self.0
            && let Err(error) = handover.event(event)
        {
            self.0 = Err(error);
        }
    }

    fn line(&mut self, _line: &Line) {}

    fn diff(&mut self, _text: &str) {}
}
