//! Registration watch: applies a manifest again when the services it looked up change.
//!
//! A run records its registry queries and a digest of each result. Every query is watched; when its
//! current result differs from the recorded one, another run is requested. Comparing results
//! instead of following messages means that no change between a run and its watch is missed, and
//! that renewing an unchanged entry causes no run.
//!
//! Changes are collected for a moment, a manifest is requested no more often than the schedule
//! allows, and each state is requested once, also if its run fails. The schedule makes the runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use ccm_core::engine::{Level, Line};
use ccm_core::model::registration::Entry;
use ccm_core::run::environment::registered_services;
use ccm_core::run::log::Log;
use ccm_core::run::nats_client::NatsClient;
use ccm_core::system::Digest;
use ccm_nats::registration::{Change, Watch};
use ccm_nats::{Connection, NatsError, backoff};
use ccm_template::CallError;
use ccm_template::env::Registrations;
use ccm_value::{Value, json};

/// Most queries that are watched.
const MAX_WATCHED: usize = 32;

/// Most queries recorded per run; more are not watched.
const MAX_RECORDED: usize = 64;

/// Delay that collects changes.
const COLLECT_DELAY: Duration = Duration::from_secs(2);

/// Least time between two log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A query: cluster, protocol, service and address.
type Query = [String; 4];

/// Digest of the result of each query; `None` if it failed.
type Results = BTreeMap<Query, Option<Digest>>;

/// Queries of one run and their results. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupRecorder(Arc<Mutex<Results>>);

impl LookupRecorder {
    /// Returns a lookup function for templates that records its queries.
    pub(crate) fn recording(&self, nats: Arc<dyn NatsClient>, stream: String) -> Registrations {
        let recorder = self.clone();
        Arc::new(move |query| {
            let found = registered_services(&*nats, &stream, query);
            let digest = found.as_deref().ok().and_then(digest_of);
            recorder.record(query.map(str::to_owned), digest);
            let found = found.map_err(CallError::new)?;
            Ok(found.iter().map(Entry::to_value).collect::<Value>())
        })
    }

    /// Records the first result of a query: if it changes later in the run, the run is out of date.
    fn record(&self, query: Query, found: Option<Digest>) {
        let wildcard = |token: String| if token.is_empty() { "*".into() } else { token };
        let query = query.map(wildcard);
        let mut recorded = self.0.lock();
        if recorded.len() < MAX_RECORDED || recorded.contains_key(&query) {
            recorded.entry(query).or_insert(found);
        }
    }
}

/// Returns a digest of entries, independent of their order.
fn digest_of<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> Option<Digest> {
    let lines: Result<BTreeSet<String>, _> = entries.into_iter().map(json::compact).collect();
    let lines: Vec<String> = lines.ok()?.into_iter().collect();
    Some(Digest::of(lines.join("\n").as_bytes()))
}

/// Queries of all manifests of a node. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By manifest name.
    manifests: Mutex<BTreeMap<String, ManifestLookups>>,
    changed: Notify,
}

#[derive(Clone, Debug)]
struct ManifestLookups {
    /// Generation of the assignment that the manifest belongs to.
    generation: Option<u64>,
    found: Results,
}

impl Lookups {
    /// Stores the queries of a run. An incomplete run may have had more, so its earlier ones are
    /// kept.
    pub(crate) fn record_run(
        &self,
        manifest: &str,
        generation: Option<u64>,
        recorder: &LookupRecorder,
        is_complete: bool,
    ) {
        let recorded = recorder.0.lock().clone();
        let mut manifests = self.0.manifests.lock();
        if generation.is_some() {
            // Bundles of older assignments are not applied any more.
            manifests.retain(|_, it| it.generation.is_none() || it.generation == generation);
        }
        let mut found = match manifests.remove(manifest) {
            Some(before) if !is_complete => before.found,
            _ => Results::new(),
        };
        found.extend(recorded);
        if !found.is_empty() {
            let manifest_lookups = ManifestLookups { generation, found };
            manifests.insert(manifest.into(), manifest_lookups);
        }
        drop(manifests);
        self.0.changed.notify_one();
    }

    fn all(&self) -> BTreeMap<String, ManifestLookups> {
        self.0.manifests.lock().clone()
    }
}

