//! Presence: publishes the status of the node to a KV bucket at every heartbeat. The record expires
//! after missed heartbeats and is deleted at shutdown. The facts in it are also stored without that
//! expiry; see `facts_store`. A copy of the status in the state directory is for `ccm doctor`.
//!
//! A failed update is repeated with increasing delays, and at once after a nudge, which `ccm fleet
//! init` sends when it has created the buckets.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::facts_store::FactsStore;
use super::local_status::LocalStatus;
use super::node::Node;
use ccm_core::engine::Level;
use ccm_core::model::node::NodeStatus;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::NODES;
use ccm_nats::{Connection, ConnectionState, NatsError, Subjects, backoff};
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

/// Limits the log lines about failed updates.
#[derive(Default)]
struct LogLimit {
    last: Option<Instant>,
}

impl LogLimit {
    fn log(&mut self, node: &Node, text: &str, error: &dyn std::error::Error) {
        if self.last.is_none_or(|at| at.elapsed() > LOG_INTERVAL) {
            self.last = Some(Instant::now());
            node.log(Level::Warn, text, &[("error", error.to_string())]);
        }
    }
}

/// Consecutive failed updates, and when the next one is due.
#[derive(Default)]
struct Retry {
    failures: usize,
    at: Option<Instant>,
}

impl Retry {
    fn failed(&mut self) {
        self.at = Some(Instant::now() + backoff::delay(self.failures));
        self.failures += 1;
    }

    /// Waits until the next update is due; forever if the last one succeeded.
    async fn due(&self) {
        match self.at {
            Some(time) => sleep_until(time).await,
            None => std::future::pending().await,
        }
    }
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
        let mut log_limit = LogLimit::default();
        let mut last_update = Instant::now();
        let mut bucket = None;
        let mut retry = Retry::default();
        let mut facts = FactsStore::new(self.connection.clone(), self.key());
        loop {
            tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => break,
                _ = beat.tick() => {}
                () = self.node.services.pause.changed() => {}
                Ok(()) = state.changed() => {}
                () = self.status_changed() => {}
                () = self.refusals(last_update) => {}
                () = retry.due() => {}
                () = self.node.nudged(), if retry.at.is_some() || facts.has_failed() => facts.retry(),
            }
            retry.at = None;
            let is_up = matches!(*state.borrow_and_update(), ConnectionState::Up { .. });
            let status = match self.status().await {
                Ok(status) => status,
                Err(err) => {
                    log_limit.log(&self.node, "Could not determine the status", &err);
                    continue;
                }
            };
            if !is_up {
                continue;
            }
            last_update = Instant::now();
            match self.publish(&mut bucket, &status).await {
                Ok(()) => {
                    retry = Retry::default();
                    if let Err(err) = facts.update(&status).await {
                        let text = "Could not store the facts of this node: offline, it can't be selected by fact; \
                                    ccm fleet init creates the bucket";
                        log_limit.log(&self.node, text, &err);
                    }
                }
                Err(err) => {
                    // The buckets may have been recreated.
                    bucket = None;
                    retry.failed();
                    facts.reset();
                    let text = match &err {
                        PresenceError::Nats(cause) if cause.is_not_found() => {
                            "Could not publish the presence of this node; ccm fleet init creates the bucket"
                        }
                        _ => "Could not publish the presence of this node",
                    };
                    log_limit.log(&self.node, text, &err);
                }
            }
        }
        if self.node.services.facts.is_fixed() {
            facts.remove().await;
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

    /// Returns the status of the node, and writes it to the state directory.
    async fn status(&self) -> Result<NodeStatus, PresenceError> {
        let node = self.node.clone();
        if let Some(loopback) = &node.services.loopback_only
            && self.connection.is_up()
        {
            // Updates the trust status, which is part of the record.
            let _ = loopback.check().await;
        }
        let connection = self.connection.clone();
        // Gathering facts and reading files may block.
        let status = tokio::task::spawn_blocking(move || {
            let status = node.status();
            // A simulated node has no state of its own.
            if !node.services.facts.is_fixed() {
                let local = LocalStatus::of(&status, &connection);
                // A state directory that can't be written is a problem that the status states.
                let _ = local.write(&node.identity.state_dir);
            }
            status
        });
        Ok(status.await?)
    }

    async fn publish(
        &self,
        bucket: &mut Option<Bucket>,
        status: &NodeStatus,
    ) -> Result<(), PresenceError> {
        let text = json::compact(status)?;
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
