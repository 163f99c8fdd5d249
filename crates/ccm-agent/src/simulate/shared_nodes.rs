//! Simulated nodes that share connections, for fleets of 100,000 nodes on one machine.
//!
//! A node is a subscription, a small task and a few fields in memory; it has no files. It replies to
//! `ping`, `facts` and `ensure`, announces itself, follows its assignment, and publishes events and
//! reports, all with the documents of a real agent. It does not evaluate manifests: each bundle is one
//! resource, whose result the simulated executor decides. Nodes may disconnect and restart by chance.
//!
//! Every connection has a group of nodes and one task that announces them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::AgentError;
use super::super::handlers::{Reply, body_reply, code, error_reply};
use super::super::node::VERSION;
use super::{Options, SimulatedExecutor, facts, hash_fraction, node_name};
use ccm_core::filter::{Matcher, NodeAttributes};
use ccm_core::model::drift::{Drift, ReportSource};
use ccm_core::model::envelope::{Envelope, IDENTITY};
use ccm_core::model::event::{Summary, TransactionEvent};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{
    Assignment, BundleRef, NODE_STATUS, NodeName, NodeReport, NodeStatus, REPORT, StoredFacts,
};
use ccm_core::model::request::{EnsureResponse, RequestError, parse_ensure};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{RUN_SUMMARY, RunSummary, Trigger};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::connection::{Message, Subscription};
use ccm_nats::kv::Bucket;
use ccm_nats::micro::{ERROR, ERROR_CODE};
use ccm_nats::streams::{DESIRED, FACTS, NODES, REPORTED};
use ccm_nats::{
    ConnectMode, Connection, Headers, NatsError, Settings, Subject, Subjects, Verb, connect,
};
use ccm_template::env::Facts;
use ccm_value::json;

/// Number of concurrent requests of a group.
const MAX_CONCURRENT: usize = 128;

/// Time for which a restarting node is away.
const RESTART_TIME: Duration = Duration::from_secs(1);

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
    /// Limits concurrent runs.
    runs: Semaphore,
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
}

/// What a node knows until it restarts.
struct Memory {
    started: DateTime<Utc>,
    generation: u64,
    is_running: bool,
    /// The assignment may have changed since the run began.
    is_outdated: bool,
    /// The node is about to restart.
    is_restarting: bool,
}

impl Memory {
    fn new() -> Self {
        Self {
            started: SystemClock.now(),
            generation: 0,
            is_running: false,
            is_outdated: false,
            is_restarting: false,
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
}

impl SharedNodes {
    /// Starts the nodes, divided among connections. Returns once all are announced.
    pub(super) async fn start(
        options: &Options,
        settings: &Settings,
        connections: usize,
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
        for numbers in numbers.chunks(size) {
            let group = Arc::new(Group::open(options, &settings, &subjects, numbers).await?);
            group
                .listen_to_broadcasts(&mut shared.tasks, &shared.stop)
                .await?;
            shared.groups.push(group);
        }
        for group in &shared.groups {
            group.start_nodes(&mut shared.tasks, &shared.stop).await?;
            shared
                .tasks
                .spawn(group.clone().beat(shared.stop.subscribe()));
        }
        Ok(shared)
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
        numbers: &[usize],
    ) -> Result<Self, AgentError> {
        let connection = connect(settings, ConnectMode::Forever, "choria-ccm-simulation").await?;
        let mut nodes = Vec::with_capacity(numbers.len());
        for number in numbers {
            let name = node_name(*number, &options.domain)?;
            nodes.push(SharedNode {
                executor: SimulatedExecutor::new(&name, options.failure_rate, options.latency)?,
                name,
                number: *number,
                memory: Mutex::new(Memory::new()),
                interrupted: Notify::new(),
            });
        }
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
            runs: Semaphore::new(MAX_CONCURRENT),
        })
    }

