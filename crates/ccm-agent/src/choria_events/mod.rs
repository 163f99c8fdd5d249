//! Choria events: publishes lifecycle and watcher events for Choria's tools, if that is configured.
//!
//! Events are queued in memory and never delay or fail a run. While NATS is unreachable they wait;
//! the oldest are dropped when there are too many, and all that wait are lost if the agent is
//! killed. Events that must not be lost go through the spool instead. Alive events are never
//! queued.
//!
//! The formats are in `model::cloudevent`; `checks` keeps the history of health checks.

mod checks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::config::Choria;
use super::node::VERSION;
use ccm_core::engine::{CompletedCheck, EventIds, Level, Line};
use ccm_core::model::cloudevent::{
    Lifecycle, LifecycleEvent, Machine, ManifestState, SlotEvent, WatcherDetail,
};
use ccm_core::model::governor::GovernorName;
use ccm_core::model::id::EventId;
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunSummary;
use ccm_core::run::log::Log;
use ccm_core::system::{Clock, RandomError, random};
use ccm_nats::subject::choria;
use ccm_nats::{Connection, Headers, NatsError, Subject};
use ccm_value::json;
use checks::CheckHistory;

/// Most queued events.
const MAX_QUEUED: usize = 1024;

/// Time for publishing queued events at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Delay after a failed publish.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Publisher of Choria events; does nothing if they are not configured. Clones share the queue.
#[derive(Clone)]
pub(crate) struct ChoriaEvents(Option<Arc<Inner>>);

struct Inner {
    config: Choria,
    machine: Machine,
    clock: Arc<dyn Clock>,
    log: Log,
    /// Delay of the first alive event.
    first_alive: Duration,
    ids: Mutex<EventIds>,
    pending: Mutex<EventQueue>,
    queued: Notify,
    checks: Mutex<CheckHistory>,
}

#[derive(Default)]
struct EventQueue {
    messages: VecDeque<Message>,
    /// Dropped events that are not logged yet.
    dropped: u64,
}

struct Message {
    subject: Subject,
    body: String,
}

impl ChoriaEvents {
    /// Returns the publisher of a node.
    pub(crate) fn new(
        config: &Choria,
        identity: &NodeName,
        clock: Arc<dyn Clock>,
        log: Log,
    ) -> Result<Self, RandomError> {
        if !config.events {
            return Ok(Self(None));
        }
        let mut ids = EventIds::new()?;
        Ok(Self(Some(Arc::new(Inner {
            machine: Machine {
                identity: identity.clone(),
                instance: ids.next(clock.now()),
                version: VERSION.into(),
            },
            first_alive: random_part(config.alive_interval, random()?),
            config: config.clone(),
            clock,
            log,
            ids: Mutex::new(ids),
            pending: Mutex::default(),
            queued: Notify::new(),
            checks: Mutex::default(),
        }))))
    }

    /// Queues the state of a manifest after a run.
    pub(crate) fn manifest(&self, run: &RunSummary) {
        let Some(inner) = &self.0 else { return };
        let state = WatcherDetail::Manifest(ManifestState::of(run));
        let name = manifest_name(&run.source);
        inner.watcher(&inner.config.machine, name, state);
    }

    /// Queues the result of a health check. Scout identifies a check by its machine, so each check
    /// is one.
    pub(crate) fn checked(&self, checked: &CompletedCheck<'_>) {
        let Some(inner) = &self.0 else { return };
        let state = inner.checks.lock().state(checked);
        let name = &checked.check.name;
        inner.watcher(name, name, WatcherDetail::Nagios(state));
    }

    /// Queues an event of a governor slot.
    pub(crate) fn slot(&self, governor: &GovernorName, sequence: u64, event_type: SlotEvent) {
        let Some(inner) = &self.0 else { return };
        inner.lifecycle(LifecycleEvent::Governor {
            governor: governor.clone(),
            sequence,
            event_type,
        });
    }

    /// Publishes events until stopped, then a shutdown event.
    pub(crate) async fn run(self, connection: Connection, mut stopped: watch::Receiver<bool>) {
        let Some(inner) = self.0 else { return };
        inner.lifecycle(LifecycleEvent::Startup {
            version: VERSION.into(),
        });
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = inner.queue_alive_events(&connection) => {}
            () = inner.publish_all(&connection) => {}
        }
        inner.lifecycle(LifecycleEvent::Shutdown {});
        if connection.is_up() {
            let flush = async {
                inner.publish_queued(&connection).await?;
                connection.flush().await
            };
            let _ = timeout(SHUTDOWN_GRACE, flush).await;
        }
    }
}