/// Decides which manifests to apply again. Uses neither NATS nor a clock.
#[derive(Debug)]
struct ReapplyPlanner {
    /// Least time between two requests for a manifest.
    min_distance: Duration,
    /// Current result of each watched query.
    current: BTreeMap<Query, Digest>,
    /// Results for which each manifest was last requested, and when.
    requested: BTreeMap<String, (Results, Instant)>,
}

impl ReapplyPlanner {
    fn new(min_distance: Duration) -> Self {
        Self {
            min_distance,
            current: BTreeMap::new(),
            requested: BTreeMap::new(),
        }
    }

    /// Removes queries and manifests that are no longer used.
    fn retain(&mut self, manifests: &BTreeMap<String, ManifestLookups>, watched: &BTreeSet<Query>) {
        self.current.retain(|query, _| watched.contains(query));
        self.requested
            .retain(|manifest, _| manifests.contains_key(manifest));
    }

    /// Returns the manifests with outdated results, and when each may be requested.
    fn outdated(
        &self,
        manifests: &BTreeMap<String, ManifestLookups>,
    ) -> BTreeMap<String, Option<Instant>> {
        let is_outdated = |manifest: &str, manifest_lookups: &ManifestLookups| {
            let requested = self.requested.get(manifest).map(|(state, _)| state);
            manifest_lookups.found.iter().any(|(query, found)| {
                let current = self.current.get(query);
                let was_requested = requested.and_then(|state| state.get(query)?.as_ref());
                current.is_some() && current != found.as_ref() && current != was_requested
            })
        };
        manifests
            .iter()
            .filter(|(manifest, manifest_lookups)| is_outdated(manifest, manifest_lookups))
            .map(|(manifest, _)| {
                let requested = self.requested.get(manifest);
                (
                    manifest.clone(),
                    requested.map(|(_, at)| *at + self.min_distance),
                )
            })
            .collect()
    }

    /// Records that a manifest is requested now, for the current results.
    fn mark_requested(&mut self, manifest: &str, manifest_lookups: &ManifestLookups, now: Instant) {
        let state = manifest_lookups.found.keys().map(|query| {
            let current = self.current.get(query).cloned();
            (query.clone(), current)
        });
        self.requested
            .insert(manifest.into(), (state.collect(), now));
    }
}

/// Watches the queries of all manifests of a node.
pub(crate) struct RegistrationWatcher {
    lookups: Lookups,
    connection: Connection,
    stream: String,
    log: Log,
    planner: ReapplyPlanner,
    watches: BTreeMap<Query, AbortHandle>,
    tasks: JoinSet<()>,
    /// The warning about too many queries was logged.
    is_over_limit: bool,
}

impl RegistrationWatcher {
    /// Returns a watcher that requests a manifest no more often than `min_distance`.
    pub(crate) fn new(
        lookups: Lookups,
        connection: Connection,
        stream: String,
        log: Log,
        min_distance: Duration,
    ) -> Self {
        Self {
            lookups,
            connection,
            stream,
            log,
            planner: ReapplyPlanner::new(min_distance),
            watches: BTreeMap::new(),
            tasks: JoinSet::new(),
            is_over_limit: false,
        }
    }

