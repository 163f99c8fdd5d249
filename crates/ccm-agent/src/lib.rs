//! When and from where: what keeps a node at its manifests without anyone typing, and answers for
//! it on the bus.
//!
//! An [`Agent`] is one node's: [`Agent::start`] puts the parts together, [`Agent::stop`] takes
//! them apart in order. Read `verbs` for what a node can be asked, `schedule` for when it acts by
//! itself, `assignment` for what the fleet wants of it, `work` for what it gives a run to work with,
//! `run_queue` for the queue, `trust` for who may ask, `spool` and `publisher` for how events reach the
//! bus, `choria_events` for what Choria's tools hear, `registration_publisher` for services, `lookups` for those of
//! others, `intake` for the other programs that make runs on this node. Everything keeps going while
//! the bus is away. What a run is, is not known here: that is `run`.

#![warn(unreachable_pub)]

pub mod assignment;
pub mod bundle_cache;
pub mod choria_events;
pub mod config;
mod connection_log;
pub mod data_cache;
pub mod event_sink;
pub mod facts_cache;
pub mod handlers;
mod handover_import;
pub mod http_server;
pub mod manifest_watch;
pub mod metrics;
pub mod nats_client_log;
pub mod node;
pub mod presence;
pub mod publisher;
pub mod registration_publisher;
pub mod registration_watch;
mod reporter;
pub mod request_server;
pub mod run;
pub mod run_queue;
pub mod schedule;
pub mod service_manager;
pub mod simulate;
pub mod spool;
pub mod trust;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use assignment::Assignments;
use bundle_cache::Cache;
use choria_events::ChoriaEvents;
use config::{Config, SpoolConfig};
use data_cache::DataCache;
use event_sink::EventSink;
use facts_cache::FactsCache;
use handlers::Handlers;
use handover_import::Takeover;
use http_server::{Monitor, MonitorError, Probes};
use manifest_watch::{Feed, News};
use metrics::Metrics;
use node::{Identity, Node, RunState, Services, VERSION};
use presence::Presence;
use publisher::Publisher;
use registration_publisher::RegistrationPublisher;
use registration_watch::{Keeper, Lookups};
use run_queue::RunQueue;
use schedule::{Schedule, Signals, Times};
use spool::{Limits, Spool, SpoolError};
use trust::audit::Audit;
use trust::loopback::{LoopbackOnly, NoTrust};
use trust::refusals::Refusals;
use trust::{Authorizer, TrustError, this_boot};

use ccm_core::engine::{Level, Line};
use ccm_core::facts::Places;
use ccm_core::model::node::NameError;
use ccm_core::model::request::RequestError;
use ccm_core::run::RunLock;
use ccm_core::run::executor::{Executor, LocalExecutor};
use ccm_core::run::handover::HandoverDir;
use ccm_core::run::log::Log;
use ccm_core::run::pause::PauseStore;
use ccm_core::system::files::{self, FileError};
use ccm_core::system::{Clock, RandomError, SystemClock};
use ccm_nats::{BlockingClient, ConnectMode, Connection, NatsError, Settings, Subjects, connect};
use ccm_value::Value;

/// How long the current run may go on after the agent was told to stop.
const RUN_GRACE: Duration = Duration::from_secs(30);

/// How long it may take a run to end that was told to.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// How long events may take to the bus after the last run.
const FLUSH_GRACE: Duration = Duration::from_secs(5);

/// How many messages wait on each subject. A flood of more is dropped instead of kept in memory.
const BACKLOG: usize = 2048;

/// How often the node looks after itself.
const PATROL: Duration = Duration::from_secs(1);

/// Why an agent can't start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("made-up resource: {0}")]
    MadeUp(#[from] RequestError),
}

/// An agent that runs.
pub struct Agent {
    node: Arc<Node>,
    connection: Connection,
    stop: watch::Sender<bool>,
    /// Stops the publisher, which outlives the rest.
    stop_publishing: watch::Sender<bool>,
    tasks: JoinSet<()>,
    publishing: JoinSet<()>,
}

