//! Simulated nodes: the real protocol, schedule and assignments, over an executor that changes
//! nothing. For trying a fleet on one machine.
//!
//! Every node has a connection of its own. What a node would keep on disk for itself is shared:
//! one spool, one publisher, one cache of bundles. Events that no work stands behind are made up by
//! `synthetic_events`.

mod synthetic_events;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::synthetic_events::SyntheticEvents;
use super::bundle_cache::Cache;
use super::config::{Config, SpoolConfig};
use super::metrics::Metrics;
use super::{Agent, AgentError, Parts, build, open_spool, publish};
use ccm_core::engine::apply_manifest::RunError;
use ccm_core::engine::{EventIds, Session, Sink};
use ccm_core::manifest::Manifest;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::resource::Resource;
use ccm_core::run::executor::{EnsureError, Executor, EngineSetup};
use ccm_core::run::log::Log;
use ccm_core::system::{Clock, Digest, RandomError};
use ccm_nats::{ConnectMode, Settings, Subjects, connect};
use ccm_value::{Value, json};

/// How many nodes are started at the same time.
const AT_ONCE: usize = 64;

/// What a simulated fleet is like.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// How much of the work fails, from 0 to 1; always the same part.
    pub failure_rate: f64,
    /// How long a resource takes, on average.
    pub latency: Duration,
    /// What every node's name ends with.
    pub domain: String,
    pub groups: Vec<Token>,
    pub collective: Token,
    pub subject_prefix: String,
    pub beat: Duration,
    /// How many events all nodes together make up in a second, besides those of their work.
    pub events: u32,
}

/// Changes nothing and reports events as if it had.
pub(super) struct Simulated {
    node: NodeName,
    failure_rate: f64,
    latency: Duration,
    ids: Mutex<EventIds>,
    /// What was last asked of each resource: the same again is stable.
    asked: Mutex<HashMap<String, Digest>>,
}

impl Executor for Simulated {
    fn apply(
        &self,
        work: EngineSetup<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>) {
        let noop = work.scope.mode.noop;
        let mut session = work.session;
        for resource in &manifest.resources {
            if let Some(reason) = (work.stop)() {
                let label = resource.label();
                return (session, Err(RunError::Stopped { label, reason }));
            }
            let event = self.event(work.clock, resource, noop);
            sink.event(&event, None);
            // A session in memory takes every event.
            let _ = session.record(event);
        }
        (session, Ok(()))
    }

    fn ensure(
        &self,
        work: EngineSetup<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>) {
        let event = self.event(work.clock, resource, work.scope.mode.noop);
        sink.event(&event, None);
        (work.session, Ok(event))
    }
}

impl Simulated {
    fn new(node: &NodeName, failure_rate: f64, latency: Duration) -> Result<Self, RandomError> {
        Ok(Self {
            node: node.clone(),
            failure_rate,
            latency,
            ids: Mutex::new(EventIds::new()?),
            asked: Mutex::default(),
        })
    }

    /// Returns the event of a resource as if it had been applied, after the time that takes.
    fn event(&self, clock: &dyn Clock, resource: &Arc<Resource>, noop: bool) -> TransactionEvent {
        let began = clock.monotonic();
        let mut event = self.verdict(clock, resource, noop);
        // Half to one and a half of the average; no two events have the same id.
        let chance = part_of(event.event_id.as_str());
        clock.sleep(self.latency.mul_f64(0.5 + chance));
        event.duration = clock.monotonic().saturating_sub(began);
        event
    }

    /// Returns the event of a resource at once.
    fn verdict(&self, clock: &dyn Clock, resource: &Arc<Resource>, noop: bool) -> TransactionEvent {
        let now = clock.now();
        let id = self.ids.lock().next(now);
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
        let mut asked = self.asked.lock();
        event.changed = asked.get(&label) != Some(&wanted);
        if !noop {
            asked.insert(label, wanted);
        } else if event.changed {
            event.noop_message = "Would have changed the resource".into();
        }
        event
    }

    fn fails(&self, label: &str) -> bool {
        part_of(&format!("{}/{label}", self.node)) < self.failure_rate
    }
}

/// Returns a number from 0 to 1 that a text decides.
fn part_of(text: &str) -> f64 {
    let digest = Digest::of(text.as_bytes());
    let (first, _) = digest
        .as_bytes()
        .split_first_chunk()
        .unwrap_or((&[0; 4], &[]));
    f64::from(u32::from_be_bytes(*first)) / f64::from(u32::MAX)
}

/// A fleet that is simulated.
pub struct Simulation {
    agents: Vec<Agent>,
    synthetic_events: Option<SyntheticEvents>,
    publishing: JoinSet<()>,
    stop_publishing: watch::Sender<bool>,
}

impl Simulation {
    /// Starts the nodes; what they keep is below `directory`.
    pub async fn start(
        options: &Options,
        settings: &Settings,
        directory: &Path,
        log: Log,
    ) -> Result<Self, AgentError> {
        let metrics = Metrics::new(super::node::VERSION);
        let subjects = Subjects::new(&options.subject_prefix, options.collective.clone())?;
        let spool_config = SpoolConfig {
            max_size: 1 << 30,
            directory: directory.join("spool"),
        };
        let (spool, _) = open_spool(&spool_config)?;
        let cache = Cache::open(&directory.join("cache"))?;
        let connection = connect(settings, ConnectMode::Forever, "choria-ccm-simulation").await?;
        let (stop_publishing, stopped) = watch::channel(false);
        let mut publishing = JoinSet::new();
        let shared = (metrics.clone(), log.clone());
        publishing.spawn(publish(
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
                let executor = Simulated::new(identity, options.failure_rate, options.latency)?;
                let executor = Arc::new(executor);
                let parts = Parts {
                    environ: BTreeMap::new(),
                    log,
                    metrics,
                    executor: executor.clone(),
                    facts: Some(facts(number, options.nodes)),
                };
                let mut node = build(config, &subjects, &connection, &spool, parts)?;
                // What changes nothing may be asked by anyone.
                node.services.loopback_only = None;
                let agent = Agent::assemble(config, node, connection, subjects, cache).await?;
                Ok::<_, AgentError>((agent, executor))
            }
        });
        let mut starting = starting.buffer_unordered(AT_ONCE);
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

    /// Stops the nodes, as many as go at the same time, and then what they share.
    pub async fn stop(self) {
        let Self {
            agents,
            synthetic_events,
            mut publishing,
            stop_publishing,
        } = self;
        drop(synthetic_events);
        let stopping = stream::iter(agents).map(Agent::stop);
        stopping
            .for_each_concurrent(AT_ONCE, |stopped| stopped)
            .await;
        stop_publishing.send_replace(true);
        while publishing.join_next().await.is_some() {}
    }
}

fn config(
    options: &Options,
    number: usize,
    directory: &Path,
    spool: &SpoolConfig,
) -> Result<Config, AgentError> {
    let name = format!("sim{number:05}.{}", options.domain);
    let identity: NodeName = name.parse()?;
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

/// Returns facts that make one node differ from the next: a few sites, racks and systems.
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
