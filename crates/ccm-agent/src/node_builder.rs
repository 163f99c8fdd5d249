//! Builder of the state that the parts of an agent share, from its configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::AgentError;
use super::choria_events::ChoriaEvents;
use super::config::Config;
use super::data_cache::DataCache;
use super::event_sink::EventSink;
use super::facts_cache::FactsCache;
use super::metrics::Metrics;
use super::node::{Identity, Node, Problem, RunState, Services};
use super::registration_publisher::RegistrationPublisher;
use super::registration_watch::Lookups;
use super::run_queue::RunQueue;
use super::spool::Spool;
use super::trust::audit::Audit;
use super::trust::loopback::LoopbackOnly;
use super::trust::refusals::Refusals;
use super::trust::signer_refresh::SignerRefresh;
use super::trust::{Authorizer, boot_id};
use ccm_core::engine::Level;
use ccm_core::facts::FactPaths;
use ccm_core::run::RunLock;
use ccm_core::run::executor::Executor;
use ccm_core::run::log::Log;
use ccm_core::run::pause::PauseStore;
use ccm_core::run::secret_key;
use ccm_core::secrets::secrets_of;
use ccm_core::system::files;
use ccm_core::system::{Clock, SystemClock};
use ccm_nats::{BlockingClient, Connection, Subjects};
use ccm_template::secrets::Secrets;
use ccm_value::Value;

/// Parts of a node besides its configuration and connection.
pub(super) struct NodeParts {
    /// Environment variables of the process.
    pub(super) environ: BTreeMap<String, String>,
    pub(super) log: Log,
    pub(super) metrics: Metrics,
    /// Applies manifests and resources.
    pub(super) executor: Arc<dyn Executor>,
    /// Fixed facts instead of those of this machine.
    pub(super) facts: Option<Value>,
}

/// Builds the state that the parts of an agent share.
pub(super) fn build(
    config: &Config,
    subjects: &Subjects,
    connection: &Connection,
    spool: &Arc<Spool>,
    parts: NodeParts,
) -> Result<Node, AgentError> {
    let NodeParts {
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
    let fact_paths = FactPaths::from_env(&environ);
    let (pause, pause_error) =
        PauseStore::open(&config.state_dir.join("pause.json"), clock.clone());
    let trust = config.trust.as_ref();
    let authorizer = Authorizer::open(
        trust,
        &config.collective,
        &config.state_dir,
        &boot_id(),
        clock.clone(),
    )?;
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
    // Simulated nodes, whose facts are fixed, have no key.
    let key = match &facts {
        Some(_) => Ok(Vec::new()),
        None => secret_key::load_or_create(&secret_key::path_in(&config.state_dir)),
    };
    let (keys, key_error) = match key {
        Ok(keys) => (keys, None),
        Err(err) => (Vec::new(), Some(err.to_string())),
    };
    let recipient = secret_key::recipient(&keys);
    let secrets = match keys.is_empty() {
        true => Secrets::default(),
        false => secrets_of(keys),
    };
    let facts = match facts {
        Some(facts) => FactsCache::fixed(facts, clock.clone(), metrics.clone(), log.clone()),
        None => {
            let interval = config.facts_interval;
            let (metrics, log) = (metrics.clone(), log.clone());
            FactsCache::new(fact_paths, clock.clone(), interval, metrics, log)
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
        is_choria_server: config.choria.server.is_some(),
        cfengine_module: config.cfengine_module.clone(),
        environ: environ
            .iter()
            .map(|(key, value)| (key.as_str(), Value::from(value.as_str())))
            .collect(),
        state_dir: config.state_dir.clone(),
        recipient: recipient.map(|it| it.to_string()).unwrap_or_default(),
        registration_stream: config.registration_stream.clone(),
    };
    let services = Services {
        facts,
        data: DataCache::new(
            config.external_data_url.clone(),
            config.state_dir.join("data.json"),
            secrets.clone(),
        ),
        secrets,
        clock,
        pause,
        loopback_only: trust
            .is_none()
            .then(|| LoopbackOnly::new(connection.clone())),
        authorizer,
        signer_refresh: SignerRefresh::new(connection.clone(), subjects.clone()),
        refusals: Refusals::default(),
        audit: Audit::default(),
        run_queue,
        event_sink,
        choria_events,
        registration_publisher,
        lookups: config.registration_watch.then(Lookups::default),
        nats: BlockingClient::over(connection.clone(), Handle::current()),
        executor,
        metrics,
        log,
    };
    let node = Node {
        identity,
        services,
        state: RunState::new()?,
    };
    if let Some(reason) = key_error {
        let fields = [("error", reason.clone())];
        let text = "Could not read or create the key of encrypted values";
        node.log(Level::Error, text, &fields);
        node.set_problem(Problem::SecretKey, Some(reason));
    }
    if let Some(reason) = pause_error {
        let fields = [("error", reason.to_string())];
        node.log(Level::Warn, "Could not read the stored pause", &fields);
    }
    Ok(node)
}
