//! Simulated nodes: real protocol, schedule and assignments with an executor that changes nothing,
//! to try a fleet on one machine.
//!
//! Every node has its own connection; spool, publisher and bundle cache are shared by all nodes.
//! `shared_nodes` are smaller nodes that share connections. `synthetic_events` generates events without
//! runs.

mod shared_nodes;
mod synthetic_events;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::shared_nodes::SharedNodes;
use self::synthetic_events::SyntheticEvents;
use super::bundle_cache::BundleCache;
use super::config::{Config, SpoolConfig};
use super::metrics::Metrics;
use super::node_builder::{NodeParts, build};
use super::{Agent, AgentError, open_spool, publish_spool};
use ccm_core::engine::apply_manifest::RunError;
use ccm_core::engine::{EventIds, Session, Sink};
use ccm_core::manifest::Manifest;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::id::EventId;
use ccm_core::model::node::{NameError, NodeName, Token};
use ccm_core::model::resource::Resource;
use ccm_core::run::executor::{EngineSetup, EnsureError, Executor};
use ccm_core::run::log::Log;
use ccm_core::system::{Clock, Digest, RandomError};
use ccm_nats::{ConnectMode, Settings, Subjects, connect};
use ccm_value::{Value, json};

/// Most nodes started at the same time.
const MAX_CONCURRENT: usize = 64;

/// Options of a simulated fleet.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// Domain of all node names.
    pub domain: String,
    pub groups: Vec<Token>,
    pub collective: Token,
    pub subject_prefix: String,
    pub beat: Duration,
    /// Synthetic events per second of all nodes together.
    pub events: u32,
    /// Number of connections that the nodes share; one per node if not set.
    pub connections: Option<usize>,
    /// Share of nodes that lose their connection, in each heartbeat interval and for one interval.
    /// Nodes with shared connections only.
    pub disconnect_rate: f64,
    /// Share of nodes that restart in each heartbeat interval. Nodes with shared connections only.
    pub restart_rate: f64,
}

/// Returns the executor of a node.
pub type Executors = dyn Fn(&NodeName) -> Result<SimulatedExecutor, RandomError> + Send + Sync;

/// Executor that reports events without changing anything.
pub struct SimulatedExecutor {
    node: NodeName,
    failure_rate: f64,
    latency: Duration,
    ids: Mutex<EventIds>,
    /// Last applied state of each resource: the same again is stable.
    applied: Mutex<HashMap<String, Digest>>,
}

impl Executor for SimulatedExecutor {
    fn apply(
        &self,
        setup: EngineSetup<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>) {
        let noop = setup.scope.mode.noop;
        let mut session = setup.session;
        for resource in &manifest.resources {
            if let Some(reason) = (setup.stop)() {
                let label = resource.label();
                return (session, Err(RunError::Stopped { label, reason }));
            }
            let event = self.event(setup.clock, resource, noop);
            sink.event(&event, None);
            // A session in memory accepts every event.
            let _ = session.record(event);
        }
        (session, Ok(()))
    }

    fn ensure(
        &self,
        setup: EngineSetup<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>) {
        let event = self.event(setup.clock, resource, setup.scope.mode.noop);
        sink.event(&event, None);
        (setup.session, Ok(event))
    }
}

impl SimulatedExecutor {
    /// Returns the executor of a node: a share of resources fails, always the same ones, and a resource
    /// takes `latency` on average.
    pub fn new(node: &NodeName, failure_rate: f64, latency: Duration) -> Result<Self, RandomError> {
        Ok(Self {
            node: node.clone(),
            failure_rate,
            latency,
            ids: Mutex::new(EventIds::new()?),
            applied: Mutex::default(),
        })
    }

    /// Returns the event of a resource after its simulated duration.
    fn event(&self, clock: &dyn Clock, resource: &Arc<Resource>, noop: bool) -> TransactionEvent {
        let began = clock.monotonic();
        let mut event = self.outcome_event(clock, resource, noop);
        clock.sleep(self.duration_of(&event));
        event.duration = clock.monotonic().saturating_sub(began);
        event
    }

