//! Shared state of the agent: identity of the node, services, and the state of runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::choria_events::ChoriaEvents;
use super::data_cache::DataCache;
use super::event_sink::EventSink;
use super::facts_cache::FactsCache;
use super::http_server::Unhealthy;
use super::metrics::Metrics;
use super::registration_publisher::RegistrationPublisher;
use super::registration_watch::Lookups;
use super::run_queue::RunQueue;
use super::spool::SpoolError;
use super::trust::Authorizer;
use super::trust::audit::Audit;
use super::trust::loopback::LoopbackOnly;
use super::trust::refusals::Refusals;
use super::trust::signer_refresh::SignerRefresh;
use ccm_core::engine::{EventIds, Level, Line};
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::id::EventId;
use ccm_core::model::node::{NODE_STATUS, NodeName, NodeStatus, Token};
use ccm_core::model::run::RunSummary;
use ccm_core::run::executor::Executor;
use ccm_core::run::log::Log;
use ccm_core::run::pause::PauseStore;
use ccm_core::system::{Clock, FileError, RandomError, files};
use ccm_nats::BlockingClient;
use ccm_template::secrets::Secrets;
use ccm_value::Value;

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Seconds without maintenance after which the agent counts as stalled.
const MAX_STALL_SECONDS: u64 = 30;

/// Time between two checks that the state directory has room, which write to the disk.
const STORAGE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// State that all parts of an agent share.
pub struct Node {
    pub(super) identity: Identity,
    pub(super) services: Services,
    pub(super) state: RunState,
}

/// Name and configuration of the node; constant while the agent runs.
pub(super) struct Identity {
    pub(super) name: NodeName,
    pub(super) collective: Token,
    pub(super) groups: Vec<Token>,
    pub(super) started: DateTime<Utc>,
    pub(super) beat: Duration,
    /// Forces noop for every run.
    pub(super) noop: bool,
    /// Governor slot of a run that does not name its own.
    pub(super) governor: Option<GovernorClaim>,
    /// Choria collective of the governors.
    pub(super) choria: Token,
    /// The node is a server of Choria's network.
    pub(super) is_choria_server: bool,
    /// Package module for `provider: cfengine` without a module name.
    pub(super) cfengine_module: Option<String>,
    /// Environment variables of the process, for templates.
    pub(super) environ: Value,
    pub(super) state_dir: PathBuf,
    /// Public key that values for this node are encrypted for.
    pub(super) recipient: String,
    /// Stream in which templates look up registered services.
    pub(super) registration_stream: String,
}

/// Services of a node.
pub(super) struct Services {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) facts: FactsCache,
    /// Opens encrypted values.
    pub(super) secrets: Secrets,
    pub(super) data: DataCache,
    pub(super) pause: PauseStore,
    pub(super) authorizer: Authorizer,
    pub(super) signer_refresh: SignerRefresh,
    /// Replaces the authorizer if the configuration has no `trust` section.
    pub(super) loopback_only: Option<LoopbackOnly>,
    pub(super) refusals: Refusals,
    pub(super) audit: Audit,
    pub(super) run_queue: RunQueue,
    pub(super) event_sink: EventSink,
    pub(super) choria_events: ChoriaEvents,
    /// Publishes registrations of this node, if that is configured.
    pub(super) registration_publisher: Option<RegistrationPublisher>,
    /// Records service lookups of manifests, if those are watched.
    pub(super) lookups: Option<Lookups>,
    pub(super) nats: BlockingClient,
    pub(super) metrics: Metrics,
    pub(super) log: Log,
    /// Applies manifests and resources.
    pub(super) executor: Arc<dyn Executor>,
}

/// A lasting problem of the agent, shown until it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    /// The state directory can't be written to.
    StateDir,
    /// A bundle of the assignment can't be fetched.
    Bundle,
    /// The key of encrypted values can't be used.
    SecretKey,
    /// Choria's brokers deny a permission that the Choria server needs.
    ChoriaServer,
}

