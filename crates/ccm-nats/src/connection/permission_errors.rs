//! What the server forbids: permission violations, brought to the call that waits for an answer.
//!
//! A server refuses a publication or a subscription with an error of the whole connection, and the
//! call that caused it hears nothing. So every call that waits says which subjects it uses, and ends
//! with [`NatsError::Denied`] as soon as the server forbids one of them. Answers arrive below the
//! inbox prefix: where that is forbidden no call can work, so this is remembered until the next
//! connection.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;

use crate::NatsError;

/// How many violations may wait for a slow reader; one that misses some waits for its time limit.
const WAITING: usize = 128;

/// What a user may not do.
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
    /// Reads what a server says about a violation.
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
    heard: broadcast::Sender<Denial>,
    /// What the subjects begin with on which answers arrive.
    inbox: String,
    /// No answer can arrive.
    deaf: Mutex<Option<Denial>>,
}

impl Denials {
    pub(super) fn new(inbox_prefix: &str) -> Self {
        Self(Arc::new(Inner {
            heard: broadcast::Sender::new(WAITING),
            inbox: format!("{inbox_prefix}."),
            deaf: Mutex::default(),
        }))
    }

    /// Takes that permissions may be others from now on.
    pub(super) fn forget(&self) {
        *self.deaf() = None;
    }

    pub(super) fn tell(&self, denial: Denial) {
        if self.is_inbox(&denial) {
            *self.deaf() = Some(denial.clone());
        }
        // Without a receiver nobody waits.
        let _ = self.0.heard.send(denial);
    }

    /// Returns who hears of violations from now on.
    pub(super) fn listen(&self) -> DenialReceiver {
        DenialReceiver {
            heard: self.0.heard.subscribe(),
            denials: self.clone(),
        }
    }

    fn is_inbox(&self, denial: &Denial) -> bool {
        denial.operation == Operation::Subscribe && denial.subject.starts_with(&self.0.inbox)
    }

    fn deaf(&self) -> std::sync::MutexGuard<'_, Option<Denial>> {
        self.0.deaf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits, for an answer or for violations.
#[derive(Debug)]
pub struct DenialReceiver {
    heard: broadcast::Receiver<Denial>,
    denials: Denials,
}

impl DenialReceiver {
    /// Returns the next violation, whatever it concerns.
    pub async fn next(&mut self) -> Denial {
        loop {
            match self.heard.recv().await {
                Ok(denial) => return denial,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Returns the first violation that concerns one of these subjects, or every answer.
    pub(crate) async fn denial(&mut self, concerns: impl Fn(&str) -> bool) -> Denial {
        if let Some(denial) = self.denials.deaf().clone() {
            return denial;
        }
        loop {
            match self.heard.recv().await {
                Ok(denial) if concerns(&denial.subject) || self.denials.is_inbox(&denial) => {
                    return denial;
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    /// Waits for an answer, unless the server forbids one of the subjects that it takes.
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
    fn a_violation_is_read_from_what_a_server_says() {
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
    async fn a_forbidden_inbox_ends_every_wait_until_the_next_connection() {
        let denials = Denials::new("_INBOX_web1");
        let denial = |operation, subject: &str| Denial {
            operation,
            subject: subject.into(),
        };
        let mut waiting = denials.listen();
        denials.tell(denial(Operation::Publish, "other"));
        let inbox = denial(Operation::Subscribe, "_INBOX_web1.x.*");
        denials.tell(inbox.clone());
        assert_eq!(waiting.denial(|_| false).await, inbox);
        let never = std::future::pending::<()>();
        let ended = denials.listen().during(|_| false, never).await;
        assert!(matches!(ended, Err(NatsError::Denied(found)) if found == inbox));
        denials.forget();
        let ready = denials.listen().during(|_| false, async { 1 }).await;
        assert_eq!(ready.unwrap(), 1);
    }
}
