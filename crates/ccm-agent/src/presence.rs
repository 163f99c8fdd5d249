//! Presence: publishes the status of the node to a KV bucket at every heartbeat. The record expires
//! after missed heartbeats and is deleted at shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::node::Node;
use ccm_core::engine::Level;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::NODES;
use ccm_nats::{Connection, ConnectionState, NatsError, Subjects};
use ccm_value::json;

/// Least time between two log lines about failed updates.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Delay after a status change, so that a short run causes one update.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// Least time between updates caused by refused requests, which need no authentication.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(3);

/// Publishes the presence of a node.
pub(crate) struct Presence {
    pub(crate) node: Arc<Node>,
    pub(crate) connection: Connection,
    pub(crate) subjects: Subjects,
}

/// Why the status could not be published.
#[derive(Debug, thiserror::Error)]
enum PresenceError {
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// The agent is shutting down.
    #[error(transparent)]
    Ended(#[from] tokio::task::JoinError),
}

impl Presence {
    /// Publishes until stopped, then deletes the record.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut state = self.connection.state();
        let mut beat = interval(self.node.identity.beat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_logged: Option<Instant> = None;
        let mut last_update = Instant::now();
        let mut bucket = None;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => break,
                _ = beat.tick() => {}
                () = self.node.services.pause.changed() => {}
                Ok(()) = state.changed() => {}
                () = self.status_changed() => {}
                () = self.refusals(last_update) => {}
            }
            if !matches!(*state.borrow_and_update(), ConnectionState::Up { .. }) {
                continue;
            }
            last_update = Instant::now();
            let Err(err) = self.publish(&mut bucket).await else {
                continue;
            };
            // The bucket may have been recreated.
            bucket = None;
            if last_logged.is_none_or(|at| at.elapsed() > LOG_INTERVAL) {
                last_logged = Some(Instant::now());
                let fields = [("error", err.to_string())];
                self.node.log(
                    Level::Warn,
                    "Could not publish the presence of this node",
                    &fields,
                );
            }
        }
        if self.connection.is_up()
            && let Ok(bucket) = self.connection.bucket(NODES).await
        {
            // If this fails the record expires.
            let _ = bucket.delete(&self.key()).await;
        }
    }

    /// Waits for a status change, then for more to follow.
    async fn status_changed(&self) {
        self.node.status_changed().await;
        sleep(BATCH_DELAY).await;
    }

    /// Waits for a refused request and until the next update is allowed.
    async fn refusals(&self, last_update: Instant) {
        self.node.services.refusals.changed().await;
        sleep_until(last_update + REFUSALS_INTERVAL).await;
    }

    async fn publish(&self, bucket: &mut Option<Bucket>) -> Result<(), PresenceError> {
        let node = self.node.clone();
        if let Some(loopback) = &node.services.loopback_only {
            // Updates the trust status, which is part of the record.
            let _ = loopback.check().await;
        }
        // Gathering facts and reading files may block.
        let status = tokio::task::spawn_blocking(move || node.status());
        let text = json::compact(&status.await?)?;
        Ok(self.put(bucket, text).await?)
    }

    async fn put(&self, bucket: &mut Option<Bucket>, text: String) -> Result<(), NatsError> {
        let bucket = match bucket {
            Some(bucket) => bucket,
            none => none.insert(self.connection.bucket(NODES).await?),
        };
        bucket.put(&self.key(), text.into()).await?;
        Ok(())
    }

    fn key(&self) -> String {
        self.subjects.key(&self.node.identity.name.token())
    }
}