/// State that changes while the agent runs.
pub(super) struct RunState {
    ids: Mutex<EventIds>,
    last_run: Mutex<Option<RunSummary>>,
    generation: AtomicU64,
    problems: Mutex<BTreeMap<Problem, String>>,
    /// Collectives in which the node serves Choria's clients.
    choria_collectives: Mutex<Vec<Token>>,
    /// Time of the last maintenance, in seconds on the monotonic clock.
    last_maintenance: AtomicU64,
    /// Time of the last check that the state directory has room, on the monotonic clock.
    last_storage_check: Mutex<Option<Duration>>,
    /// The first run of all manifests is over.
    has_converged: AtomicBool,
    /// Notified when a run begins or ends.
    status_changed: Notify,
    /// Notified when a nudge arrives.
    nudged: Notify,
}

impl RunState {
    pub(super) fn new() -> Result<Self, RandomError> {
        Ok(Self {
            ids: Mutex::new(EventIds::new()?),
            last_run: Mutex::default(),
            generation: AtomicU64::default(),
            problems: Mutex::default(),
            choria_collectives: Mutex::default(),
            last_maintenance: AtomicU64::default(),
            last_storage_check: Mutex::default(),
            has_converged: AtomicBool::default(),
            status_changed: Notify::default(),
            nudged: Notify::default(),
        })
    }
}

impl Node {
    /// Returns an event id greater than all before it.
    pub(super) fn next_id(&self) -> EventId {
        self.state.ids.lock().next(self.services.clock.now())
    }

    /// Returns the status document of the node.
    pub fn status(&self) -> NodeStatus {
        let (current_run, queued) = self.services.run_queue.status();
        NodeStatus {
            protocol: NODE_STATUS.into(),
            identity: self.identity.name.clone(),
            collective: self.identity.collective.clone(),
            groups: self.identity.groups.clone(),
            version: VERSION.into(),
            started: self.identity.started,
            timestamp: self.services.clock.now(),
            beat: self.identity.beat.as_secs(),
            current_run,
            queued,
            last_run: self.state.last_run.lock().clone(),
            pause: self.services.pause.current(),
            trust: self.trust_status(),
            spool: self.services.event_sink.status(),
            generation: self.generation(),
            recipient: self.identity.recipient.clone(),
            problems: self.state.problems.lock().values().cloned().collect(),
            choria: self.state.choria_collectives.lock().clone(),
            facts: self.services.facts.for_selection(),
        }
    }

    /// Stores and publishes the summary of a run.
    pub(super) fn finish(&self, run: &RunSummary) {
        self.services.event_sink.run(run);
        self.services.event_sink.sync();
        self.services.choria_events.manifest(run);
        self.services
            .metrics
            .run_finished(run, run.summary.total_duration);
        *self.state.last_run.lock() = Some(run.clone());
        self.notify_status_changed();
    }

    /// Signals that a run began or ended.
    pub(super) fn notify_status_changed(&self) {
        self.state.status_changed.notify_one();
    }

    /// Waits until a run begins or ends; returns at once if that happened since the last call.
    pub(super) async fn status_changed(&self) {
        self.state.status_changed.notified().await;
    }

    /// Signals that a nudge arrived.
    pub(super) fn notify_nudged(&self) {
        self.state.nudged.notify_one();
    }

    /// Waits for a nudge; returns at once if one arrived since the last call.
    pub(super) async fn nudged(&self) {
        self.state.nudged.notified().await;
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.generation.load(Ordering::Relaxed)
    }

    pub(super) fn set_generation(&self, generation: u64) {
        self.state.generation.store(generation, Ordering::Relaxed);
    }

    /// Sets the collectives in which the node serves Choria's clients.
    pub(super) fn set_choria_collectives(&self, collectives: Vec<Token>) {
        let mut served = self.state.choria_collectives.lock();
        if *served != collectives {
            *served = collectives;
            drop(served);
            self.notify_status_changed();
        }
    }