impl Inner {
    /// Queues alive events, starting at a time that differs between nodes.
    async fn queue_alive_events(&self, connection: &Connection) {
        let every = self.config.alive_interval;
        let mut next = Instant::now() + self.first_alive;
        loop {
            sleep_until(next).await;
            next += every;
            if connection.is_up() {
                self.lifecycle(LifecycleEvent::Alive {
                    version: VERSION.into(),
                });
            }
        }
    }

    async fn publish_all(&self, connection: &Connection) {
        let mut state = connection.state();
        loop {
            if state.wait_for(|state| state.is_up()).await.is_err() {
                // The connection is closed; only the stop signal ends this.
                std::future::pending::<()>().await;
            }
            match self.publish_queued(connection).await {
                Ok(()) => self.queued.notified().await,
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Publishes queued events in order. On a closed connection the rest stays queued.
    async fn publish_queued(&self, connection: &Connection) -> Result<(), NatsError> {
        self.log_dropped();
        while let Some(Message { subject, body }) = self.next() {
            let sent = connection.publish(&subject, Headers::new(), body.clone().into());
            match sent.await {
                Ok(()) => {}
                Err(err @ NatsError::Closed) => {
                    self.pending
                        .lock()
                        .messages
                        .push_front(Message { subject, body });
                    return Err(err);
                }
                // Too large or not permitted: continue with the next one.
                Err(err) => self.log_error(&err.to_string()),
            }
        }
        Ok(())
    }

    fn next(&self) -> Option<Message> {
        self.pending.lock().messages.pop_front()
    }

    /// Logs how many events were dropped.
    fn log_dropped(&self) {
        let dropped = std::mem::take(&mut self.pending.lock().dropped);
        if dropped > 0 {
            self.log_error(&format!(
                "{dropped} events were dropped: too many were waiting"
            ));
        }
    }

    fn log_error(&self, error: &str) {
        let line = Line::new(Level::Warn, "Could not publish an event for Choria");
        self.log.line(&line.with("error", error));
    }

    fn lifecycle(&self, kind: LifecycleEvent) {
        let subject = choria::lifecycle(kind.event_type(), &self.config.component);
        let (id, now) = (self.new_id(), self.clock.now());
        let identity = &self.machine.identity;
        let event = Lifecycle::event(id, now, identity, &self.config.component, kind);
        self.queue(subject, &event);
    }

    fn watcher(&self, machine: &str, name: &str, state: WatcherDetail) {
        let subject = choria::watcher_state(state.type_name());
        let (id, now) = (self.new_id(), self.clock.now());
        self.queue(subject, &self.machine.event(id, now, machine, name, state));
    }

    fn new_id(&self) -> EventId {
        self.ids.lock().next(self.clock.now())
    }

    fn queue(&self, subject: Subject, event: &impl Serialize) {
        let body = match json::compact(event) {
            Ok(body) => body,
            Err(err) => return self.log_error(&err.to_string()),
        };
        let mut pending = self.pending.lock();
        if pending.messages.len() >= MAX_QUEUED {
            pending.messages.pop_front();
            pending.dropped += 1;
        }
        pending.messages.push_back(Message { subject, body });
        drop(pending);
        self.queued.notify_one();
    }
}

/// Returns a random part of a duration.
pub(crate) fn random_part(whole: Duration, random: u128) -> Duration {
    let random = u32::try_from(random & 0xffff_ffff).unwrap_or_default();
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Returns a short name for the manifest from a source: the name of its bundle or file, or of the
/// directory of a `manifest.yaml`.
fn manifest_name(source: &str) -> &str {
    let path = source.split_once("://").map_or(source, |(_, rest)| rest);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let is_digest =
        |segment: &str| segment.len() == 64 && segment.bytes().all(|b| b.is_ascii_hexdigit());
    let mut segments = path
        .rsplit('/')
        .filter(|segment| !segment.is_empty() && !is_digest(segment))
        .map(stem);
    match (segments.next(), segments.next()) {
        (Some("manifest"), Some(directory)) => directory,
        (Some(name), _) => name,
        (None, _) => source,
    }
}

/// Returns a file name without its archive or document suffix.
fn stem(name: &str) -> &str {
    let packed = [".tar.gz", ".tgz", ".yaml", ".yml", ".json"];
    let stem = packed.iter().find_map(|suffix| name.strip_suffix(suffix));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(name)
}
