//! Agent of one node: applies manifests on a schedule, serves requests over NATS and publishes
//! events.
//!
//! [`Agent::start`] starts all parts, [`Agent::stop`] stops them in order. Requests are served by
//! `handlers`; periodic runs come from `schedule`, assignments of the fleet from `assignment`;
//! every run goes through `run_queue` and `run`, in the process of an agent on its main thread
//! (`job_host`). `trust` authorizes requests. `spool` and
//! `publisher` deliver events, `choria_events` those for Choria, whose clients `choria_server`
//! serves. `registration_publisher` publishes services of this node, `registration_watch` watches
//! looked-up ones. `handover_import` takes over events of runs by other programs on this node. All
//! parts keep working while NATS is unreachable. [`enroll`] makes this node a member of a fleet,
//! [`doctor`] diagnoses it. How a manifest is applied is in `ccm_core::run`.

#![warn(unreachable_pub)]

mod assignment;
mod bundle_cache;
mod choria_events;
pub mod choria_rpc;
mod choria_server;
pub mod config;
mod connection_log;
mod data_cache;
pub mod doctor;
pub mod enroll;
mod event_sink;
mod facts_cache;
mod facts_store;
mod handlers;
mod handover_import;
mod http_server;
pub mod job_host;
mod local_status;
mod manifest_watch;
pub mod metrics;
pub mod nats_client_log;
mod node;
mod node_builder;
mod overload_log;
mod presence;
pub mod publisher;
mod registration_publisher;
mod registration_watch;
mod reporter;
mod request_server;
mod run;
mod run_queue;
mod schedule;
pub mod service_manager;
pub mod simulate;
pub mod spool;
mod trust;

#[cfg(fuzzing)]
pub use choria_server::action_policy::action_policy_allows;
pub use choria_server::{ChoriaServerError, check_choria_server};
pub use http_server::{MonitorError, Unhealthy};
pub use node::{Node, VERSION};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use assignment::{Assignments, CheckReply};
use bundle_cache::BundleCache;
use choria_server::ChoriaServer;
use config::{Config, SpoolConfig};
use handlers::Handlers;
use handover_import::HandoverImport;
use http_server::{Monitor, Probes};
use job_host::JobHost;
use manifest_watch::{UpdateSender, WatchedManifest};
use metrics::Metrics;
use node_builder::{NodeParts, build};
use presence::Presence;
use publisher::Publisher;
use registration_watch::RegistrationWatcher;
use schedule::{Schedule, Signals, Times};
use spool::{Limits, Recovered, Spool, SpoolError};
use trust::TrustError;
use trust::loopback::{LoopbackError, LoopbackOnly};

use ccm_core::engine::{Level, Line};
use ccm_core::model::node::NameError;
use ccm_core::model::request::RequestError;
use ccm_core::run::executor::LocalExecutor;
use ccm_core::run::handover::HandoverDir;
use ccm_core::run::log::Log;
use ccm_core::system::RandomError;
use ccm_core::system::files::FileError;
use ccm_nats::micro::Overload;
use ccm_nats::{ConnectMode, Connection, NatsError, Settings, Subjects, connect};

/// Time that the current run may take to finish after a stop signal.
const RUN_GRACE: Duration = Duration::from_secs(30);

/// Time that a cancelled run may take to end.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// Time for publishing remaining events after the last run.
const FLUSH_GRACE: Duration = Duration::from_secs(5);

/// Most messages queued per subscription; more are dropped instead of kept in memory. They are taken
/// from these queues at once, so they fill only if the machine is overloaded.
const BACKLOG: usize = 8192;

/// Most requests to check the assignment that wait for the schedule.
const MAX_CHECKS: usize = 16;

/// Interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Why an agent could not start.
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
    Choria(#[from] ChoriaServerError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("synthetic resource: {0}")]
    SyntheticResource(#[from] RequestError),
}

/// What the process of an agent passes to it.
#[derive(Clone)]
pub struct ProcessParts {
    /// Environment variables of the process.
    pub environ: BTreeMap<String, String>,
    pub log: Log,
    pub metrics: Metrics,
    pub executor: LocalExecutor,
}

/// A running agent.
pub struct Agent {
    node: Arc<Node>,
    connection: Connection,
    stop: watch::Sender<bool>,
    /// Stops the publishers, which outlive the other tasks.
    stop_publishing: watch::Sender<bool>,
    tasks: JoinSet<()>,
    publishing: JoinSet<()>,
    /// Counts requests beyond the capacity of the request server.
    overload: Overload,
}

impl Agent {
    /// Starts the agent of one node. NATS may be unreachable.
    pub async fn start(
        config: &Config,
        settings: &Settings,
        process: ProcessParts,
    ) -> Result<Self, AgentError> {
        // Before anything is opened or started.
        check_choria_server(config)?;
        let subjects = Subjects::new(&config.subject_prefix, config.collective.clone())?;
        let (spool, recovered) = open_spool(&config.spool)?;
        let settings = Settings {
            backlog: Some(BACKLOG),
            ..settings.clone()
        };
        let connection = connect(&settings, ConnectMode::Forever, "choria-ccm").await?;
        let overridden = config.overridden_keys(&process.environ);
        let parts = NodeParts {
            environ: process.environ,
            log: process.log,
            metrics: process.metrics,
            executor: Arc::new(process.executor),
            facts: None,
        };
        let node = build(config, &subjects, &connection, &spool, parts)?;
        let fields = [
            ("identity", node.identity.name.to_string()),
            ("version", VERSION.to_owned()),
            ("events", recovered.records.to_string()),
        ];
        node.log(Level::Info, "Agent starting", &fields);
        warn_about_lost_events(&node, &recovered);
        warn_about_trust(&node);
        for (key, variable) in overridden {
            let fields = [("variable", variable.to_owned()), ("key", key.to_owned())];
            let text = "A variable of the environment overrides the configuration file; unset it \
                        to use the file";
            node.log(Level::Warn, text, &fields);
        }
        let cache = BundleCache::open(&config.cache_dir)?;
        let mut agent = Self::assemble(config, node, connection, subjects, cache).await?;
        agent.start_publisher(spool);
        let brokers = agent.start_choria_server(config).await?;
        agent.start_choria_events(brokers);
        agent.log_connection(&agent.connection.clone());
        agent.start_overload_log();
        agent.start_registration(config);
        agent.start_handover_import(config)?;
        agent.start_maintenance();
        agent.start_monitor(config).await?;
        Ok(agent)
    }

    /// Starts the parts that real and simulated nodes have in common.
    async fn assemble(
        config: &Config,
        node: Node,
        connection: Connection,
        subjects: Subjects,
        cache: BundleCache,
    ) -> Result<Self, AgentError> {
        let mut agent = Self {
            node: Arc::new(node),
            connection,
            stop: watch::Sender::new(false),
            stop_publishing: watch::Sender::new(false),
            tasks: JoinSet::new(),
            publishing: JoinSet::new(),
            overload: Overload::default(),
        };
        let nudge = Arc::new(Notify::new());
        let (check, checks) = mpsc::channel(MAX_CHECKS);
        agent.start_request_server(&subjects, &nudge, check).await?;
        agent.start_presence(&subjects);
        agent.start_schedule(config, subjects, (nudge, checks), cache);
        Ok(agent)
    }

    /// Returns the state that the parts of the agent share.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Performs runs on the thread of this host instead of one of their own.
    pub fn perform_runs_on(&self, host: &JobHost) {
        self.node.services.run_queue.perform_on(host.clone());
    }

    /// Returns the metrics of the agent.
    pub fn metrics(&self) -> &Metrics {
        &self.node.services.metrics
    }

    /// Stops the agent: refuses new runs, waits for the current one, publishes remaining events and
    /// removes the presence record.
    pub async fn stop(self) {
        let Self {
            node,
            connection,
            stop,
            stop_publishing,
            mut tasks,
            mut publishing,
            overload: _,
        } = self;
        node.log(Level::Info, "Agent stopping", &[]);
        node.services.run_queue.close();
        stop.send_replace(true);
        if !is_idle(&node, RUN_GRACE).await {
            node.log(
                Level::Warn,
                "Cancelling a run that did not finish in time",
                &[],
            );
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

    fn start_publisher(&mut self, spool: Arc<Spool>) {
        let publishing = publish_spool(
            spool,
            self.connection.clone(),
            self.node.services.metrics.clone(),
            self.node.services.log.clone(),
            self.stop_publishing.subscribe(),
        );
        self.publishing.spawn(publishing);
    }

    /// Serves requests of Choria's clients, if that is configured. Returns the connection to
    /// Choria's brokers.
    async fn start_choria_server(&mut self, config: &Config) -> Result<Connection, AgentError> {
        let own = self.connection.clone();
        let Some(server) = &config.choria.server else {
            return Ok(own);
        };
        let brokers = match server.settings()? {
            Some(settings) => {
                let brokers = connect(&settings, ConnectMode::Forever, "choria-ccm").await?;
                self.log_connection(&brokers);
                brokers
            }
            None => own,
        };
        let node = self.node.clone();
        ChoriaServer::start(server, node, brokers.clone(), &mut self.tasks, &self.stop).await?;
        Ok(brokers)
    }

    /// Logs changes and errors of a connection.
    fn log_connection(&mut self, connection: &Connection) {
        let (node, stop) = (self.node.clone(), self.stop.subscribe());
        self.tasks
            .spawn(connection_log::run(node, connection.clone(), stop));
    }

    /// Publishes events for Choria, until all runs are over.
    fn start_choria_events(&mut self, brokers: Connection) {
        let stopped = self.stop_publishing.subscribe();
        let choria_events = self.node.services.choria_events.clone();
        self.publishing.spawn(choria_events.run(brokers, stopped));
    }

    /// Publishes services of this node, if registration is configured.
    fn start_registration(&mut self, config: &Config) {
        if let (Some(registration_publisher), Some(destination)) = (
            &self.node.services.registration_publisher,
            config.destination(),
        ) {
            let publishing = registration_publisher.clone().publish(
                self.connection.clone(),
                destination,
                self.stop_publishing.subscribe(),
                FLUSH_GRACE,
            );
            self.publishing.spawn(publishing);
        }
    }

    async fn start_request_server(
        &mut self,
        subjects: &Subjects,
        nudge: &Arc<Notify>,
        check: mpsc::Sender<CheckReply>,
    ) -> Result<(), AgentError> {
        let (served, verbs) =
            request_server::listen(&self.node, &self.connection, subjects).await?;
        self.overload = served.overload.clone();
        let handlers = Handlers::new(self.node.clone(), nudge.clone(), check);
        let node = self.node.clone();
        self.tasks.spawn(request_server::serve(
            served,
            verbs,
            node,
            handlers,
            self.stop.subscribe(),
        ));
        Ok(())
    }

    /// Counts and logs requests that were too many.
    fn start_overload_log(&mut self) {
        let (node, connection) = (self.node.clone(), self.connection.clone());
        let (overload, stop) = (self.overload.clone(), self.stop.subscribe());
        self.tasks
            .spawn(overload_log::run(node, connection, overload, stop));
    }

    fn start_presence(&mut self, subjects: &Subjects) {
        let presence = Presence {
            node: self.node.clone(),
            connection: self.connection.clone(),
            subjects: subjects.clone(),
        };
        self.tasks.spawn(presence.run(self.stop.subscribe()));
    }

    fn start_schedule(
        &mut self,
        config: &Config,
        subjects: Subjects,
        (nudge, checks): (Arc<Notify>, mpsc::Receiver<CheckReply>),
        cache: BundleCache,
    ) {
        // One slot per manifest: a queued update covers all earlier ones.
        let (updates, updated) = mpsc::channel(config.manifests.len().max(1));
        let mut manifests = Vec::new();
        for (index, source) in config.manifests.iter().enumerate() {
            let manifest = Arc::new(WatchedManifest::new(source.clone(), cache.clone()));
            manifests.push(manifest.clone());
            let updates = UpdateSender {
                index,
                updates: updates.clone(),
            };
            let (node, connection) = (self.node.clone(), self.connection.clone());
            self.tasks
                .spawn(manifest.follow(node, connection, updates, self.stop.subscribe()));
        }
        let connection = self.connection.state();
        let assignments =
            Assignments::new(self.node.clone(), self.connection.clone(), subjects, cache);
        let times = Times {
            interval: config.interval,
            health_check_interval: config.health_check_interval,
            offset: config.splay_offset(),
        };
        let schedule = Schedule::new(self.node.clone(), manifests, assignments, times);
        let (outdated_sender, outdated) = mpsc::channel(1);
        if let Some(lookups) = &self.node.services.lookups {
            let watcher = RegistrationWatcher::new(
                lookups.clone(),
                self.connection.clone(),
                config.registration_stream.clone(),
                self.node.services.log.clone(),
                times.min_distance(),
            );
            self.tasks
                .spawn(watcher.run(outdated_sender, self.stop.subscribe()));
        }
        let signals = Signals {
            updated,
            outdated,
            nudge,
            checks,
            connection,
            stop: self.stop.subscribe(),
        };
        self.tasks.spawn(schedule.run(signals));
    }

    /// Imports events of runs that other programs make on this node.
    fn start_handover_import(&mut self, config: &Config) -> Result<(), AgentError> {
        let mut handover = HandoverImport::new(HandoverDir::open(&config.state_dir)?);
        let (node, mut stopped) = (self.node.clone(), self.stop.subscribe());
        self.tasks.spawn(async move {
            let mut interval = tokio::time::interval(MAINTENANCE_INTERVAL);
            loop {
                let is_last = tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => true,
                    _ = interval.tick() => false,
                };
                if handover.has_any() {
                    let node = node.clone();
                    let work = move || {
                        handover.import(&node);
                        handover
                    };
                    match tokio::task::spawn_blocking(work).await {
                        Ok(back) => handover = back,
                        // The runtime is shutting down.
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

    /// Cancels runs that exceed their time limit and updates gauges.
    fn start_maintenance(&mut self) {
        let (node, connection) = (self.node.clone(), self.connection.clone());
        let mut stopped = self.stop.subscribe();
        self.tasks.spawn(async move {
            let mut interval = tokio::time::interval(MAINTENANCE_INTERVAL);
            loop {
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                    _ = interval.tick() => {}
                }
                node.record_maintenance();
                let checked = node.clone();
                if tokio::task::spawn_blocking(move || checked.check_state_dir())
                    .await
                    .is_err()
                {
                    // The runtime is shutting down.
                    return;
                }
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

    /// Serves metrics and health over HTTP, if a port is configured.
    async fn start_monitor(&mut self, config: &Config) -> Result<(), AgentError> {
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
                node.log(Level::Error, "Metrics server failed", &fields);
            }
        });
        Ok(())
    }
}

/// Warns if requests are accepted without signatures, or refused because no signers are configured.
fn warn_about_trust(node: &Node) {
    if node.services.authorizer.requires_signatures() == Some(false) {
        let text = "Requests and assignments are accepted without a signature: agent.yaml has \
                    trust: {required: false}";
        node.log(Level::Warn, text, &[]);
    }
    let loopback = node.services.loopback_only.as_ref();
    if let Some(server) = loopback.and_then(LoopbackOnly::remote) {
        let fields = [("reason", LoopbackError::Remote { server }.to_string())];
        node.log(Level::Warn, "Requests and assignments are refused", &fields);
    }
}

/// Logs how many events are gone from the spool since the agent ended.
fn warn_about_lost_events(node: &Node, recovered: &Recovered) {
    let count = recovered.lost.saturating_add(recovered.damaged);
    if count > 0 {
        let fields = [("count", count.to_string())];
        let text = "Events were lost: the spool is damaged or was truncated";
        node.log(Level::Error, text, &fields);
    }
}

/// Waits for the current run and reports whether it ended within `limit`.
async fn is_idle(node: &Node, limit: Duration) -> bool {
    let run_queue = node.services.run_queue.clone();
    let wait = tokio::task::spawn_blocking(move || run_queue.wait_until_idle(limit));
    wait.await.unwrap_or(true)
}

/// Opens a spool and returns it with what was found in it.
fn open_spool(config: &SpoolConfig) -> Result<(Arc<Spool>, Recovered), AgentError> {
    let limits = Limits {
        max_bytes: config.max_size,
        ..Limits::default()
    };
    let (spool, recovered) = Spool::open(&config.directory, limits)?;
    Ok((Arc::new(spool), recovered))
}

/// Publishes the records of a spool until stopped.
async fn publish_spool(
    spool: Arc<Spool>,
    connection: Connection,
    metrics: Metrics,
    log: Log,
    mut stopped: watch::Receiver<bool>,
) {
    let write = move |line: &Line| log.line(line);
    let stop = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    Publisher::new(spool, connection, metrics, write)
        .run(stop, FLUSH_GRACE)
        .await;
}
