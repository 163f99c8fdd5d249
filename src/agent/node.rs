//! A node: what every part of its agent shares. Who it is, what it knows, what it is doing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::data::{DataKeeper, MAX_BYTES};
use super::desk::Desk;
use super::facts::FactsKeeper;
use super::log::Log;
use super::metrics::Metrics;
use super::outbox::Outbox;
use super::pause::PauseBook;
use crate::engine::{EventIds, Level, Line};
use crate::model::id::EventId;
use crate::model::node::{NODE_STATUS, NodeName, NodeStatus, Token};
use crate::model::run::RunSummary;
use crate::model::value::Map;
use crate::nats::Bus;
use crate::system::{Clock, files};
use crate::template::Env;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What every part of an agent shares.
pub struct Node {
    pub identity: NodeName,
    pub collective: Token,
    pub groups: Vec<Token>,
    pub started: DateTime<Utc>,
    pub beat: Duration,
    /// Whatever is asked, nothing is changed.
    pub noop: bool,
    pub environ: BTreeMap<String, String>,
    pub state_dir: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub facts: FactsKeeper,
    pub data: DataKeeper,
    pub pause: PauseBook,
    pub desk: Desk,
    pub outbox: Outbox,
    pub bus: Bus,
    pub metrics: Metrics,
    pub log: Log,
    pub(super) memory: Memory,
}

/// What a node remembers while it runs.
#[derive(Default)]
pub(super) struct Memory {
    ids: Mutex<EventIds>,
    last_run: Mutex<Option<RunSummary>>,
    generation: AtomicU64,
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
        let environ: Map = self
            .environ
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect();
        let bus = self.bus.clone();
        Env {
            facts: self.facts.current(),
            environ: environ.into(),
            working_dir: directory.to_owned(),
            read_file: Some(Arc::new(|path: &Path| {
                files::read_to_string(path, MAX_BYTES).map_err(|err| err.to_string())
            })),
            kv_get: Some(Arc::new(move |bucket, key| bus.kv_get(bucket, key))),
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
        self.metrics.run_finished(run, run.summary.total_duration);
        *lock(&self.memory.last_run) = Some(run.clone());
    }

    pub fn generation(&self) -> u64 {
        self.memory.generation.load(Ordering::Relaxed)
    }

    pub fn set_generation(&self, generation: u64) {
        self.memory.generation.store(generation, Ordering::Relaxed);
    }

    pub fn say(&self, level: Level, text: &str, fields: &[(&'static str, String)]) {
        let mut line = Line::new(level, text);
        line.fields.extend_from_slice(fields);
        self.log.line(&line);
    }
}
