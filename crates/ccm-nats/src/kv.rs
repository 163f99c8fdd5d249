//! Buckets of values: read, written, compared and watched.
//!
//! What a value means is not known here. A write that depends on what was read uses
//! [`Bucket::create`] or [`Bucket::update`], whose failure [`NatsError::Conflict`] says that
//! somebody was quicker. A [`Watch`] outlives servers; see `follow`.

use std::error::Error;
use std::future::Future;

use async_nats::jetstream::context::{GetStreamErrorKind, KeyValueErrorKind};
use async_nats::jetstream::kv::{
    CreateErrorKind, EntryErrorKind, Operation, PutErrorKind, Store, UpdateErrorKind,
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio::sync::mpsc;

use super::direct_get::{Stored, ReadRequest};
use super::stream_reader::{self, StreamItem};
use super::{Cause, Connection, Denial, NatsError, Subject};

/// A value with its history's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    /// Grows with every change to the bucket; [`Bucket::update`] wants it back.
    pub revision: u64,
    pub created: DateTime<Utc>,
}

/// What a watcher hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What was heard before may be out of date: the present values follow. A key that is not
    /// among them is gone.
    Restart,
    Put(Entry),
    /// Deleted, purged or expired.
    Removed {
        key: String,
        revision: u64,
    },
    /// All present values are told; what follows is news.
    Current,
    /// The server forbids to watch. It is tried again once in a while.
    Denied(Denial),
}

/// A bucket of values.
#[derive(Clone, Debug)]
pub struct Bucket {
    store: Store,
    connection: Connection,
}

impl Connection {
    /// Returns a bucket, which must exist.
    pub async fn bucket(&self, name: &str) -> Result<Bucket, NatsError> {
        check_name(name)?;
        let asks = self.api(&format!("STREAM.INFO.KV_{name}"));
        let store = self.unless_denied(&asks, self.jetstream().get_key_value(name));
        let store = store.await?.map_err(|err| match err.kind() {
            KeyValueErrorKind::GetBucket if is_missing(&err) => NatsError::NoBucket(name.into()),
            _ => failed("open", name, err),
        })?;
        Ok(Bucket {
            store,
            connection: self.clone(),
        })
    }

    /// Watches keys of a bucket that may not exist yet, on servers that may be away. `filter` is
    /// a key or a pattern such as `lab.*` or `>`.
    pub fn watch_bucket(&self, name: &str, filter: &str) -> Result<Watch, NatsError> {
        check_name(name)?;
        let prefix = format!("$KV.{name}.");
        let subject = check_filter(name, &prefix, filter)?;
        let wanted = ReadRequest::last(format!("KV_{name}"), subject.as_str());
        Ok(Watch {
            seen: stream_reader::follow(self, wanted),
            prefix,
        })
    }
}

impl Bucket {
    pub fn name(&self) -> &str {
        &self.store.name
    }

