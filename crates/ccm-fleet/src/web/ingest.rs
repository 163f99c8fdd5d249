//! Ingest: keeps the live state up to date from NATS, with one watch per bucket and one reader of
//! events.
//!
//! Watches survive reconnects and reread everything when they may have missed changes. A record
//! that can't be parsed, is too large, or has another identity than its key is counted and shown
//! as unreadable, so that a broken node hides no others.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::event_row::{EventRow, name_of};
use super::live_state::LiveState;
use super::node_record::{Source, parse_record};
use crate::nats_waits::NatsWaits;
use crate::rollout_store::{self, RolloutError, RolloutStore, StoredForm, StoredRollout};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::event_feed::{ReadOptions, StoredEvent};
use ccm_nats::kv::{Change, Entry, Watch};
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED, ROLLOUTS};
use ccm_nats::{Connection, Denial, NatsError, Subjects};

/// Age of the oldest events that are read at the start.
const HISTORY: TimeDelta = TimeDelta::hours(1);

/// Interval of the check for missed heartbeats.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before a missing stream is opened again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Interval of the check that JetStream replies.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time for which events wait until the buckets are read.
const BUCKETS_TIMEOUT: Duration = Duration::from_secs(15);

/// The live state, shared between ingest and requests.
#[derive(Clone)]
pub(super) struct SharedState {
    live: Arc<Mutex<LiveState>>,
    revision: watch::Sender<u64>,
    /// A NATS permission error.
    denied: watch::Sender<Option<Denial>>,
}

impl SharedState {
    pub(super) fn new(live: LiveState) -> Self {
        Self {
            live: Arc::new(Mutex::new(live)),
            revision: watch::Sender::new(0),
            denied: watch::Sender::new(None),
        }
    }

    /// Locks the state. The guard must not be held across an await.
    pub(super) fn read(&self) -> MutexGuard<'_, LiveState> {
        self.live.lock()
    }

    /// Changes the state and wakes readers.
    pub(super) fn write(&self, change: impl FnOnce(&mut LiveState)) {
        let revision = {
            let mut live = self.read();
            change(&mut live);
            live.revision()
        };
        self.revision.send_if_modified(|known| {
            let is_changed = *known != revision;
            *known = revision;
            is_changed
        });
    }

    /// Waits for a NATS permission error.
    pub(super) async fn denied(&self) -> Denial {
        let mut denied = self.denied.subscribe();
        loop {
            if let Some(denial) = denied.borrow_and_update().clone() {
                return denial;
            }
            // Can't fail: `self` has the sender.
            let _ = denied.changed().await;
        }
    }

    fn deny(&self, denial: Denial) {
        self.denied.send_replace(Some(denial));
    }

    /// Returns a receiver of new revisions.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }
}

/// Starts the tasks. They end when the set is dropped.
pub(super) fn start(
    connection: &Connection,
    subjects: &Subjects,
    shared: &SharedState,
    waits: &NatsWaits,
) -> Result<JoinSet<()>, NatsError> {
    let mut tasks = JoinSet::new();
    for (bucket, source) in [
        (NODES, Source::Presence),
        (REPORTED, Source::Report),
        (DESIRED, Source::Assignment),
        (LABELS, Source::Labels),
        (FACTS, Source::Facts),
    ] {
        let watch = connection.watch_bucket(bucket, &subjects.all_keys())?;
        tasks.spawn(follow_nodes(
            watch,
            source,
            subjects.clone(),
            shared.clone(),
        ));
    }
    let watch = connection.watch_bucket(ROLLOUTS, &subjects.all_keys())?;
    tasks.spawn(follow_rollouts(
        watch,
        connection.clone(),
        subjects.clone(),
        shared.clone(),
    ));
    tasks.spawn(follow_events(
        connection.clone(),
        subjects.clone(),
        shared.clone(),
    ));
    tasks.spawn(check_nats(connection.clone(), waits.clone()));
    tasks.spawn(show_waits(waits.clone(), shared.clone()));
    let shared = shared.clone();
    tasks.spawn(async move {
        let mut beat = interval(EXPIRY_INTERVAL);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            shared.write(|live| live.expire(Instant::now()));
        }
    });
    Ok(tasks)
}

/// Checks from time to time that the fleet's streams have a leader. A missing one is not an outage.
async fn check_nats(connection: Connection, waits: NatsWaits) {
    const PART: &str = "page";
    loop {
        match connection.check_leader(ROLLOUTS).await {
            Err(err) if err.is_temporary() => waits.begin(PART, &err.to_string()),
            _ => waits.end(PART),
        };
        sleep(CHECK_INTERVAL).await;
    }
}

