//! Server-sent events: one stream of changed nodes, events and rollouts.
//!
//! A client gets at most one message per interval, with everything that is new. Nothing is queued:
//! while its connection is full nothing is sent, and skipped events are counted. `resync` tells the
//! client to load everything again, `wait` why the server waits for NATS, or null.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::access::Access;
use super::ingest::SharedState;
use super::live_state::{Changes, Cursor};

/// Minimum interval between two messages.
const INTERVAL: Duration = Duration::from_millis(250);

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

struct Reader {
    shared: SharedState,
    cursor: Cursor,
    revisions: watch::Receiver<u64>,
    /// Notified when tokens change; the client then has to show its token again.
    access: watch::Receiver<Arc<Access>>,
    is_first: bool,
    /// Why the server waits for NATS, as sent last.
    nats_wait: Option<String>,
}

/// Returns a stream position as text.
pub(super) fn format_position(cursor: &Cursor) -> String {
    format!("{:x}-{}", cursor.epoch, cursor.revision())
}

/// Parses a stream position.
pub(super) fn parse_position(text: &str) -> Option<(u64, u64)> {
    let (epoch, revision) = text.split_once('-')?;
    Some((u64::from_str_radix(epoch, 16).ok()?, revision.parse().ok()?))
}

/// Streams everything after a position; without one, from now on.
pub(super) fn stream(
    shared: SharedState,
    access: watch::Receiver<Arc<Access>>,
    after: Option<(u64, u64)>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let cursor = {
        let live = shared.read();
        match after {
            Some((epoch, revision)) => live.cursor_at(epoch, revision),
            None => live.cursor(),
        }
    };
    let reader = Reader {
        revisions: shared.subscribe(),
        access,
        shared,
        cursor,
        is_first: true,
        nats_wait: None,
    };
    let messages = stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    });
    Sse::new(messages).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("alive"))
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        if self.is_first {
            self.is_first = false;
            self.revisions.mark_changed();
            return Some(
                Event::default()
                    .event("hello")
                    .data(format_position(&self.cursor)),
            );
        }
        loop {
            tokio::select! {
                changed = self.revisions.changed() => changed.ok()?,
                _ = self.access.changed() => return None,
            }
            sleep(INTERVAL).await;
            self.revisions.mark_unchanged();
            if let Some(event) = self.next_wait() {
                self.revisions.mark_changed();
                return Some(event);
            }
            let (changes, totals) = {
                let live = self.shared.read();
                let changes = live.changes(&mut self.cursor);
                if self.cursor.revision() < live.revision() {
                    // More changes than fit into one message.
                    self.revisions.mark_changed();
                }
                (changes, live.totals())
            };
            if let Some(mut body) = document(&changes) {
                if let Some(entries) = body.as_object_mut() {
                    entries.insert("states".into(), json!(totals.states));
                }
                let name = match changes.resync {
                    true => "resync",
                    false => "news",
                };
                let event = Event::default()
                    .event(name)
                    .id(format_position(&self.cursor));
                return Some(event.data(body.to_string()));
            }
        }
    }
}

impl Reader {
    /// Returns a message if the reason to wait for NATS has changed.
    fn next_wait(&mut self) -> Option<Event> {
        let live = self.shared.read();
        if self.nats_wait.as_deref() == live.nats_wait() {
            return None;
        }
        self.nats_wait = live.nats_wait().map(str::to_owned);
        let data = json!(self.nats_wait).to_string();
        Some(Event::default().event("wait").data(data))
    }
}

/// Returns the message, or none without changes.
fn document(changes: &Changes) -> Option<Json> {
    let is_empty = !changes.resync
        && changes.nodes.is_empty()
        && changes.events.is_empty()
        && changes.rollouts.is_empty();
    if is_empty {
        return None;
    }
    let rollouts: Vec<Json> = changes.rollouts.iter().map(|it| it.row()).collect();
    Some(json!({
        "nodes": changes.nodes,
        "events": changes.events,
        "skipped": changes.skipped,
        "rollouts": rollouts,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::live_state::LiveState;
    use super::*;
    use crate::fixture::rollout;
    use crate::rollout_store::StoredRollout;

    #[test]
    fn positions_are_parsed_and_invalid_ones_refused() {
        let live = LiveState::new(0xabc);
        let text = format_position(&live.cursor_at(0xabc, 12));
        assert_eq!(
            (text.as_str(), parse_position(&text)),
            ("abc-12", Some((0xabc, 12)))
        );
        for bad in ["", "1", "x-1", "1-", "1-x"] {
            assert_eq!(parse_position(bad), None, "{bad}");
        }
    }

    #[test]
    fn there_is_no_message_without_changes() {
        assert!(document(&Changes::default()).is_none());
        let mut live = LiveState::new(1);
        let mut cursor = live.cursor();
        live.put_rollout(StoredRollout::whole(rollout("r1"), 1));
        let message = document(&live.changes(&mut cursor)).unwrap();
        assert_eq!(message["rollouts"][0]["id"], "r1");
    }
}
