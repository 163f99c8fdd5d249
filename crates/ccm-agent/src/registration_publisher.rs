//! Registration publisher: publishes the services of this node to the registry in NATS.
//!
//! Runs hand over entries and never wait. While NATS is unreachable the newest entry of each
//! service is kept and published later, unless it has expired or its service failed meanwhile.
//! Failures are counted and logged only: the next run hands the entry over again. The engine
//! decides which services are registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::metrics::Metrics;
use ccm_core::engine::{Availability, Level, Line};
use ccm_core::model::registration::{Entry, Ttl};
use ccm_core::run::log::Log;
use ccm_core::system::Clock;
use ccm_nats::registration::Destination;
use ccm_nats::{Connection, NatsError, backoff};

/// Most waiting services.
const MAX_WAITING: usize = 10_000;

/// Least time between two log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Queue of entries and its publisher. Clones share the queue.
#[derive(Clone)]
pub(crate) struct RegistrationPublisher(Arc<Inner>);

struct Inner {
    waiting: Mutex<BTreeMap<Key, Waiting>>,
    queued: Notify,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    log: Log,
}

/// Key of a service: cluster, service, protocol, address and port.
type Key = (String, String, String, String, Option<i64>);

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    entry: Entry,
    /// Time of the handover, on the monotonic clock.
    since: Duration,
}

impl Waiting {
    /// Reports whether the entry would have expired if it had been published at once.
    fn is_expired(&self, now: Duration) -> bool {
        match self.entry.ttl {
            Some(Ttl::After(life)) => now.saturating_sub(self.since) >= life,
            Some(Ttl::Never) | None => false,
        }
    }
}

impl RegistrationPublisher {
    pub(crate) fn new(clock: Arc<dyn Clock>, metrics: Metrics, log: Log) -> Self {
        Self(Arc::new(Inner {
            waiting: Mutex::default(),
            queued: Notify::new(),
            clock,
            metrics,
            log,
        }))
    }

    /// Queues the entries of services that are up, and removes those of services that are down.
    pub(crate) fn update(&self, entries: &[Entry], availability: Availability) {
        let since = self.0.clock.monotonic();
        let mut waiting = self.waiting();
        for entry in entries {
            let key = key(entry);
            if availability == Availability::Down {
                waiting.remove(&key);
                continue;
            }
            if waiting.len() >= MAX_WAITING && !waiting.contains_key(&key) {
                self.0.metrics.registration_failed();
                continue;
            }
            let entry = entry.clone();
            waiting.insert(key, Waiting { entry, since });
        }
        drop(waiting);
        self.0.queued.notify_one();
    }