    /// Sends the names of outdated manifests until stopped.
    pub(crate) async fn run(
        mut self,
        outdated: mpsc::Sender<String>,
        mut stopped: watch::Receiver<bool>,
    ) {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.follow(outdated) => {}
        }
    }

    /// Returns only when the receiver is gone.
    async fn follow(&mut self, sender: mpsc::Sender<String>) {
        let (results, mut received) = mpsc::channel(MAX_WATCHED);
        let lookups = self.lookups.clone();
        loop {
            let manifests = lookups.all();
            let now = Instant::now();
            let outdated = self.planner.outdated(&manifests);
            let is_due = |due: &Option<Instant>| due.is_none_or(|due| due <= now);
            if let Some((manifest, _)) = outdated.iter().find(|(_, due)| is_due(due)) {
                if let Some(manifest_lookups) = manifests.get(manifest) {
                    self.planner.mark_requested(manifest, manifest_lookups, now);
                }
                if sender.send(manifest.clone()).await.is_err() {
                    return;
                }
                continue;
            }
            let next = outdated.values().flatten().min().copied();
            tokio::select! {
                () = lookups.0.changed.notified() => self.reconcile(&results),
                Some((query, digest)) = received.recv() => {
                    // An ended watch may still have sent a result.
                    if self.watches.contains_key(&query) {
                        self.planner.current.insert(query, digest);
                    }
                }
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }

    /// Starts and ends watches so that they match the recorded queries.
    fn reconcile(&mut self, results: &mpsc::Sender<(Query, Digest)>) {
        let manifests = self.lookups.all();
        let wanted: BTreeSet<Query> = manifests
            .values()
            .flat_map(|manifest_lookups| manifest_lookups.found.keys().cloned())
            .collect();
        let is_over_limit = wanted.len() > MAX_WATCHED;
        if is_over_limit && !self.is_over_limit {
            let text = "Not all lookups of services are watched, there are too many";
            let line = Line::new(Level::Warn, text);
            self.log.line(
                &line
                    .with("lookups", wanted.len())
                    .with("watched", MAX_WATCHED),
            );
        }
        self.is_over_limit = is_over_limit;
        let wanted: BTreeSet<Query> = wanted.into_iter().take(MAX_WATCHED).collect();
        self.watches.retain(|query, task| {
            let is_wanted = wanted.contains(query);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        // Reap ended tasks.
        while self.tasks.try_join_next().is_some() {}
        for query in &wanted {
            if !self.watches.contains_key(query) {
                let watch = QueryWatch {
                    connection: self.connection.clone(),
                    stream: self.stream.clone(),
                    query: query.clone(),
                    log: self.log.clone(),
                };
                let task = self.tasks.spawn(watch.run(results.clone()));
                self.watches.insert(query.clone(), task);
            }
        }
        self.planner.retain(&manifests, &wanted);
    }
}

/// Watch of one query.
struct QueryWatch {
    connection: Connection,
    stream: String,
    query: Query,
    log: Log,
}

impl QueryWatch {
    /// Sends the digest of the result whenever it may have changed, until the receiver is gone.
    async fn run(self, results: mpsc::Sender<(Query, Digest)>) {
        let mut state = self.connection.state();
        let mut failures = 0;
        let mut last_logged: Option<Instant> = None;
        loop {
            if state.wait_for(|state| state.is_up()).await.is_err() {
                return;
            }
            let query = self.query.each_ref().map(String::as_str);
            let watch = self.connection.watch_registrations(&self.stream, query);
            match watch.await {
                // A watch survives reconnects; it ends with the connection.
                Ok(watch) => return self.listen(watch, &results).await,
                Err(error) => {
                    // Outages are in the connection log.
                    let is_due = last_logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
                    if is_due && !matches!(error, NatsError::Closed) {
                        let line = Line::new(Level::Warn, "Could not watch services");
                        self.log.line(&line.with("error", &error));
                        last_logged = Some(Instant::now());
                    }
                }
            }
            sleep(backoff::delay(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn listen(&self, mut watch: Watch, results: &mpsc::Sender<(Query, Digest)>) {
        // The current result is always sent: it may have changed since the lookup.
        let mut due = Some(Instant::now() + COLLECT_DELAY);
        loop {
            tokio::select! {
                change = watch.next() => {
                    match change {
                        None => return,
                        Some(Change::Denied(denial)) => {
                            let line = Line::new(Level::Warn, "Could not watch services");
                            self.log.line(&line.with("error", &denial));
                            continue;
                        }
                        Some(_) => {}
                    }
                    due.get_or_insert_with(|| Instant::now() + COLLECT_DELAY);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if !watch.is_current() {
                        // The watch has not read all entries yet.
                        due = Some(Instant::now() + COLLECT_DELAY);
                    } else if let Some(digest) = digest_of(watch.entries())
                        && results.send((self.query.clone(), digest)).await.is_err()
                    {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::registration::Port;

    fn query(service: &str) -> Query {
        ["prod", "http", service, "*"].map(str::to_owned)
    }

    fn state(ports: &[i64]) -> Digest {
        let entries: Vec<Entry> = ports
            .iter()
            .map(|port| Entry {
                cluster: "prod".into(),
                port: Port::Number(*port),
                ..Entry::default()
            })
            .collect();
        digest_of(&entries).unwrap()
    }

    /// Records the result of one run.
    fn found(lookups: &Lookups, manifest: &str, service: &str, found: Option<Digest>) {
        let recorder = LookupRecorder::default();
        recorder.record(query(service), found);
        lookups.record_run(manifest, None, &recorder, true);
    }

    fn names(planner: &ReapplyPlanner, lookups: &Lookups) -> Vec<String> {
        planner.outdated(&lookups.all()).into_keys().collect()
    }

    #[test]
    fn a_digest_does_not_depend_on_the_order() {
        assert_eq!(state(&[80, 81]), state(&[81, 80]));
        assert_ne!(state(&[80]), state(&[80, 81]));
        assert_ne!(state(&[]), state(&[80]));
    }

    #[tokio::test]
    async fn an_outdated_manifest_is_requested_once() {
        let (lookups, mut planner) = (Lookups::default(), ReapplyPlanner::new(COLLECT_DELAY));
        found(&lookups, "lb", "web", Some(state(&[80])));
        found(&lookups, "other", "mail", Some(state(&[25])));
        planner.current.insert(query("web"), state(&[80]));
        assert_eq!(names(&planner, &lookups), [""; 0]);
        planner.current.insert(query("web"), state(&[80, 81]));
        assert_eq!(names(&planner, &lookups), ["lb"]);
        let all = lookups.all();
        planner.mark_requested("lb", all.get("lb").unwrap(), Instant::now());
        assert_eq!(names(&planner, &lookups), [""; 0], "it was requested");
        found(&lookups, "lb", "web", Some(state(&[80, 81])));
        assert_eq!(names(&planner, &lookups), [""; 0]);
        planner.current.insert(query("web"), state(&[80]));
        assert_eq!(names(&planner, &lookups), ["lb"], "it went back");
    }

    #[tokio::test]
    async fn a_run_whose_results_never_match_is_not_repeated() {
        let (lookups, mut planner) = (Lookups::default(), ReapplyPlanner::new(COLLECT_DELAY));
        for result in [None, Some(state(&[7]))] {
            found(&lookups, "lb", "web", result);
            planner.current.insert(query("web"), state(&[80]));
            let all = lookups.all();
            planner.mark_requested("lb", all.get("lb").unwrap(), Instant::now());
            assert_eq!(names(&planner, &lookups), [""; 0]);
        }
    }

    #[tokio::test]
    async fn two_requests_for_a_manifest_are_min_distance_apart() {
        let min_distance = Duration::from_secs(30);
        let (lookups, mut planner) = (Lookups::default(), ReapplyPlanner::new(min_distance));
        found(&lookups, "lb", "web", Some(state(&[80])));
        planner.current.insert(query("web"), state(&[]));
        let due = planner.outdated(&lookups.all());
        assert_eq!(due.get("lb"), Some(&None), "the first waits for nothing");
        let now = Instant::now();
        let all = lookups.all();
        planner.mark_requested("lb", all.get("lb").unwrap(), now);
        planner.current.insert(query("web"), state(&[81]));
        let due = planner.outdated(&lookups.all());
        assert_eq!(due.get("lb"), Some(&Some(now + min_distance)));
    }

    #[test]
    fn an_incomplete_run_keeps_earlier_queries() {
        let lookups = Lookups::default();
        found(&lookups, "lb", "web", Some(state(&[80])));
        let queries = || lookups.all().get("lb").map(|it| it.found.len());
        lookups.record_run("lb", None, &LookupRecorder::default(), false);
        assert_eq!(queries(), Some(1));
        lookups.record_run("lb", None, &LookupRecorder::default(), true);
        assert_eq!(queries(), None);
    }

    #[test]
    fn the_bundles_of_an_older_assignment_are_removed() {
        let lookups = Lookups::default();
        let recorder = LookupRecorder::default();
        recorder.record(query("web"), None);
        found(&lookups, "file", "web", None);
        lookups.record_run("bundle/1", Some(1), &recorder, true);
        lookups.record_run("bundle/2", Some(2), &recorder, true);
        let known: Vec<String> = lookups.all().into_keys().collect();
        assert_eq!(known, ["bundle/2", "file"]);
    }

    #[test]
    fn a_repeated_query_keeps_its_first_result() {
        let recorder = LookupRecorder::default();
        recorder.record(query("web"), Some(state(&[80])));
        recorder.record(query("web"), Some(state(&[])));
        let [cluster, protocol, service, _] = query("web");
        recorder.record([cluster, protocol, service, String::new()], None);
        let recorded = recorder.0.lock().clone();
        let expected = (query("web"), Some(state(&[80])));
        assert_eq!(recorded, Results::from([expected]));
    }

    #[test]
    fn the_queries_of_one_run_are_bounded() {
        let recorder = LookupRecorder::default();
        for number in 0..MAX_RECORDED + 9 {
            recorder.record(query(&format!("s{number}")), None);
        }
        assert_eq!(recorder.0.lock().len(), MAX_RECORDED);
    }
}
