//! The streams and buckets of a fleet: created if missing, or updated.
//!
//! [`init`] is idempotent. Settings of an administrator that this program does not require are kept.

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::stream::{Compression, Config, DiscardPolicy, Info, StorageType};

use super::kv::failed;
use super::{Cause, Connection, NatsError, Subjects};

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
/// Object store: manifest bundles.
pub const MANIFESTS: &str = "CCM_MANIFESTS";

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
    let query = connection.jetstream().query_account();
    let account = connection
        .unless_denied(&connection.api("INFO"), query)
        .await?;
    let account = account.map_err(|err| NatsError::NoJetStream {
        servers: connection.servers().into(),
        source: Cause::client(err),
    })?;
    // Delete markers tell watchers about expired keys; supported since server 2.11.
    let has_markers = account.requests.level >= 1;
    let ttl = options.presence_ttl.unwrap_or(PRESENCE_TTL);
    let mut done = Vec::new();
    for (name, kind, wanted) in [
        (EVENTS, Kind::Stream, events(options)),
        (
            NODES,
            Kind::Bucket,
            presence(bucket(NODES, 1), ttl, has_markers),
        ),
        (
            FACTS,
            Kind::Bucket,
            Config {
                max_age: FACTS_MAX_AGE,
                ..bucket(FACTS, 1)
            },
        ),
        (DESIRED, Kind::Bucket, bucket(DESIRED, 16)),
        (REPORTED, Kind::Bucket, bucket(REPORTED, 1)),
        (ROLLOUTS, Kind::Bucket, bucket(ROLLOUTS, 64)),
        (LABELS, Kind::Bucket, bucket(LABELS, 1)),
        (ENROLMENTS, Kind::Bucket, bucket(ENROLMENTS, 1)),
        (MANIFESTS, Kind::ObjectStore, objects(MANIFESTS)),
    ] {
        let outcome = create_or_update(connection, name, wanted, options).await?;
        done.push(InitResult {
            name,
            kind,
            outcome,
        });
    }
    Ok(done)
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
        description: Some("ccm: transaction events and run summaries".into()),
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
