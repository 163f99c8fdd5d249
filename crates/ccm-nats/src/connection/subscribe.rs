//! Subscriptions to subjects.

use futures_util::{FutureExt as _, StreamExt as _};

use super::{Connection, Denial, DenialReceiver, Message, Operation, SEND_LIMIT, within};
use crate::{NatsError, Subject};

impl Connection {
    /// Subscribes to a subject, which may contain wildcards. While connected, returns once the
    /// server has processed the subscription.
    ///
    /// The server reports a refusal before it replies to the first flush, but the client delivers it
    /// from another task. That task has almost always run by the end of the second flush; a later
    /// refusal ends the subscription, see [`Subscription::denial`].
    pub async fn subscribe(&self, subject: &Subject) -> Result<Subscription, NatsError> {
        let mut denied = self.denials.listen();
        let subscribing = self.client.subscribe(subject.as_str().to_owned());
        let messages = within(SEND_LIMIT, subscribing).await?;
        let messages = messages.map_err(|_| NatsError::Subject(subject.to_string()))?;
        if self.is_up() {
            for _ in 0..2 {
                let concerns = |it: &str| it == subject.as_str();
                denied.during(concerns, self.flush()).await??;
            }
            if let Some(denial) = refusal(&mut denied, subject).now_or_never() {
                return Err(denial.into());
            }
        }
        Ok(Subscription {
            messages,
            subject: subject.clone(),
            denied,
            denial: None,
        })
    }
}

/// Returns the refusal of a subscription, once there is one.
async fn refusal(denied: &mut DenialReceiver, subject: &Subject) -> Denial {
    loop {
        let denial = denied.next().await;
        if denial.operation == Operation::Subscribe && denial.subject == subject.as_str() {
            return denial;
        }
    }
}

/// The messages of a subscription. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    messages: async_nats::Subscriber,
    subject: Subject,
    denied: DenialReceiver,
    denial: Option<Denial>,
}

impl Subscription {
    /// Returns the next message, or nothing once the connection is closed or the server has refused
    /// the subscription.
    pub async fn next(&mut self) -> Option<Message> {
        if self.denial.is_some() {
            return None;
        }
        tokio::select! {
            biased;
            message = self.messages.next() => message.map(Message::from),
            denial = refusal(&mut self.denied, &self.subject) => {
                self.denial = Some(denial);
                None
            }
        }
    }

    /// Returns the permission violation that ended the subscription, if there was one.
    pub fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }
}