    /// Receives requests to all nodes and to the groups of these nodes.
    async fn listen_to_broadcasts(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        stop: &watch::Sender<bool>,
    ) -> Result<(), AgentError> {
        let groups = self.options.groups.iter();
        let groups =
            groups.flat_map(|group| Verb::ALL.map(|verb| self.subjects.group(group, verb)));
        for subject in Verb::ALL
            .map(|verb| self.subjects.all(verb))
            .into_iter()
            .chain(groups)
        {
            let mut messages = self.connection.subscribe(&subject).await?;
            let (group, mut stop) = (self.clone(), stop.subscribe());
            tasks.spawn(async move {
                loop {
                    let message = tokio::select! {
                        message = messages.next() => message,
                        _ = stop.wait_for(|it| *it) => return,
                    };
                    let Some(message) = message else { return };
                    let message = Arc::new(message);
                    for index in 0..group.nodes.len() {
                        group.clone().receive(index, message.clone()).await;
                    }
                }
            });
        }
        Ok(())
    }

    /// Subscribes to the requests of every node and announces it.
    async fn start_nodes(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        stop: &watch::Sender<bool>,
    ) -> Result<(), AgentError> {
        let starting = stream::iter(0..self.nodes.len()).map(|index| {
            let group = self.clone();
            async move {
                let messages = group.subscribe(index).await?;
                group.announce(index).await?;
                Ok::<_, SimulationError>((index, messages))
            }
        });
        let mut starting = starting.buffer_unordered(MAX_CONCURRENT);
        while let Some(started) = starting.next().await {
            let (index, messages) = match started {
                Ok(started) => started,
                Err(SimulationError::Nats(err)) => return Err(err.into()),
                Err(SimulationError::Resource(err)) => return Err(err.into()),
                Err(SimulationError::Document(_)) => continue,
            };
            let (group, mut stop) = (self.clone(), stop.subscribe());
            tasks.spawn(async move {
                tokio::select! {
                    () = group.run_node(index, messages) => {}
                    _ = stop.wait_for(|it| *it) => {}
                }
            });
        }
        Ok(())
    }

