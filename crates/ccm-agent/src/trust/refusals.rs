//! Orders that were refused: the last one, for everyone who looks at the node, and who is woken by
//! one. Why each was refused is in the audit.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Denied;
use crate::node::Node;
use ccm_core::model::node::{Refusal, TrustStatus};
use ccm_nats::request_signature::SignatureError;

/// Remembers what was refused.
#[derive(Debug, Default)]
pub struct Refusals {
    last: Mutex<Option<Refusal>>,
    news: Notify,
}

impl Refusals {
    /// Remembers a refusal. The same one again is no news.
    pub fn add(&self, refusal: Refusal) {
        let refusal = refusal.shortened();
        let mut last = self.last.lock();
        let is_repeated = last
            .as_ref()
            .is_some_and(|before| before.is_repeated_by(&refusal));
        *last = Some(refusal);
        drop(last);
        if !is_repeated {
            self.news.notify_one();
        }
    }

    pub fn last(&self) -> Option<Refusal> {
        self.last.lock().clone()
    }

    /// Returns when something was refused that was not refused before, since this was last asked.
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

impl Node {
    /// Returns whose orders the node obeys; nothing for a node that only pretends.
    pub fn trust_status(&self) -> Option<TrustStatus> {
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
            last_refusal: self.services.refusals.last(),
        })
    }
}

impl Denied {
    /// Returns what whoever asked can do about it, if that is not plain.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::SignatureError(SignatureError::Unsigned) => Some(
                "sign it with a key that agent.yaml lists in trust: signers: (ccm fleet --sign-with FILE)",
            ),
            Self::Unknown => Some(
                "sign with a key that agent.yaml lists in trust: signers:, or add this one (ccm keys show FILE)",
            ),
            Self::Expired | Self::Future => {
                Some("set both clocks right, or raise trust: clock_skew: in agent.yaml")
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
            who: "ann\n@run_queue".into(),
            reason: reason.into(),
        }
    }

    #[test]
    fn the_same_refusal_again_is_kept_and_is_no_news() {
        let refusals = Refusals::default();
        let is_news = || refusals.news().now_or_never().is_some();
        refusals.add(refusal(1, "unsigned"));
        assert!(is_news());
        refusals.add(refusal(2, "unsigned"));
        assert!(!is_news());
        let last = refusals.last().unwrap();
        assert_eq!(
            (last.time.timestamp(), last.who.as_str()),
            (2, "ann@run_queue")
        );
        refusals.add(refusal(3, &"x".repeat(5000)));
        assert!(is_news());
        assert_eq!(refusals.last().unwrap().reason.len(), 1024);
    }
}
