//! A node: what every part of its agent shares. Who it is, what it knows, what it is doing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use super::data::{DataKeeper, MAX_BYTES};
use super::desk::Desk;
use super::facts::FactsKeeper;
use super::herald::Herald;
use super::log::Log;
use super::lookups::Lookups;
use super::metrics::Metrics;
use super::outbox::Outbox;
use super::pause::PauseBook;
use super::registrar::Registrar;
use super::simulate::Pretend;
use super::trust::Gatekeeper;
use super::trust::audit::Audit;
use crate::engine::{EventIds, Level, Line};
use crate::model::Value;
use crate::model::governor::Claim;
use crate::model::id::EventId;
use crate::model::node::{NODE_STATUS, NodeName, NodeStatus, Token};
use crate::model::run::RunSummary;
use crate::nats::Bus;
use crate::system::{Clock, files};
use crate::template::Env;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many seconds nobody may look after the node before that is told.
const MOST_STILL: u64 = 30;

/// What every part of an agent shares.
pub struct Node {
    pub identity: NodeName,
    pub collective: Token,
    pub groups: Vec<Token>,
    pub started: DateTime<Utc>,
    pub beat: Duration,
    /// Whatever is asked, nothing is changed.
    pub noop: bool,
    /// Which slot a run needs, unless it says so itself.
    pub governor: Option<Claim>,
    /// The collective whose governors are asked.
    pub choria: Token,
    /// The package module of a plain `provider: cfengine`.
    pub cfengine_module: Option<String>,
    /// The variables of the process, as templates see them.
    pub environ: Value,
    pub state_dir: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub facts: FactsKeeper,
    pub data: DataKeeper,
    pub pause: PauseBook,
    pub gatekeeper: Gatekeeper,
    pub audit: Audit,
    pub desk: Desk,
    pub outbox: Outbox,
    pub herald: Herald,
    /// Takes the services of this node, if they are registered.
    pub registrar: Option<Registrar>,
    /// Where templates look services up.
    pub registration_stream: String,
    /// Takes what manifests look up, if that is watched.
    pub lookups: Option<Lookups>,
    pub bus: Bus,
    pub metrics: Metrics,
    pub log: Log,
    /// Set for a node that only pretends.
    pub(super) pretend: Option<Pretend>,
    pub(super) memory: Memory,
}

/// What a node remembers while it runs.
#[derive(Default)]
pub(super) struct Memory {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Returns an id that is greater than all before it.
    pub fn next_id(&self) -> EventId {
        lock(&self.memory.ids).next(self.clock.now())
    }

    /// Returns what templates see in a run whose relative paths start at `directory`.
    pub fn env(&self, directory: &Path) -> Env {
        let bus = self.bus.clone();
        let (registry, stream) = (bus.clone(), self.registration_stream.clone());
        Env {
            facts: self.facts.current(),
            environ: self.environ.clone(),
            working_dir: directory.to_owned(),
            read_file: Some(Arc::new(|path: &Path| {
                files::read_to_string(path, MAX_BYTES).map_err(|err| err.to_string())
            })),
            kv_get: Some(Arc::new(move |bucket, key| {
                bus.kv_get(bucket, key).map_err(|err| err.to_string())
            })),
            registrations: Some(Arc::new(move |words| {
                registry
                    .registrations(&stream, words)
                    .map_err(|err| err.to_string())
            })),
            ..Env::default()
        }
    }

    /// Returns what the node says about itself.
    pub fn status(&self) -> NodeStatus {
        let (current_run, queued) = self.desk.status();
        NodeStatus {
            protocol: NODE_STATUS.into(),
            identity: self.identity.clone(),
            collective: self.collective.clone(),
            groups: self.groups.clone(),
            version: VERSION.into(),
            started: self.started,
            timestamp: self.clock.now(),
            beat: self.beat.as_secs(),
            current_run,
            queued,
            last_run: lock(&self.memory.last_run).clone(),
            pause: self.pause.current(),
            spool: self.outbox.status(),
            generation: self.generation(),
            facts: self.facts.for_selection(),
        }
    }

    /// Remembers and publishes how a run ended.
    pub fn finish(&self, run: &RunSummary) {
        self.outbox.run(run);
        self.outbox.sync();
        self.herald.manifest(run);
        self.metrics.run_finished(run, run.summary.total_duration);
        *lock(&self.memory.last_run) = Some(run.clone());
        self.has_news();
    }

    /// Notes that a run began or ended, for whoever tells others.
    pub fn has_news(&self) {
        self.memory.news.notify_one();
    }

    /// Returns when a run began or ended since this was last asked.
    pub async fn news(&self) {
        self.memory.news.notified().await;
    }

    pub fn generation(&self) -> u64 {
        self.memory.generation.load(Ordering::Relaxed)
    }

    pub fn set_generation(&self, generation: u64) {
        self.memory.generation.store(generation, Ordering::Relaxed);
    }

    /// Notes that somebody looks after the node.
    pub fn patrol(&self) {
        let now = self.clock.monotonic().as_secs();
        self.memory.patrolled.store(now, Ordering::Relaxed);
    }

    /// Notes that what the node should be was tried.
    pub fn converged(&self) {
        self.memory.has_converged.store(true, Ordering::Relaxed);
    }

    /// Says that the agent goes round, or for how long it does not.
    pub fn is_alive(&self) -> Result<(), String> {
        let last = self.memory.patrolled.load(Ordering::Relaxed);
        match self.clock.monotonic().as_secs().saturating_sub(last) {
            still if still > MOST_STILL => Err(format!("nothing moved for {still} seconds")),
            _ => Ok(()),
        }
    }

    /// Says that the agent does its work, or what is in its way.
    pub fn is_ready(&self) -> Result<(), String> {
        match self.memory.has_converged.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("the first run is not over yet".into()),
        }
    }

    pub fn say(&self, level: Level, text: &str, fields: &[(&'static str, String)]) {
        let mut line = Line::new(level, text);
        line.fields.extend_from_slice(fields);
        self.log.line(&line);
    }
}