    /// Returns the simulated duration: half to one and a half of the average, derived from the unique
    /// id of the event.
    fn duration_of(&self, event: &TransactionEvent) -> Duration {
        let fraction = hash_fraction(event.event_id.as_str());
        self.latency.mul_f64(0.5 + fraction)
    }

    /// Returns an event id greater than all before it.
    fn next_id(&self, now: DateTime<Utc>) -> EventId {
        self.ids.lock().next(now)
    }

    /// Returns the event of a resource at once.
    fn outcome_event(
        &self,
        clock: &dyn Clock,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> TransactionEvent {
        let now = clock.now();
        let id = self.next_id(now);
        let mut event = TransactionEvent::begin(id, now, "simulated", resource);
        let label = resource.label();
        event.noop = noop;
        if self.fails(&label) {
            event.failed = true;
            event.errors.push("simulated failure".into());
            return event;
        }
        event.final_ensure.clone_from(&resource.common.ensure);
        let wanted = json::compact(&**resource).unwrap_or_default();
        let wanted = Digest::of(wanted.as_bytes());
        let mut applied = self.applied.lock();
        event.changed = applied.get(&label) != Some(&wanted);
        if !noop {
            applied.insert(label, wanted);
        } else if event.changed {
            event.noop_message = "Would have changed the resource".into();
        }
        event
    }

    fn fails(&self, label: &str) -> bool {
        hash_fraction(&format!("{}/{label}", self.node)) < self.failure_rate
    }
}

/// Returns a number from 0 to 1 derived from a text.
fn hash_fraction(text: &str) -> f64 {
    let digest = Digest::of(text.as_bytes());
    let (first, _) = digest
        .as_bytes()
        .split_first_chunk()
        .unwrap_or((&[0; 4], &[]));
    f64::from(u32::from_be_bytes(*first)) / f64::from(u32::MAX)
}

/// A running simulation.
pub struct Simulation(Nodes);

/// The nodes of a simulation.
enum Nodes {
    Separate(Box<SeparateNodes>),
    Shared(SharedNodes),
}

impl Simulation {
    /// Starts the nodes, with their files, if they have any, below `directory`, and each with an executor
    /// of its own.
    pub async fn start(
        options: &Options,
        settings: &Settings,
        directory: &Path,
        executors: &Executors,
        log: Log,
    ) -> Result<Self, AgentError> {
        Ok(Self(match options.connections {
            Some(connections) => {
                Nodes::Shared(SharedNodes::start(options, settings, connections, executors).await?)
            }
            None => {
                let nodes =
                    SeparateNodes::start(options, settings, directory, executors, log).await?;
                Nodes::Separate(Box::new(nodes))
            }
        }))
    }

