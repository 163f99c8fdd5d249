//! Facts cache: gathers the facts of this node on demand and reuses them for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::metrics::Metrics;
use ccm_core::facts::{FactPaths, Gatherer};
use ccm_core::run::log::Log;
use ccm_core::system::Clock;
use ccm_template::env::Facts;
use ccm_value::Value;
use ccm_value::value::Map;

/// Host facts that change constantly; not useful for selecting nodes.
const VOLATILE: [&str; 2] = ["uptime", "procs"];

/// Facts of this node.
pub(crate) struct FactsCache {
    paths: FactPaths,
    clock: Arc<dyn Clock>,
    /// Age up to which facts are reused.
    max_age: Duration,
    cached: Mutex<Option<(Duration, Arc<Gathering>)>>,
    /// Fixed facts instead of those of this machine.
    fixed: Option<Value>,
    metrics: Metrics,
    log: Log,
}

/// One gathering of facts and the number of its warnings that were logged.
struct Gathering {
    gatherer: Arc<Gatherer>,
    logged: AtomicUsize,
}

impl Gathering {
    /// Logs and counts new warnings.
    fn report(&self, metrics: &Metrics, log: &Log) {
        let warnings = self.gatherer.warnings();
        let logged = self.logged.fetch_max(warnings.len(), Ordering::Relaxed);
        for warning in warnings.into_iter().skip(logged) {
            metrics.facts_failed();
            log.warn(warning);
        }
    }
}

impl FactsCache {
    pub(crate) fn new(
        paths: FactPaths,
        clock: Arc<dyn Clock>,
        max_age: Duration,
        metrics: Metrics,
        log: Log,
    ) -> Self {
        Self {
            paths,
            clock,
            max_age,
            cached: Mutex::default(),
            fixed: None,
            metrics,
            log,
        }
    }

    /// Returns a cache with fixed facts.
    pub(crate) fn fixed(facts: Value, clock: Arc<dyn Clock>, metrics: Metrics, log: Log) -> Self {
        let paths = FactPaths::from_env(&BTreeMap::new());
        Self {
            fixed: Some(facts),
            ..Self::new(paths, clock, Duration::ZERO, metrics, log)
        }
    }

    /// Reports whether the facts are fixed: those of a simulated node.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Returns facts for a run or request; sections are gathered when they are used.
    pub(crate) fn current(&self) -> Facts {
        if let Some(fixed) = &self.fixed {
            return Facts::Known(fixed.clone());
        }
        let gathering = self.gathering();
        let gather = gathering.gatherer.clone().into_source();
        let (clock, metrics, log) = (self.clock.clone(), self.metrics.clone(), self.log.clone());
        Facts::Lazy(Arc::new(move |section| {
            let began = clock.monotonic();
            let facts = gather(section);
            let took = clock.monotonic().saturating_sub(began);
            metrics.facts_gathered(took);
            metrics.facts_resolved(took);
            gathering.report(&metrics, &log);
            facts
        }))
    }

    /// Returns the facts for selecting nodes: custom facts and host facts.
    pub(crate) fn for_selection(&self) -> Value {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let gathering = self.gathering();
        let gatherer = &gathering.gatherer;
        let mut facts: Map = match gatherer.custom_facts().as_map() {
            Some(custom) => custom.clone(),
            None => Map::new(),
        };
        if let Some(host) = gatherer.section("host") {
            facts.insert("host".into(), without_volatile(&host));
        }
        gathering.report(&self.metrics, &self.log);
        facts.into()
    }

    fn gathering(&self) -> Arc<Gathering> {
        let mut cached = self.cached.lock();
        let now = self.clock.monotonic();
        match &*cached {
            Some((since, gathering)) if now.saturating_sub(*since) < self.max_age => {
                gathering.clone()
            }
            _ => {
                let gatherer = Gatherer::new(self.paths.clone(), self.clock.clone());
                let gathering = Arc::new(Gathering {
                    gatherer: Arc::new(gatherer),
                    logged: AtomicUsize::new(0),
                });
                *cached = Some((now, gathering.clone()));
                gathering
            }
        }
    }
}

fn without_volatile(facts: &Value) -> Value {
    let Some(map) = facts.as_map() else {
        return facts.clone();
    };
    let stable = map
        .iter()
        .filter(|(key, _)| !VOLATILE.contains(&&***key))
        .map(|(key, value)| (key.clone(), without_volatile(value)));
    stable.collect::<Map>().into()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::collections::BTreeMap;

    use chrono::DateTime;

    use super::*;
    use ccm_core::engine::Level;
    use ccm_core::run::log::Style;
    use ccm_core::system::{FixedClock, SystemClock};

    #[test]
    fn facts_are_gathered_again_only_when_they_are_old() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("choria/ccm/facts.yaml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "site: one\n").unwrap();
        let home = directory.path().to_str().unwrap().to_owned();
        let environ = BTreeMap::from([("XDG_CONFIG_HOME".to_owned(), home)]);
        let clock = Arc::new(FixedClock::new(DateTime::UNIX_EPOCH));
        let cache = FactsCache::new(
            FactPaths::from_env(&environ),
            clock.clone(),
            Duration::from_secs(120),
            Metrics::new("0.0.0"),
            Log::to(std::io::sink(), Style::Text, Level::Error, SystemClock),
        );
        assert_eq!(cache.current().section("site"), Some("one".into()));
        std::fs::write(&file, "site: two\n").unwrap();
        clock.advance(Duration::from_secs(119));
        assert_eq!(cache.current().section("site"), Some("one".into()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(cache.current().section("site"), Some("two".into()));
    }

    #[test]
    fn selections_see_what_the_host_is_and_not_how_long_it_is_up() {
        let clock = Arc::new(FixedClock::new(DateTime::UNIX_EPOCH));
        let paths = FactPaths::from_env(&BTreeMap::new());
        let cache = FactsCache::new(
            paths,
            clock,
            Duration::from_secs(120),
            Metrics::new("0.0.0"),
            Log::to(std::io::sink(), Style::Text, Level::Error, SystemClock),
        );
        let facts = cache.for_selection();
        let info = facts.get("host").and_then(|host| host.get("info")).unwrap();
        assert!(info.get("hostname").is_some(), "{info}");
        assert_eq!(info.get("uptime"), None);
    }
}
