//! Key-value buckets: get, put, compare-and-set, watch.
//!
//! [`Bucket::create`] and [`Bucket::update`] fail with [`NatsError::Conflict`] if another client was
//! first. A [`Watch`] continues after reconnects; see `stream_reader`. Values are opaque here.

use std::error::Error;
use std::future::Future;

use async_nats::jetstream::context::{GetStreamErrorKind, KeyValueErrorKind};
use async_nats::jetstream::kv::{
    CreateErrorKind, EntryErrorKind, Operation, PutErrorKind, Store, UpdateErrorKind,
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::sync::mpsc;

use super::direct_get::{ReadRequest, Reader, Start, StoredMessage};
use super::stream_reader::{self, StreamItem};
use super::{Cause, Connection, Denial, NatsError, Subject};

/// Most keys that one request reads; servers reply with at most 1024 messages.
pub const MAX_KEYS: usize = 512;

/// Number of concurrent requests for single keys.
const MAX_CONCURRENT: usize = 64;

/// A key with its value and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    /// Increases with every change to the bucket; the argument of [`Bucket::update`].
    pub revision: u64,
    pub created: DateTime<Utc>,
}

/// What a bucket has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Value(Entry),
    /// The key was deleted, purged or has expired.
    Removed,
    /// The bucket knows nothing about the key: it was never set, or the bucket was created again.
    Unknown,
}

/// A change of a watched bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All current values follow. Keys that are not among them were removed.
    Restart,
    Put(Entry),
    Removed {
        key: String,
        revision: u64,
        removal: Removal,
    },
    /// All current values were sent; changes follow.
    Current,
    /// Watching is forbidden; retried from time to time.
    Denied(Denial),
}

/// How a key was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Deleted, with its history kept, or expired.
    Deleted,
    /// Removed with its history.
    Purged,
}

/// A key-value bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    store: Store,
    connection: Connection,
}

impl Connection {
    /// Returns an existing bucket.
    pub async fn bucket(&self, name: &str) -> Result<Bucket, NatsError> {
        check_name(name)?;
        let subject = self.api(&format!("STREAM.INFO.KV_{name}"));
        let store = self.unless_denied(&subject, self.jetstream().get_key_value(name));
        let store = store.await?.map_err(|err| match err.kind() {
            KeyValueErrorKind::GetBucket if is_missing(&err) => NatsError::NoBucket(name.into()),
            _ => failed("open", name, err),
        })?;
        Ok(Bucket {
            store,
            connection: self.clone(),
        })
    }

    /// Fails if a bucket has no leader, so that nothing can be written to it.
    pub async fn check_leader(&self, name: &str) -> Result<(), NatsError> {
        check_name(name)?;
        let info = self.stream_info(&format!("KV_{name}")).await?;
        let info = info.ok_or_else(|| NatsError::NoBucket(name.into()))?;
        // A server without a cluster is its own leader.
        let is_leaderless = info
            .cluster
            .is_some_and(|it| it.leader.is_none_or(|it| it.is_empty()));
        if is_leaderless {
            return Err(NatsError::Store {
                action: "lookup",
                name: name.into(),
                source: Cause::Reply("no leader: the NATS cluster has no quorum".into()),
            });
        }
        Ok(())
    }

    /// Watches keys of a bucket. The bucket may not exist yet and the connection may be down.
    /// `filter` is a key or a pattern such as `lab.*` or `>`.
    pub fn watch_bucket(&self, name: &str, filter: &str) -> Result<Watch, NatsError> {
        check_name(name)?;
        let prefix = format!("$KV.{name}.");
        let subject = check_filter(name, &prefix, filter)?;
        let wanted = ReadRequest::last(format!("KV_{name}"), subject.as_str());
        Ok(Watch {
            items: stream_reader::follow(self, wanted),
            prefix,
        })
    }
}

impl Bucket {
    pub fn name(&self) -> &str {
        &self.store.name
    }