    /// Returns the present value of a key. Read from any replica: a write of the last
    /// milliseconds may not be there yet.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, NatsError> {
        let found = self.unless_denied(key, self.store.entry(key)).await?;
        let found = found.map_err(|err| match err.kind() {
            EntryErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("get", key, err),
        })?;
        Ok(found
            .filter(|entry| entry.operation == Operation::Put)
            .map(|entry| Entry {
                key: entry.key,
                value: entry.value,
                revision: entry.revision,
                created: time(entry.created.unix_timestamp_nanos()),
            }))
    }

    /// Sets a key and returns its revision.
    pub async fn put(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        let put = self.unless_denied(key, self.store.put(key, value)).await?;
        put.map_err(|err| match err.kind() {
            PutErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("put", key, err),
        })
    }

    /// Sets a key that has no value and returns its revision; fails with a conflict if it has one.
    pub async fn create(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        let created = self.unless_denied(key, self.store.create(key, value)).await?;
        created.map_err(|err| match err.kind() {
            CreateErrorKind::AlreadyExists => self.conflict(key),
            CreateErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("create", key, err),
        })
    }

    /// Sets a key whose last revision is this, and returns the new one; fails with a conflict if
    /// it is another by now.
    pub async fn update(&self, key: &str, value: Bytes, revision: u64) -> Result<u64, NatsError> {
        let updating = self.store.update(key, value, revision);
        let updated = self.unless_denied(key, updating).await?;
        updated.map_err(|err| match err.kind() {
            UpdateErrorKind::WrongLastRevision => self.conflict(key),
            UpdateErrorKind::InvalidKey => self.bad_key(key),
            _ => self.failed("update", key, err),
        })
    }

    /// Removes a key; its history stays. Removing one that is not there is fine.
    pub async fn delete(&self, key: &str) -> Result<(), NatsError> {
        let deleted = self.unless_denied(key, self.store.delete(key)).await?;
        deleted.map_err(|err| self.failed("delete", key, err))
    }

    /// Removes a key and its history.
    pub async fn purge(&self, key: &str) -> Result<(), NatsError> {
        let purged = self.unless_denied(key, self.store.purge(key)).await?;
        purged.map_err(|err| self.failed("purge", key, err))
    }

    /// Returns all keys that match a pattern and have a value, in one pass, by order of writing.
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

    /// Watches keys that match a pattern.
    pub fn watch(&self, filter: &str) -> Result<Watch, NatsError> {
        let subject = check_filter(self.name(), &self.store.prefix, filter)?;
        let wanted = ReadRequest::last(&self.store.stream_name, subject.as_str());
        Ok(Watch {
            seen: stream_reader::follow(&self.connection, wanted),
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

    /// Waits for an answer about a key, unless the server forbids to read or write it.
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

/// The changes of a bucket. Watching ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    seen: mpsc::Receiver<StreamItem>,
    prefix: String,
}

impl Watch {
    /// Returns the next change, or nothing once the connection has ended for good.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            return Some(match self.seen.recv().await? {
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

/// Returns what a stored message says about a key.
fn change(stored: Stored, prefix: &str) -> Option<Change> {
    let key = stored.subject.strip_prefix(prefix)?.to_owned();
    let revision = stored.sequence;
    let operation = stored.headers.get("KV-Operation");
    let is_marker = stored.headers.get("Nats-Marker-Reason").is_some();
    Some(match operation {
        Some("DEL" | "PURGE") => Change::Removed { key, revision },
        None if is_marker => Change::Removed { key, revision },
        _ => Change::Put(Entry {
            key,
            value: stored.body,
            revision,
            created: stored.time,
        }),
    })
}

/// Returns the subject of a pattern of keys, if it is one.
fn check_filter(bucket: &str, prefix: &str, filter: &str) -> Result<Subject, NatsError> {
    let subject = format!("{prefix}{filter}").parse();
    subject.map_err(|_| NatsError::Key {
        bucket: bucket.into(),
        key: filter.into(),
    })
}

/// Refuses what can't be the name of a bucket before it becomes part of a subject.
pub(super) fn check_name(name: &str) -> Result<(), NatsError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if !name.is_empty() && name.len() <= 255 && name.chars().all(is_plain) {
        Ok(())
    } else {
        Err(NatsError::NoBucket(ccm_value::text::quote(name)))
    }
}

/// Whether the servers were reached and know no such stream.
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

/// How the client says that nobody answers for JetStream.
const UNANSWERED: &str = "requested JetStream resource does not exist";

pub(super) fn failed(
    action: &'static str,
    name: &str,
    err: impl Error + Send + Sync + 'static,
) -> NatsError {
    NatsError::Store {
        action,
        name: name.into(),
        source: if err.to_string().contains(UNANSWERED) {
            Cause::NoJetStream(Box::new(err))
        } else {
            Cause::client(err)
        },
    }
}

/// Returns the name of the bucket that a stream holds.
pub(super) fn bucket_of(stream: &str) -> &str {
    let bucket = stream.strip_prefix("KV_").or(stream.strip_prefix("OBJ_"));
    bucket.unwrap_or(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_jetstream_are_not_called_a_missing_resource() {
        let said = "request failed: requested JetStream resource does not exist";
        let error = failed("read", "CCM_EVENTS", std::io::Error::other(said));
        let text = error.to_string();
        assert_eq!(text, "read of CCM_EVENTS: JetStream is not available");
        let error = failed("read", "CCM_EVENTS", std::io::Error::other("timed out"));
        assert_eq!(error.to_string(), "read of CCM_EVENTS: timed out");
        let source = error.source().and_then(Error::source);
        assert!(source.is_none(), "the client's own error is the last cause");
        assert_eq!(error.source().unwrap().to_string(), "timed out");
    }
}
