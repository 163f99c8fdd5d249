//! The streams and buckets of a fleet: created if missing, or updated.
//!
//! [`init`] is idempotent. Settings of an administrator that this program does not require are kept.
//! Agents that wait for the buckets are notified when they exist.
//! `health` compares them with what this version needs, without a change.

mod health;

pub use health::{ClusterHealth, Peer, StoreHealth, StreamHealth, StreamState, check};

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::account::Account;
use async_nats::jetstream::stream::{Compression, Config, DiscardPolicy, Info, StorageType};

use super::kv::{Entry, failed};
use super::{Bytes, Cause, Connection, Headers, NatsError, Subjects, Verb};
use ccm_core::model::audit::AUDIT;
use ccm_core::model::event::TRANSACTION_EVENT;
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{ASSIGNMENT, NODE_FACTS, NODE_STATUS, REPORT};
use ccm_core::model::rollout::ROLLOUT;
use ccm_core::model::run::RUN_SUMMARY;
use ccm_core::system::{Clock as _, SystemClock, random};

/// Metadata key: the command that creates and updates the stream.
const MANAGED_BY: &str = "ccm.managed-by";
/// Metadata key: protocols of the stored messages.
const PROTOCOLS: &str = "ccm.protocols";

/// Stream: transaction events and run summaries.
pub const EVENTS: &str = "CCM_EVENTS";
/// Bucket: presence records of nodes, which expire.
pub const NODES: &str = "CCM_NODES";
/// Bucket: facts of nodes, kept while a node is offline.
pub const FACTS: &str = "CCM_FACTS";
/// Bucket: assignments of nodes.
pub const DESIRED: &str = "CCM_DESIRED";
/// Bucket: reports of nodes.
pub const REPORTED: &str = "CCM_REPORTED";
/// Bucket: rollouts, updated by compare-and-set.
pub const ROLLOUTS: &str = "CCM_ROLLOUTS";
/// Bucket: labels of nodes.
pub const LABELS: &str = "CCM_LABELS";
/// Bucket: enrolment tokens, requests and enrolled nodes.
pub const ENROLMENTS: &str = "CCM_ENROLL";
/// Bucket: statements about the signers of requests.
pub const TRUST: &str = "CCM_TRUST";
/// Object store: manifest bundles.
pub const MANIFESTS: &str = "CCM_MANIFESTS";

/// Key of the fleet's incarnation in the bucket of assignments: both are lost together.
pub(super) const INCARNATION_KEY: &str = "incarnation";

/// Streams of a fleet, in the order of a backup: an assignment before the rollout that it belongs to,
/// because controllers complete what a rollout intends; both before the bundles, which are only added.
pub const ALL: [&str; 10] = [
    "KV_CCM_DESIRED",
    "KV_CCM_ROLLOUTS",
    "KV_CCM_LABELS",
    "KV_CCM_ENROLL",
    "KV_CCM_TRUST",
    "KV_CCM_REPORTED",
    "KV_CCM_FACTS",
    "KV_CCM_NODES",
    EVENTS,
    "OBJ_CCM_MANIFESTS",
];

/// Default expiry of presence records.
pub const PRESENCE_TTL: Duration = Duration::from_secs(90);

/// Time after which the facts of a silent node are removed. Agents confirm their facts every hour.
const FACTS_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Default maximum age of events.
const EVENTS_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Window in which a duplicate event is detected. An agent that was offline longer may store an
/// event twice.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(2 * 3600);

/// Options of the initialization.
#[derive(Clone, Debug)]
pub struct InitOptions {
    pub subjects: Subjects,
    /// Number of replicas; 1 for new streams if not set.
    pub replicas: Option<usize>,
    pub events_max_age: Option<Duration>,
    pub presence_ttl: Option<Duration>,
}

impl InitOptions {
    pub fn new(subjects: Subjects) -> Self {
        Self {
            subjects,
            replicas: None,
            events_max_age: None,
            presence_ttl: None,
        }
    }
}

/// The result for one stream or bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitResult {
    pub name: &'static str,
    pub kind: Kind,
    pub outcome: Outcome,
}

/// What was initialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stream,
    Bucket,
    ObjectStore,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Stream => "stream",
            Self::Bucket => "bucket",
            Self::ObjectStore => "object store",
        })
    }
}

/// Whether it was created or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Updated,
    Unchanged,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        })
    }
}

/// Creates or updates the streams and buckets of a fleet, and returns the results in order.
pub async fn init(
    connection: &Connection,
    options: &InitOptions,
) -> Result<Vec<InitResult>, NatsError> {
    let account = account(connection).await?;
    let has_markers = has_markers(&account);
    let has_metadata = connection.client().is_server_compatible(2, 10, 0);
    let mut done = Vec::new();
    for (name, kind, wanted) in wanted(options, has_markers) {
        let wanted = described(name, wanted, has_metadata);
        let outcome = create_or_update(connection, name, wanted, options).await?;
        done.push(InitResult {
            name,
            kind,
            outcome,
        });
    }
    connection.create_incarnation().await?;
    if done.iter().any(|it| it.outcome == Outcome::Created) {
        nudge_all(connection, &options.subjects).await?;
    }
    Ok(done)
}

