//! What a fleet keeps on the servers: one stream of events, buckets, and a store of manifests.
//!
//! [`init`] makes what is missing and brings the rest up to date, as often as one likes. Fields
//! that an administrator set and we have no opinion on stay as they are.

use std::fmt;
use std::time::Duration;

use async_nats::jetstream::stream::{Compression, Config, DiscardPolicy, Info, StorageType};

use super::kv::failed;
use super::{Cause, Connection, NatsError, Subjects};

/// The stream of transaction events and run summaries.
pub const EVENTS: &str = "CCM_EVENTS";
/// Presence: what each node says about itself, until it expires.
pub const NODES: &str = "CCM_NODES";
/// What each node should be.
pub const DESIRED: &str = "CCM_DESIRED";
/// What each node became.
pub const REPORTED: &str = "CCM_REPORTED";
/// Rollouts, changed by comparing only.
pub const ROLLOUTS: &str = "CCM_ROLLOUTS";
/// Labels that operators give to nodes.
pub const LABELS: &str = "CCM_LABELS";
/// The store of manifest bundles.
pub const MANIFESTS: &str = "CCM_MANIFESTS";

/// How long presence lasts without a beat, unless configured.
pub const PRESENCE_TTL: Duration = Duration::from_secs(90);

/// How long events are kept, unless configured.
const EVENTS_MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long the same event is recognized. A spool that was away longer may store one twice.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(2 * 3600);

/// How to set a fleet up.
#[derive(Clone, Debug)]
pub struct InitOptions {
    pub subjects: Subjects,
    /// How many servers keep each message; without it 1, or what it is already.
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

/// What was done about one stream or bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitResult {
    pub name: &'static str,
    pub kind: Kind,
    pub outcome: Outcome,
}

/// Which sort of thing it is.
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

/// Makes or updates everything a fleet needs, and returns what was done in order.
pub async fn init(connection: &Connection, options: &InitOptions) -> Result<Vec<InitResult>, NatsError> {
    let asking = connection.jetstream().query_account();
    let account = connection
        .unless_denied(&connection.api("INFO"), asking)
        .await?;
    let account = account.map_err(|err| NatsError::NoJetStream {
        servers: connection.servers().into(),
        source: Cause::client(err),
    })?;
    // Markers tell watchers of expired keys; servers know them since 2.11.
    let has_markers = account.requests.level >= 1;
    let ttl = options.presence_ttl.unwrap_or(PRESENCE_TTL);
    let mut done = Vec::new();
    for (name, kind, wish) in [
        (EVENTS, Kind::Stream, events(options)),
        (
            NODES,
            Kind::Bucket,
            presence(bucket(NODES, 1), ttl, has_markers),
        ),
        (DESIRED, Kind::Bucket, bucket(DESIRED, 16)),
        (REPORTED, Kind::Bucket, bucket(REPORTED, 1)),
        (ROLLOUTS, Kind::Bucket, bucket(ROLLOUTS, 64)),
        (LABELS, Kind::Bucket, bucket(LABELS, 1)),
        (MANIFESTS, Kind::ObjectStore, objects(MANIFESTS)),
    ] {
        let outcome = settle(connection, name, wish, options).await?;
        done.push(InitResult { name, kind, outcome });
    }
    Ok(done)
}

/// Brings one stream to what is wished.
async fn settle(
    connection: &Connection,
    name: &str,
    mut wish: Config,
    options: &InitOptions,
) -> Result<Outcome, NatsError> {
    let existing = match connection.stream_info(&wish.name).await? {
        Some(info) => info.config,
        None => {
            wish.num_replicas = options.replicas.unwrap_or(1);
            connection.create_stream(name, wish).await?;
            return Ok(Outcome::Created);
        }
    };
    let merged = merge(&existing, wish, options);
    if merged == existing {
        return Ok(Outcome::Unchanged);
    }
    connection.update_stream(name, merged).await?;
    Ok(Outcome::Updated)
}

impl Connection {
    /// Makes a stream; errors call it by `name`.
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

    /// Changes a stream; errors call it by `name`.
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

/// Lays our wishes over what is there. Subjects are only added: another fleet may share the
/// stream under another prefix.
fn merge(existing: &Config, wish: Config, options: &InitOptions) -> Config {
    let mut merged = existing.clone();
    for subject in wish.subjects {
        if !merged.subjects.contains(&subject) {
            merged.subjects.push(subject);
        }
    }
    if let Some(replicas) = options.replicas {
        merged.num_replicas = replicas;
    }
    merged.max_messages_per_subject = wish.max_messages_per_subject;
    merged.allow_direct = wish.allow_direct;
    let age = if wish.name == EVENTS {
        options.events_max_age
    } else {
        options.presence_ttl.filter(|_| !wish.max_age.is_zero())
    };
    if let Some(age) = age {
        merged.max_age = age;
    }
    if wish.subject_delete_marker_ttl.is_some() && merged.subject_delete_marker_ttl.is_none() {
        merged.allow_message_ttl = true;
        merged.subject_delete_marker_ttl = wish.subject_delete_marker_ttl;
    }
    merged.duplicate_window = merged.duplicate_window.max(wish.duplicate_window);
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

fn bucket(name: &str, history: i64) -> Config {
    Config {
        name: format!("KV_{name}"),
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

/// Returns a bucket whose values expire.
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
