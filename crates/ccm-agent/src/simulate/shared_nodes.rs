//! Simulated nodes that share connections, for fleets of 100,000 nodes on one machine.
//!
//! A node is a subscription, a small task and a few fields in memory; it has no files. It replies to
//! `ping`, `facts` and `ensure`, announces itself, follows its assignment, and publishes events and
//! reports, all with the documents of a real agent. It does not evaluate manifests: each bundle is one
//! resource, whose result the executor decides. Nodes may disconnect and restart at given rates: a node that
//! is away neither replies nor publishes. After a disconnection it publishes what it has done meanwhile; a
//! restart ends its run without a result.
//!
//! Every connection has a group of nodes and one task that announces them. Replies are in `requests`,
//! assignments and reports in `runs`.

mod requests;
mod runs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{AcquireError, Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::AgentError;
use super::super::node::VERSION;
use super::{Executors, Options, SimulatedExecutor, facts, hash_fraction, node_name};
use ccm_core::model::node::{NODE_STATUS, NodeName, NodeStatus, StoredFacts};
use ccm_core::model::request::RequestError;
use ccm_core::model::resource::Resource;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::connection::Subscription;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::{DESIRED, FACTS, NODES, REPORTED};
use ccm_nats::{ConnectMode, Connection, NatsError, Settings, Subject, Subjects, Verb, connect};
use ccm_value::json;

/// Number of concurrent requests of a group.
const MAX_CONCURRENT: usize = 128;

/// Number of connections that are opened at the same time.
const MAX_CONCURRENT_GROUPS: usize = 64;

/// Time for which a restarting node is away.
const RESTART_TIME: Duration = Duration::from_secs(1);

/// Delay after an event or report could not be stored.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Most messages queued per subscription.
const BACKLOG: usize = 4096;

/// Nodes that share connections.
pub(super) struct SharedNodes {
    groups: Vec<Arc<Group>>,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// The nodes of one connection.
struct Group {
    connection: Connection,
    subjects: Subjects,
    options: Options,
    nodes: Vec<SharedNode>,
    /// Resources that stand for bundles, by object name.
    resources: Mutex<BTreeMap<String, Arc<Resource>>>,
    presence: Bucket,
    facts: Bucket,
    desired: Bucket,
    reported: Bucket,
    /// Limits concurrent reads and writes of runs.
    writes: Semaphore,
}

/// One node.
struct SharedNode {
    name: NodeName,
    /// Number in the fleet, which decides its facts.
    number: usize,
    executor: SimulatedExecutor,
    memory: Mutex<Memory>,
    /// Notified when the node loses its connection.
    interrupted: Notify,
    /// Notified when the node has a connection again.
    returned: Notify,
}

/// A group with subscriptions whose messages nobody receives yet.
struct StartedGroup {
    group: Arc<Group>,
    broadcasts: Vec<Subscription>,
    /// Positions of nodes with the subscription to their requests.
    nodes: Vec<(usize, Subscription)>,
}

/// What a node knows.
struct Memory {
    started: DateTime<Utc>,
    /// Generation of the assignment that was followed since the start.
    generation: u64,
    /// Number of restarts.
    restarts: u64,
    /// Why the node has no connection, if it has none.
    away: Option<Away>,
    is_running: bool,
    /// The assignment may have changed since the run began.
    is_outdated: bool,
}

/// Why a node has no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    Disconnected,
    Restarting,
}

impl Memory {
    fn new() -> Self {
        Self {
            started: SystemClock.now(),
            generation: 0,
            restarts: 0,
            away: None,
            is_running: false,
            is_outdated: false,
        }
    }

    /// Ends the connection, and the run if the node restarts: its task notices the number.
    fn leave(&mut self, away: Away) {
        self.away = Some(away);
        if away == Away::Restarting {
            self.restarts += 1;
        }
    }

    /// Begins to have a connection again. A restarted node has forgotten which assignment it followed.
    fn come_back(&mut self) {
        if self.away.take() == Some(Away::Restarting) {
            (self.started, self.generation) = (SystemClock.now(), 0);
        }
    }
}

impl SharedNode {
    fn new(name: NodeName, number: usize, executor: SimulatedExecutor) -> Self {
        Self {
            name,
            number,
            executor,
            memory: Mutex::new(Memory::new()),
            interrupted: Notify::new(),
            returned: Notify::new(),
        }
    }

    fn is_away(&self) -> bool {
        self.memory.lock().away.is_some()
    }

    fn restarts(&self) -> u64 {
        self.memory.lock().restarts
    }

