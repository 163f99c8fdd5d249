//! News as server-sent events: one stream for nodes, events and rollouts.
//!
//! A reader is told at most so often, and then everything that is new at once. Nothing is queued
//! for it: while its connection is full nothing is made, and what it missed meanwhile is counted.
//! `resync` says that news can't express what happened and everything must be read again.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::ingest::Shared;
use super::live_state::{Cursor, News};

/// How long news is collected before it is told.
const EVERY: Duration = Duration::from_millis(250);

/// How often a quiet stream says that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

struct Reader {
    shared: Shared,
    cursor: Cursor,
    news: watch::Receiver<u64>,
    is_first: bool,
}

/// Returns a place in the stream, as readers keep it.
pub(super) fn mark(cursor: &Cursor) -> String {
    format!("{:x}-{}", cursor.epoch, cursor.revision())
}

/// Reads a place in the stream.
pub(super) fn read_mark(text: &str) -> Option<(u64, u64)> {
    let (epoch, revision) = text.split_once('-')?;
    Some((u64::from_str_radix(epoch, 16).ok()?, revision.parse().ok()?))
}

/// Tells everything after a place; without one, what happens from now on.
pub(super) fn tell(
    shared: Shared,
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
        news: shared.subscribe(),
        shared,
        cursor,
        is_first: true,
    };
    let told = stream::unfold(reader, |mut reader| async {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    });
    Sse::new(told).keep_alive(KeepAlive::new().interval(ALIVE).text("alive"))
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        if self.is_first {
            self.is_first = false;
            self.news.mark_changed();
            return Some(Event::default().event("hello").data(mark(&self.cursor)));
        }
        loop {
            self.news.changed().await.ok()?;
            sleep(EVERY).await;
            self.news.mark_unchanged();
            let (news, totals) = {
                let live = self.shared.read();
                let news = live.news(&mut self.cursor);
                if self.cursor.revision() < live.revision() {
                    // There is more than is told at once.
                    self.news.mark_changed();
                }
                (news, live.totals())
            };
            if let Some(mut body) = document(&news) {
                if let Some(entries) = body.as_object_mut() {
                    entries.insert("states".into(), json!(totals.states));
                }
                let name = match news.resync {
                    true => "resync",
                    false => "news",
                };
                let event = Event::default().event(name).id(mark(&self.cursor));
                return Some(event.data(body.to_string()));
            }
        }
    }
}

/// Returns news as it is told, or nothing if there is none.
fn document(news: &News) -> Option<Json> {
    let is_empty =
        !news.resync && news.nodes.is_empty() && news.events.is_empty() && news.rollouts.is_empty();
    if is_empty {
        return None;
    }
    let rollouts: Vec<Json> = news.rollouts.iter().map(|it| it.row()).collect();
    Some(json!({
        "nodes": news.nodes,
        "events": news.events,
        "skipped": news.skipped,
        "rollouts": rollouts,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::rollout;
    use super::super::live_state::Live;
    use super::*;

    #[test]
    fn a_place_is_read_back_and_nonsense_is_not() {
        let live = Live::new(0xabc);
        let text = mark(&live.cursor_at(0xabc, 12));
        assert_eq!(
            (text.as_str(), read_mark(&text)),
            ("abc-12", Some((0xabc, 12)))
        );
        for bad in ["", "1", "x-1", "1-", "1-x"] {
            assert_eq!(read_mark(bad), None, "{bad}");
        }
    }

    #[test]
    fn no_news_is_not_told() {
        assert!(document(&News::default()).is_none());
        let mut live = Live::new(1);
        let mut cursor = live.cursor();
        live.put_rollout(rollout("r1"));
        let told = document(&live.news(&mut cursor)).unwrap();
        assert_eq!(told["rollouts"][0]["id"], "r1");
    }
}
