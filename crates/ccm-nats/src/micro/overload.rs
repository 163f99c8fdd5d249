//! Requests beyond the capacity of a service: answered with an error at once, or counted as dropped.
//!
//! Of such a request only the reply subject is kept, so that a flood needs little memory, and the
//! replies are sent by a task of their own, so that a slow connection does not stop the listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Connection, ERROR, ERROR_CODE, Headers};
use crate::NatsError;

/// Most requests that wait for their error reply.
const MAX_WAITING: usize = 64 * 1024;

pub(super) const BUSY_CODE: u16 = 503;
pub(super) const BUSY: &str = "busy";

/// Numbers of requests that found the queue of a service full. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Overload(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    busy: AtomicU64,
    dropped: AtomicU64,
}

impl Overload {
    /// Returns how many requests were answered with an error.
    pub fn busy(&self) -> u64 {
        self.0.busy.load(Ordering::Relaxed)
    }

    /// Returns how many requests got no reply.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn count_dropped(&self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Queue of error replies.
#[derive(Debug)]
pub(super) struct BusyReplies {
    waiting: mpsc::Sender<String>,
    overload: Overload,
}

impl BusyReplies {
    /// Starts the task that sends the replies. It ends with this value.
    pub(super) fn start(connection: &Connection, overload: &Overload) -> Result<Self, NatsError> {
        let (replies, waiting) = Self::with_capacity(MAX_WAITING, overload);
        let headers = Headers::new()
            .with(ERROR, BUSY)?
            .with(ERROR_CODE, &BUSY_CODE.to_string())?;
        tokio::spawn(send(connection.clone(), headers, waiting, overload.clone()));
        Ok(replies)
    }

    fn with_capacity(capacity: usize, overload: &Overload) -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(capacity);
        let replies = Self {
            waiting: sender,
            overload: overload.clone(),
        };
        (replies, receiver)
    }

    /// Queues the error reply of a request. Never waits: without room the request is dropped.
    pub(super) fn push(&self, reply: Option<String>) {
        let is_queued = reply.is_some_and(|reply| self.waiting.try_send(reply).is_ok());
        if !is_queued {
            self.overload.count_dropped();
        }
    }
}

async fn send(
    connection: Connection,
    headers: Headers,
    mut waiting: mpsc::Receiver<String>,
    overload: Overload,
) {
    let body = Bytes::from_static(br#"{"error":"busy"}"#);
    while let Some(reply) = waiting.recv().await {
        let sent = connection.publish_to(&reply, headers.clone(), body.clone());
        match sent.await {
            Ok(()) => {
                overload.0.busy.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => overload.count_dropped(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_room_or_reply_subject_are_counted_as_dropped() {
        let overload = Overload::default();
        let (replies, mut waiting) = BusyReplies::with_capacity(2, &overload);
        for reply in [Some("a"), None, Some("b"), Some("c"), Some("d")] {
            replies.push(reply.map(Into::into));
        }
        assert_eq!(waiting.try_recv().unwrap(), "a");
        assert_eq!(waiting.try_recv().unwrap(), "b");
        assert!(waiting.try_recv().is_err());
        assert_eq!((overload.busy(), overload.dropped()), (0, 3));
    }
}
