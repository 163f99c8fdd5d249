//! The choria_events: tells Choria's own tools what happens on this node, where the file asks for it.
//!
//! Whoever has news hands it over and goes on at once; nothing here can delay or fail a run. News
//! waits in memory while the bus is away, the oldest goes when there is too much, and what waits
//! when the agent is killed is lost: the events that must not be lost go by the spool. A sign of
//! life is worth nothing later and never waits.
//!
//! What is said is `model::cloudevent`; `checks` remembers what health checks said before.

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
use checks::Checks;

/// How much news waits for the bus.
const MOST_WAITING: usize = 1024;

/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long to wait after a message that could not be sent.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells the news, or nothing at all where nobody asked for it. Clones share what waits.
#[derive(Clone)]
pub struct ChoriaEvents(Option<Arc<Inner>>);

struct Inner {
    config: Choria,
    machine: Machine,
    clock: Arc<dyn Clock>,
    log: Log,
    /// How long after the start the first sign of life is given.
    first_alive: Duration,
    ids: Mutex<EventIds>,
    waiting: Mutex<Waiting>,
    grown: Notify,
    checks: Mutex<Checks>,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Message>,
    /// How many were given up since that was last told.
    dropped: u64,
}

struct Message {
    subject: Subject,
    body: String,
}

impl ChoriaEvents {
    /// Returns the choria_events of a node.
    pub fn new(
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
            first_alive: part(config.alive_interval, random()?),
            config: config.clone(),
            clock,
            log,
            ids: Mutex::new(ids),
            waiting: Mutex::default(),
            grown: Notify::new(),
            checks: Mutex::default(),
        }))))
    }

    /// Tells how a run of a manifest ended.
    pub fn manifest(&self, run: &RunSummary) {
        let Some(inner) = &self.0 else { return };
        let state = WatcherDetail::Manifest(ManifestState::of(run));
        let name = manifest_name(&run.source);
        inner.watcher(&inner.config.machine, name, state);
    }

    /// Tells what a health check said. Scout knows a check by its machine, so each is one.
    pub fn checked(&self, checked: &CompletedCheck<'_>) {
        let Some(inner) = &self.0 else { return };
        let state = inner.checks.lock().state(checked);
        let name = &checked.check.name;
        inner.watcher(name, name, WatcherDetail::Nagios(state));
    }

    /// Tells what became of a slot in a governor.
    pub fn slot(&self, governor: &GovernorName, sequence: u64, event_type: SlotEvent) {
        let Some(inner) = &self.0 else { return };
        inner.lifecycle(LifecycleEvent::Governor {
            governor: governor.clone(),
            sequence,
            event_type,
        });
    }

    /// Tells the news until told to stop, and then goodbye.
    pub async fn tell(self, connection: Connection, mut stopped: watch::Receiver<bool>) {
        let Some(inner) = self.0 else { return };
        inner.lifecycle(LifecycleEvent::Startup {
            version: VERSION.into(),
        });
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = inner.live(&connection) => {}
            () = inner.send_for_ever(&connection) => {}
        }
        inner.lifecycle(LifecycleEvent::Shutdown {});
        if connection.is_up() {
            let last_words = async {
                inner.send_waiting(&connection).await?;
                connection.flush().await
            };
            let _ = timeout(LAST_WORDS, last_words).await;
        }
    }
}

impl Inner {
    /// Gives a sign of life now and then, from a moment that differs between nodes.
    async fn live(&self, connection: &Connection) {
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

    async fn send_for_ever(&self, connection: &Connection) {
        let mut link = connection.state();
        loop {
            if link.wait_for(|link| link.is_up()).await.is_err() {
                // The connection has ended for good; nothing but a stop ends this.
                std::future::pending::<()>().await;
            }
            match self.send_waiting(connection).await {
                Ok(()) => self.grown.notified().await,
                Err(_) => sleep(PATIENCE).await,
            }
        }
    }

    /// Sends what waits, in order. What can't be sent now still waits.
    async fn send_waiting(&self, connection: &Connection) -> Result<(), NatsError> {
        self.confess();
        while let Some(Message { subject, body }) = self.next() {
            let sent = connection.publish(&subject, Headers::new(), body.clone().into());
            match sent.await {
                Ok(()) => {}
                Err(err @ NatsError::Closed) => {
                    self.waiting
                        .lock()
                        .messages
                        .push_front(Message { subject, body });
                    return Err(err);
                }
                // Too large, or not allowed: the next one may fare better.
                Err(err) => self.complain(&err.to_string()),
            }
        }
        Ok(())
    }

    fn next(&self) -> Option<Message> {
        self.waiting.lock().messages.pop_front()
    }

    /// Tells the log how much had to be given up.
    fn confess(&self) {
        let dropped = std::mem::take(&mut self.waiting.lock().dropped);
        if dropped > 0 {
            self.complain(&format!("{dropped} waited too long and were dropped"));
        }
    }

    fn complain(&self, error: &str) {
        let line = Line::new(Level::Warn, "Could not tell Choria's tools something");
        self.log.line(&line.with("error", error));
    }

    fn lifecycle(&self, news: LifecycleEvent) {
        let subject = choria::lifecycle(news.word(), &self.config.component);
        let (id, now) = (self.new_id(), self.clock.now());
        let identity = &self.machine.identity;
        let event = Lifecycle::event(id, now, identity, &self.config.component, news);
        self.put(subject, &event);
    }

    fn watcher(&self, machine: &str, name: &str, state: WatcherDetail) {
        let subject = choria::watcher_state(state.type_name());
        let (id, now) = (self.new_id(), self.clock.now());
        self.put(subject, &self.machine.event(id, now, machine, name, state));
    }

    fn new_id(&self) -> EventId {
        self.ids.lock().next(self.clock.now())
    }

    fn put(&self, subject: Subject, event: &impl Serialize) {
        let body = match json::compact(event) {
            Ok(body) => body,
            Err(err) => return self.complain(&err.to_string()),
        };
        let mut waiting = self.waiting.lock();
        if waiting.messages.len() >= MOST_WAITING {
            waiting.messages.pop_front();
            waiting.dropped += 1;
        }
        waiting.messages.push_back(Message { subject, body });
        drop(waiting);
        self.grown.notify_one();
    }
}

/// Returns a part of a time that chance decides.
fn part(whole: Duration, chance: u128) -> Duration {
    let chance = u32::try_from(chance & 0xffff_ffff).unwrap_or_default();
    whole.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Returns what people would call the manifest from this source: the name of its bundle, of its
/// file, or of the directory that holds a plain `manifest.yaml`.
fn manifest_name(source: &str) -> &str {
    let path = source.split_once("://").map_or(source, |(_, rest)| rest);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let is_digest = |word: &str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let mut words = path
        .rsplit('/')
        .filter(|word| !word.is_empty() && !is_digest(word))
        .map(stem);
    match (words.next(), words.next()) {
        (Some("manifest"), Some(directory)) => directory,
        (Some(name), _) => name,
        (None, _) => source,
    }
}

/// Returns a file's name without what only says how it is packed.
fn stem(name: &str) -> &str {
    let packed = [".tar.gz", ".tgz", ".yaml", ".yml", ".json"];
    let stem = packed.iter().find_map(|suffix| name.strip_suffix(suffix));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(name)
}