    /// Returns the value of a key. Reads from any replica, which may lag behind the last write.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, NatsError> {
        Ok(match self.look_up(key).await? {
            Lookup::Value(entry) => Some(entry),
            Lookup::Removed | Lookup::Unknown => None,
        })
    }

    /// Returns the value of a key, or whether it was removed. Reads as [`Bucket::get`].
    pub async fn look_up(&self, key: &str) -> Result<Lookup, NatsError> {
        let entry = self.unless_denied(key, self.store.entry(key)).await?;
        let entry = entry.map_err(|err| match err.kind() {
            EntryErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("get", key, err),
        })?;
        Ok(match entry {
            None => Lookup::Unknown,
            Some(entry) if entry.operation != Operation::Put => Lookup::Removed,
            Some(entry) => Lookup::Value(Entry {
                key: entry.key,
                value: entry.value,
                revision: entry.revision,
                created: time(entry.created.unix_timestamp_nanos()),
            }),
        })
    }

    /// Returns the value of a key from the leader of the bucket, which has every acknowledged write.
    /// Users without the permission for that request read as [`Self::get`] does.
    pub async fn get_latest(&self, key: &str) -> Result<Option<Entry>, NatsError> {
        if key.contains(['*', '>']) {
            return Err(self.bad_key(key));
        }
        let (stream, prefix) = (&self.store.stream_name, &self.store.prefix);
        let subject = check_filter(self.name(), prefix, key)?;
        let selector = json!({ "last_by_subj": subject.as_str() });
        let stored = self.connection.get_from_leader(stream, &selector);
        let stored = match stored.await {
            Err(NatsError::Denied(_)) => return self.get(key).await,
            stored => stored?,
        };
        Ok(match stored.and_then(|stored| change(stored, prefix)) {
            Some(Change::Put(entry)) => Some(entry),
            _ => None,
        })
    }

    /// Returns the values of those of these keys that have one, at least as new as the leader of the
    /// bucket had them when this was called. A request reads hundreds of keys.
    pub async fn get_many_latest(&self, keys: &[String]) -> Result<Vec<Entry>, NatsError> {
        let mut entries = Vec::with_capacity(keys.len());
        for group in keys.chunks(MAX_KEYS) {
            match self.get_group(group).await? {
                Some(found) => entries.extend(found),
                None => {
                    let reads = stream::iter(group.to_vec())
                        .map(|key| async move { self.get_latest(&key).await });
                    let read: Vec<_> = reads.buffer_unordered(MAX_CONCURRENT).collect().await;
                    for entry in read {
                        entries.extend(entry?);
                    }
                }
            }
        }
        Ok(entries)
    }

    /// Reads keys with one request. Returns nothing if the replica that replied knows none of them or
    /// lags behind the leader, or if the server does not support the request.
    async fn get_group(&self, keys: &[String]) -> Result<Option<Vec<Entry>>, NatsError> {
        let prefix = &self.store.prefix;
        let mut subjects = Vec::with_capacity(keys.len());
        for key in keys {
            if key.contains(['*', '>']) {
                return Err(self.bad_key(key));
            }
            subjects.push(check_filter(self.name(), prefix, key)?.to_string());
        }
        let all = ReadRequest::last(&self.store.stream_name, format!("{prefix}>"));
        let new_messages = all.starting_at(Start::New);
        let mut reader = Reader::open(&self.connection, &new_messages, false).await?;
        let leader_has = reader.after();
        Ok(match reader.last_of(&subjects).await? {
            Some((messages, up_to)) if up_to >= leader_has => {
                let changes = messages.into_iter().filter_map(|one| change(one, prefix));
                let entries = changes.filter_map(|change| match change {
                    Change::Put(entry) => Some(entry),
                    _ => None,
                });
                Some(entries.collect())
            }
            _ => None,
        })
    }

    /// Sets a key and returns its revision.
    pub async fn put(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        let put = self.unless_denied(key, self.store.put(key, value)).await?;
        put.map_err(|err| match err.kind() {
            PutErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("put", key, err),
        })
    }

    /// Sets a key without a value and returns its revision; fails with a conflict if it has one.
    pub async fn create(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        let created = self
            .unless_denied(key, self.store.create(key, value))
            .await?;
        created.map_err(|err| match err.kind() {
            CreateErrorKind::AlreadyExists => self.conflict(key),
            CreateErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("create", key, err),
        })
    }

    /// Sets a key if its revision is unchanged, and returns the new one; else fails with a conflict.
    pub async fn update(&self, key: &str, value: Bytes, revision: u64) -> Result<u64, NatsError> {
        let updating = self.store.update(key, value, revision);
        let updated = self.unless_denied(key, updating).await?;
        updated.map_err(|err| match err.kind() {
            UpdateErrorKind::WrongLastRevision => self.conflict(key),
            UpdateErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("update", key, err),
        })
    }

    /// Deletes a key and keeps its history. No error if it does not exist.
    pub async fn delete(&self, key: &str) -> Result<(), NatsError> {
        let deleted = self.unless_denied(key, self.store.delete(key)).await?;
        deleted.map_err(|err| self.failed("delete", key, err))
    }

    /// Deletes a key and its history.
    pub async fn purge(&self, key: &str) -> Result<(), NatsError> {
        let purged = self.unless_denied(key, self.store.purge(key)).await?;
        purged.map_err(|err| self.failed("purge", key, err))
    }

    /// Returns the keys that match a pattern and have a value, in the order of writing.
    pub async fn entries(&self, filter: &str) -> Result<Vec<Entry>, NatsError> {
        let prefix = &self.store.prefix;
        let subject = check_filter(self.name(), prefix, filter)?;
        let wanted = ReadRequest::last(&self.store.stream_name, subject.as_str());
        let stored = stream_reader::read_all(&self.connection, &wanted).await?;
        let changes = stored.into_iter().filter_map(|one| change(one, prefix));
        let entries = changes.filter_map(|change| match change {
            Change::Put(entry) => Some(entry),
            _ => None,
        });
        Ok(entries.collect())
    }

    /// Returns the keys that match a pattern, without reading their values. Removed keys may be among
    /// them.
    pub async fn keys(&self, filter: &str) -> Result<Vec<String>, NatsError> {
        let prefix = &self.store.prefix;
        let subject = check_filter(self.name(), prefix, filter)?;
        let request = self
            .connection
            .api(&format!("STREAM.INFO.{}", self.store.stream_name));
        let listed = self.store.stream.info_with_subjects(subject.as_str());
        let listed = self.connection.unless_denied(&request, listed).await?;
        let mut listed = listed.map_err(|err| failed("list", self.name(), err))?;
        let mut keys = Vec::new();
        while let Some(found) = listed.next().await {
            let (subject, _) = found.map_err(|err| failed("list", self.name(), err))?;
            keys.extend(subject.strip_prefix(prefix.as_str()).map(str::to_owned));
        }
        Ok(keys)
    }

    /// Calls `each` with the changes of all keys that match a pattern, the oldest first, as a watch
    /// would; of several changes of a key the last one counts. Keeps a batch of them in memory, not
    /// all.
    pub async fn read(
        &self,
        filter: &str,
        mut each: impl FnMut(Change) + Send,
    ) -> Result<(), NatsError> {
        let prefix = &self.store.prefix;
        let subject = check_filter(self.name(), prefix, filter)?;
        let wanted = ReadRequest::last(&self.store.stream_name, subject.as_str());
        let wanted = wanted.starting_at(Start::LastOrAll);
        stream_reader::read_retrying(&self.connection, &wanted, |item| match item {
            None => each(Change::Restart),
            Some(stored) => {
                if let Some(change) = change(stored, prefix) {
                    each(change);
                }
            }
        })
        .await
    }

    /// Watches keys that match a pattern.
    pub fn watch(&self, filter: &str) -> Result<Watch, NatsError> {
        let subject = check_filter(self.name(), &self.store.prefix, filter)?;
        let wanted = ReadRequest::last(&self.store.stream_name, subject.as_str());
        Ok(Watch {
            items: stream_reader::follow(&self.connection, wanted),
            prefix: self.store.prefix.clone(),
        })
    }

    fn bad_key(&self, key: &str) -> NatsError {
        NatsError::Key {
            bucket: self.name().into(),
            key: key.into(),
        }
    }

    fn conflict(&self, key: &str) -> NatsError {
        NatsError::Conflict {
            bucket: self.name().into(),
            key: key.into(),
        }
    }

    /// Awaits `doing`; fails as soon as the server forbids to read or write the key.
    async fn unless_denied<T>(
        &self,
        key: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let (stream, subject) = (
            &self.store.stream_name,
            format!("{}{key}", self.store.prefix),
        );
        let subjects = [
            self.connection
                .api(&format!("DIRECT.GET.{stream}.{subject}")),
            self.connection.api(&format!("STREAM.MSG.GET.{stream}")),
            subject,
        ];
        self.connection.unless_any_denied(&subjects, doing).await
    }

    fn failed(
        &self,
        action: &'static str,
        key: &str,
        err: impl Error + Send + Sync + 'static,
    ) -> NatsError {
        failed(action, &format!("{}#{key}", self.name()), err)
    }
}