/// Makes agents use the new buckets at once.
async fn nudge_all(connection: &Connection, subjects: &Subjects) -> Result<(), NatsError> {
    let subject = subjects.all(Verb::Nudge);
    connection
        .publish(&subject, Headers::new(), Bytes::new())
        .await?;
    connection.flush().await
}

impl Connection {
    /// Returns the incarnation of the fleet; none in a fleet of an older version.
    pub async fn incarnation(&self) -> Result<Option<Incarnation>, NatsError> {
        let entry = self.bucket(DESIRED).await?.get(INCARNATION_KEY).await?;
        let parse = |entry: Entry| {
            let text = String::from_utf8_lossy(&entry.value);
            text.parse()
                .map_err(|err| failed("read", &format!("{DESIRED}#{INCARNATION_KEY}"), err))
        };
        entry.map(parse).transpose()
    }

    /// Starts an incarnation, unless the fleet has one.
    async fn create_incarnation(&self) -> Result<(), NatsError> {
        let random = u64::try_from(random()? >> 64).unwrap_or_default();
        let incarnation = Incarnation::new(SystemClock.now(), random);
        let text = incarnation.to_string();
        let bucket = self.bucket(DESIRED).await?;
        match bucket.create(INCARNATION_KEY, text.into()).await {
            Err(err) if !err.is_conflict() => Err(err),
            _ => Ok(()),
        }
    }
}

/// Returns account information; fails if the servers have no JetStream.
async fn account(connection: &Connection) -> Result<Account, NatsError> {
    let query = connection.jetstream().query_account();
    let account = connection
        .unless_denied(&connection.api("INFO"), query)
        .await?;
    account.map_err(|err| NatsError::NoJetStream {
        servers: connection.servers().into(),
        source: Cause::client(err),
    })
}

/// Reports whether the server supports delete markers, which tell watchers about expired keys; since
/// server 2.11.
fn has_markers(account: &Account) -> bool {
    account.requests.level >= 1
}

