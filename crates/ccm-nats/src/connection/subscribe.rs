//! Subscriptions to subjects.

use futures_util::{FutureExt as _, StreamExt as _};

use super::{Connection, Message, SEND_LIMIT, within};
use crate::{NatsError, Subject};

impl Connection {
    /// Subscribes to a subject, which may contain wildcards. While connected, returns once the
    /// server has accepted or refused the subscription.
    pub async fn subscribe(&self, subject: &Subject) -> Result<Subscription, NatsError> {
        let mut denied = self.denials.listen();
        let subscribing = self.client.subscribe(subject.as_str().to_owned());
        let subscriber = within(SEND_LIMIT, subscribing).await?;
        let subscriber = subscriber.map_err(|_| NatsError::Subject(subject.to_string()))?;
        if self.is_up() {
            let concerns = |it: &str| it == subject.as_str();
            // The server sends a refusal before the reply to the first flush, but the client
            // reports it from another task. That task has run by the end of the second flush.
            for _ in 0..2 {
                denied.during(concerns, self.flush()).await??;
            }
            if let Some(denial) = denied.denial(concerns).now_or_never() {
                return Err(denial.into());
            }
        }
        Ok(Subscription(subscriber))
    }
}

/// The messages of a subscription. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription(async_nats::Subscriber);

impl Subscription {
    /// Returns the next message, or nothing once the connection is closed.
    pub async fn next(&mut self) -> Option<Message> {
        self.0.next().await.map(Message::from)
    }
}
