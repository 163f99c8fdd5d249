//! Lookups: a manifest that looked services up is applied again when those come, change or go.
//!
//! A run notes what it asked the registry and what it found. Every question is watched, and when
//! what stands in the registry is no longer what the run found, another run is asked for. That
//! compares states and follows no single message, so nothing is missed between a run and its watch,
//! and a service that is only registered anew, as it was, changes nothing.
//!
//! A registry in turmoil must not keep a node busy: changes are gathered for a moment, a manifest is
//! asked for no more often than the schedule's floor allows, and every state asks for one run, not
//! for another should that run have failed. How a run is made is the schedule's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use ccm_core::engine::{Level, Line};
use ccm_core::model::registration::Entry;
use ccm_core::run::nats_client::Bus;
use ccm_core::run::environment::registered_services;
use ccm_core::run::log::Log;
use ccm_core::system::Digest;
use ccm_nats::registration::{Change, Watch};
use ccm_nats::{Connection, NatsError, backoff};
use ccm_template::CallError;
use ccm_template::env::Registrations;
use ccm_value::{Value, json};

/// How many different questions are watched.
const MOST_WATCHED: usize = 32;

/// How many a run may note. One that asks more is not watched in all of them.
const MOST_NOTED: usize = 64;

/// How long changes are gathered before anyone hears of them.
const GATHER: Duration = Duration::from_secs(2);

/// How often the same trouble is told.
const REMIND: Duration = Duration::from_secs(60);

/// A question: cluster, protocol, service and address.
type Words = [String; 4];

/// What was found, as far as somebody could be asked.
type Found = BTreeMap<Words, Option<Digest>>;

/// What one run looked up; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Found>>);

impl Notes {
    /// Returns a function for templates that notes what it is asked.
    pub fn taking(&self, bus: Arc<dyn NatsClient>, stream: String) -> Registrations {
        let notes = self.clone();
        Arc::new(move |words| {
            let found = registered_services(&*bus, &stream, words);
            let digest = found.as_deref().ok().and_then(digest_of);
            notes.note(words.map(str::to_owned), digest);
            let found = found.map_err(CallError::new)?;
            Ok(found.iter().map(Entry::to_value).collect::<Value>())
        })
    }

    /// Notes what was found first: should the same question get another answer later in the run,
    /// the run as a whole is out of date.
    fn note(&self, words: Words, found: Option<Digest>) {
        let any = |word: String| if word.is_empty() { "*".into() } else { word };
        let words = words.map(any);
        let mut noted = self.0.lock();
        if noted.len() < MOST_NOTED || noted.contains_key(&words) {
            noted.entry(words).or_insert(found);
        }
    }
}

/// Returns what tells two states of the registry apart, whatever the order.
fn digest_of<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> Option<Digest> {
    let lines: Result<BTreeSet<String>, _> = entries.into_iter().map(json::compact).collect();
    let lines: Vec<String> = lines.ok()?.into_iter().collect();
    Some(Digest::of(lines.join("\n").as_bytes()))
}

/// What the manifests of a node looked up; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Lookups(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By manifest.
    manifests: Mutex<BTreeMap<String, Looked>>,
    changed: Notify,
}

#[derive(Clone, Debug)]
struct Looked {
    /// The generation of the assignment that the manifest belongs to.
    generation: Option<u64>,
    found: Found,
}

impl Lookups {
    /// Takes what a run of a manifest looked up. One that ended early may have had more to ask.
    pub fn settle(&self, manifest: &str, generation: Option<u64>, notes: &Notes, is_whole: bool) {
        let noted = notes.0.lock().clone();
        let mut manifests = self.0.manifests.lock();
        if generation.is_some() {
            // What belongs to an older assignment is not applied any more.
            manifests.retain(|_, it| it.generation.is_none() || it.generation == generation);
        }
        let mut found = match manifests.remove(manifest) {
            Some(before) if !is_whole => before.found,
            _ => Found::new(),
        };
        found.extend(noted);
        if !found.is_empty() {
            let looked = Looked { generation, found };
            manifests.insert(manifest.into(), looked);
        }
        drop(manifests);
        self.0.changed.notify_one();
    }

