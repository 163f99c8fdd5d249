//! The registration_publisher: services of this node on their way to where others find them.
//!
//! A run hands its entries over and never waits. While the bus is away the newest entry of each
//! service is kept, and published when the bus is back, unless it has outlived itself or its
//! service failed meanwhile. What can't be published is counted and told, and is nobody's failure:
//! the next run hands it over again. Which services may be registered is the engine's to say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::metrics::Metrics;
use ccm_core::engine::{Level, Line, Availability};
use ccm_core::model::registration::{Entry, Ttl};
use ccm_core::run::log::Log;
use ccm_core::system::Clock;
use ccm_nats::registration::Destination;
use ccm_nats::{Connection, NatsError, backoff};

/// How many services may wait.
const MOST_WAITING: usize = 10_000;

/// How often the same trouble is told.
const REMIND: Duration = Duration::from_secs(60);

/// Takes entries and publishes them; clones share them.
#[derive(Clone)]
pub struct RegistrationPublisher(Arc<Inner>);

struct Inner {
    waiting: Mutex<BTreeMap<Key, Waiting>>,
    grown: Notify,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    log: Log,
}

/// What tells services apart: cluster, service, protocol, address and port.
type Key = (String, String, String, String, Option<i64>);

#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    entry: Entry,
    /// When it was handed over, on the monotonic clock.
    since: Duration,
}

impl Waiting {
    /// Whether nobody would find the entry any more, had it been published when it was new.
    fn is_stale(&self, now: Duration) -> bool {
        match self.entry.ttl {
            Some(Ttl::After(life)) => now.saturating_sub(self.since) >= life,
            Some(Ttl::Never) | None => false,
        }
    }
}

impl RegistrationPublisher {
    pub fn new(clock: Arc<dyn Clock>, metrics: Metrics, log: Log) -> Self {
        Self(Arc::new(Inner {
            waiting: Mutex::default(),
            grown: Notify::new(),
            clock,
            metrics,
            log,
        }))
    }

    /// Takes how services stand: those that are up are to be published, those that are down not.
    pub fn take(&self, entries: &[Entry], standing: Availability) {
        let since = self.0.clock.monotonic();
        let mut waiting = self.waiting();
        for entry in entries {
            let key = key(entry);
            if standing == Availability::Down {
                waiting.remove(&key);
                continue;
            }
            if waiting.len() >= MOST_WAITING && !waiting.contains_key(&key) {
                self.0.metrics.registration_failed();
                continue;
            }
            let entry = entry.clone();
            waiting.insert(key, Waiting { entry, since });
        }
        drop(waiting);
        self.0.grown.notify_one();
    }

