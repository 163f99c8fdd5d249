//! What a caller learns about a followed rollout, and the wait for NATS during an outage.

use std::time::Duration;

use crate::nats_waits::NatsWaits;
use crate::rollout_store::RolloutError;
use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;

/// Delay after a NATS error.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// An event of a followed rollout.
#[derive(Clone, Copy, Debug)]
pub enum FollowEvent<'r> {
    /// The rollout has changed.
    Changed(&'r Rollout),
    /// NATS is not available. The controller waits and tries again.
    WaitingForNats(&'r RolloutError),
    /// NATS is available again.
    NatsAvailable,
}

/// The observer of one rollout.
pub(super) struct Observer<T: FnMut(FollowEvent<'_>)> {
    observe: T,
    waits: NatsWaits,
    /// The name of the rollout in `waits`.
    part: String,
}

impl<T: FnMut(FollowEvent<'_>)> Observer<T> {
    pub(super) fn new(waits: NatsWaits, id: &Token, observe: T) -> Self {
        Self {
            observe,
            waits,
            part: format!("rollout {id}"),
        }
    }

    /// Reports a new state of the rollout.
    pub(super) fn change(&mut self, rollout: &Rollout) {
        (self.observe)(FollowEvent::Changed(rollout));
    }

    /// Reports an outage, once, and waits before the next attempt.
    pub(super) async fn wait(&mut self, err: &RolloutError) {
        if self.waits.begin(&self.part, &err.to_string()) {
            (self.observe)(FollowEvent::WaitingForNats(err));
        }
        tokio::time::sleep(ERROR_DELAY).await;
    }

    /// Reports the end of an outage, if there was one.
    pub(super) fn resume(&mut self) {
        if self.waits.end(&self.part) {
            (self.observe)(FollowEvent::NatsAvailable);
        }
    }
}

impl<T: FnMut(FollowEvent<'_>)> Drop for Observer<T> {
    fn drop(&mut self) {
        self.waits.end(&self.part);
    }
}