    /// Publishes until stopped, then the rest within `grace`.
    pub(crate) async fn publish(
        self,
        connection: Connection,
        destination: Destination,
        mut stopped: watch::Receiver<bool>,
        grace: Duration,
    ) {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.publish_continuously(&connection, &destination) => {}
        }
        if connection.is_up()
            && let Ok(Err(err)) = timeout(grace, self.publish_all(&connection, &destination)).await
        {
            self.log_error(&err);
        }
    }

    /// Returns only when the connection is closed.
    async fn publish_continuously(&self, connection: &Connection, destination: &Destination) {
        let mut state = connection.state();
        let mut failures = 0;
        let mut last_logged: Option<(String, Instant)> = None;
        loop {
            if self.waiting().is_empty() {
                self.0.queued.notified().await;
            }
            if state.wait_for(|state| state.is_up()).await.is_err() {
                return;
            }
            let Err(err) = self.publish_all(connection, destination).await else {
                failures = 0;
                continue;
            };
            let text = err.to_string();
            let is_known =
                |(before, at): &(String, Instant)| *before == text && at.elapsed() < LOG_INTERVAL;
            if !last_logged.as_ref().is_some_and(is_known) {
                self.log_error(&err);
                last_logged = Some((text, Instant::now()));
            }
            sleep(backoff::delay(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Publishes all waiting entries, up to the first temporary error.
    async fn publish_all(
        &self,
        connection: &Connection,
        destination: &Destination,
    ) -> Result<(), NatsError> {
        while let Some((key, next)) = self.next() {
            match connection.register(&next.entry, destination).await {
                Ok(()) => self.0.metrics.registered(),
                Err(err) => {
                    self.0.metrics.registration_failed();
                    if is_temporary(&err) {
                        return Err(err);
                    }
                    self.log_error(&err);
                }
            }
            self.remove_published(&key, &next);
        }
        Ok(())
    }

    /// Removes expired entries and returns the next one. It stays in the queue until it is removed:
    /// its service may fail meanwhile.
    fn next(&self) -> Option<(Key, Waiting)> {
        let now = self.0.clock.monotonic();
        let mut waiting = self.waiting();
        waiting.retain(|_, one| {
            let is_expired = one.is_expired(now);
            if is_expired {
                self.0.metrics.registration_failed();
            }
            !is_expired
        });
        let (key, first) = waiting.first_key_value()?;
        Some((key.clone(), first.clone()))
    }

    /// Removes a published entry, unless a newer one replaced it.
    fn remove_published(&self, key: &Key, done: &Waiting) {
        let mut waiting = self.waiting();
        if waiting.get(key) == Some(done) {
            waiting.remove(key);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        self.0.waiting.lock()
    }

    fn log_error(&self, err: &NatsError) {
        let line = Line::new(Level::Warn, "Could not register a service");
        self.0.log.line(&line.with("error", err));
    }
}

fn key(entry: &Entry) -> Key {
    (
        entry.cluster.clone(),
        entry.service.clone(),
        entry.protocol.clone(),
        entry.address.clone(),
        entry.port(),
    )
}

/// Reports whether an error may be temporary; a missing stream may still be created.
fn is_temporary(err: &NatsError) -> bool {
    matches!(
        err,
        NatsError::Closed
            | NatsError::NoReply { .. }
            | NatsError::NoResponders(_)
            | NatsError::NotStored(_)
    )
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use ccm_core::model::registration::Port;
    use ccm_core::run::log::Style;
    use ccm_core::system::{FixedClock, SystemClock};

    fn registration_publisher() -> (RegistrationPublisher, Arc<FixedClock>) {
        let clock = Arc::new(FixedClock::new(DateTime::UNIX_EPOCH));
        let log = Log::to(std::io::sink(), Style::Text, Level::Error, SystemClock);
        let registration_publisher =
            RegistrationPublisher::new(clock.clone(), Metrics::new("0.0.0"), log);
        (registration_publisher, clock)
    }

    fn entry(port: i64, ttl: Option<Ttl>) -> Entry {
        Entry {
            cluster: "prod".into(),
            service: "web".into(),
            protocol: "http".into(),
            address: "10.0.0.1".into(),
            port: Port::Number(port),
            priority: 1,
            ttl,
            ..Entry::default()
        }
    }

    fn seconds(seconds: u64) -> Option<Ttl> {
        Some(Ttl::After(Duration::from_secs(seconds)))
    }

    #[test]
    fn the_newest_entry_of_a_service_waits() {
        let (registration_publisher, clock) = registration_publisher();
        registration_publisher.update(&[entry(80, None)], Availability::Up);
        clock.advance(Duration::from_secs(1));
        let newer = Entry {
            priority: 7,
            ..entry(80, None)
        };
        registration_publisher.update(&[newer.clone(), entry(81, None)], Availability::Up);
        let (key, first) = registration_publisher.next().unwrap();
        assert_eq!(first.entry, newer);
        assert_eq!(registration_publisher.waiting().len(), 2);
        registration_publisher.remove_published(&key, &first);
        assert_eq!(registration_publisher.waiting().len(), 1);
    }

    #[test]
    fn an_expired_entry_is_not_published() {
        let (registration_publisher, clock) = registration_publisher();
        registration_publisher.update(
            &[entry(80, seconds(30)), entry(81, seconds(90))],
            Availability::Up,
        );
        registration_publisher.update(&[entry(82, Some(Ttl::Never))], Availability::Up);
        clock.advance(Duration::from_secs(30));
        let mut ports = Vec::new();
        while let Some((key, next)) = registration_publisher.next() {
            ports.extend(next.entry.port());
            registration_publisher.remove_published(&key, &next);
        }
        assert_eq!(ports, [81, 82]);
        let printed = registration_publisher.0.metrics.print();
        assert!(printed.contains("agent_registration_error_count 1\n"));
    }

    #[test]
    fn a_service_that_failed_meanwhile_is_not_published() {
        let (registration_publisher, _) = registration_publisher();
        registration_publisher.update(&[entry(80, None), entry(81, None)], Availability::Up);
        registration_publisher.update(&[entry(80, None)], Availability::Down);
        assert_eq!(
            registration_publisher.next().unwrap().1.entry,
            entry(81, None)
        );
    }

    #[test]
    fn an_entry_that_is_updated_while_being_published_is_kept() {
        let (registration_publisher, clock) = registration_publisher();
        registration_publisher.update(&[entry(80, None)], Availability::Up);
        let (key, first) = registration_publisher.next().unwrap();
        clock.advance(Duration::from_secs(1));
        registration_publisher.update(&[entry(80, None)], Availability::Up);
        registration_publisher.remove_published(&key, &first);
        assert!(registration_publisher.next().is_some());
    }

    #[test]
    fn the_queue_is_bounded() {
        let (registration_publisher, _) = registration_publisher();
        let many = |from: u8| -> Vec<Entry> {
            let entries = (0..6000).map(|port| Entry {
                address: format!("10.0.0.{from}"),
                ..entry(port + 1, None)
            });
            entries.collect()
        };
        registration_publisher.update(&many(1), Availability::Up);
        registration_publisher.update(&many(2), Availability::Up);
        assert_eq!(registration_publisher.waiting().len(), MAX_WAITING);
        registration_publisher.update(&many(1), Availability::Up);
        let printed = registration_publisher.0.metrics.print();
        assert!(printed.contains("agent_registration_error_count 2000\n"));
    }
}
