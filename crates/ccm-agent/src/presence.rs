//! Presence: a record that says the node is there, renewed with every beat and gone soon after
//! the last one. A clean shutdown takes it away at once.

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

/// How often trouble with presence is worth a line.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How long news wait for more: a run that is over soon is told once.
const GATHER: Duration = Duration::from_secs(1);

/// The shortest time between two beats that are due to refusals: strangers can cause them.
const REFUSALS_EVERY: Duration = Duration::from_secs(3);

/// Keeps the presence of a node.
pub struct Presence {
    pub node: Arc<Node>,
    pub connection: Connection,
    pub subjects: Subjects,
}

/// Why a node can't tell others that it is there.
#[derive(Debug, thiserror::Error)]
enum PresenceError {
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// The agent is ending.
    #[error(transparent)]
    Ended(#[from] tokio::task::JoinError),
}

impl Presence {
    /// Beats until told to stop, then takes the record away.
    pub async fn keep(self, mut stop: watch::Receiver<bool>) {
        let mut link = self.connection.state();
        let mut beat = interval(self.node.identity.beat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complained: Option<Instant> = None;
        let mut told = Instant::now();
        let mut bucket = None;
        loop {
            tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => break,
                _ = beat.tick() => {}
                () = self.node.services.pause.changed() => {}
                Ok(()) = link.changed() => {}
                () = self.news() => {}
                () = self.refusals(told) => {}
            }
            if !matches!(*link.borrow_and_update(), ConnectionState::Up { .. }) {
                continue;
            }
            told = Instant::now();
            let Err(err) = self.say_so(&mut bucket).await else {
                continue;
            };
            // It may have been made anew.
            bucket = None;
            if complained.is_none_or(|at| at.elapsed() > COMPLAIN_EVERY) {
                complained = Some(Instant::now());
                let fields = [("error", err.to_string())];
                self.node
                    .say(Level::Warn, "Could not tell that we are here", &fields);
            }
        }
        if self.connection.is_up()
            && let Ok(bucket) = self.connection.bucket(NODES).await
        {
            // Without this the record expires a little later.
            let _ = bucket.delete(&self.key()).await;
        }
    }

    /// Waits until a run began or ended, and a little for more.
    async fn news(&self) {
        self.node.news().await;
        sleep(GATHER).await;
    }

    /// Waits until something was refused, and until it may be told.
    async fn refusals(&self, told: Instant) {
        self.node.services.refusals.news().await;
        sleep_until(told + REFUSALS_EVERY).await;
    }

    async fn say_so(&self, bucket: &mut Option<Bucket>) -> Result<(), PresenceError> {
        let node = self.node.clone();
        if let Some(loopback) = &node.services.loopback_only {
            // Noted there; the status tells it.
            let _ = loopback.check().await;
        }
        // Facts may have to be gathered, and a file system may be slow.
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
