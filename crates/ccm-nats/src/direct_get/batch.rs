//! Direct get requests: one request, a batch of messages in reply.
//!
//! Servers without support for batches reply with one message.

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::stored_message;
use super::{Reader, StoredMessage};
use crate::connection::{API_LIMIT, Message};
use crate::kv::bucket_of;
use crate::{Cause, NatsError};

/// Maximum number of messages per request; below the client's subscription buffer.
pub(super) const BATCH: usize = 1024;

/// Status code: end of the batch.
const END: u16 = 204;
/// Status code: the filter matches more subjects than the server returns at once.
const TOO_MANY: u16 = 413;
/// Status code: the server does not support the request.
const BAD_REQUEST: u16 = 408;

/// Maximum number of bytes per request.
pub(super) const BATCH_BYTES: usize = 8 << 20;

/// A request without a complete reply, and the messages received so far.
#[derive(Default)]
pub(super) struct PendingRequest {
    reply: String,
    messages: Vec<StoredMessage>,
}

/// The result of a request.
pub(super) enum BatchReply {
    Batch {
        messages: Vec<StoredMessage>,
        /// Number of matching messages after these, if the server reports it.
        left: Option<u64>,
        /// The last sequence that the reply covers.
        up_to: Option<u64>,
    },
    Empty,
    TooMany,
    Unsupported,
}

impl Reader {
    /// Reads the next messages into the buffer.
    pub(super) async fn fetch(&mut self) -> Result<(), NatsError> {
        let request = json!({
            "seq": self.next, "next_by_subj": self.options.filter,
            "batch": BATCH, "max_bytes": BATCH_BYTES,
        });
        let mut reply = BatchReply::Unsupported;
        if self.is_direct {
            reply = self.request_direct(&request).await?;
        }
        if !self.is_direct {
            reply = self.request_single().await?;
        }
        match reply {
            BatchReply::Batch { messages, left, .. } => self.take(messages, left),
            BatchReply::Empty => self.remaining = 0,
            BatchReply::TooMany | BatchReply::Unsupported => {
                return Err(self.failed(Cause::Reply(
                    "the server does not support direct get requests".into(),
                )));
            }
        }
        Ok(())
    }

    /// Appends messages to the buffer, and updates the position.
    pub(super) fn take(&mut self, messages: Vec<StoredMessage>, left: Option<u64>) {
        if let Some(last) = messages.last() {
            self.next = last.sequence.saturating_add(1);
        }
        // Without a count there may be more.
        self.remaining = left.unwrap_or(1);
        let since = self.oldest;
        let is_wanted = |stored: &StoredMessage| since.is_none_or(|since| stored.time >= since);
        self.buffer.extend(messages.into_iter().filter(is_wanted));
    }

    /// Sends a direct get request. No responders means that the stream may not allow direct get.
    pub(super) async fn request_direct(&mut self, body: &Value) -> Result<BatchReply, NatsError> {
        match self.request_batch(body).await {
            Err(err @ NatsError::NoResponders(_)) => {
                self.load_stream_info().await?;
                if self.is_direct {
                    Err(err)
                } else {
                    Ok(BatchReply::Unsupported)
                }
            }
            other => other,
        }
    }

    /// Sends a request and collects its replies. After a cancelled call, the next one continues to
    /// collect the replies of the same request.
    async fn request_batch(&mut self, body: &Value) -> Result<BatchReply, NatsError> {
        if self.request.is_none() {
            self.request_count = self.request_count.wrapping_add(1);
            let reply = format!("{}.{}", self.inbox, self.request_count);
            self.request = Some(PendingRequest {
                reply: reply.clone(),
                messages: Vec::new(),
            });
            let body = Bytes::from(body.to_string());
            let client = self.connection.client();
            let sending = client.publish_with_reply(self.get_subject.clone(), reply, body);
            match timeout(API_LIMIT, sending).await {
                Ok(Ok(())) => {}
                _ => {
                    self.request = None;
                    return Err(NatsError::Closed);
                }
            }
        }
        let outcome = self.collect().await;
        self.request = None;
        outcome
    }

    /// Collects the replies of the pending request.
    async fn collect(&mut self) -> Result<BatchReply, NatsError> {
        loop {
            let (get_subject, replies) = (&self.get_subject, &mut self.replies);
            let reply = timeout(API_LIMIT, replies.next());
            let reply = self.denied.during(|subject| subject == get_subject, reply);
            let reply = reply.await?.map_err(|_| NatsError::NoReply {
                subject: self.get_subject.clone(),
                limit: API_LIMIT,
            })?;
            let reply = reply.ok_or(NatsError::Closed)?;
            let Some(request) = &mut self.request else {
                return Err(NatsError::Closed);
            };
            if reply.subject.as_str() != request.reply {
                continue;
            }
            let status = reply.status;
            let description = reply.description.clone();
            let message = Message::from(reply);
            let number = |name: &str| message.headers.last(name)?.parse::<u64>().ok();
            let before = request.messages.last().map_or(0, |it| it.sequence);
            let gap = || Cause::Reply("the reply of the server is incomplete".into());
            match status.map(|status| (status, status.as_u16())) {
                None => {
                    let (left, last) = (number("Nats-Num-Pending"), number("Nats-Last-Sequence"));
                    let Some(stored) = stored_message::from_direct_get(message) else {
                        return Ok(BatchReply::Unsupported);
                    };
                    if left.is_none() {
                        return Ok(BatchReply::Batch {
                            messages: vec![stored],
                            left,
                            up_to: None,
                        });
                    }
                    if last.is_some_and(|last| last != before) {
                        return Err(self.failed(gap()));
                    }
                    request.messages.push(stored);
                }
                Some((_, END)) => {
                    if number("Nats-Last-Sequence").is_some_and(|last| last != before) {
                        return Err(self.failed(gap()));
                    }
                    return Ok(BatchReply::Batch {
                        left: number("Nats-Num-Pending"),
                        up_to: number("Nats-UpTo-Sequence"),
                        messages: std::mem::take(&mut request.messages),
                    });
                }
                Some((StatusCode::NOT_FOUND, _)) => return Ok(BatchReply::Empty),
                Some((StatusCode::NO_RESPONDERS, _)) => {
                    return Err(NatsError::NoResponders(self.get_subject.clone()));
                }
                Some((_, TOO_MANY)) => return Ok(BatchReply::TooMany),
                Some((_, BAD_REQUEST)) => return Ok(BatchReply::Unsupported),
                Some((status, _)) => {
                    let text = description.unwrap_or_else(|| status.to_string());
                    return Err(self.failed(Cause::Reply(text)));
                }
            }
        }
    }

    /// Requests one message of a stream that does not allow direct get.
    async fn request_single(&mut self) -> Result<BatchReply, NatsError> {
        let selector = json!({ "seq": self.next, "next_by_subj": self.options.filter });
        let stream = &self.options.stream;
        let stored = self.connection.get_from_leader(stream, &selector).await?;
        Ok(match stored {
            Some(stored) => BatchReply::Batch {
                messages: vec![stored],
                left: None,
                up_to: None,
            },
            None => BatchReply::Empty,
        })
    }

    fn failed(&self, source: Cause) -> NatsError {
        NatsError::Store {
            action: "read",
            name: bucket_of(&self.options.stream).into(),
            source,
        }
    }
}