    async fn subscribe(&self, index: usize) -> Result<Subscription, NatsError> {
        let subject = match self.nodes.get(index) {
            Some(node) => self.subjects.node(&node.name.token(), Verb::Ping),
            None => return Err(NatsError::Closed),
        };
        // All verbs of the node.
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
        self.clone().follow(index).await;
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.clone().receive(index, Arc::new(message)).await,
                    None => return,
                },
                () = node.interrupted.notified() => {
                    drop(messages);
                    let is_restarting = node.memory.lock().is_restarting;
                    let away = if is_restarting { RESTART_TIME } else { self.options.beat };
                    tokio::time::sleep(away).await;
                    if is_restarting {
                        *node.memory.lock() = Memory::new();
                    }
                    messages = loop {
                        match self.subscribe(index).await {
                            Ok(messages) => break messages,
                            Err(_) => tokio::time::sleep(RESTART_TIME).await,
                        }
                    };
                    let _ = self.announce(index).await;
                    self.clone().follow(index).await;
                }
            }
        }
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
                if self.interrupts(index, round) {
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

    /// Interrupts a node by chance; always the same ones.
    fn interrupts(&self, index: usize, round: usize) -> bool {
        let (disconnect, restart) = (self.options.disconnect_rate, self.options.restart_rate);
        let Some(node) = self.nodes.get(index).filter(|_| disconnect + restart > 0.0) else {
            return false;
        };
        let chance = hash_fraction(&format!("{}/{round}", node.name));
        if chance >= disconnect + restart {
            return false;
        }
        node.memory.lock().is_restarting = chance >= disconnect;
        node.interrupted.notify_one();
        true
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
            problems: Vec::new(),
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

    /// Handles a request to a node.
    async fn receive(self: Arc<Self>, index: usize, message: Arc<Message>) {
        let verb = message.subject.rsplit('.').next();
        let Some(verb) = verb.and_then(|it| it.parse::<Verb>().ok()) else {
            return;
        };
        if verb == Verb::Nudge {
            tokio::spawn(self.clone().follow(index));
        }
        if message.reply.is_none() {
            return;
        }
        if verb == Verb::Ensure {
            // Takes a while.
            tokio::spawn(async move { self.reply(index, verb, &message).await });
        } else {
            self.reply(index, verb, &message).await;
        }
    }

    async fn reply(&self, index: usize, verb: Verb, message: &Message) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        let reply = self.handle(node, verb, message).await;
        let headers = Headers::new()
            .with(IDENTITY, node.name.as_str())
            .unwrap_or_default();
        let (headers, body) = match reply {
            Reply::Ignored => return,
            Reply::Body(body) => (headers, body),
            Reply::Error { code, text, body } => {
                let code = code.to_string();
                let with_error = headers
                    .with(ERROR, &text)
                    .and_then(|it| it.with(ERROR_CODE, &code));
                (with_error.unwrap_or_default(), body)
            }
        };
        let to = message
            .reply
            .as_ref()
            .and_then(|it| it.parse::<Subject>().ok());
        if let Some(to) = to {
            // If this fails, the caller times out.
            let _ = self.connection.publish(&to, headers, body.into()).await;
        }
    }

    async fn handle(&self, node: &SharedNode, verb: Verb, message: &Message) -> Reply {
        let envelope = match Envelope::from_headers(|name| message.header(name)) {
            Ok(envelope) => envelope,
            Err(err) => return error_reply(verb, code::BAD_REQUEST, err.to_string()),
        };
        if !envelope.filter.is_empty() {
            let attributes = NodeAttributes {
                identity: &node.name,
                groups: &self.options.groups,
                facts: &Facts::Known(facts(node.number, self.options.nodes)),
                labels: &Labels::default(),
            };
            let matched = Matcher::new(&envelope.filter).and_then(|it| it.matches(&attributes));
            match matched {
                Ok(true) => {}
                Ok(false) => return Reply::Ignored,
                Err(err) => return error_reply(verb, code::BAD_REQUEST, err.to_string()),
            }
        }
        match verb {
            Verb::Ping | Verb::Nudge => body_reply(&self.status(node)),
            Verb::Facts => body_reply(&facts(node.number, self.options.nodes)),
            Verb::Ensure => {
                let text = String::from_utf8_lossy(&message.body);
                match parse_ensure(&text) {
                    Ok(resource) => {
                        let event = self.change(node, &Arc::new(resource), envelope.noop).await;
                        self.publish_event(node, &event).await;
                        body_reply(&EnsureResponse::new(Ok(event)))
                    }
                    Err(err) => error_reply(verb, code::BAD_REQUEST, err.to_string()),
                }
            }
            Verb::Apply | Verb::Status | Verb::Pause | Verb::Resume | Verb::Cancel => {
                let text =
                    "simulated nodes with shared connections only reply to ping, facts and ensure";
                error_reply(verb, code::BAD_REQUEST, text.into())
            }
        }
    }

    /// Returns the event of a resource after its simulated duration.
    async fn change(
        &self,
        node: &SharedNode,
        resource: &Arc<Resource>,
        noop: bool,
    ) -> TransactionEvent {
        let mut event = node.executor.outcome_event(&SystemClock, resource, noop);
        event.duration = node.executor.duration_of(&event);
        tokio::time::sleep(event.duration).await;
        event
    }

    async fn publish_event(&self, node: &SharedNode, event: &TransactionEvent) {
        let outcome = super::super::event_sink::outcome_token(event);
        let subject = self
            .subjects
            .event(&node.name.token(), &event.type_name, outcome);
        if let Ok(body) = json::compact(event) {
            // A simulated event may be lost with its simulation.
            let id = event.event_id.as_str();
            let _ = self
                .connection
                .publish_stored(&subject, id, body.into())
                .await;
        }
    }

    /// Follows the assignment of a node: once at a time, and again if it changed meanwhile.
    async fn follow(self: Arc<Self>, index: usize) {
        let Some(node) = self.nodes.get(index) else {
            return;
        };
        {
            let mut memory = node.memory.lock();
            if memory.is_running {
                memory.is_outdated = true;
                return;
            }
            memory.is_running = true;
        }
        loop {
            let Ok(_run) = self.runs.acquire().await else {
                return;
            };
            // A nudge follows if the controller gets no report.
            let _ = self.converge(node).await;
            let mut memory = node.memory.lock();
            if !std::mem::take(&mut memory.is_outdated) {
                memory.is_running = false;
                return;
            }
        }
    }

    async fn converge(&self, node: &SharedNode) -> Result<(), SimulationError> {
        let key = self.key(node);
        let Some(entry) = self.desired.get(&key).await? else {
            return Ok(());
        };
        let assignment: Assignment = serde_json::from_slice(&entry.value)?;
        if node.memory.lock().generation == assignment.generation {
            return Ok(());
        }
        let mut events = Vec::with_capacity(assignment.manifests.len());
        for bundle in &assignment.manifests {
            let resource = self.resource(bundle)?;
            events.push(self.change(node, &resource, assignment.noop).await);
        }
        for event in &events {
            self.publish_event(node, event).await;
        }
        let report = self.report(node, &assignment, &events);
        if let Some(run) = &report.run {
            let subject = self.subjects.run_event(&node.name.token(), run.outcome);
            let body = json::compact(run)?.into();
            let id = run.event_id.as_str();
            self.connection.publish_stored(&subject, id, body).await?;
        }
        self.reported
            .put(&key, json::compact(&report)?.into())
            .await?;
        node.memory.lock().generation = assignment.generation;
        Ok(())
    }

    /// Returns the resource that stands for a bundle.
    fn resource(&self, bundle: &BundleRef) -> Result<Arc<Resource>, SimulationError> {
        let object = bundle.object();
        let mut resources = self.resources.lock();
        if let Some(resource) = resources.get(&object) {
            return Ok(resource.clone());
        }
        let request = serde_json::json!({
            "protocol": "io.choria.ccm.v1.resource.ensure.request",
            "type": "exec",
            "properties": {"name": format!("/usr/bin/apply {object}")},
        });
        let resource = Arc::new(parse_ensure(&request.to_string())?);
        resources.insert(object, resource.clone());
        Ok(resource)
    }

    fn report(
        &self,
        node: &SharedNode,
        assignment: &Assignment,
        events: &[TransactionEvent],
    ) -> NodeReport {
        let now = SystemClock.now();
        let summary = Summary::of(None, events);
        let run = RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: node.executor.next_id(now),
            run_id: node.executor.next_id(now),
            identity: node.name.clone(),
            collective: self.options.collective.clone(),
            source: "simulated".into(),
            trigger: Trigger::Assignment,
            outcome: RunSummary::outcome_of(&summary, assignment.noop, ""),
            noop: assignment.noop,
            health_check_only: false,
            generation: Some(assignment.generation),
            request_id: String::new(),
            caller: String::new(),
            error: String::new(),
            timestamp: now,
            summary,
        };
        let drift = events.iter();
        let drift = drift.filter_map(|event| Drift::from_event(event, assignment.noop, ""));
        NodeReport {
            protocol: REPORT.into(),
            identity: node.name.clone(),
            generation: assignment.generation,
            incarnation: assignment.incarnation.clone(),
            manifests: assignment.manifests.clone(),
            run: (!events.is_empty()).then_some(run),
            drift: drift.collect(),
            unchecked: Vec::new(),
            source: ReportSource::Run,
            error: String::new(),
            refusal: None,
            timestamp: now,
        }
    }
}
