//! Leases of other controllers, observed on the monotonic clock of this process.
//!
//! A controller renews its lease by writing the rollout again, which gives it a new revision. A lease
//! is free once its rollout kept the same revision for the duration of the lease. Clocks of machines
//! are not compared: they may be wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;

/// The last new revision of a rollout.
#[derive(Clone, Copy, Debug)]
struct Observation {
    revision: u64,
    since: Instant,
}

/// Observations of rollouts by their ids. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseObserver(Arc<Mutex<BTreeMap<Token, Observation>>>);

impl LeaseObserver {
    /// Returns the time until the lease of a rollout is free, unless it is renewed. The observation
    /// starts with the first call.
    pub(super) fn remaining(&self, rollout: &Rollout, revision: u64, now: Instant) -> Duration {
        let Some(lease) = &rollout.lease else {
            self.forget(&rollout.id);
            return Duration::ZERO;
        };
        let current = Observation {
            revision,
            since: now,
        };
        let mut observations = self.0.lock();
        let id = rollout.id.clone();
        let seen = observations.entry(id).or_insert(current);
        // A lower revision is that of a lagging replica.
        if current.revision > seen.revision {
            *seen = current;
        }
        lease
            .duration
            .saturating_sub(now.saturating_duration_since(seen.since))
    }

    /// Ends the observation of a rollout: nothing could be observed for a while.
    pub(super) fn forget(&self, id: &Token) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::rollout::Lease;

    const LEASE: Duration = Duration::from_secs(15);

    fn rollout(has_lease: bool) -> Rollout {
        let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
            "protocol": ccm_core::model::rollout::ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": []},
            "state": {"name": "running"}
        }))
        .unwrap();
        rollout.lease = has_lease.then(|| Lease {
            holder: "other".into(),
            duration: LEASE,
            // Long ago, or far ahead: does not matter.
            until: chrono::DateTime::UNIX_EPOCH,
        });
        rollout
    }

    #[test]
    fn a_lease_is_free_after_its_duration_without_a_new_revision() {
        let (leases, start) = (LeaseObserver::default(), Instant::now());
        let remaining = |revision, now| leases.remaining(&rollout(true), revision, now);
        assert_eq!(remaining(5, start), LEASE);
        let later = start + LEASE / 3;
        assert_eq!(remaining(5, later), LEASE * 2 / 3);
        assert_eq!(remaining(4, later), LEASE * 2 / 3);
        assert_eq!(remaining(6, later), LEASE, "renewed");
        assert_eq!(remaining(6, later + LEASE), Duration::ZERO);
    }

    #[test]
    fn a_rollout_without_a_lease_is_free() {
        let leases = LeaseObserver::default();
        let free = leases.remaining(&rollout(false), 5, Instant::now());
        assert_eq!(free, Duration::ZERO);
    }

    #[test]
    fn an_observation_starts_again_after_an_outage() {
        let (leases, start) = (LeaseObserver::default(), Instant::now());
        leases.remaining(&rollout(true), 5, start);
        leases.forget(&"r1".parse().unwrap());
        let remaining = leases.remaining(&rollout(true), 5, start + LEASE);
        assert_eq!(remaining, LEASE);
    }
}