/// A watch of a bucket. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    items: mpsc::Receiver<StreamItem>,
    prefix: String,
}

impl Watch {
    /// Returns the next change, or nothing once the connection is closed.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            return Some(match self.items.recv().await? {
                StreamItem::Restart => Change::Restart,
                StreamItem::Current => Change::Current,
                StreamItem::Denied(denial) => Change::Denied(denial),
                StreamItem::Message(stored) => match change(stored, &self.prefix) {
                    Some(change) => change,
                    None => continue,
                },
            });
        }
    }
}

/// Returns the change that a stored message represents.
fn change(stored: StoredMessage, prefix: &str) -> Option<Change> {
    let key = stored.subject.strip_prefix(prefix)?.to_owned();
    let revision = stored.sequence;
    let operation = stored.headers.get("KV-Operation");
    let is_marker = stored.headers.get("Nats-Marker-Reason").is_some();
    let removed = |removal| Change::Removed {
        key: key.clone(),
        revision,
        removal,
    };
    Some(match operation {
        Some("PURGE") => removed(Removal::Purged),
        Some("DEL") => removed(Removal::Deleted),
        None if is_marker => removed(Removal::Deleted),
        _ => Change::Put(Entry {
            key,
            value: stored.body,
            revision,
            created: stored.time,
        }),
    })
}

