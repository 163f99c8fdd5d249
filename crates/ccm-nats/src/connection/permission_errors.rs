//! Permission violations, returned as the error of the call that caused them.
//!
//! A server reports a violation as an error of the connection, without a reference to the message.
//! A waiting call therefore names its subjects, and fails with [`NatsError::Denied`] as soon as a
//! violation concerns one of them. Replies arrive below the inbox prefix: if that subscription is
//! forbidden no call can succeed, so that violation is kept until the next connect.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::NatsError;

/// Buffer size of a receiver; a call that misses its violation ends by its time limit.
const BUFFER: usize = 128;

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
    sender: broadcast::Sender<Denial>,
    /// Prefix of reply subjects.
    inbox: String,
    /// The violation of the inbox subscription: no reply can arrive.
    inbox_denial: Mutex<Option<Denial>>,
}

impl Denials {
    pub(super) fn new(inbox_prefix: &str) -> Self {
        Self(Arc::new(Inner {
            sender: broadcast::Sender::new(BUFFER),
            inbox: format!("{inbox_prefix}."),
            inbox_denial: Mutex::default(),
        }))
    }

    /// Clears the kept violation: permissions may have changed with the new connection.
    pub(super) fn clear(&self) {
        *self.0.inbox_denial.lock() = None;
    }

    /// Sends a violation to the receivers.
    pub(super) fn record(&self, denial: Denial) {
        if self.is_inbox(&denial) {
            *self.0.inbox_denial.lock() = Some(denial.clone());
        }
        // Fails without receivers, when no call waits.
        let _ = self.0.sender.send(denial);
    }

    /// Returns a receiver of violations from now on.
    pub(super) fn listen(&self) -> DenialReceiver {
        DenialReceiver {
            receiver: self.0.sender.subscribe(),
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
    receiver: broadcast::Receiver<Denial>,
    denials: Denials,
}

impl DenialReceiver {
    /// Returns the next violation.
    pub async fn next(&mut self) -> Denial {
        loop {
            match self.receiver.recv().await {
                Ok(denial) => return denial,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Returns the first violation that concerns one of the subjects, or the inbox.
    pub(crate) async fn denial(&mut self, concerns: impl Fn(&str) -> bool) -> Denial {
        if let Some(denial) = self.denials.0.inbox_denial.lock().clone() {
            return denial;
        }
        loop {
            match self.receiver.recv().await {
                Ok(denial) if concerns(&denial.subject) || self.denials.is_inbox(&denial) => {
                    return denial;
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
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