impl Agent {
    /// Starts the agent of one node. The bus need not be there.
    pub async fn start(
        config: &Config,
        settings: &Settings,
        environ: BTreeMap<String, String>,
        log: Log,
        metrics: Metrics,
    ) -> Result<Self, AgentError> {
        let subjects = Subjects::new(&config.subject_prefix, config.collective.clone())?;
        let (spool, recovered) = open_spool(&config.spool)?;
        let settings = Settings {
            backlog: Some(BACKLOG),
            ..settings.clone()
        };
        let connection = connect(&settings, ConnectMode::Forever, "choria-ccm").await?;
        let parts = Parts {
            environ,
            log,
            metrics,
            executor: Arc::new(LocalExecutor),
            facts: None,
        };
        let node = build(config, &subjects, &connection, &spool, parts)?;
        let fields = [
            ("identity", node.identity.name.to_string()),
            ("version", VERSION.to_owned()),
            ("events", recovered.to_string()),
        ];
        node.say(Level::Info, "Agent starting", &fields);
        warn_about_trust(&node);
        let cache = Cache::open(&config.cache_dir)?;
        let mut agent = Self::assemble(config, node, connection, subjects, cache).await?;
        agent.begin_publishing(spool);
        agent.begin_telling();
        let telling = connection_log::tell(
            agent.node.clone(),
            agent.connection.clone(),
            agent.stop.subscribe(),
        );
        agent.tasks.spawn(telling);
        agent.begin_registering(config);
        agent.begin_intake(config)?;
        agent.begin_patrol();
        agent.begin_monitor(config).await?;
        Ok(agent)
    }

    /// Sets a node's parts in motion, but for those that look after the process.
    async fn assemble(
        config: &Config,
        node: Node,
        connection: Connection,
        subjects: Subjects,
        cache: Cache,
    ) -> Result<Self, AgentError> {
        let mut agent = Self {
            node: Arc::new(node),
            connection,
            stop: watch::Sender::new(false),
            stop_publishing: watch::Sender::new(false),
            tasks: JoinSet::new(),
            publishing: JoinSet::new(),
        };
        let nudge = Arc::new(Notify::new());
        agent.listen(&subjects, &nudge).await?;
        agent.begin_presence(&subjects);
        agent.begin_schedule(config, subjects, nudge, cache);
        Ok(agent)
    }

    /// Returns what the agent's parts share.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns what the agent counts.
    pub fn metrics(&self) -> &Metrics {
        &self.node.services.metrics
    }

    /// Stops: nothing new begins, the current run gets its time, events go out, presence ends.
    pub async fn stop(self) {
        let Self {
            node,
            connection,
            stop,
            stop_publishing,
            mut tasks,
            mut publishing,
        } = self;
        node.say(Level::Info, "Agent stopping", &[]);
        node.services.run_queue.close();
        stop.send_replace(true);
        if !is_idle(&node, RUN_GRACE).await {
            node.say(Level::Warn, "Stopping a run that takes too long", &[]);
            node.services
                .run_queue
                .cancel_current("the agent is shutting down");
            is_idle(&node, KILL_GRACE).await;
        }
        while tasks.join_next().await.is_some() {}
        node.services.event_sink.sync();
        stop_publishing.send_replace(true);
        while publishing.join_next().await.is_some() {}
        connection.drain().await;
    }

    fn begin_publishing(&mut self, spool: Arc<Spool>) {
        let publishing = publish(
            spool,
            self.connection.clone(),
            self.node.services.metrics.clone(),
            self.node.services.log.clone(),
            self.stop_publishing.subscribe(),
        );
        self.publishing.spawn(publishing);
    }

    /// Tells Choria's tools what happens, to the very end.
    fn begin_telling(&mut self) {
        let stopped = self.stop_publishing.subscribe();
        let telling = self.node.services.choria_events.clone();
        self.publishing
            .spawn(telling.tell(self.connection.clone(), stopped));
    }

    /// Publishes the services of this node, if the file says where.
    fn begin_registering(&mut self, config: &Config) {
        if let (Some(registration_publisher), Some(destination)) = (
            &self.node.services.registration_publisher,
            config.destination(),
        ) {
            let registering = registration_publisher.clone().publish(
                self.connection.clone(),
                destination,
                self.stop_publishing.subscribe(),
                FLUSH_GRACE,
            );
            self.publishing.spawn(registering);
        }
    }

    async fn listen(&mut self, subjects: &Subjects, nudge: &Arc<Notify>) -> Result<(), AgentError> {
        let (served, verbs) =
            request_server::listen(&self.node, &self.connection, subjects).await?;
        let answering = Handlers::new(self.node.clone(), nudge.clone());
        let node = self.node.clone();
        self.tasks.spawn(request_server::answer(
            served,
            verbs,
            node,
            answering,
            self.stop.subscribe(),
        ));
        Ok(())
    }

    fn begin_presence(&mut self, subjects: &Subjects) {
        let presence = Presence {
            node: self.node.clone(),
            connection: self.connection.clone(),
            subjects: subjects.clone(),
        };
        self.tasks.spawn(presence.keep(self.stop.subscribe()));
    }

