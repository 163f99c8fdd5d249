//! Simulated nodes: the real protocol, schedule and assignments, over an engine that only
//! pretends. For trying a fleet on one machine; nothing on that machine is changed.
//!
//! Every node has a connection of its own. What a node would keep on disk for itself is shared:
//! one spool, one publisher, one cache of bundles. Events that no work stands behind are made up by
//! `bustle`.

mod bustle;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::bustle::Bustle;
use super::cache::Cache;
use super::config::{Config, SpoolConfig};
use super::desk::Permit;
use super::log::Log;
use super::metrics::Metrics;
use super::node::Node;
use super::{Agent, AgentError, build, open_spool, publish};
use crate::engine::{Mode, Session};
use crate::manifest::Manifest;
use crate::model::Value;
use crate::model::event::TransactionEvent;
use crate::model::json;
use crate::model::node::{NodeName, Token};
use crate::model::resource::Resource;
use crate::nats::{Patience, Settings, Subjects, connect};
use crate::system::{Digest, random};

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

/// An engine that changes nothing and says it did.
pub struct Pretend {
    failure_rate: f64,
    latency: Duration,
    /// What was last asked of each resource: the same again is stable.
    asked: Mutex<HashMap<String, Digest>>,
}

impl Pretend {
    pub fn new(failure_rate: f64, latency: Duration) -> Self {
        Self {
            failure_rate,
            latency,
            asked: Mutex::default(),
        }
    }

    /// Returns the events of a manifest as if it had been applied.
    pub(super) fn run(
        &self,
        node: &Node,
        manifest: &Manifest,
        mode: Mode,
        permit: &Permit,
    ) -> (Session, Option<String>) {
        let mut session = Session::memory(node.clock.now());
        for resource in &manifest.resources {
            if let Some(reason) = permit.stop_reason(node.clock.now()) {
                let error = format!("stopped before {}: {reason}", resource.label());
                return (session, Some(error));
            }
            let event = self.event(node, resource, mode.noop);
            node.outbox.event(&event);
            if let Err(err) = session.record(event) {
                return (session, Some(err.to_string()));
            }
        }
        (session, None)
    }

    /// Returns the event of a resource as if it had been applied.
    pub(super) fn event(
        &self,
        node: &Node,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> TransactionEvent {
        let began = node.clock.monotonic();
        // Half to one and a half of the average.
        let chance = (random() & 0xffff) as f64 / 65536.0;
        node.clock.sleep(self.latency.mul_f64(0.5 + chance));
        let mut event = self.verdict(node, resource, noop);
        event.duration = node.clock.monotonic().saturating_sub(began);
        event
    }

    /// Returns the event of a resource at once.
    pub(super) fn verdict(
        &self,
        node: &Node,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> TransactionEvent {
        let now = node.clock.now();
        let mut event = TransactionEvent::begin(node.next_id(), now, "simulated", resource);
        let label = resource.label();
        event.noop = noop;
        if self.fails(node, &label) {
            event.failed = true;
            event.errors.push("simulated failure".into());
            return event;
        }
        event.final_ensure.clone_from(&resource.common.ensure);
        let wanted = json::compact(&**resource).unwrap_or_default();
        let wanted = Digest::of(wanted.as_bytes());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        event.changed = asked.get(&label) != Some(&wanted);
        if !noop {
            asked.insert(label, wanted);
        } else if event.changed {
            event.noop_message = "Would have changed the resource".into();
        }
        event
    }

    fn fails(&self, node: &Node, label: &str) -> bool {
        let text = format!("{}/{label}", node.identity);
        let digest = Digest::of(text.as_bytes());
        let (first, _) = digest
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 4], &[]));
        let part = f64::from(u32::from_be_bytes(*first)) / f64::from(u32::MAX);
        part < self.failure_rate
    }
}

/// A fleet that is simulated.
pub struct Simulation {
    agents: Vec<Agent>,
    bustle: Option<Bustle>,
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
        let connection = connect(settings, Patience::ForEver, "choria-ccm-simulation").await?;
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
                let connection = connect(settings, Patience::ForEver, "choria-ccm").await?;
                let none = BTreeMap::new();
                let mut node = build(config, &subjects, &connection, &spool, none, log, metrics)?;
                node.facts.know(facts(number, options.nodes));
                node.pretend = Some(Pretend::new(options.failure_rate, options.latency));
                // What changes nothing may be asked by anyone.
                node.loopback_only = None;
                Agent::assemble(config, node, connection, subjects, cache).await
            }
        });
        let mut starting = starting.buffer_unordered(AT_ONCE);
        let mut agents = Vec::with_capacity(options.nodes);
        while let Some(agent) = starting.next().await {
            agents.push(agent?);
        }
        drop(starting);
        let nodes = agents.iter().map(|agent| agent.node().clone());
        Ok(Self {
            bustle: Bustle::start(nodes.collect(), options.events)?,
            agents,
            publishing,
            stop_publishing,
        })
    }

    /// Stops the nodes, as many as go at the same time, and then what they share.
    pub async fn stop(self) {
        let Self {
            agents,
            bustle,
            mut publishing,
            stop_publishing,
        } = self;
        drop(bustle);
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
