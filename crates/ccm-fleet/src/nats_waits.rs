//! Whether parts of this process wait for NATS, and why: shown on the page and in metrics.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The parts of this process that wait for NATS, with their reasons. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct NatsWaits(watch::Sender<BTreeMap<String, String>>);

impl NatsWaits {
    /// Records that a part waits. Returns whether it did not wait before.
    pub fn begin(&self, part: &str, reason: &str) -> bool {
        let mut is_new = false;
        self.0.send_if_modified(|waits| {
            let before = waits.insert(part.into(), reason.into());
            is_new = before.is_none();
            before.is_none_or(|before| before != reason)
        });
        is_new
    }

    /// Records that a part does not wait. Returns whether it waited before.
    pub fn end(&self, part: &str) -> bool {
        self.0
            .send_if_modified(|waits| waits.remove(part).is_some())
    }

    /// Returns the reason of the first part that waits.
    pub fn reason(&self) -> Option<String> {
        self.0.borrow().values().next().cloned()
    }

    /// Returns a receiver of changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<BTreeMap<String, String>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_reason_while_a_part_waits() {
        let waits = NatsWaits::default();
        assert_eq!(waits.reason(), None);
        let mut changes = waits.subscribe();
        changes.mark_unchanged();
        assert!(waits.begin("r1", "timed out"));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(!waits.begin("r1", "timed out"));
        assert!(!changes.has_changed().unwrap(), "nothing new");
        waits.begin("r2", "no quorum");
        assert!(waits.end("r1"));
        assert_eq!(waits.reason().as_deref(), Some("no quorum"));
        waits.end("r2");
        assert_eq!(waits.reason(), None);
    }
}
