//! Stored facts: writes the facts of this node to a KV bucket when they change, so that selections
//! find the node by its facts while it is offline. Presence, which expires, has the same facts.

use std::time::Duration;

use tokio::time::Instant;

use ccm_core::model::node::{NodeStatus, StoredFacts};
use ccm_core::system::Digest;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::FACTS;
use ccm_nats::{Connection, NatsError};
use ccm_value::json;

/// Time after which unchanged facts are written again, so that their age shows when the node was
/// last online.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// Time until the next attempt if the bucket is missing or forbidden, as in a fleet that was set up
/// by an older version.
const RETRY_INTERVAL: Duration = Duration::from_secs(300);

/// Why the facts could not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FactsStoreError {
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// Writes the facts of one node.
pub(crate) struct FactsStore {
    connection: Connection,
    key: String,
    bucket: Option<Bucket>,
    /// Digest of the facts that were written last.
    written: Option<Digest>,
    /// Earliest time to write unchanged facts, or to try again after a permanent error.
    not_before: Option<Instant>,
}

impl FactsStore {
    pub(crate) fn new(connection: Connection, key: String) -> Self {
        Self {
            connection,
            key,
            bucket: None,
            written: None,
            not_before: None,
        }
    }

    /// Reports whether the facts could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.written.is_none() && self.not_before.is_some()
    }

    /// Makes the next update try again after a permanent error.
    pub(crate) fn retry(&mut self) {
        if self.has_failed() {
            self.not_before = None;
        }
    }

    /// Writes the facts of a status if they have changed or were written long ago.
    pub(crate) async fn update(&mut self, status: &NodeStatus) -> Result<(), FactsStoreError> {
        let content = json::compact(&(&status.groups, &status.version, &status.facts))?;
        let digest = Digest::of(content.as_bytes());
        let is_early = self.not_before.is_some_and(|time| Instant::now() < time);
        // After a permanent error nothing is written, so changed facts must wait as well.
        let is_waiting = self.written.is_none() || self.written == Some(digest);
        if is_early && is_waiting {
            return Ok(());
        }
        let text = json::compact(&StoredFacts::from(status))?;
        match self.put(text).await {
            Ok(()) => {
                self.written = Some(digest);
                self.not_before = Some(Instant::now() + REFRESH_INTERVAL);
                Ok(())
            }
            Err(err) => {
                // The bucket may have been recreated.
                self.bucket = None;
                self.written = None;
                let is_permanent = err.is_not_found() || err.is_denied();
                self.not_before = is_permanent.then(|| Instant::now() + RETRY_INTERVAL);
                Err(err.into())
            }
        }
    }

    /// Makes the next update write the facts: the bucket may have been created again.
    pub(crate) fn reset(&mut self) {
        self.bucket = None;
        self.written = None;
        self.not_before = None;
    }

    async fn put(&mut self, text: String) -> Result<(), NatsError> {
        let bucket = match &self.bucket {
            Some(bucket) => bucket,
            None => self.bucket.insert(self.connection.bucket(FACTS).await?),
        };
        bucket.put(&self.key, text.into()).await?;
        Ok(())
    }

    /// Removes the facts, for a simulated node that will not return.
    pub(crate) async fn remove(self) {
        if let Some(bucket) = self.bucket {
            // If this fails the record expires.
            let _ = bucket.purge(&self.key).await;
        }
    }
}