    fn begin_schedule(
        &mut self,
        config: &Config,
        subjects: Subjects,
        nudge: Arc<Notify>,
        cache: Cache,
    ) {
        // One place each: a feed that waits to be heard already says everything.
        let (fresh, feeds_told) = mpsc::channel(config.manifests.len().max(1));
        let mut feeds = Vec::new();
        for (number, source) in config.manifests.iter().enumerate() {
            let feed = Arc::new(Feed::new(source.clone(), cache.clone()));
            feeds.push(feed.clone());
            let news = News {
                number,
                fresh: fresh.clone(),
            };
            let (node, connection) = (self.node.clone(), self.connection.clone());
            self.tasks
                .spawn(feed.follow(node, connection, news, self.stop.subscribe()));
        }
        let link = self.connection.state();
        let assignments =
            Assignments::new(self.node.clone(), self.connection.clone(), subjects, cache);
        let times = Times {
            interval: config.interval,
            health_check_interval: config.health_check_interval,
            offset: config.splay_offset(),
        };
        let schedule = Schedule::new(self.node.clone(), feeds, assignments, times);
        let (ask, outdated) = mpsc::channel(1);
        if let Some(lookups) = &self.node.services.lookups {
            let keeper = Keeper::new(
                lookups.clone(),
                self.connection.clone(),
                config.registration_stream.clone(),
                self.node.services.log.clone(),
                times.floor(),
            );
            self.tasks.spawn(keeper.keep(ask, self.stop.subscribe()));
        }
        let signals = Signals {
            fresh: feeds_told,
            outdated,
            nudge,
            link,
            stop: self.stop.subscribe(),
        };
        self.tasks.spawn(schedule.run(signals));
    }