    /// Waits until the node has a connection.
    async fn connected(&self) {
        loop {
            let returned = self.returned.notified();
            if !self.is_away() {
                return;
            }
            returned.await;
        }
    }
}

/// Why a simulated node could not do something. Real nodes try again as well.
#[derive(Debug, thiserror::Error)]
enum SimulationError {
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Resource(#[from] RequestError),
    #[error("the simulation ends")]
    Ended(#[from] AcquireError),
}

impl SharedNodes {
    /// Starts the nodes, divided among connections. Returns once all are announced.
    pub(super) async fn start(
        options: &Options,
        settings: &Settings,
        connections: usize,
        executors: &Executors,
    ) -> Result<Self, AgentError> {
        let subjects = Subjects::new(&options.subject_prefix, options.collective.clone())?;
        let settings = Settings {
            backlog: Some(BACKLOG),
            ..settings.clone()
        };
        let size = options.nodes.div_ceil(connections.max(1)).max(1);
        let numbers: Vec<usize> = (0..options.nodes).collect();
        let mut shared = Self {
            groups: Vec::new(),
            tasks: JoinSet::new(),
            stop: watch::Sender::new(false),
        };
        let opening = numbers.chunks(size).map(|numbers| {
            let mut nodes = Vec::with_capacity(numbers.len());
            for number in numbers {
                let name = node_name(*number, &options.domain)?;
                let executor = executors(&name)?;
                nodes.push(SharedNode::new(name, *number, executor));
            }
            Ok::<_, AgentError>(nodes)
        });
        let (settings, subjects) = (&settings, &subjects);
        let opening = stream::iter(opening).map(|nodes| async move {
            let group = Group::open(options, settings, subjects, nodes?).await?;
            Group::start(Arc::new(group)).await
        });
        let mut opening = opening.buffer_unordered(MAX_CONCURRENT_GROUPS);
        while let Some(started) = opening.next().await {
            shared.run(started?);
        }
        drop(opening);
        Ok(shared)
    }

    /// Starts the tasks of a group.
    fn run(&mut self, started: StartedGroup) {
        let StartedGroup {
            group,
            broadcasts,
            nodes,
        } = started;
        for messages in broadcasts {
            let receiving = group.clone().receive_broadcasts(messages);
            self.spawn(receiving);
        }
        for (index, messages) in nodes {
            self.spawn(group.clone().run_node(index, messages));
        }
        self.tasks.spawn(group.clone().beat(self.stop.subscribe()));
        self.groups.push(group);
    }

    /// Starts a task that ends with the simulation.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                _ = stop.wait_for(|it| *it) => {}
            }
        });
    }

    /// Stops the nodes and removes their records.
    pub(super) async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        for group in &self.groups {
            group.remove_records().await;
            group.connection.drain().await;
        }
    }
}

impl Group {
    async fn open(
        options: &Options,
        settings: &Settings,
        subjects: &Subjects,
        nodes: Vec<SharedNode>,
    ) -> Result<Self, AgentError> {
        let connection = connect(settings, ConnectMode::Forever, "choria-ccm-simulation").await?;
        Ok(Self {
            presence: connection.bucket(NODES).await?,
            facts: connection.bucket(FACTS).await?,
            desired: connection.bucket(DESIRED).await?,
            reported: connection.bucket(REPORTED).await?,
            connection,
            subjects: subjects.clone(),
            options: options.clone(),
            nodes,
            resources: Mutex::default(),
            writes: Semaphore::new(MAX_CONCURRENT),
        })
    }

    /// Subscribes to the requests to all nodes, to the groups of these nodes and to each of them, and
    /// announces them.
    async fn start(self: Arc<Self>) -> Result<StartedGroup, AgentError> {
        let to_groups = self.options.groups.iter();
        let to_groups = to_groups.map(|group| self.subjects.group(group, Verb::Ping));
        let to_all = [self.subjects.all(Verb::Ping)];
        let mut broadcasts = Vec::new();
        for subject in to_all.into_iter().chain(to_groups) {
            broadcasts.push(self.subscribe_to_verbs(&subject).await?);
        }
        let starting = stream::iter(0..self.nodes.len()).map(|index| {
            let group = self.clone();
            async move {
                let messages = group.subscribe(index).await?;
                group.announce(index).await?;
                Ok::<_, SimulationError>((index, messages))
            }
        });
        let mut starting = starting.buffer_unordered(MAX_CONCURRENT);
        let mut nodes = Vec::with_capacity(self.nodes.len());
        while let Some(started) = starting.next().await {
            match started {
                Ok(started) => nodes.push(started),
                Err(SimulationError::Nats(err)) => return Err(err.into()),
                Err(SimulationError::Resource(err)) => return Err(err.into()),
                Err(SimulationError::Document(_) | SimulationError::Ended(_)) => {}
            }
        }
        drop(starting);
        Ok(StartedGroup {
            group: self,
            broadcasts,
            nodes,
        })
    }

    /// Passes requests to all nodes.
    async fn receive_broadcasts(self: Arc<Self>, mut messages: Subscription) {
        while let Some(message) = messages.next().await {
            let message = Arc::new(message);
            for index in 0..self.nodes.len() {
                self.clone().receive(index, message.clone()).await;
            }
        }
    }

    async fn subscribe(&self, index: usize) -> Result<Subscription, NatsError> {
        match self.nodes.get(index) {
            Some(node) => {
                let subject = self.subjects.node(&node.name.token(), Verb::Ping);
                self.subscribe_to_verbs(&subject).await
            }
            None => Err(NatsError::Closed),
        }
    }

