//! Request and reply: one reply, or the replies of many responders.

use std::time::Duration;

use async_nats::{PublishErrorKind, Request, RequestErrorKind};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Connection, Denial, DenialReceiver, Headers, Reply, SEND_LIMIT, within};
use crate::{NatsError, Subject};

/// When to stop waiting for more replies.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits {
    /// Number of replies to wait for.
    pub expected: Option<usize>,
    /// Longest pause after a reply.
    pub silence: Duration,
    /// Overall time limit.
    pub deadline: Duration,
}

impl Connection {
    /// Sends a request and returns the first reply.
    pub async fn request(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
        limit: Duration,
    ) -> Result<Reply, NatsError> {
        let size = body.len();
        let headers = self.signed(subject, headers, &body)?;
        let request = Request::new()
            .payload(body)
            .headers(headers.into_map())
            .timeout(Some(limit));
        let sending = self
            .client
            .send_request(subject.as_str().to_owned(), request);
        // The client's timeout does not cover handing the request to it.
        let failed = |kind| match kind {
            RequestErrorKind::NoResponders => NatsError::NoResponders(subject.to_string()),
            RequestErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                subject: subject.to_string(),
                size,
            },
            RequestErrorKind::InvalidSubject => NatsError::Subject(subject.to_string()),
            RequestErrorKind::TimedOut => NatsError::NoReply {
                subject: subject.to_string(),
                limit,
            },
            RequestErrorKind::Other => NatsError::Closed,
        };
        let sending = timeout(limit + SEND_LIMIT, sending);
        match self.unless_denied(subject.as_str(), sending).await? {
            Ok(Ok(message)) => Ok(message.into()),
            Ok(Err(err)) => Err(failed(err.kind())),
            Err(_) => Err(failed(RequestErrorKind::TimedOut)),
        }
    }

    /// Sends a request to all subscribers and returns their replies as they arrive.
    pub async fn request_many(
        &self,
        subject: &Subject,
        headers: Headers,
        body: Bytes,
        limits: ReplyLimits,
    ) -> Result<Replies, NatsError> {
        let headers = self.signed(subject, headers, &body)?;
        let deadline = Instant::now() + limits.deadline;
        let denied = self.denials.listen();
        let inbox = self.client.new_inbox();
        let subscribing = self.client.subscribe(inbox.clone());
        let replies = within(SEND_LIMIT, subscribing)
            .await?
            .map_err(|_| NatsError::Closed)?;
        let size = body.len();
        let publishing = self.client.publish_with_reply_and_headers(
            subject.as_str().to_owned(),
            inbox,
            headers.into_map(),
            body,
        );
        within(SEND_LIMIT, publishing)
            .await?
            .map_err(|err| match err.kind() {
                PublishErrorKind::MaxPayloadExceeded => NatsError::TooLarge {
                    subject: subject.to_string(),
                    size,
                },
                _ => NatsError::Closed,
            })?;
        Ok(Replies {
            replies,
            limits,
            deadline,
            count: 0,
            has_no_responders: false,
            subject: subject.clone(),
            denied,
            denial: None,
        })
    }
}

/// Replies of several responders. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Replies {
    replies: async_nats::Subscriber,
    limits: ReplyLimits,
    deadline: Instant,
    count: usize,
    has_no_responders: bool,
    subject: Subject,
    denied: DenialReceiver,
    denial: Option<Denial>,
}

impl Replies {
    /// Returns the next reply, or nothing once a limit is reached. The silence limit applies after
    /// the first reply, which may take until the deadline.
    pub async fn next(&mut self) -> Option<Reply> {
        if self.limits.expected.is_some_and(|most| self.count >= most)
            || self.has_no_responders
            || self.denial.is_some()
        {
            return None;
        }
        let until = match self.count {
            0 => self.deadline,
            _ => self.deadline.min(Instant::now() + self.limits.silence),
        };
        let subject = self.subject.as_str();
        let reply = timeout_at(until, self.replies.next());
        let message = tokio::select! {
            biased;
            message = reply => message.ok()??,
            denial = self.denied.denial(|it| it == subject) => {
                self.denial = Some(denial);
                return None;
            }
        };
        if message.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
            self.has_no_responders = true;
            return None;
        }
        self.count += 1;
        Some(message.into())
    }

    /// Returns the permission violation that ended the request, if there was one.
    pub fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// Reports whether the server replied that the subject has no responders.
    pub fn has_no_responders(&self) -> bool {
        self.has_no_responders
    }
}