    /// Publishes until told to stop; then what it can within `grace`.
    pub async fn publish(
        self,
        connection: Connection,
        destination: Destination,
        mut stopped: watch::Receiver<bool>,
        grace: Duration,
    ) {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.publish_for_ever(&connection, &destination) => {}
        }
        if connection.is_up()
            && let Ok(Err(err)) = timeout(grace, self.publish_all(&connection, &destination)).await
        {
            self.complain(&err);
        }
    }

    /// Returns only when the connection has ended for good.
    async fn publish_for_ever(&self, connection: &Connection, destination: &Destination) {
        let mut link = connection.state();
        let mut failures = 0;
        let mut told: Option<(String, Instant)> = None;
        loop {
            if self.waiting().is_empty() {
                self.0.grown.notified().await;
            }
            if link.wait_for(|link| link.is_up()).await.is_err() {
                return;
            }
            let Err(err) = self.publish_all(connection, destination).await else {
                failures = 0;
                continue;
            };
            let text = err.to_string();
            let is_known =
                |(before, at): &(String, Instant)| *before == text && at.elapsed() < REMIND;
            if !told.as_ref().is_some_and(is_known) {
                self.complain(&err);
                told = Some((text, Instant::now()));
            }
            sleep(backoff::delay(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Publishes all that waits, up to the first trouble that may pass.
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
                    if may_pass(&err) {
                        return Err(err);
                    }
                    self.complain(&err);
                }
            }
            self.settle(&key, &next);
        }
        Ok(())
    }

    /// Returns an entry that is worth publishing, and lets go of those that are not. It waits on
    /// until it is settled: meanwhile its service may fail.
    fn next(&self) -> Option<(Key, Waiting)> {
        let now = self.0.clock.monotonic();
        let mut waiting = self.waiting();
        waiting.retain(|_, one| {
            let is_stale = one.is_stale(now);
            if is_stale {
                self.0.metrics.registration_failed();
            }
            !is_stale
        });
        let (key, first) = waiting.first_key_value()?;
        Some((key.clone(), first.clone()))
    }

    /// Lets go of an entry, unless it was handed over anew.
    fn settle(&self, key: &Key, done: &Waiting) {
        let mut waiting = self.waiting();
        if waiting.get(key) == Some(done) {
            waiting.remove(key);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Key, Waiting>> {
        let waiting = &self.0.waiting;
        waiting.lock()
    }

    fn complain(&self, err: &NatsError) {
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

/// Whether the same entry may be taken later. A stream may still be made.
fn may_pass(err: &NatsError) -> bool {
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
        registration_publisher.take(&[entry(80, None)], Availability::Up);
        clock.advance(Duration::from_secs(1));
        let newer = Entry {
            priority: 7,
            ..entry(80, None)
        };
        registration_publisher.take(&[newer.clone(), entry(81, None)], Availability::Up);
        let (key, first) = registration_publisher.next().unwrap();
        assert_eq!(first.entry, newer);
        assert_eq!(registration_publisher.waiting().len(), 2);
        registration_publisher.settle(&key, &first);
        assert_eq!(registration_publisher.waiting().len(), 1);
    }

    #[test]
    fn an_entry_that_outlived_itself_is_not_published() {
        let (registration_publisher, clock) = registration_publisher();
        registration_publisher.take(
            &[entry(80, seconds(30)), entry(81, seconds(90))],
            Availability::Up,
        );
        registration_publisher.take(&[entry(82, Some(Ttl::Never))], Availability::Up);
        clock.advance(Duration::from_secs(30));
        let mut ports = Vec::new();
        while let Some((key, next)) = registration_publisher.next() {
            ports.extend(next.entry.port());
            registration_publisher.settle(&key, &next);
        }
        assert_eq!(ports, [81, 82]);
        let printed = registration_publisher.0.metrics.print();
        assert!(printed.contains("agent_registration_error_count 1\n"));
    }

    #[test]
    fn a_service_that_failed_meanwhile_is_not_published() {
        let (registration_publisher, _) = registration_publisher();
        registration_publisher.take(&[entry(80, None), entry(81, None)], Availability::Up);
        registration_publisher.take(&[entry(80, None)], Availability::Down);
        assert_eq!(
            registration_publisher.next().unwrap().1.entry,
            entry(81, None)
        );
    }

    #[test]
    fn an_entry_that_comes_again_while_one_is_on_its_way_is_kept() {
        let (registration_publisher, clock) = registration_publisher();
        registration_publisher.take(&[entry(80, None)], Availability::Up);
        let (key, first) = registration_publisher.next().unwrap();
        clock.advance(Duration::from_secs(1));
        registration_publisher.take(&[entry(80, None)], Availability::Up);
        registration_publisher.settle(&key, &first);
        assert!(registration_publisher.next().is_some());
    }

    #[test]
    fn what_waits_is_bounded() {
        let (registration_publisher, _) = registration_publisher();
        let many = |from: u8| -> Vec<Entry> {
            let entries = (0..6000).map(|port| Entry {
                address: format!("10.0.0.{from}"),
                ..entry(port + 1, None)
            });
            entries.collect()
        };
        registration_publisher.take(&many(1), Availability::Up);
        registration_publisher.take(&many(2), Availability::Up);
        assert_eq!(registration_publisher.waiting().len(), MOST_WAITING);
        registration_publisher.take(&many(1), Availability::Up);
        let printed = registration_publisher.0.metrics.print();
        assert!(printed.contains("agent_registration_error_count 2000\n"));
    }
}