    /// Sets or clears a problem. Returns whether that is new.
    pub(super) fn set_problem(&self, problem: Problem, reason: Option<String>) -> bool {
        let mut problems = self.state.problems.lock();
        let is_new = problems.get(&problem) != reason.as_ref();
        match reason {
            Some(reason) => problems.insert(problem, reason),
            None => problems.remove(&problem),
        };
        drop(problems);
        if is_new {
            self.notify_status_changed();
        }
        is_new
    }

    /// Fails if the state directory can't be used, without which nothing is managed.
    fn has_state_dir(&self) -> Result<(), Unhealthy> {
        let problems = self.state.problems.lock();
        match problems.get(&Problem::StateDir) {
            Some(reason) => Err(Unhealthy::Problem(reason.clone())),
            None => Ok(()),
        }
    }

    /// Creates the state directory again if it was deleted, and records whether it can be used.
    pub(super) fn check_state_dir(&self) {
        let found = files::create_private_dir(&self.identity.state_dir)
            .and_then(|()| files::check_writable(&self.identity.state_dir))
            .and_then(|()| self.check_storage())
            .map_err(SpoolError::from)
            .and_then(|()| self.services.event_sink.restore());
        let reason = found.as_ref().err();
        let reason = reason.map(|err| format!("the state directory can't be used: {err}"));
        let text = reason.clone().unwrap_or_default();
        let is_new = self.set_problem(Problem::StateDir, reason);
        match found {
            Ok(true) => {
                let text = "The state directory was deleted; created it again";
                self.log(Level::Error, text, &[]);
            }
            Ok(false) if is_new => {
                self.log(Level::Warn, "The state directory can be used again", &[])
            }
            Err(_) if is_new => self.log(Level::Error, "Unhealthy", &[("reason", text)]),
            _ => {}
        }
    }

    /// Checks that the state directory has room, if that is due. While it can't be used, that is
    /// always due.
    fn check_storage(&self) -> Result<(), FileError> {
        let now = self.services.clock.monotonic();
        let mut last = self.state.last_storage_check.lock();
        let is_recent = last.is_some_and(|last| now < last + STORAGE_CHECK_INTERVAL);
        if is_recent && self.has_state_dir().is_ok() {
            return Ok(());
        }
        *last = Some(now);
        drop(last);
        files::check_storage(&self.identity.state_dir)
    }

    /// Records that maintenance ran.
    pub(super) fn record_maintenance(&self) {
        let now = self.services.clock.monotonic().as_secs();
        self.state.last_maintenance.store(now, Ordering::Relaxed);
    }

    /// Records that the first run of all manifests is over.
    pub(super) fn set_converged(&self) {
        self.state.has_converged.store(true, Ordering::Relaxed);
    }

    /// Fails if maintenance has stalled or the state directory can't be used.
    pub fn is_alive(&self) -> Result<(), Unhealthy> {
        let last = self.state.last_maintenance.load(Ordering::Relaxed);
        let now = self.services.clock.monotonic().as_secs();
        let seconds = now.saturating_sub(last);
        if seconds > MAX_STALL_SECONDS {
            return Err(Unhealthy::Stalled { seconds });
        }
        self.has_state_dir()
    }

    /// Fails until the first run of all manifests is over, or if the state directory can't be used.
    pub fn is_ready(&self) -> Result<(), Unhealthy> {
        if !self.state.has_converged.load(Ordering::Relaxed) {
            return Err(Unhealthy::FirstRun);
        }
        self.has_state_dir()
    }

    pub(super) fn log(&self, level: Level, text: &str, fields: &[(&'static str, String)]) {
        let mut line = Line::new(level, text);
        line.fields.extend_from_slice(fields);
        self.services.log.line(&line);
    }
}
