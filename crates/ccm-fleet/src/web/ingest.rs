//! From the bus into the live state: one watch for each bucket, one reader of events.
//!
//! Watches outlive servers by themselves and tell everything anew when they may have missed
//! something. A record that can't be read, is too large or speaks for another node is counted and
//! left out: one broken node hides no others. What records mean is not decided here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::event_row::{EventRow, name_of};
use super::live_state::{Live, Record, Source};
use crate::rollout_encoding;
use ccm_core::model::label::Labels;
use ccm_core::model::node::{Assignment, NodeName, NodeReport, NodeStatus};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::event_feed::{ReadOptions, StoredEvent};
use ccm_nats::kv::{Change, Entry, Watch};
use ccm_nats::streams::{DESIRED, LABELS, NODES, REPORTED, ROLLOUTS};
use ccm_nats::{Connection, Denial, NatsError, Subjects};

/// How far back events are read at the start.
const RECENT: TimeDelta = TimeDelta::hours(1);

/// The largest record of a node that is kept.
const MAX_RECORD: usize = 512 << 10;

/// How often those are looked for that went without a word.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long to wait before a stream that is not there is looked for again.
const AGAIN: Duration = Duration::from_secs(5);

/// How long events wait for the buckets, which say whose they are.
const BUCKETS_FIRST: Duration = Duration::from_secs(15);

/// The live state, shared by those who write and those who read.
#[derive(Clone)]
pub(super) struct Shared {
    live: Arc<Mutex<Live>>,
    revision: watch::Sender<u64>,
    /// What the server forbids us to read.
    denied: watch::Sender<Option<Denial>>,
}

impl Shared {
    pub(super) fn new(live: Live) -> Self {
        Self {
            live: Arc::new(Mutex::new(live)),
            revision: watch::Sender::new(0),
            denied: watch::Sender::new(None),
        }
    }

    /// Looks at the state. Nobody may wait while looking.
    pub(super) fn read(&self) -> MutexGuard<'_, Live> {
        // A reader that panicked changed nothing.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes those who wait for news.
    pub(super) fn write(&self, change: impl FnOnce(&mut Live)) {
        let revision = {
            let mut live = self.read();
            change(&mut live);
            live.revision()
        };
        self.revision.send_if_modified(|known| {
            let is_news = *known != revision;
            *known = revision;
            is_news
        });
    }

    /// Waits until the server forbids us to read something.
    pub(super) async fn denied(&self) -> Denial {
        let mut denied = self.denied.subscribe();
        loop {
            if let Some(denial) = denied.borrow_and_update().clone() {
                return denial;
            }
            // The sender is ours, so it is still there.
            let _ = denied.changed().await;
        }
    }

    fn deny(&self, denial: Denial) {
        self.denied.send_replace(Some(denial));
    }

    /// Returns what tells when there is news.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }
}

/// Starts to hear. Ends when the set is dropped.
pub(super) fn start(
    connection: &Connection,
    subjects: &Subjects,
    shared: &Shared,
) -> Result<JoinSet<()>, NatsError> {
    let mut tasks = JoinSet::new();
    for (bucket, source) in [
        (NODES, Source::Presence),
        (REPORTED, Source::Report),
        (DESIRED, Source::Wanted),
        (LABELS, Source::Labels),
    ] {
        let watch = connection.watch_bucket(bucket, &subjects.all_keys())?;
        tasks.spawn(follow(watch, source, subjects.clone(), shared.clone()));
    }
    let watch = connection.watch_bucket(ROLLOUTS, &subjects.all_keys())?;
    tasks.spawn(follow_rollouts(watch, subjects.clone(), shared.clone()));
    tasks.spawn(follow_events(
        connection.clone(),
        subjects.clone(),
        shared.clone(),
    ));
    let shared = shared.clone();
    tasks.spawn(async move {
        let mut beat = interval(LOOK_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            shared.write(|live| live.expire(Instant::now()));
        }
    });
    Ok(tasks)
}