    /// Subscribes to the requests of all verbs to the recipients of a subject.
    async fn subscribe_to_verbs(&self, subject: &Subject) -> Result<Subscription, NatsError> {
        let (prefix, _) = subject.as_str().rsplit_once('.').unwrap_or_default();
        self.connection
            .subscribe(&format!("{prefix}.*").parse()?)
            .await
    }

    /// Receives the requests of a node, with interruptions.
    async fn run_node(self: Arc<Self>, index: usize, first: Subscription) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        let mut messages = first;
        tokio::spawn(self.clone().follow(index));
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.clone().receive(index, Arc::new(message)).await,
                    None => return,
                },
                () = node.interrupted.notified() => {
                    drop(messages);
                    messages = self.away(index, node).await;
                    let _ = self.announce(index).await;
                    tokio::spawn(self.clone().follow(index));
                }
            }
        }
    }

    /// Waits until a node that is away returns, and subscribes to its requests.
    async fn away(&self, index: usize, node: &SharedNode) -> Subscription {
        let is_restarting = node.memory.lock().away == Some(Away::Restarting);
        let time = if is_restarting {
            RESTART_TIME
        } else {
            self.options.beat
        };
        tokio::time::sleep(time).await;
        let messages = loop {
            match self.subscribe(index).await {
                Ok(messages) => break messages,
                Err(_) => tokio::time::sleep(RESTART_TIME).await,
            }
        };
        node.memory.lock().come_back();
        node.returned.notify_waiters();
        messages
    }

    /// Announces every node once per heartbeat interval, evenly spread, and interrupts some.
    async fn beat(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let began = Instant::now();
        let count = self.nodes.len().max(1);
        let limit = Arc::new(Semaphore::new(MAX_CONCURRENT));
        let mut announced = 0_usize;
        loop {
            let pause = (self.options.beat / u32::try_from(count).unwrap_or(u32::MAX))
                .max(Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|it| *it) => return,
            }
            let share = began.elapsed().as_secs_f64() / self.options.beat.as_secs_f64().max(0.001);
            // The nodes that are due by now.
            let due = (share * count as f64) as usize;
            while announced < due {
                let (index, round) = (announced % count, announced / count);
                announced += 1;
                if !self.is_to_announce(index, round) {
                    continue;
                }
                let Ok(permit) = limit.clone().acquire_owned().await else {
                    return;
                };
                let group = self.clone();
                tokio::spawn(async move {
                    // Tried again with the next heartbeat.
                    let _ = group.announce(index).await;
                    drop(permit);
                });
            }
        }
    }

    /// Interrupts a node at the given rates; always the same nodes. Reports whether the node has a connection.
    fn is_to_announce(&self, index: usize, round: usize) -> bool {
        let (disconnect, restart) = (self.options.disconnect_rate, self.options.restart_rate);
        let Some(node) = self.nodes.get(index) else {
            return false;
        };
        let mut memory = node.memory.lock();
        if memory.away.is_some() {
            return false;
        }
        let chance = hash_fraction(&format!("{}/{round}", node.name));
        if disconnect + restart == 0.0 || chance >= disconnect + restart {
            return true;
        }
        memory.leave(if chance < disconnect {
            Away::Disconnected
        } else {
            Away::Restarting
        });
        node.interrupted.notify_one();
        false
    }

    fn key(&self, node: &SharedNode) -> String {
        self.subjects.key(&node.name.token())
    }

    fn status(&self, node: &SharedNode) -> NodeStatus {
        let memory = node.memory.lock();
        NodeStatus {
            protocol: NODE_STATUS.into(),
            identity: node.name.clone(),
            collective: self.options.collective.clone(),
            groups: self.options.groups.clone(),
            version: VERSION.into(),
            started: memory.started,
            timestamp: SystemClock.now(),
            beat: self.options.beat.as_secs(),
            current_run: None,
            queued: 0,
            last_run: None,
            pause: None,
            trust: None,
            spool: Default::default(),
            generation: memory.generation,
            recipient: String::new(),
            problems: Vec::new(),
            choria: Vec::new(),
            facts: facts(node.number, self.options.nodes),
        }
    }

    /// Stores presence and, the first time, facts.
    async fn announce(&self, index: usize) -> Result<(), SimulationError> {
        let Some(node) = self.nodes.get(index) else {
            return Ok(());
        };
        let (key, status) = (self.key(node), self.status(node));
        let is_new = SystemClock
            .now()
            .signed_duration_since(status.started)
            .num_seconds()
            < i64::try_from(self.options.beat.as_secs()).unwrap_or(i64::MAX);
        self.presence
            .put(&key, json::compact(&status)?.into())
            .await?;
        if is_new {
            let stored = json::compact(&StoredFacts::from(&status))?;
            self.facts.put(&key, stored.into()).await?;
        }
        Ok(())
    }

    async fn remove_records(&self) {
        let keys = self.nodes.iter().map(|node| self.key(node));
        let keys: Vec<String> = keys.collect();
        let removals = stream::iter(keys).map(|key| async move {
            // What fails expires.
            let _ = self.presence.delete(&key).await;
            let _ = self.facts.purge(&key).await;
        });
        removals.for_each_concurrent(MAX_CONCURRENT, |it| it).await;
    }
}