/// Returns the subject of a key pattern.
fn check_filter(bucket: &str, prefix: &str, filter: &str) -> Result<Subject, NatsError> {
    let subject = format!("{prefix}{filter}").parse();
    subject.map_err(|_| NatsError::Key {
        bucket: bucket.into(),
        key: filter.into(),
    })
}

/// Rejects invalid bucket names, before they become part of a subject.
pub(super) fn check_name(name: &str) -> Result<(), NatsError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if !name.is_empty() && name.len() <= 255 && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(NatsError::NoBucket(ccm_value::text::quote(name)))
    }
}

/// Reports whether the server replied that the stream does not exist.
pub(super) fn is_missing(err: &(dyn Error + 'static)) -> bool {
    use async_nats::jetstream::{ErrorCode, context::GetStreamError};
    let mut cause = Some(err);
    while let Some(err) = cause {
        if let Some(err) = err.downcast_ref::<GetStreamError>()
            && let GetStreamErrorKind::JetStream(err) = err.kind()
        {
            return err.error_code() == ErrorCode::STREAM_NOT_FOUND;
        }
        cause = err.source();
    }
    false
}

pub(super) fn time(nanos: i128) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(i64::try_from(nanos).unwrap_or_default())
}

/// The client's error text if JetStream has no responders.
const NO_JETSTREAM: &str = "requested JetStream resource does not exist";

/// Wraps an error of a bucket operation.
pub(super) fn failed(
    action: &'static str,
    name: &str,
    err: impl Error + Send + Sync + 'static,
) -> NatsError {
    NatsError::Store {
        action,
        name: name.into(),
        source: if err.to_string().contains(NO_JETSTREAM) {
            Cause::NoJetStream(Box::new(err))
        } else {
            Cause::client(err)
        },
    }
}

/// Returns the bucket name of a stream.
pub(super) fn bucket_of(stream: &str) -> &str {
    let bucket = stream.strip_prefix("KV_").or(stream.strip_prefix("OBJ_"));
    bucket.unwrap_or(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_jetstream_is_named_in_the_error() {
        let text = "request failed: requested JetStream resource does not exist";
        let error = failed("read", "CCM_EVENTS", std::io::Error::other(text));
        let message = error.to_string();
        assert_eq!(message, "read of CCM_EVENTS: JetStream is not available");
        let error = failed("read", "CCM_EVENTS", std::io::Error::other("timed out"));
        assert_eq!(error.to_string(), "read of CCM_EVENTS: timed out");
        let source = error.source().and_then(Error::source);
        assert!(source.is_none(), "the client's own error is the last cause");
        assert_eq!(error.source().unwrap().to_string(), "timed out");
    }
}
