//! Permission violations, returned as the error of the call that caused them.
//!
//! A server reports a violation as an error of the connection, without a reference to the message.
//! A waiting call therefore names its subjects, and fails with [`NatsError::Denied`] as soon as a
//! violation concerns one of them. Replies arrive below the inbox prefix: if that subscription is
//! forbidden no call can succeed, so that violation is kept until the next connect.
//!
//! Violations are kept in a list that grows when there are any, and that is longer than the number of
//! requests a caller sends at once: the violations of all of them may arrive before the first caller
//! reads its own.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::NatsError;

/// Number of violations that are kept; a call that misses its own ends by its time limit.
const MAX_KEPT: usize = 8192;

/// A forbidden operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Publish,
    Subscribe,
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
        })
    }
}

/// A permission violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("permission denied: the role of this NATS user lacks {operation} on {subject}")]
pub struct Denial {
    pub operation: Operation,
    pub subject: String,
}

impl Denial {
    /// Parses the error text of a server.
    pub(super) fn parse(text: &str) -> Option<Self> {
        const MARK: &str = "permissions violation for ";
        let at = text.to_ascii_lowercase().find(MARK)?;
        let rest = text.get(at + MARK.len()..)?;
        let what = rest.to_ascii_lowercase();
        let operation = match () {
            () if what.starts_with("publish") => Operation::Publish,
            () if what.starts_with("subscription") => Operation::Subscribe,
            () => return None,
        };
        let subject = rest.split('"').nth(1)?.to_owned();
        Some(Self { operation, subject })
    }
}

/// The violations of one connection.
#[derive(Clone, Debug)]
pub(super) struct Denials(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    recent: Mutex<RecentDenials>,
    /// Number of violations so far.
    count: watch::Sender<u64>,
    /// Prefix of reply subjects.
    inbox: String,
    /// The violation of the inbox subscription: no reply can arrive.
    inbox_denial: Mutex<Option<Denial>>,
}

/// The last violations.
#[derive(Debug, Default)]
struct RecentDenials {
    /// Number of violations before the first kept one.
    dropped: u64,
    kept: VecDeque<Denial>,
}

impl RecentDenials {
    /// Adds a violation and returns the number of violations so far.
    fn add(&mut self, denial: Denial) -> u64 {
        if self.kept.len() == MAX_KEPT {
            self.kept.pop_front();
            self.dropped += 1;
        }
        self.kept.push_back(denial);
        self.count()
    }

    fn count(&self) -> u64 {
        self.dropped + u64::try_from(self.kept.len()).unwrap_or_default()
    }

    /// Returns the first kept violation after `seen` ones that matches, and how many were seen then.
    fn find(&self, seen: u64, matches: impl Fn(&Denial) -> bool) -> (Option<Denial>, u64) {
        let skipped = usize::try_from(seen.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        let mut number = self.dropped.max(seen);
        for denial in self.kept.iter().skip(skipped) {
            number += 1;
            if matches(denial) {
                return (Some(denial.clone()), number);
            }
        }
        (None, number)
    }
}

impl Denials {
    pub(super) fn new(inbox_prefix: &str) -> Self {
        Self(Arc::new(Inner {
            recent: Mutex::default(),
            count: watch::Sender::new(0),
            inbox: format!("{inbox_prefix}."),
            inbox_denial: Mutex::default(),
        }))
    }

    /// Clears the kept violation: permissions may have changed with the new connection.
    pub(super) fn clear(&self) {
        *self.0.inbox_denial.lock() = None;
    }

    /// Adds a violation and wakes the receivers.
    pub(super) fn record(&self, denial: Denial) {
        if self.is_inbox(&denial) {
            *self.0.inbox_denial.lock() = Some(denial.clone());
        }
        let count = self.0.recent.lock().add(denial);
        self.0.count.send_replace(count);
    }

    /// Returns a receiver of violations from now on.
    pub(super) fn listen(&self) -> DenialReceiver {
        let count = self.0.count.subscribe();
        DenialReceiver {
            seen: self.0.recent.lock().count(),
            count,
            denials: self.clone(),
        }
    }

