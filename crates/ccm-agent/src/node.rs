//! A node: what every part of its agent shares. Who it is, what it knows, what it is doing.

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
use super::trust::Authorizer;
use super::trust::audit::Audit;
use super::trust::loopback::LoopbackOnly;
use super::trust::refusals::Refusals;
use ccm_core::engine::{EventIds, Level, Line};
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::id::EventId;
use ccm_core::model::node::{NODE_STATUS, NodeName, NodeStatus, Token};
use ccm_core::model::run::RunSummary;
use ccm_core::run::executor::Executor;
use ccm_core::run::log::Log;
use ccm_core::run::pause::PauseStore;
use ccm_core::system::{Clock, RandomError};
use ccm_nats::BlockingClient;
use ccm_value::Value;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many seconds nobody may look after the node before that is told.
const MOST_STILL: u64 = 30;

/// What every part of an agent shares.
pub struct Node {
    pub(super) identity: Identity,
    pub(super) services: Services,
    pub(super) state: RunState,
}

/// What a node is called, and how it was configured; none of it changes while it runs.
pub(super) struct Identity {
    pub(super) name: NodeName,
    pub(super) collective: Token,
    pub(super) groups: Vec<Token>,
    pub(super) started: DateTime<Utc>,
    pub(super) beat: Duration,
    /// Whatever is asked, nothing is changed.
    pub(super) noop: bool,
    /// Which slot a run needs, unless it says so itself.
    pub(super) governor: Option<GovernorClaim>,
    /// The collective whose governors are asked.
    pub(super) choria: Token,
    /// The package module of a plain `provider: cfengine`.
    pub(super) cfengine_module: Option<String>,
    /// The variables of the process, as templates see them.
    pub(super) environ: Value,
    pub(super) state_dir: PathBuf,
    /// Where templates look services up.
    pub(super) registration_stream: String,
}

/// What a node works with.
pub(super) struct Services {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) facts: FactsCache,
    pub(super) data: DataCache,
    pub(super) pause: PauseStore,
    pub(super) authorizer: Authorizer,
    /// Decides instead where the agent's file says nothing about trust.
    pub(super) loopback_only: Option<LoopbackOnly>,
    pub(super) refusals: Refusals,
    pub(super) audit: Audit,
    pub(super) run_queue: RunQueue,
    pub(super) event_sink: EventSink,
    pub(super) choria_events: ChoriaEvents,
    /// Takes the services of this node, if they are registered.
    pub(super) registration_publisher: Option<RegistrationPublisher>,
    /// Takes what manifests look up, if that is watched.
    pub(super) lookups: Option<Lookups>,
    pub(super) bus: BlockingClient,
    pub(super) metrics: Metrics,
    pub(super) log: Log,
    /// Carries out what the node is asked.
    pub(super) executor: Arc<dyn Executor>,
}

/// What a node remembers while it runs.
pub(super) struct RunState {
    ids: Mutex<EventIds>,
    last_run: Mutex<Option<RunSummary>>,
    generation: AtomicU64,
    /// Seconds on the monotonic clock when somebody last looked after the node.
    patrolled: AtomicU64,
    /// What the node should be was tried once.
    has_converged: AtomicBool,
    /// Wakes whoever tells others what the node says about itself.
    news: Notify,
}

impl RunState {
    pub(super) fn new() -> Result<Self, RandomError> {
        Ok(Self {
            ids: Mutex::new(EventIds::new()?),
            last_run: Mutex::default(),
            generation: AtomicU64::default(),
            patrolled: AtomicU64::default(),
            has_converged: AtomicBool::default(),
            news: Notify::default(),
        })
    }
}

impl Node {
    /// Returns an id that is greater than all before it.
    pub(super) fn next_id(&self) -> EventId {
        self.state.ids.lock().next(self.services.clock.now())
    }

    /// Returns what the node says about itself.
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
            facts: self.services.facts.for_selection(),
        }
    }

    /// Remembers and publishes how a run ended.
    pub(super) fn finish(&self, run: &RunSummary) {
        self.services.event_sink.run(run);
        self.services.event_sink.sync();
        self.services.choria_events.manifest(run);
        self.services
            .metrics
            .run_finished(run, run.summary.total_duration);
        *self.state.last_run.lock() = Some(run.clone());
        self.has_news();
    }

    /// Notes that a run began or ended, for whoever tells others.
    pub(super) fn has_news(&self) {
        self.state.news.notify_one();
    }

    /// Returns when a run began or ended since this was last asked.
    pub(super) async fn news(&self) {
        self.state.news.notified().await;
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.generation.load(Ordering::Relaxed)
    }

    pub(super) fn set_generation(&self, generation: u64) {
        self.state.generation.store(generation, Ordering::Relaxed);
    }

    /// Notes that somebody looks after the node.
    pub(super) fn patrol(&self) {
        let now = self.services.clock.monotonic().as_secs();
        self.state.patrolled.store(now, Ordering::Relaxed);
    }

    /// Notes that what the node should be was tried.
    pub(super) fn converged(&self) {
        self.state.has_converged.store(true, Ordering::Relaxed);
    }

    /// Says that the agent goes round, or for how long it does not.
    pub fn is_alive(&self) -> Result<(), Unhealthy> {
        let last = self.state.patrolled.load(Ordering::Relaxed);
        let now = self.services.clock.monotonic().as_secs();
        let seconds = now.saturating_sub(last);
        if seconds > MOST_STILL {
            return Err(Unhealthy::Still { seconds });
        }
        Ok(())
    }

    /// Says that the agent does its work, or what is in its way.
    pub fn is_ready(&self) -> Result<(), Unhealthy> {
        if !self.state.has_converged.load(Ordering::Relaxed) {
            return Err(Unhealthy::FirstRun);
        }
        Ok(())
    }

    pub(super) fn say(&self, level: Level, text: &str, fields: &[(&'static str, String)]) {
        let mut line = Line::new(level, text);
        line.fields.extend_from_slice(fields);
        self.services.log.line(&line);
    }
}