async fn follow(mut watch: Watch, source: Source, subjects: Subjects, shared: Shared) {
    let node = |key: &str| subjects.parse_key(key).as_ref().and_then(name_of);
    while let Some(change) = watch.next().await {
        let now = Instant::now();
        match change {
            Change::Restart => shared.write(|live| live.restart(source)),
            Change::Current => shared.write(|live| live.finish(source, now)),
            Change::Denied(denial) => shared.deny(denial),
            Change::Removed { key, .. } => {
                if let Some(name) = node(&key) {
                    shared.write(|live| live.remove(&name, source, now));
                }
            }
            Change::Put(entry) => {
                let found =
                    node(&entry.key).and_then(|name| Some((read(source, &name, &entry)?, name)));
                shared.write(|live| match found {
                    Some((record, name)) => live.put(name, record, now),
                    None => live.count_unreadable(),
                });
            }
        }
    }
}

/// Reads a record that speaks for the node of its key.
fn read(source: Source, name: &NodeName, entry: &Entry) -> Option<Record> {
    if entry.value.len() > MAX_RECORD {
        return None;
    }
    fn parse<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
        serde_json::from_slice(&entry.value).ok()
    }
    match source {
        Source::Presence => parse::<NodeStatus>(entry)
            .filter(|status| status.identity == *name)
            .map(|status| Record::Presence(Box::new(status))),
        Source::Report => parse::<NodeReport>(entry)
            .filter(|report| report.identity == *name)
            .map(|report| Record::Report(Box::new(report))),
        Source::Wanted => parse::<Assignment>(entry).map(|it| Record::Wanted(Box::new(it))),
        Source::Labels => parse::<Labels>(entry).map(Record::Labels),
    }
}

async fn follow_rollouts(mut watch: Watch, subjects: Subjects, shared: Shared) {
    while let Some(change) = watch.next().await {
        match change {
            Change::Restart => shared.write(Live::restart_rollouts),
            Change::Current => shared.write(Live::finish_rollouts),
            Change::Denied(denial) => shared.deny(denial),
            Change::Removed { key, .. } => {
                if let Some(id) = subjects.parse_key(&key) {
                    shared.write(|live| live.remove_rollout(&id));
                }
            }
            Change::Put(entry) => match rollout_encoding::decode(&entry.value) {
                // The key is what people steer it by.
                Ok(rollout)
                    if rollout.collective == *subjects.collective()
                        && subjects.key(&rollout.id) == entry.key =>
                {
                    shared.write(|live| live.put_rollout(rollout));
                }
                _ => shared.write(Live::count_unreadable),
            },
        }
    }
}

async fn follow_events(connection: Connection, subjects: Subjects, shared: Shared) {
    let began = Instant::now();
    let mut news = shared.subscribe();
    while !shared.read().is_complete() && began.elapsed() < BUCKETS_FIRST {
        tokio::select! {
            _ = news.changed() => {}
            () = sleep(Duration::from_millis(200)) => {}
        }
    }
    let start = SystemClock.now();
    let mut last: DateTime<Utc> = start.checked_sub_signed(RECENT).unwrap_or(start);
    loop {
        let reading = ReadOptions {
            filter: subjects.events(),
            since: Some(last),
            follow: true,
        };
        let opened = || shared.write(|live| live.hear_events(true));
        let each = |stored: StoredEvent| {
            last = stored.time;
            if let Some(told) = EventRow::read(&subjects, &stored) {
                shared.write(|live| live.tell(told, stored.time, stored.time >= start));
            }
            true
        };
        // It only ends where there is no stream, or the connection is gone for good.
        let ended = connection
            .read_events_notifying_open(&reading, opened, each)
            .await;
        if let Err(NatsError::Denied(denial)) = ended {
            shared.deny(denial);
        }
        shared.write(|live| live.hear_events(false));
        // An event that was the last must not be told twice.
        last += TimeDelta::nanoseconds(1);
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::status;
    use super::*;

    fn entry(value: Vec<u8>) -> Entry {
        Entry {
            key: "lab.web1".into(),
            value: value.into(),
            revision: 1,
            created: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn nobody_speaks_for_another_node() {
        let record = entry(serde_json::to_vec(&status("web1")).unwrap());
        let (own, other) = ("web1".parse().unwrap(), "web2".parse().unwrap());
        assert!(read(Source::Presence, &own, &record).is_some());
        assert!(read(Source::Presence, &other, &record).is_none());
    }

    #[test]
    fn a_record_beyond_reason_is_left_out() {
        let record = entry(vec![b' '; MAX_RECORD + 1]);
        assert!(read(Source::Labels, &"web1".parse().unwrap(), &record).is_none());
    }
}