    /// Stops the nodes.
    pub async fn stop(self) {
        match self.0 {
            Nodes::Separate(nodes) => nodes.stop().await,
            Nodes::Shared(nodes) => nodes.stop().await,
        }
    }
}

/// Nodes with a connection each.
struct SeparateNodes {
    agents: Vec<Agent>,
    synthetic_events: Option<SyntheticEvents>,
    publishing: JoinSet<()>,
    stop_publishing: watch::Sender<bool>,
}

impl SeparateNodes {
    /// Starts the nodes, with their files below `directory`.
    async fn start(
        options: &Options,
        settings: &Settings,
        directory: &Path,
        executors: &Executors,
        log: Log,
    ) -> Result<Self, AgentError> {
        let metrics = Metrics::new(super::node::VERSION);
        let subjects = Subjects::new(&options.subject_prefix, options.collective.clone())?;
        let spool_config = SpoolConfig {
            max_size: 1 << 30,
            directory: directory.join("spool"),
        };
        let (spool, _) = open_spool(&spool_config)?;
        let cache = BundleCache::open(&directory.join("cache"))?;
        let connection = connect(settings, ConnectMode::Forever, "choria-ccm-simulation").await?;
        let (stop_publishing, stopped) = watch::channel(false);
        let mut publishing = JoinSet::new();
        let shared = (metrics.clone(), log.clone());
        publishing.spawn(publish_spool(
            spool.clone(),
            connection,
            shared.0,
            shared.1,
            stopped,
        ));
        let mut configs = Vec::with_capacity(options.nodes);
        for number in 0..options.nodes {
            configs.push(config(options, number, directory, &spool_config)?);
        }
        let starting = stream::iter(configs.iter().enumerate()).map(|(number, config)| {
            let (spool, cache, subjects) = (spool.clone(), cache.clone(), subjects.clone());
            let (log, metrics) = (log.clone(), metrics.clone());
            async move {
                let connection = connect(settings, ConnectMode::Forever, "choria-ccm").await?;
                let identity = &config.identity;
                let executor = Arc::new(executors(identity)?);
                let parts = NodeParts {
                    environ: BTreeMap::new(),
                    log,
                    metrics,
                    executor: executor.clone(),
                    facts: Some(facts(number, options.nodes)),
                };
                let mut node = build(config, &subjects, &connection, &spool, parts)?;
                // Simulated nodes change nothing, so they accept all requests.
                node.services.loopback_only = None;
                let agent = Agent::assemble(config, node, connection, subjects, cache).await?;
                Ok::<_, AgentError>((agent, executor))
            }
        });
        let mut starting = starting.buffer_unordered(MAX_CONCURRENT);
        let mut agents = Vec::with_capacity(options.nodes);
        let mut nodes = Vec::with_capacity(options.nodes);
        while let Some(started) = starting.next().await {
            let (agent, executor) = started?;
            nodes.push((agent.node().clone(), executor));
            agents.push(agent);
        }
        drop(starting);
        Ok(Self {
            synthetic_events: SyntheticEvents::start(nodes, options.events)?,
            agents,
            publishing,
            stop_publishing,
        })
    }

    /// Stops the nodes, several at a time, and then the shared parts.
    async fn stop(self) {
        let Self {
            agents,
            synthetic_events,
            mut publishing,
            stop_publishing,
        } = self;
        drop(synthetic_events);
        let stopping = stream::iter(agents).map(Agent::stop);
        stopping
            .for_each_concurrent(MAX_CONCURRENT, |stopped| stopped)
            .await;
        stop_publishing.send_replace(true);
        while publishing.join_next().await.is_some() {}
    }
}

fn node_name(number: usize, domain: &str) -> Result<NodeName, NameError> {
    format!("sim{number:05}.{domain}").parse()
}

fn config(
    options: &Options,
    number: usize,
    directory: &Path,
    spool: &SpoolConfig,
) -> Result<Config, AgentError> {
    let identity = node_name(number, &options.domain)?;
    let state_dir = directory.join(identity.as_str());
    Ok(Config {
        collective: options.collective.clone(),
        groups: options.groups.clone(),
        subject_prefix: options.subject_prefix.clone(),
        cache_dir: directory.join("cache"),
        state_dir,
        spool: spool.clone(),
        beat: options.beat,
        ..Config::for_node(identity)
    })
}

/// Returns facts that differ between nodes: a few sites, racks and platforms.
fn facts(number: usize, nodes: usize) -> Value {
    let pick = |from: &[&str]| Value::from(*from.get(number % from.len()).unwrap_or(&""));
    let map = |entries: Vec<(&str, Value)>| entries.into_iter().collect::<Value>();
    let rack = number * 40 / nodes.max(1);
    map(vec![
        ("site", pick(&["ams", "fra", "lon"])),
        ("rack", Value::from(format!("r{rack:02}").as_str())),
        ("tier", pick(&["web", "app", "app", "db"])),
        (
            "host",
            map(vec![(
                "info",
                map(vec![
                    ("os", Value::from("linux")),
                    ("platform", pick(&["debian", "rocky"])),
                    ("platformFamily", pick(&["debian", "rhel"])),
                ]),
            )]),
        ),
    ])
}
