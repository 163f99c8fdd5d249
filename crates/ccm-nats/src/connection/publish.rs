//! Publishing: core NATS messages, and messages that a stream acknowledges.

use std::future::IntoFuture as _;

use async_nats::PublishErrorKind as CoreErrorKind;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use tokio::time::timeout;

use super::{API_LIMIT, Connection, DenialReceiver, Headers, SEND_LIMIT, within};
use crate::{Cause, NatsError, Subject};

impl Connection {
    /// Publishes a message without acknowledgement, signed if the connection has a signer.
    pub async fn publish(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let headers = self.signed(subject, headers, &body)?;
        self.publish_to(subject.as_str(), headers, body).await
    }

    /// Returns the headers with a signature, if the connection has a signer.
    pub(super) fn signed(
        &self,
        subject: &Subject,
        mut headers: Headers,
        body: &[u8],
    ) -> Result<Headers, NatsError> {
        if let Some(signer) = &self.signer {
            signer.sign(subject, &mut headers, body)?;
        }
        Ok(headers)
    }

    /// Publishes an unsigned message on a subject taken from a received message.
    pub(crate) async fn publish_to(
        &self,
        subject: &str,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let size = body.len();
        let to = subject.to_owned();
        let sent = if headers.is_empty() {
            timeout(SEND_LIMIT, self.client.publish(to, body)).await
        } else {
            let publishing = self
                .client
                .publish_with_headers(to, headers.into_map(), body);
            timeout(SEND_LIMIT, publishing).await
        };
        sent.map_err(|_| NatsError::Closed)?
            .map_err(|err| match err.kind() {
                CoreErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                    subject: subject.into(),
                    size,
                },
                CoreErrorKind::InvalidSubject => NatsError::Subject(subject.into()),
                CoreErrorKind::Send => NatsError::Closed,
            })
    }

    /// Publishes to a stream and waits for the acknowledgement. A message id that was stored within
    /// the stream's duplicate window is not stored again.
    pub async fn publish_stored(
        &self,
        subject: &Subject,
        id: &str,
        body: Bytes,
    ) -> Result<(), NatsError> {
        self.begin_publish_stored(subject, id, body)
            .await?
            .wait()
            .await
    }

    /// Publishes to a stream and returns the pending acknowledgement, so that many messages can be
    /// in flight.
    pub async fn begin_publish_stored(
        &self,
        subject: &Subject,
        id: &str,
        body: Bytes,
    ) -> Result<PendingAck, NatsError> {
        let size = body.len();
        let denied = self.denials.listen();
        let message = PublishMessage::build().payload(body).message_id(id);
        let sending = self
            .jetstream
            .send_publish(subject.as_str().to_owned(), message);
        let ack = sending
            .await
            .map_err(|err| stored_error(subject, size, err))?;
        Ok(PendingAck {
            subject: subject.clone(),
            size,
            ack,
            denied,
        })
    }

    /// Publishes to a stream with headers and waits for the acknowledgement.
    pub(crate) async fn store(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
    ) -> Result<(), NatsError> {
        let size = body.len();
        let denied = self.denials.listen();
        let to = subject.as_str().to_owned();
        let sending = self
            .jetstream
            .publish_with_headers(to, headers.into_map(), body);
        let ack = within(SEND_LIMIT, sending)
            .await?
            .map_err(|err| stored_error(subject, size, err))?;
        let subject = subject.clone();
        let pending = PendingAck {
            subject,
            size,
            ack,
            denied,
        };
        pending.wait().await
    }
}

/// Maps an error of a JetStream publish.
fn stored_error(subject: &Subject, size: usize, err: PublishError) -> NatsError {
    match err.kind() {
        PublishErrorKind::StreamNotFound => NatsError::NotStored(subject.to_string()),
        PublishErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
            subject: subject.to_string(),
            size,
        },
        PublishErrorKind::TimedOut => NatsError::NoReply {
            subject: subject.to_string(),
            limit: API_LIMIT,
        },
        PublishErrorKind::BrokenPipe => NatsError::Closed,
        _ => NatsError::Failed {
            action: "publish",
            subject: subject.to_string(),
            source: Cause::client(err),
        },
    }
}

/// A message published to a stream and not yet acknowledged.
#[derive(Debug)]
#[must_use]
pub struct PendingAck {
    subject: Subject,
    size: usize,
    ack: PublishAckFuture,
    denied: DenialReceiver,
}

impl PendingAck {
    /// Waits for the acknowledgement.
    pub async fn wait(mut self) -> Result<(), NatsError> {
        let subject = self.subject.as_str();
        let acknowledged = self
            .denied
            .during(|it| it == subject, self.ack.into_future());
        match acknowledged.await? {
            Ok(_) => Ok(()),
            Err(err) => Err(stored_error(&self.subject, self.size, err)),
        }
    }
}