/// Copies the reason of a wait for NATS to the live state.
async fn show_waits(waits: NatsWaits, shared: SharedState) {
    let mut changes = waits.subscribe();
    loop {
        changes.mark_unchanged();
        shared.write(|live| live.set_nats_wait(waits.reason()));
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_nodes(mut watch: Watch, source: Source, subjects: Subjects, shared: SharedState) {
    let node = |key: &str| subjects.parse_key(key).as_ref().and_then(name_of);
    while let Some(change) = watch.next().await {
        let now = Instant::now();
        match change {
            Change::Restart => shared.write(|live| live.restart(source)),
            Change::Current => shared.write(|live| live.finish(source, now)),
            Change::Denied(denial) => shared.deny(denial),
            Change::Removed { key, removal, .. } => {
                if let Some(name) = node(&key) {
                    shared.write(|live| live.remove(&name, source, removal, now));
                }
            }
            Change::Put(entry) => {
                let Some(name) = node(&entry.key) else {
                    shared.write(LiveState::count_unreadable);
                    continue;
                };
                let record = parse_record(source, &name, &entry);
                shared.write(|live| match record {
                    Ok(record) => live.put(name, record, now),
                    Err(reason) => live.put_unreadable(name, source, reason.to_string(), now),
                });
            }
        }
    }
}

/// Returns a changed rollout with its nodes; nothing if it has changed again. Only the changed chunks of
/// a large rollout are read.
async fn load_rollout(
    connection: &Connection,
    subjects: &Subjects,
    shared: &SharedState,
    entry: Entry,
) -> Result<Option<StoredRollout>, RolloutError> {
    let form = rollout_store::read(entry)?;
    let form = match form {
        StoredForm::Whole(stored) => return Ok(Some(*stored)),
        head => head,
    };
    let before = shared.read().rollout(form.id());
    let before = before.as_ref().map(|row| row.stored());
    let rollouts = RolloutStore::open(connection, subjects).await?;
    rollouts.load(form, before).await
}

async fn follow_rollouts(
    mut watch: Watch,
    connection: Connection,
    subjects: Subjects,
    shared: SharedState,
) {
    while let Some(change) = watch.next().await {
        match change {
            Change::Restart => shared.write(LiveState::restart_rollouts),
            Change::Current => shared.write(LiveState::finish_rollouts),
            Change::Denied(denial) => shared.deny(denial),
            Change::Removed { key, .. } => {
                if let Some(id) = subjects.parse_key(&key) {
                    shared.write(|live| live.remove_rollout(&id));
                }
            }
            Change::Put(entry) => {
                match load_rollout(&connection, &subjects, &shared, entry).await {
                    Ok(Some(stored)) => shared.write(|live| live.put_rollout(stored)),
                    // Replaced: the next change follows.
                    Ok(None) => {}
                    Err(_) => shared.write(LiveState::count_unreadable),
                }
            }
        }
    }
}

async fn follow_events(connection: Connection, subjects: Subjects, shared: SharedState) {
    let start = Instant::now();
    let mut revisions = shared.subscribe();
    while !shared.read().is_complete() && start.elapsed() < BUCKETS_TIMEOUT {
        tokio::select! {
            _ = revisions.changed() => {}
            () = sleep(Duration::from_millis(200)) => {}
        }
    }
    let start = SystemClock.now();
    let mut last: DateTime<Utc> = start.checked_sub_signed(HISTORY).unwrap_or(start);
    loop {
        let reading = ReadOptions {
            filter: subjects.events(),
            since: Some(last),
            follow: true,
        };
        let opened = || shared.write(|live| live.set_reading_events(true));
        let each = |stored: StoredEvent| {
            last = stored.time;
            if let Some(event) = EventRow::parse(&subjects, &stored) {
                shared.write(|live| live.add_event(event, stored.time, stored.time >= start));
            }
            true
        };
        // Ends only if there is no stream or the connection is closed.
        let ended = connection
            .read_events_notifying_open(&reading, opened, each)
            .await;
        if let Err(NatsError::Denied(denial)) = ended {
            shared.deny(denial);
        }
        shared.write(|live| live.set_reading_events(false));
        // Excludes the last event.
        last += TimeDelta::nanoseconds(1);
        sleep(RETRY_DELAY).await;
    }
}