    fn all(&self) -> BTreeMap<String, Looked> {
        self.0.manifests.lock().clone()
    }
}

/// Decides which manifests are to be applied again. Knows neither the bus nor a clock.
#[derive(Debug)]
struct Judge {
    /// The least time between two requests for one manifest.
    floor: Duration,
    /// What stands, for each question that is watched.
    standing: BTreeMap<Words, Digest>,
    /// For which state each manifest was last asked for, and when.
    asked: BTreeMap<String, (Found, Instant)>,
}

impl Judge {
    fn new(floor: Duration) -> Self {
        Self {
            floor,
            standing: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Forgets what nobody looks up any more.
    fn retain(&mut self, manifests: &BTreeMap<String, Looked>, watched: &BTreeSet<Words>) {
        self.standing.retain(|words, _| watched.contains(words));
        self.asked
            .retain(|manifest, _| manifests.contains_key(manifest));
    }

    /// Returns the manifests that found what no longer stands, and when each may be asked for.
    fn outdated(&self, manifests: &BTreeMap<String, Looked>) -> BTreeMap<String, Option<Instant>> {
        let is_outdated = |manifest: &str, looked: &Looked| {
            let asked = self.asked.get(manifest).map(|(state, _)| state);
            looked.found.iter().any(|(words, found)| {
                let standing = self.standing.get(words);
                let was_asked = asked.and_then(|state| state.get(words)?.as_ref());
                standing.is_some() && standing != found.as_ref() && standing != was_asked
            })
        };
        manifests
            .iter()
            .filter(|(manifest, looked)| is_outdated(manifest, looked))
            .map(|(manifest, _)| {
                let asked = self.asked.get(manifest);
                (manifest.clone(), asked.map(|(_, at)| *at + self.floor))
            })
            .collect()
    }

    /// Takes that a manifest is asked for now, because of what stands.
    fn ask(&mut self, manifest: &str, looked: &Looked, now: Instant) {
        let state = looked.found.keys().map(|words| {
            let standing = self.standing.get(words).cloned();
            (words.clone(), standing)
        });
        self.asked.insert(manifest.into(), (state.collect(), now));
    }
}

/// Watches what the manifests of a node looked up.
pub struct Keeper {
    lookups: Lookups,
    connection: Connection,
    stream: String,
    log: Log,
    judge: Judge,
    watches: BTreeMap<Words, AbortHandle>,
    tasks: JoinSet<()>,
    /// More was looked up than is watched, and that was told.
    is_over: bool,
}

impl Keeper {
    /// Returns a keeper that asks for a manifest no more often than `floor`.
    pub fn new(
        lookups: Lookups,
        connection: Connection,
        stream: String,
        log: Log,
        floor: Duration,
    ) -> Self {
        Self {
            lookups,
            connection,
            stream,
            log,
            judge: Judge::new(floor),
            watches: BTreeMap::new(),
            tasks: JoinSet::new(),
            is_over: false,
        }
    }

    /// Asks for manifests by their names until told to stop.
    pub async fn keep(mut self, ask: mpsc::Sender<String>, mut stopped: watch::Receiver<bool>) {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => {}
            () = self.follow(ask) => {}
        }
    }

    /// Returns only when nobody listens any more.
    async fn follow(&mut self, ask: mpsc::Sender<String>) {
        let (tell, mut told) = mpsc::channel(MOST_WATCHED);
        let lookups = self.lookups.clone();
        loop {
            let manifests = lookups.all();
            let now = Instant::now();
            let outdated = self.judge.outdated(&manifests);
            let is_due = |due: &Option<Instant>| due.is_none_or(|due| due <= now);
            if let Some((manifest, _)) = outdated.iter().find(|(_, due)| is_due(due)) {
                if let Some(looked) = manifests.get(manifest) {
                    self.judge.ask(manifest, looked, now);
                }
                if ask.send(manifest.clone()).await.is_err() {
                    return;
                }
                continue;
            }
            let next = outdated.values().flatten().min().copied();
            tokio::select! {
                () = lookups.0.changed.notified() => self.reconcile(&tell),
                Some((words, digest)) = told.recv() => {
                    // A watch that was ended meanwhile may still be heard.
                    if self.watches.contains_key(&words) {
                        self.judge.standing.insert(words, digest);
                    }
                }
                () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }

    /// Watches what is looked up, and nothing else.
    fn reconcile(&mut self, tell: &mpsc::Sender<(Words, Digest)>) {
        let manifests = self.lookups.all();
        let wanted: BTreeSet<Words> = manifests
            .values()
            .flat_map(|looked| looked.found.keys().cloned())
            .collect();
        let is_over = wanted.len() > MOST_WATCHED;
        if is_over && !self.is_over {
            let text = "Not all lookups of services are watched, there are too many";
            let line = Line::new(Level::Warn, text);
            self.log.line(
                &line
                    .with("lookups", wanted.len())
                    .with("watched", MOST_WATCHED),
            );
        }
        self.is_over = is_over;
        let wanted: BTreeSet<Words> = wanted.into_iter().take(MOST_WATCHED).collect();
        self.watches.retain(|words, task| {
            let is_wanted = wanted.contains(words);
            if !is_wanted {
                task.abort();
            }
            is_wanted
        });
        // Those that were ended are of no more interest.
        while self.tasks.try_join_next().is_some() {}
        for words in &wanted {
            if !self.watches.contains_key(words) {
                let watching = Watching {
                    connection: self.connection.clone(),
                    stream: self.stream.clone(),
                    words: words.clone(),
                    log: self.log.clone(),
                };
                let task = self.tasks.spawn(watching.run(tell.clone()));
                self.watches.insert(words.clone(), task);
            }
        }
        self.judge.retain(&manifests, &wanted);
    }
}

/// One question that is watched.
struct Watching {
    connection: Connection,
    stream: String,
    words: Words,
    log: Log,
}

impl Watching {
    /// Tells what stands, whenever that may have changed, until nobody listens.
    async fn run(self, tell: mpsc::Sender<(Words, Digest)>) {
        let mut link = self.connection.state();
        let mut failures = 0;
        let mut told: Option<Instant> = None;
        loop {
            if link.wait_for(|link| link.is_up()).await.is_err() {
                return;
            }
            let words = self.words.each_ref().map(String::as_str);
            let watching = self.connection.watch_registrations(&self.stream, words);
            match watching.await {
                // It outlives servers; its end is that of the connection.
                Ok(watch) => return self.listen(watch, &tell).await,
                Err(error) => {
                    // Outages are told by the connection itself.
                    let is_news = told.is_none_or(|at| at.elapsed() >= REMIND);
                    if is_news && !matches!(error, NatsError::Closed) {
                        let line = Line::new(Level::Warn, "Could not watch services");
                        self.log.line(&line.with("error", &error));
                        told = Some(Instant::now());
                    }
                }
            }
            sleep(backoff::delay(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn listen(&self, mut watch: Watch, tell: &mpsc::Sender<(Words, Digest)>) {
        // What stands now is told in any case: it may have changed since somebody looked it up.
        let mut due = Some(Instant::now() + GATHER);
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
                    due.get_or_insert_with(|| Instant::now() + GATHER);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if !watch.is_current() {
                        // In the middle of reading; half a state is none.
                        due = Some(Instant::now() + GATHER);
                    } else if let Some(digest) = digest_of(watch.entries())
                        && tell.send((self.words.clone(), digest)).await.is_err()
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

    fn words(service: &str) -> Words {
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

    /// Returns the lookups after a run of a manifest that found this.
    fn found(lookups: &Lookups, manifest: &str, service: &str, found: Option<Digest>) {
        let notes = Notes::default();
        notes.note(words(service), found);
        lookups.settle(manifest, None, &notes, true);
    }

    fn names(judge: &Judge, lookups: &Lookups) -> Vec<String> {
        judge.outdated(&lookups.all()).into_keys().collect()
    }

    #[test]
    fn a_state_is_the_same_in_whatever_order() {
        assert_eq!(state(&[80, 81]), state(&[81, 80]));
        assert_ne!(state(&[80]), state(&[80, 81]));
        assert_ne!(state(&[]), state(&[80]));
    }

    #[tokio::test]
    async fn a_manifest_that_found_something_else_is_asked_for_once() {
        let (lookups, mut judge) = (Lookups::default(), Judge::new(GATHER));
        found(&lookups, "lb", "web", Some(state(&[80])));
        found(&lookups, "other", "mail", Some(state(&[25])));
        judge.standing.insert(words("web"), state(&[80]));
        assert_eq!(names(&judge, &lookups), [""; 0]);
        judge.standing.insert(words("web"), state(&[80, 81]));
        assert_eq!(names(&judge, &lookups), ["lb"]);
        let all = lookups.all();
        judge.ask("lb", all.get("lb").unwrap(), Instant::now());
        assert_eq!(names(&judge, &lookups), [""; 0], "it was asked for");
        found(&lookups, "lb", "web", Some(state(&[80, 81])));
        assert_eq!(names(&judge, &lookups), [""; 0]);
        judge.standing.insert(words("web"), state(&[80]));
        assert_eq!(names(&judge, &lookups), ["lb"], "it went back");
    }

    #[tokio::test]
    async fn a_run_that_can_never_agree_is_not_repeated() {
        let (lookups, mut judge) = (Lookups::default(), Judge::new(GATHER));
        for result in [None, Some(state(&[7]))] {
            found(&lookups, "lb", "web", result);
            judge.standing.insert(words("web"), state(&[80]));
            let all = lookups.all();
            judge.ask("lb", all.get("lb").unwrap(), Instant::now());
            assert_eq!(names(&judge, &lookups), [""; 0]);
        }
    }

    #[tokio::test]
    async fn between_two_requests_for_a_manifest_lies_the_floor() {
        let floor = Duration::from_secs(30);
        let (lookups, mut judge) = (Lookups::default(), Judge::new(floor));
        found(&lookups, "lb", "web", Some(state(&[80])));
        judge.standing.insert(words("web"), state(&[]));
        let due = judge.outdated(&lookups.all());
        assert_eq!(due.get("lb"), Some(&None), "the first waits for nothing");
        let now = Instant::now();
        let all = lookups.all();
        judge.ask("lb", all.get("lb").unwrap(), now);
        judge.standing.insert(words("web"), state(&[81]));
        let due = judge.outdated(&lookups.all());
        assert_eq!(due.get("lb"), Some(&Some(now + floor)));
    }

    #[test]
    fn a_run_that_ended_early_keeps_what_was_watched() {
        let lookups = Lookups::default();
        found(&lookups, "lb", "web", Some(state(&[80])));
        let questions = || lookups.all().get("lb").map(|it| it.found.len());
        lookups.settle("lb", None, &Notes::default(), false);
        assert_eq!(questions(), Some(1));
        lookups.settle("lb", None, &Notes::default(), true);
        assert_eq!(questions(), None);
    }

    #[test]
    fn the_bundles_of_an_older_assignment_are_forgotten() {
        let lookups = Lookups::default();
        let notes = Notes::default();
        notes.note(words("web"), None);
        found(&lookups, "file", "web", None);
        lookups.settle("bundle/1", Some(1), &notes, true);
        lookups.settle("bundle/2", Some(2), &notes, true);
        let known: Vec<String> = lookups.all().into_keys().collect();
        assert_eq!(known, ["bundle/2", "file"]);
    }

    #[test]
    fn a_question_that_was_asked_twice_keeps_its_first_answer() {
        let notes = Notes::default();
        notes.note(words("web"), Some(state(&[80])));
        notes.note(words("web"), Some(state(&[])));
        let [cluster, protocol, service, _] = words("web");
        notes.note([cluster, protocol, service, String::new()], None);
        let noted = notes.0.lock().clone();
        let expected = (words("web"), Some(state(&[80])));
        assert_eq!(noted, Found::from([expected]));
    }

    #[test]
    fn what_one_run_may_note_is_bounded() {
        let notes = Notes::default();
        for number in 0..MOST_NOTED + 9 {
            notes.note(words(&format!("s{number}")), None);
        }
        assert_eq!(notes.0.lock().len(), MOST_NOTED);
    }
}
