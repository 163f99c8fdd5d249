//! Server of Choria's network: replies to requests of Choria's clients, with Choria's own security,
//! if the configuration has `choria: {server: true}`.
//!
//! ```text
//! subject -> transport -> tokens and signature -> filter -> replay -> policies -> agent -> reply
//! ```
//!
//! The protocol and its tokens are in [`ccm_nats::choria`]. A request must be allowed by the token
//! of its caller and the action policy of the agent ([`action_policy`]), of which at least one must
//! exist, and by the `trust` section, if there is one. Refusals are audited; a request that is not
//! authentic gets no reply. [`subscriptions`] receives messages, [`requests`] has these steps,
//! [`rpcutil`] has Choria's own agents, [`ccm_actions`] runs the actions of the agent `ccm`,
//! [`registration`] publishes registration data.

pub(crate) mod action_policy;
mod ccm_actions;
mod registration;
mod requests;
mod rpcutil;
mod subscriptions;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::choria_rpc::run_store::{RunStore, RunStoreError};
use super::config::{ChoriaServerConfig, Config};
use super::node::Node;
use super::trust::boot_id;
use super::trust::replay_cache::{Now, ReplayCache};
use ccm_core::engine::Level;
use ccm_core::model::node::Token;
use ccm_core::system::files::{self, AllowedWriters};
use ccm_core::system::{Clock as _, FileError, SystemClock};
use ccm_nats::choria::{ServerKey, ServerKeyError, TrustChain};
use ccm_nats::{Connection, NatsError};
use ccm_value::secret::Secret;
use requests::{AuditDetails, Incoming};
use subscriptions::Denied;

/// Agents of the server.
pub(crate) const AGENTS: &[&str] = &["ccm", "discovery", "rpcutil"];

/// Directory of run records in the state directory, shared with the external agent.
const RUNS: &str = "choria-runs";

/// Size limit of token and seed.
const MAX_SECRET: u64 = 256 * 1024;

/// Most requests handled at once; more wait in the queues of the subscriptions.
const MAX_CONCURRENT: usize = 64;

/// Time that requests may take to end when the agent stops.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Reply subject of clients that want no reply.
const NO_REPLY: &str = "dev.null";

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ChoriaServerError {
    #[error("choria.token and choria.seed: {0}")]
    Key(#[from] ServerKeyError),
    #[error("choria: {0}")]
    File(#[from] FileError),
    #[error("choria: {0}")]
    RunStore(#[from] RunStoreError),
    #[error("choria: {0}")]
    Nats(#[from] NatsError),
}

/// Counters of messages, as `rpcutil daemon_stats` reports them.
#[derive(Debug, Default)]
struct Stats {
    total: AtomicU64,
    valid: AtomicU64,
    invalid: AtomicU64,
    passed: AtomicU64,
    filtered: AtomicU64,
    expired: AtomicU64,
    replies: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Server of one node.
pub(crate) struct ChoriaServer {
    node: Arc<Node>,
    connection: Connection,
    key: ServerKey,
    chain: TrustChain,
    collectives: Vec<Token>,
    policies: PathBuf,
    replay_cache: Mutex<ReplayCache>,
    store: RunStore,
    stats: Stats,
    /// Permissions that the brokers deny.
    denied: Mutex<Denied>,
    registration_interval: Option<Duration>,
}

/// Returns the trust chain of a configuration.
pub(crate) fn trust_chain(config: &ChoriaServerConfig) -> TrustChain {
    let issuers = config.issuers.iter();
    TrustChain::new(issuers.map(|issuer| (issuer.name.clone(), issuer.key)))
}

/// Reads and verifies token and seed of a node.
pub(crate) fn server_key(
    config: &ChoriaServerConfig,
    chain: &TrustChain,
    node: &Node,
) -> Result<ServerKey, ChoriaServerError> {
    load_key(
        config,
        chain,
        node.identity.name.as_str(),
        node.services.clock.now(),
    )
}

/// Reads token and seed, and verifies them for a node and its collectives.
pub(crate) fn load_key(
    config: &ChoriaServerConfig,
    chain: &TrustChain,
    identity: &str,
    now: DateTime<Utc>,
) -> Result<ServerKey, ChoriaServerError> {
    let read = |path| {
        let text = files::read_trusted(path, MAX_SECRET, AllowedWriters::RootGroup);
        text.map(Secret::new)
    };
    let (token, seed) = (read(&config.token)?, read(&config.seed)?);
    let key = ServerKey::new(&token, &seed, identity, chain, now)?;
    let claimed = &key.claims().collectives;
    let foreign = config
        .collectives
        .iter()
        .find(|collective| !claimed.iter().any(|it| it == collective.as_str()));
    match foreign {
        Some(collective) => Err(ServerKeyError::OtherCollective(collective.to_string()).into()),
        None => Ok(key),
    }
}

/// Reads and verifies what the Choria server of a configuration needs to start, if it has one.
pub fn check_choria_server(config: &Config) -> Result<(), ChoriaServerError> {
    let Some(server) = &config.choria.server else {
        return Ok(());
    };
    let (chain, now) = (trust_chain(server), SystemClock.now());
    load_key(server, &chain, config.identity.as_str(), now)?;
    server.settings()?;
    Ok(())
}

impl ChoriaServer {
    /// Verifies token, seed and issuers, and subscribes.
    pub(crate) async fn start(
        config: &ChoriaServerConfig,
        node: Arc<Node>,
        connection: Connection,
        tasks: &mut JoinSet<()>,
        stop: &watch::Sender<bool>,
    ) -> Result<(), ChoriaServerError> {
        let chain = trust_chain(config);
        let state_dir = &node.identity.state_dir;
        let now = Now::of(&*node.services.clock);
        let replay_cache = ReplayCache::open(&state_dir.join("choria-requests"), &boot_id(), now)?;
        let server = Arc::new(Self {
            key: server_key(config, &chain, &node)?,
            chain,
            collectives: config.collectives.clone(),
            policies: config.policies.clone(),
            replay_cache: Mutex::new(replay_cache),
            store: RunStore::open(&state_dir.join(RUNS))?,
            stats: Stats::default(),
            denied: Mutex::default(),
            registration_interval: config.registration_interval,
            connection,
            node,
        });
        server.start_subscriptions(tasks, stop).await?;
        tasks.spawn(registration::publish(server.clone(), stop.subscribe()));
        let collectives: Vec<&str> = server.collectives.iter().map(Token::as_str).collect();
        let fields = [("collectives", collectives.join(","))];
        let text = "Serving requests of Choria's clients";
        server.node.log(Level::Info, text, &fields);
        Ok(())
    }
}
