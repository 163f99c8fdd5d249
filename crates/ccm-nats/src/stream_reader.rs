//! The messages of a stream: read once, or followed for ever.
//!
//! Buckets of values and of objects are streams of which the last message of each subject counts.
//! After a gap or a new connection nothing is assumed: reading starts again from the present. How
//! messages are read is in `direct`.

use std::time::Duration;

use async_nats::Subscriber;
use futures_util::FutureExt as _;
use futures_util::stream::Peekable;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::direct_get::{ReadFailure, Reader, Step, Stored, ReadRequest};
use super::{Connection, Denial, NatsError, backoff};

/// How often a read that found a gap is tried again.
const READ_TRIES: usize = 3;

/// How many messages wait for a slow follower before it stops asking for more.
const WAITING: usize = 256;

/// How long to wait after the server forbade to read: somebody must change permissions first.
const DENIED_WAIT: Duration = Duration::from_secs(60);

/// What a follower hears.
#[derive(Clone, Debug)]
pub(super) enum StreamItem {
    /// What was heard before may be out of date: the present follows.
    Restart,
    Message(Stored),
    /// The present is told; what follows is news.
    Current,
    /// The server forbids to read. It is tried again once in a while.
    Denied(Denial),
}

/// Reads what there is now and hands it over in order. `each` returns whether it wants more.
pub(super) async fn read(
    connection: &Connection,
    wanted: &ReadRequest,
    mut each: impl FnMut(Stored) -> Result<bool, NatsError>,
) -> Result<(), NatsError> {
    let mut reader = Reader::open(connection, wanted, false).await?;
    let mut left = reader.pending();
    while left > 0 {
        match reader.next().await {
            Ok(Step::Message(stored, pending)) => {
                left = pending;
                if !each(stored)? {
                    break;
                }
            }
            // What was still to come has expired meanwhile.
            Ok(Step::Idle) => break,
            Err(broken) => return Err(broken.into_error(&wanted.stream)),
        }
    }
    Ok(())
}

/// Returns all that there is now, trying again after a gap.
pub(super) async fn read_all(
    connection: &Connection,
    wanted: &ReadRequest,
) -> Result<Vec<Stored>, NatsError> {
    let mut tries = 0;
    loop {
        let mut found = Vec::new();
        let outcome = read(connection, wanted, |stored| {
            found.push(stored);
            Ok(true)
        });
        tries += 1;
        match outcome.await {
            Ok(()) => return Ok(found),
            Err(NatsError::Store { .. } | NatsError::NoResponders(_)) if tries < READ_TRIES => {
                sleep(backoff::delay(0)).await;
            }
            Err(err) => return Err(err),
        }
    }
}

/// Follows a stream until the receiver is dropped: through restarts of the servers, gaps, and
/// times when the stream does not exist.
pub(super) fn follow(connection: &Connection, wanted: ReadRequest) -> mpsc::Receiver<StreamItem> {
    let (out, receiver) = mpsc::channel(WAITING);
    let connection = connection.clone();
    tokio::spawn(async move {
        let following = keep_following(&connection, &wanted, &out);
        // Nothing below waits without end while somebody still wants to know; this ends it when
        // nobody does.
        tokio::select! {
            () = following => {}
            () = out.closed() => {}
        }
    });
    receiver
}

async fn keep_following(connection: &Connection, wanted: &ReadRequest, out: &mpsc::Sender<StreamItem>) {
    let mut failed = 0;
    let mut link = connection.state();
    loop {
        if link.wait_for(|link| link.is_up()).await.is_err() {
            return;
        }
        link.mark_unchanged();
        let outcome = tokio::select! {
            outcome = relay(connection, wanted, out, &mut failed) => outcome,
            // A new connection may lead to another server, with another stream.
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

/// Tells what a reader says until it breaks.
async fn relay(
    connection: &Connection,
    wanted: &ReadRequest,
    out: &mpsc::Sender<StreamItem>,
    failed: &mut usize,
) -> Result<(), ReadFailure> {
    let mut reader = Reader::open(connection, wanted, true).await?;
    let mut is_current = reader.pending() == 0;
    let gone = |_| ReadFailure::Gap;
    out.send(StreamItem::Restart).await.map_err(gone)?;
    if is_current {
        out.send(StreamItem::Current).await.map_err(gone)?;
    }
    loop {
        let (message, is_last) = match reader.next().await? {
            Step::Message(stored, pending) => (Some(stored), pending == 0),
            Step::Idle => (None, true),
        };
        *failed = 0;
        if let Some(stored) = message {
            out.send(StreamItem::Message(stored)).await.map_err(gone)?;
        }
        if is_last && !is_current {
            is_current = true;
            out.send(StreamItem::Current).await.map_err(gone)?;
        }
    }
}

/// Whether nothing waits to be taken.
pub(super) fn is_drained(messages: &mut Peekable<Subscriber>) -> bool {
    std::pin::Pin::new(messages).peek().now_or_never().is_none()
}