/// Returns the wanted configurations, with the names of streams and buckets.
fn wanted(options: &InitOptions, has_markers: bool) -> [(&'static str, Kind, Config); 10] {
    let ttl = options.presence_ttl.unwrap_or(PRESENCE_TTL);
    let facts = Config {
        max_age: FACTS_MAX_AGE,
        ..bucket(FACTS, 1)
    };
    let nodes = presence(bucket(NODES, 1), ttl, has_markers);
    [
        (EVENTS, Kind::Stream, events(options)),
        (NODES, Kind::Bucket, nodes),
        (FACTS, Kind::Bucket, facts),
        (DESIRED, Kind::Bucket, bucket(DESIRED, 16)),
        (REPORTED, Kind::Bucket, bucket(REPORTED, 1)),
        (ROLLOUTS, Kind::Bucket, bucket(ROLLOUTS, 64)),
        (LABELS, Kind::Bucket, bucket(LABELS, 1)),
        (ENROLMENTS, Kind::Bucket, bucket(ENROLMENTS, 1)),
        (TRUST, Kind::Bucket, bucket(TRUST, 1)),
        (MANIFESTS, Kind::ObjectStore, objects(MANIFESTS)),
    ]
}

/// Returns what a stream or bucket contains, and the protocols of its messages.
fn content_of(name: &str) -> (&'static str, &'static [&'static str]) {
    match name {
        EVENTS => (
            "transaction events, run summaries and audit records of nodes",
            &[TRANSACTION_EVENT, RUN_SUMMARY, AUDIT],
        ),
        NODES => (
            "status of each node; expires when the node is offline",
            &[NODE_STATUS],
        ),
        FACTS => (
            "facts of each node, kept while it is offline",
            &[NODE_FACTS],
        ),
        DESIRED => (
            "assignment of each node: manifests, data and generation",
            &[ASSIGNMENT],
        ),
        REPORTED => ("last result of each node for its assignment", &[REPORT]),
        ROLLOUTS => ("rollouts with their plan and progress", &[ROLLOUT]),
        LABELS => ("labels of nodes, set by operators", &[]),
        ENROLMENTS => ("enrolment tokens, requests and enrolled nodes", &[]),
        TRUST => ("statements about the signers of requests", &[]),
        _ => ("manifest bundles, by name and digest", &[]),
    }
}

/// Adds a description and metadata, which `nats stream info` shows. Servers before 2.10 drop
/// metadata.
fn described(name: &str, config: Config, has_metadata: bool) -> Config {
    let (description, protocols) = content_of(name);
    let metadata = [
        (MANAGED_BY, "ccm fleet init".to_owned()),
        (PROTOCOLS, protocols.join(", ")),
    ];
    let is_used = |(_, value): &(&str, String)| has_metadata && !value.is_empty();
    Config {
        description: Some(format!("ccm: {description}")),
        metadata: metadata
            .into_iter()
            .filter(is_used)
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        ..config
    }
}

/// Creates or updates one stream.
async fn create_or_update(
    connection: &Connection,
    name: &str,
    mut wanted: Config,
    options: &InitOptions,
) -> Result<Outcome, NatsError> {
    let existing = match connection.stream_info(&wanted.name).await? {
        Some(info) => info.config,
        None => {
            wanted.num_replicas = options.replicas.unwrap_or(1);
            connection.create_stream(name, wanted).await?;
            return Ok(Outcome::Created);
        }
    };
    let merged = merge(&existing, wanted, options);
    if merged == existing {
        return Ok(Outcome::Unchanged);
    }
    connection.update_stream(name, merged).await?;
    Ok(Outcome::Updated)
}

impl Connection {
    /// Creates a stream, called `name` in errors.
    pub(super) async fn create_stream(
        &self,
        name: &str,
        config: Config,
    ) -> Result<Info, NatsError> {
        let subject = self.api(&format!("STREAM.CREATE.{}", config.name));
        let made = self.unless_denied(&subject, self.jetstream().create_stream(config));
        let made = made.await?.map_err(|err| failed("creation", name, err))?;
        Ok(made.cached_info().clone())
    }

    /// Updates a stream, called `name` in errors.
    pub(super) async fn update_stream(
        &self,
        name: &str,
        config: Config,
    ) -> Result<Info, NatsError> {
        let subject = self.api(&format!("STREAM.UPDATE.{}", config.name));
        let updated = self.unless_denied(&subject, self.jetstream().update_stream(config));
        updated.await?.map_err(|err| failed("update", name, err))
    }
}

/// Merges the wanted configuration into the existing one. Subjects are only added: fleets with
/// different prefixes may share a stream.
fn merge(existing: &Config, wanted: Config, options: &InitOptions) -> Config {
    let mut merged = existing.clone();
    for subject in wanted.subjects {
        if !merged.subjects.contains(&subject) {
            merged.subjects.push(subject);
        }
    }
    merged.description = merged.description.or(wanted.description);
    merged.metadata.extend(wanted.metadata);
    if let Some(replicas) = options.replicas {
        merged.num_replicas = replicas;
    }
    merged.max_messages_per_subject = wanted.max_messages_per_subject;
    merged.allow_direct = wanted.allow_direct;
    let age = if wanted.name == EVENTS {
        options.events_max_age
    } else {
        options
            .presence_ttl
            .filter(|_| wanted.name == stream_of(NODES))
    };
    if let Some(age) = age {
        merged.max_age = age;
    }
    if wanted.subject_delete_marker_ttl.is_some() && merged.subject_delete_marker_ttl.is_none() {
        merged.allow_message_ttl = true;
        merged.subject_delete_marker_ttl = wanted.subject_delete_marker_ttl;
    }
    merged.duplicate_window = merged.duplicate_window.max(wanted.duplicate_window);
    if !merged.max_age.is_zero() {
        merged.duplicate_window = merged.duplicate_window.min(merged.max_age);
    }
    merged
}

fn events(options: &InitOptions) -> Config {
    let max_age = options.events_max_age.unwrap_or(EVENTS_MAX_AGE);
    Config {
        name: EVENTS.into(),
        subjects: vec![options.subjects.event_stream().to_string()],
        max_messages_per_subject: -1,
        max_age,
        duplicate_window: DUPLICATE_WINDOW.min(max_age),
        storage: StorageType::File,
        allow_direct: true,
        compression: Some(Compression::S2),
        ..Config::default()
    }
}

/// Returns the name of a bucket's stream.
fn stream_of(bucket: &str) -> String {
    format!("KV_{bucket}")
}

fn bucket(name: &str, history: i64) -> Config {
    Config {
        name: stream_of(name),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: history,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    }
}

/// Returns a bucket with expiring values.
fn presence(bucket: Config, ttl: Duration, has_markers: bool) -> Config {
    Config {
        max_age: ttl,
        allow_message_ttl: has_markers,
        subject_delete_marker_ttl: has_markers.then_some(ttl),
        ..bucket
    }
}

fn objects(name: &str) -> Config {
    Config {
        name: format!("OBJ_{name}"),
        subjects: vec![format!("$O.{name}.C.>"), format!("$O.{name}.M.>")],
        max_messages_per_subject: -1,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        allow_rollup: true,
        allow_direct: true,
        ..Config::default()
    }
}
