//! Refresh of the trusted signers: reads the fleet's statements about signers when the agent follows
//! its assignment, and when a request has an unknown signer, so that a new signer works at once.

use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::node::Node;
use ccm_core::engine::Level;
use ccm_nats::{Connection, NatsError, Subjects};

/// Least time between two reads because of unknown signers.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Most requests that wait for a read; more are refused at once.
const MAX_WAITING: usize = 16;

/// Reads statements about signers.
pub(crate) struct SignerRefresh {
    connection: Connection,
    subjects: Subjects,
    /// Start of the last read.
    last: Mutex<Option<Instant>>,
    waiting: Semaphore,
}

impl SignerRefresh {
    pub(crate) fn new(connection: Connection, subjects: Subjects) -> Self {
        Self {
            connection,
            subjects,
            last: Mutex::new(None),
            waiting: Semaphore::new(MAX_WAITING),
        }
    }
}

impl Node {
    /// Reads the statements about signers, if signatures are verified.
    pub(crate) async fn refresh_signers(&self) {
        if self.services.authorizer.is_strict() {
            let mut last = self.services.signer_refresh.last.lock().await;
            *last = Some(Instant::now());
            self.read_signers().await;
        }
    }

    /// Reads the statements about signers because of a request with an unknown signer that was
    /// received at `since`. Returns whether they were read after that.
    pub(crate) async fn refresh_signers_after(&self, since: Instant) -> bool {
        let refresh = &self.services.signer_refresh;
        let Ok(_waiting) = refresh.waiting.try_acquire() else {
            return false;
        };
        let mut last = refresh.last.lock().await;
        if last.is_some_and(|last| last > since) {
            return true;
        }
        if let Some(last) = *last {
            sleep_until(last + MIN_INTERVAL).await;
        }
        *last = Some(Instant::now());
        self.read_signers().await;
        true
    }

    async fn read_signers(&self) {
        let SignerRefresh {
            connection,
            subjects,
            ..
        } = &self.services.signer_refresh;
        if !connection.is_up() {
            return;
        }
        let updates = match connection.signer_updates(subjects).await {
            Ok(updates) => updates,
            // A fleet or permissions of an older version.
            Err(NatsError::NoBucket(_) | NatsError::Denied(_)) => return,
            Err(err) => {
                let fields = [("error", err.to_string())];
                let text = "Could not read the statements about signers";
                return self.log(Level::Warn, text, &fields);
            }
        };
        match self.services.authorizer.add_signer_updates(&updates) {
            Ok(false) => {}
            Ok(true) => {
                let signers = self.services.authorizer.signers().join(", ");
                self.log(
                    Level::Warn,
                    "The trusted signers have changed",
                    &[("signers", signers)],
                );
                // The presence record lists them.
                self.notify_status_changed();
            }
            Err(err) => {
                let fields = [("error", err.to_string())];
                let text = "Could not store the statements about signers";
                self.log(Level::Error, text, &fields);
            }
        }
    }
}
