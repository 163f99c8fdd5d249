//! Refusals: the last refused request or assignment, for the status of the node. The audit has all
//! of them.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Denied;
use crate::node::Node;
use ccm_core::model::node::{Refusal, TrustStatus};
use ccm_nats::request_signature::SignatureError;

/// Last refusal, with a notification of new ones.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    last: Mutex<Option<Refusal>>,
    changed: Notify,
}

impl Refusals {
    /// Stores a refusal. A repeated one causes no notification.
    pub(crate) fn add(&self, refusal: Refusal) {
        let refusal = refusal.shortened();
        let mut last = self.last.lock();
        let is_repeated = last
            .as_ref()
            .is_some_and(|before| before.is_repeated_by(&refusal));
        *last = Some(refusal);
        drop(last);
        if !is_repeated {
            self.changed.notify_one();
        }
    }

    pub(crate) fn last(&self) -> Option<Refusal> {
        self.last.lock().clone()
    }

    /// Waits for a new refusal; returns at once if there was one since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Node {
    /// Returns the trust status of the node; `None` for a simulated node.
    pub(crate) fn trust_status(&self) -> Option<TrustStatus> {
        let (required, open) = match (
            self.services.authorizer.requires_signatures(),
            &self.services.loopback_only,
        ) {
            (Some(required), _) => (required, !required),
            (None, Some(loopback)) => (loopback.remote().is_some(), false),
            (None, None) => return None,
        };
        Some(TrustStatus {
            required,
            open,
            signers: self.services.authorizer.signers(),
            last_refusal: self.services.refusals.last(),
        })
    }
}

impl Denied {
    /// Returns a hint for the sender, where there is one.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Signature(SignatureError::Unsigned) => Some(
                "sign it with a key that agent.yaml lists in trust: signers: (ccm fleet --sign-with FILE)",
            ),
            Self::Unknown => Some(
                "sign with a key that agent.yaml lists in trust: signers:, or add this one (ccm keys show FILE)",
            ),
            Self::Expired | Self::Future => {
                Some("synchronize both clocks, or raise trust: clock_skew: in agent.yaml")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use futures_util::FutureExt as _;

    use super::*;

    fn refusal(second: i64, reason: &str) -> Refusal {
        Refusal {
            time: DateTime::from_timestamp(second, 0).unwrap(),
            what: "ensure".into(),
            generation: None,
            incarnation: None,
            who: "ann\n@laptop".into(),
            reason: reason.into(),
        }
    }

    #[test]
    fn a_repeated_refusal_is_stored_without_notification() {
        let refusals = Refusals::default();
        let is_changed = || refusals.changed().now_or_never().is_some();
        refusals.add(refusal(1, "unsigned"));
        assert!(is_changed());
        refusals.add(refusal(2, "unsigned"));
        assert!(!is_changed());
        let last = refusals.last().unwrap();
        assert_eq!(
            (last.time.timestamp(), last.who.as_str()),
            (2, "ann@laptop")
        );
        refusals.add(refusal(3, &"x".repeat(5000)));
        assert!(is_changed());
        assert_eq!(refusals.last().unwrap().reason.len(), 1024);
    }
}