    fn is_inbox(&self, denial: &Denial) -> bool {
        denial.operation == Operation::Subscribe && denial.subject.starts_with(&self.0.inbox)
    }
}

/// Receives permission violations.
#[derive(Debug)]
pub struct DenialReceiver {
    /// Number of violations that were read or happened before.
    seen: u64,
    count: watch::Receiver<u64>,
    denials: Denials,
}

impl DenialReceiver {
    /// Returns the next violation.
    pub async fn next(&mut self) -> Denial {
        self.find(|_| true).await
    }

    /// Returns the first violation that concerns one of the subjects, or the inbox.
    pub(crate) async fn denial(&mut self, concerns: impl Fn(&str) -> bool) -> Denial {
        if let Some(denial) = self.denials.0.inbox_denial.lock().clone() {
            return denial;
        }
        let denials = self.denials.clone();
        self.find(|denial| concerns(&denial.subject) || denials.is_inbox(denial))
            .await
    }

    /// Returns the next violation that matches.
    async fn find(&mut self, matches: impl Fn(&Denial) -> bool) -> Denial {
        loop {
            // Marks the count as read before the list is, so that no change is missed.
            self.count.borrow_and_update();
            let (found, seen) = self.denials.0.recent.lock().find(self.seen, &matches);
            self.seen = seen;
            if let Some(denial) = found {
                return denial;
            }
            // The sender is kept by `denials`, so this can't fail.
            if self.count.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Awaits `doing`; fails as soon as the server forbids one of the subjects.
    pub(crate) async fn during<T>(
        &mut self,
        concerns: impl Fn(&str) -> bool,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        tokio::select! {
            biased;
            done = doing => Ok(done),
            denial = self.denial(concerns) => Err(denial.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_is_parsed_from_the_error_text() {
        let read = |text: &str| {
            let denial = Denial::parse(text)?;
            Some(format!("{} {}", denial.operation, denial.subject))
        };
        for (text, expected) in [
            (
                "Permissions Violation for Publish to \"a.B\"",
                "publish a.B",
            ),
            (
                "Permissions Violation for Publish with Reply of \"$JS.ACK.x\"",
                "publish $JS.ACK.x",
            ),
            (
                "Permissions Violation for Subscription to \"a.*\" using queue \"q\"",
                "subscribe a.*",
            ),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for other in ["authorization violation", "Permissions Violation for x", ""] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_violation_is_found_behind_many_others() {
        let denials = Denials::new("_INBOX");
        let denial = |subject: String| Denial {
            operation: Operation::Publish,
            subject,
        };
        denials.record(denial("early".into()));
        let mut receivers: Vec<_> = (0..2000).map(|_| denials.listen()).collect();
        for number in 0..2000 {
            denials.record(denial(format!("node{number}")));
        }
        for (number, receiver) in receivers.iter_mut().enumerate() {
            let subject = format!("node{number}");
            let found = receiver.denial(|it| it == subject || it == "early").await;
            assert_eq!(found.subject, subject);
        }
    }

    #[test]
    fn old_violations_are_dropped() {
        let mut recent = RecentDenials::default();
        for number in 0..MAX_KEPT + 10 {
            recent.add(Denial {
                operation: Operation::Publish,
                subject: number.to_string(),
            });
        }
        assert_eq!(recent.kept.len(), MAX_KEPT);
        let (first, seen) = recent.find(3, |_| true);
        assert_eq!((first.unwrap().subject.as_str(), seen), ("10", 11));
        assert_eq!(recent.find(recent.count(), |_| true).0, None);
    }

    #[tokio::test]
    async fn forbidden_inbox_fails_every_call_until_the_next_connect() {
        let denials = Denials::new("_INBOX_web1");
        let denial = |operation, subject: &str| Denial {
            operation,
            subject: subject.into(),
        };
        let mut waiting = denials.listen();
        denials.record(denial(Operation::Publish, "other"));
        let inbox = denial(Operation::Subscribe, "_INBOX_web1.x.*");
        denials.record(inbox.clone());
        assert_eq!(waiting.denial(|_| false).await, inbox);
        let never = std::future::pending::<()>();
        let ended = denials.listen().during(|_| false, never).await;
        assert!(matches!(ended, Err(NatsError::Denied(found)) if found == inbox));
        denials.clear();
        let ready = denials.listen().during(|_| false, async { 1 }).await;
        assert_eq!(ready.unwrap(), 1);
    }
}
