//! Reading a stream once, or following it across reconnects.
//!
//! In key-value buckets and object stores the last message of each subject counts. After a gap or a
//! reconnect, reading restarts with the current messages. See `direct_get`.

use std::time::Duration;

use async_nats::Subscriber;
use futures_util::FutureExt as _;
use futures_util::stream::Peekable;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::direct_get::{ReadFailure, ReadRequest, Reader, Step, StoredMessage};
use super::{Connection, Denial, NatsError, backoff};

/// Maximum number of tries of a read with a gap.
const READ_TRIES: usize = 3;

/// Buffer size of a follower in messages.
const BUFFER: usize = 256;

/// Delay after a permission violation.
const DENIED_WAIT: Duration = Duration::from_secs(60);

/// An item of a followed stream.
#[derive(Clone, Debug)]
pub(super) enum StreamItem {
    /// The current messages follow; earlier items may be out of date.
    Restart,
    Message(StoredMessage),
    /// All current messages were sent; new messages follow.
    Current,
    /// Reading is forbidden; retried from time to time.
    Denied(Denial),
}

/// Calls `each` for every stored message in order, until it returns false.
pub(super) async fn read(
    connection: &Connection,
    request: &ReadRequest,
    mut each: impl FnMut(StoredMessage) -> Result<bool, NatsError>,
) -> Result<(), NatsError> {
    let mut reader = Reader::open(connection, request, false).await?;
    let mut remaining = reader.pending();
    while remaining > 0 {
        match reader.next().await {
            Ok(Step::Message(stored, pending)) => {
                remaining = pending;
                if !each(stored)? {
                    break;
                }
            }
            // The remaining messages have expired.
            Ok(Step::Idle) => break,
            Err(broken) => return Err(broken.into_error(&request.stream)),
        }
    }
    Ok(())
}

/// Returns all stored messages; retries after a gap.
pub(super) async fn read_all(
    connection: &Connection,
    request: &ReadRequest,
) -> Result<Vec<StoredMessage>, NatsError> {
    let mut messages = Vec::new();
    read_retrying(connection, request, |item| match item {
        None => messages.clear(),
        Some(stored) => messages.push(stored),
    })
    .await?;
    Ok(messages)
}

/// Calls `each` for every stored message in order; after a gap with nothing, and then with all of them
/// again.
pub(super) async fn read_retrying(
    connection: &Connection,
    request: &ReadRequest,
    mut each: impl FnMut(Option<StoredMessage>),
) -> Result<(), NatsError> {
    let mut tries = 0;
    loop {
        let outcome = read(connection, request, |stored| {
            each(Some(stored));
            Ok(true)
        });
        tries += 1;
        match outcome.await {
            Ok(()) => return Ok(()),
            Err(NatsError::Store { .. } | NatsError::NoResponders(_)) if tries < READ_TRIES => {
                sleep(backoff::delay(0)).await;
                each(None);
            }
            Err(err) => return Err(err),
        }
    }
}

/// Follows a stream until the receiver is dropped, across reconnects, gaps and a missing stream.
pub(super) fn follow(connection: &Connection, request: ReadRequest) -> mpsc::Receiver<StreamItem> {
    let (out, receiver) = mpsc::channel(BUFFER);
    let connection = connection.clone();
    tokio::spawn(async move {
        let following = keep_following(&connection, &request, &out);
        tokio::select! {
            () = following => {}
            () = out.closed() => {}
        }
    });
    receiver
}

async fn keep_following(
    connection: &Connection,
    request: &ReadRequest,
    out: &mpsc::Sender<StreamItem>,
) {
    let mut failed = 0;
    let mut link = connection.state();
    loop {
        if link.wait_for(|link| link.is_up()).await.is_err() {
            return;
        }
        link.mark_unchanged();
        let outcome = tokio::select! {
            outcome = relay(connection, request, out, &mut failed) => outcome,
            // The new server may have another stream.
            _ = link.changed() => {
                failed = 0;
                Ok(())
            }
        };
        if let Err(ReadFailure::Failed(NatsError::Denied(denial))) = outcome {
            if out.send(StreamItem::Denied(denial)).await.is_err() {
                return;
            }
            tokio::select! {
                () = sleep(DENIED_WAIT) => {}
                _ = link.changed() => {}
            }
            continue;
        }
        sleep(backoff::delay(failed)).await;
        failed += 1;
    }
}

/// Sends the items of a reader until it fails.
async fn relay(
    connection: &Connection,
    request: &ReadRequest,
    out: &mpsc::Sender<StreamItem>,
    failed: &mut usize,
) -> Result<(), ReadFailure> {
    let mut reader = Reader::open(connection, request, true).await?;
    let mut is_current = reader.pending() == 0;
    let closed = |_| ReadFailure::Gap;
    out.send(StreamItem::Restart).await.map_err(closed)?;
    if is_current {
        out.send(StreamItem::Current).await.map_err(closed)?;
    }
    loop {
        let (message, is_last) = match reader.next().await? {
            Step::Message(stored, pending) => (Some(stored), pending == 0),
            Step::Idle => (None, true),
        };
        *failed = 0;
        if let Some(stored) = message {
            out.send(StreamItem::Message(stored))
                .await
                .map_err(closed)?;
        }
        if is_last && !is_current {
            is_current = true;
            out.send(StreamItem::Current).await.map_err(closed)?;
        }
    }
}

/// Reports whether no message is buffered.
pub(super) fn is_drained(messages: &mut Peekable<Subscriber>) -> bool {
    std::pin::Pin::new(messages).peek().now_or_never().is_none()
}