    /// Takes over the events of runs that other programs make on this node.
    fn begin_intake(&mut self, config: &Config) -> Result<(), AgentError> {
        let mut intake = Takeover::new(HandoverDir::open(&config.state_dir)?);
        let (node, mut stopped) = (self.node.clone(), self.stop.subscribe());
        self.tasks.spawn(async move {
            let mut round = tokio::time::interval(PATROL);
            loop {
                let is_last = tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => true,
                    _ = round.tick() => false,
                };
                if intake.has_any() {
                    let node = node.clone();
                    let taking = move || {
                        intake.take(&node);
                        intake
                    };
                    match tokio::task::spawn_blocking(taking).await {
                        Ok(back) => intake = back,
                        // The program is ending.
                        Err(_) => return,
                    }
                }
                if is_last {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Ends runs that take too long and keeps the gauges current.
    fn begin_patrol(&mut self) {
        let (node, connection) = (self.node.clone(), self.connection.clone());
        let mut stopped = self.stop.subscribe();
        self.tasks.spawn(async move {
            let mut patrol = tokio::time::interval(PATROL);
            loop {
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                    _ = patrol.tick() => {}
                }
                node.patrol();
                node.services.run_queue.enforce_time_limit();
                let (current, waiting) = node.services.run_queue.status();
                node.services
                    .metrics
                    .queued(waiting + usize::from(current.is_some()));
                node.services.metrics.connected(connection.is_up());
                node.services
                    .metrics
                    .paused(node.services.pause.current().is_some());
                node.services
                    .metrics
                    .spooled(node.services.event_sink.status());
            }
        });
    }

    /// Serves metrics and health, if the file says where.
    async fn begin_monitor(&mut self, config: &Config) -> Result<(), AgentError> {
        let Some(listen) = config.monitor else {
            return Ok(());
        };
        let monitor = Monitor::bind(listen).await?;
        let (alive, ready) = (self.node.clone(), self.node.clone());
        let probes = Probes {
            alive: Box::new(move || alive.is_alive()),
            ready: Box::new(move || ready.is_ready()),
        };
        let (node, mut stopped) = (self.node.clone(), self.stop.subscribe());
        self.tasks.spawn(async move {
            let stop = async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            if let Err(err) = monitor
                .serve(node.services.metrics.clone(), probes, stop)
                .await
            {
                let fields = [("error", err.to_string())];
                node.say(Level::Error, "No longer serving metrics", &fields);
            }
        });
        Ok(())
    }
}

/// Warns where orders are obeyed that nobody signed, and where none can be obeyed.
fn warn_about_trust(node: &Node) {
    if node.services.authorizer.requires_signatures() == Some(false) {
        let text = "Requests and assignments without a signature are obeyed: agent.yaml says \
                    trust: {required: false}";
        node.say(Level::Warn, text, &[]);
    }
    let loopback = node.services.loopback_only.as_ref();
    if let Some(server) = loopback.and_then(LoopbackOnly::remote) {
        let fields = [("reason", NoTrust::Remote { server }.to_string())];
        node.say(Level::Warn, "Requests and assignments are refused", &fields);
    }
}

/// Waits for the current run and reports whether it ended in time.
async fn is_idle(node: &Node, limit: Duration) -> bool {
    let run_queue = node.services.run_queue.clone();
    let wait = tokio::task::spawn_blocking(move || run_queue.wait_until_idle(limit));
    wait.await.unwrap_or(true)
}

/// What a node is made of besides its configuration and its connection.
struct Parts {
    /// The variables of the process.
    environ: BTreeMap<String, String>,
    log: Log,
    metrics: Metrics,
    /// Carries out what the node is asked.
    executor: Arc<dyn Executor>,
    /// Facts that hold instead of the machine's.
    facts: Option<Value>,
}

/// Puts together what the parts of an agent share.
fn build(
    config: &Config,
    subjects: &Subjects,
    connection: &Connection,
    spool: &Arc<Spool>,
    parts: Parts,
) -> Result<Node, AgentError> {
    let Parts {
        environ,
        log,
        metrics,
        executor,
        facts,
    } = parts;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    files::create_private_dir(&config.state_dir)?;
    let run_lock = RunLock::of(&config.state_dir);
    let run_queue = RunQueue::open(
        clock.clone(),
        config.queue,
        config.run_timeout,
        Some(run_lock),
    );
    let places = Places::from_env(&environ);
    let (pause, trouble) = PauseStore::open(&config.state_dir.join("pause.json"), clock.clone());
    let trust = config.trust.as_ref();
    let authorizer = Authorizer::open(trust, &config.state_dir, &this_boot(), clock.clone())?;
    let event_sink = EventSink::new(
        spool.clone(),
        subjects.clone(),
        config.identity.token(),
        log.clone(),
    );
    let choria_events =
        ChoriaEvents::new(&config.choria, &config.identity, clock.clone(), log.clone())?;
    let registration_publisher = config
        .registration
        .map(|_| RegistrationPublisher::new(clock.clone(), metrics.clone(), log.clone()));
    let facts = match facts {
        Some(facts) => FactsCache::fixed(facts, clock.clone(), metrics.clone(), log.clone()),
        None => {
            let interval = config.facts_interval;
            let (metrics, log) = (metrics.clone(), log.clone());
            FactsCache::new(places, clock.clone(), interval, metrics, log)
        }
    };
    let identity = Identity {
        name: config.identity.clone(),
        collective: config.collective.clone(),
        groups: config.groups.clone(),
        started: clock.now(),
        beat: config.beat,
        noop: config.noop,
        governor: config.governor.clone(),
        choria: config.choria.collective.clone(),
        cfengine_module: config.cfengine_module.clone(),
        environ: environ
            .iter()
            .map(|(key, value)| (key.as_str(), Value::from(value.as_str())))
            .collect(),
        state_dir: config.state_dir.clone(),
        registration_stream: config.registration_stream.clone(),
    };
    let services = Services {
        facts,
        data: DataCache::new(
            config.external_data_url.clone(),
            config.state_dir.join("data.json"),
        ),
        clock,
        pause,
        loopback_only: trust
            .is_none()
            .then(|| LoopbackOnly::new(connection.clone())),
        authorizer,
        refusals: Refusals::default(),
        audit: Audit::default(),
        run_queue,
        event_sink,
        choria_events,
        registration_publisher,
        lookups: config.registration_watch.then(Lookups::default),
        bus: BlockingClient::over(connection.clone(), Handle::current()),
        executor,
        metrics,
        log,
    };
    let node = Node {
        identity,
        services,
        state: RunState::new()?,
    };
    if let Some(reason) = trouble {
        let fields = [("error", reason.to_string())];
        node.say(Level::Warn, "Could not read the pause", &fields);
    }
    Ok(node)
}

/// Opens a spool and returns how many events wait in it.
fn open_spool(config: &SpoolConfig) -> Result<(Arc<Spool>, u64), AgentError> {
    let limits = Limits {
        max_bytes: config.max_size,
        ..Limits::default()
    };
    let (spool, recovered) = Spool::open(&config.directory, limits)?;
    Ok((Arc::new(spool), recovered.records))
}

/// Publishes what is in a spool until told to stop.
async fn publish(
    spool: Arc<Spool>,
    connection: Connection,
    metrics: Metrics,
    log: Log,
    mut stopped: watch::Receiver<bool>,
) {
    let say = move |line: &Line| log.line(line);
    let stop = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    Publisher::new(spool, connection, metrics, say)
        .run(stop, FLUSH_GRACE)
        .await;
}
