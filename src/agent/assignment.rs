//! Assignments: what the fleet wants this node to be, followed level by level.
//!
//! Reads the one key that is this node's, whenever something may have changed; keeps it and its
//! bundles on disk, so that a node converges also while nobody can be asked; and writes what it
//! converged to. No consumer is kept on the servers, so nothing is lost while the node is away.

use std::path::PathBuf;
use std::sync::Arc;

use super::cache::{Cache, Copy};
use super::feed::fetch_object;
use super::node::Node;
use super::schedule::perform;
use super::trust::{Asker, Unfit};
use super::work::{Done, Order, What};
use crate::engine::{Level, Mode};
use crate::model::governor::Claim;
use crate::model::json;
use crate::model::node::{Assignment, BundleRef, Drift, REPORT, Report};
use crate::model::run::{RunOutcome, RunSummary, Trigger};
use crate::nats::streams::{DESIRED, MANIFESTS, REPORTED};
use crate::nats::{Connection, NatsError, Subjects};
use crate::system::files::{self, Durability};

/// No assignment or report on disk is larger.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How many resources a report names as drifted; the rest is only counted by the summary.
const MAX_DRIFT: usize = 500;

/// Whether an assignment that was followed already is followed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    Always,
    IfNew,
}

/// Follows the assignment of a node.
pub struct Assignments {
    node: Arc<Node>,
    connection: Connection,
    subjects: Subjects,
    cache: Cache,
    /// The generation that was followed since the agent started.
    followed: Option<u64>,
    /// What was last reported, and whether the bus has it.
    report: Option<(Report, bool)>,
}

impl Assignments {
    pub fn new(node: Arc<Node>, connection: Connection, subjects: Subjects, cache: Cache) -> Self {
        let report = read_document(&node.state_dir.join("report.json"));
        Self {
            node,
            connection,
            subjects,
            cache,
            followed: None,
            // The bus may have been away when it was written.
            report: report.map(|report| (report, false)),
        }
    }

    /// Converges to the assignment and reports.
    pub async fn follow(&mut self, check: Check) {
        if let Some((wanted, asker)) = self.wanted().await
            && (check == Check::Always || self.followed != Some(wanted.generation))
            && self.node.pause.current().is_none()
        {
            self.converge(wanted, &asker, Trigger::Assignment).await;
        }
        self.tell().await;
    }

    /// Converges again if a bundle of the assignment looked up what has changed since.
    pub async fn look_again(&mut self, manifest: &str) {
        if let Some((wanted, asker)) = self.last_seen()
            && wanted.manifests.iter().any(|it| source_of(it) == manifest)
            && self.node.pause.current().is_none()
        {
            self.converge(wanted, &asker, Trigger::Registration).await;
            self.tell().await;
        }
    }

    /// Runs the health checks of what this node last accepted, and converges anew if they find
    /// something critical. An assignment that only looks is not there to mend.
    pub async fn check_health(&mut self) {
        let Some((assignment, asker)) = self.last_seen() else {
            return;
        };
        let mut critical = Vec::new();
        for bundle in &assignment.manifests {
            let mode = Mode {
                health_check_only: true,
                ..Mode::default()
            };
            let run = self.run(
                &assignment,
                &asker,
                bundle,
                mode,
                None,
                Trigger::HealthCheck,
            );
            if let Ok(done) = run.await
                && done.run.summary.health_check_critical_count > 0
            {
                critical.push(bundle.object());
            }
        }
        let may_mend = !assignment.noop && self.node.pause.current().is_none();
        if may_mend && !critical.is_empty() {
            for bundle in &critical {
                self.node.metrics.remediated(bundle);
            }
            self.converge(assignment, &asker, Trigger::Remediation)
                .await;
            self.tell().await;
        }
    }

    /// Returns the assignment: the one on the bus, or the last one seen while the bus is away.
    async fn wanted(&self) -> Option<(Assignment, Asker)> {
        match self.ask().await {
            Ok(Some(text)) => match self.read(&text) {
                Ok((assignment, asker)) => {
                    self.keep("assignment.json", &assignment);
                    Some((assignment, asker))
                }
                Err(reason) => {
                    self.complain("Not following the assignment", &reason);
                    self.last_seen()
                }
            },
            Ok(None) => {
                // No longer assigned: forgotten here, too.
                let _ = files::remove(&self.file("assignment.json"));
                None
            }
            Err(NatsError::NoBucket(_)) => None,
            Err(NatsError::Denied(denial)) => {
                self.complain("Could not read the assignment", &denial.to_string());
                self.last_seen()
            }
            Err(_) => self.last_seen(),
        }
    }

    async fn ask(&self) -> Result<Option<bytes::Bytes>, NatsError> {
        if !self.connection.is_up() {
            return Err(NatsError::Closed);
        }
        let bucket = self.connection.bucket(DESIRED).await?;
        let key = self.subjects.key(&self.node.identity.token());
        Ok(bucket.get(&key).await?.map(|entry| entry.value))
    }

    /// Reads an assignment, if whoever stands for it may assign.
    fn read(&self, text: &[u8]) -> Result<(Assignment, Asker), String> {
        let assignment = serde_json::from_slice(text).map_err(|err| err.to_string())?;
        let asker = self.accept(&assignment).map_err(|err| err.to_string())?;
        Ok((assignment, asker))
    }

    fn accept(&self, assignment: &Assignment) -> Result<Asker, Unfit> {
        self.node.gatekeeper.accept(assignment, &self.node.identity)
    }

    /// Returns the last one seen, if it would still be followed.
    fn last_seen(&self) -> Option<(Assignment, Asker)> {
        let assignment = read_document(&self.file("assignment.json"))?;
        let asker = self.accept(&assignment).ok()?;
        Some((assignment, asker))
    }

    async fn converge(&mut self, assignment: Assignment, asker: &Asker, trigger: Trigger) {
        let mut worst: Option<RunSummary> = None;
        let mut drift = Vec::new();
        let mut error = String::new();
        let slot = assignment
            .governor
            .as_ref()
            .filter(|_| !self.came_through(assignment.generation));
        for bundle in &assignment.manifests {
            let mode = Mode {
                noop: assignment.noop,
                ..Mode::default()
            };
            let run = self.run(&assignment, asker, bundle, mode, slot, trigger);
            match run.await {
                Ok(Done { run, events, .. }) => {
                    drift.extend(events.iter().filter_map(|it| Drift::of(it, run.noop)));
                    let is_worse = |worst: &RunSummary| rank(&run) > rank(worst);
                    if worst.as_ref().is_none_or(is_worse) {
                        worst = Some(run);
                    }
                }
                Err(reason) => {
                    let fields = [("bundle", bundle.object()), ("error", reason.clone())];
                    self.node
                        .say(Level::Error, "Could not apply a bundle", &fields);
                    error = format!("{}: {reason}", bundle.name);
                }
            }
        }
        self.followed = Some(assignment.generation);
        self.node.set_generation(assignment.generation);
        self.remember_since(&mut drift);
        drift.truncate(MAX_DRIFT);
        let report = Report {
            protocol: REPORT.into(),
            identity: self.node.identity.clone(),
            generation: assignment.generation,
            manifests: assignment.manifests,
            run: worst,
            drift,
            error,
            timestamp: self.node.clock.now(),
        };
        self.keep("report.json", &report);
        self.report = Some((report, false));
    }

    async fn run(
        &self,
        assignment: &Assignment,
        asker: &Asker,
        bundle: &BundleRef,
        mode: Mode,
        governor: Option<&Claim>,
        trigger: Trigger,
    ) -> Result<Done, String> {
        let source = source_of(bundle);
        let copy = self.copy(&source, bundle).await?;
        let order = Order {
            run_id: self.node.next_id(),
            what: What::Copy {
                manifest: copy.manifest,
                shown: source,
            },
            mode,
            data: assignment.data.clone(),
            governor: governor.cloned(),
            trigger,
            generation: Some(assignment.generation),
            request_id: String::new(),
            caller: String::new(),
            asker: asker.clone(),
        };
        perform(&self.node, order)
            .await
            .map_err(|refusal| refusal.to_string())
    }

    /// Reports whether this generation was applied to its end, in this life of the agent or before.
    fn came_through(&self, generation: u64) -> bool {
        let ended = |report: &Report| {
            let run = report.run.as_ref();
            report.error.is_empty() && run.is_some_and(|run| run.error.is_empty())
        };
        self.report
            .as_ref()
            .is_some_and(|(report, _)| report.generation == generation && ended(report))
    }

    /// Returns the copy of a bundle, fetched if need be.
    async fn copy(&self, source: &str, bundle: &BundleRef) -> Result<Copy, String> {
        let promised = |copy: &Copy| copy.digest == bundle.digest.as_str();
        if let Some(copy) = self.cache.copy(source).filter(promised) {
            return Ok(copy);
        }
        let _turn = self.cache.fetching.lock().await;
        // Somebody else may have fetched it while we waited.
        if let Some(copy) = self.cache.copy(source).filter(promised) {
            return Ok(copy);
        }
        let object = bundle.object();
        let copy = fetch_object(&self.cache, &self.connection, MANIFESTS, &object).await?;
        // The object's own digest was checked; this one was promised.
        match promised(&copy) {
            true => Ok(copy),
            false => Err(format!("has the digest {}", copy.digest)),
        }
    }

    /// Keeps the time since when a resource has been drifting.
    fn remember_since(&self, drift: &mut [Drift]) {
        let Some((before, _)) = &self.report else {
            return;
        };
        for item in drift {
            let known = before.drift.iter().find(|it| it.is_about_same(item));
            if let Some(known) = known {
                item.since = known.since;
            }
        }
    }

    /// Writes the report to the bus, if that does not have it yet.
    async fn tell(&mut self) {
        let Some((report, is_told @ false)) = &mut self.report else {
            return;
        };
        if !self.connection.is_up() {
            return;
        }
        let key = self.subjects.key(&self.node.identity.token());
        let told = async {
            let text = json::compact(report).map_err(|err| err.to_string())?;
            let bucket = self.connection.bucket(REPORTED).await;
            let bucket = bucket.map_err(|err| err.to_string())?;
            bucket
                .put(&key, text.into())
                .await
                .map_err(|err| err.to_string())
        };
        match told.await {
            Ok(_) => *is_told = true,
            Err(err) => self.complain("Could not report", &err),
        }
    }

    fn keep(&self, name: &str, document: &impl serde::Serialize) {
        let text = match json::compact(document) {
            Ok(text) => text,
            Err(err) => return self.complain("Could not keep a document", &err.to_string()),
        };
        let file = self.file(name);
        if let Err(err) = files::write_private(&file, text.as_bytes(), Durability::Content) {
            self.complain("Could not keep a document", &err.to_string());
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.state_dir.join(name)
    }

    fn complain(&self, text: &str, error: &str) {
        self.node.say(Level::Warn, text, &[("error", error.into())]);
    }
}

fn read_document<T: serde::de::DeserializeOwned>(file: &std::path::Path) -> Option<T> {
    let text = files::read_to_string(file, MAX_BYTES).ok()?;
    serde_json::from_str(&text).ok()
}

/// Returns the name under which a bundle is applied.
fn source_of(bundle: &BundleRef) -> String {
    format!("obj://{MANIFESTS}/{}", bundle.object())
}

/// Orders outcomes by how much they matter.
fn rank(run: &RunSummary) -> u8 {
    match run.outcome {
        RunOutcome::Skipped => 0,
        RunOutcome::Stable => 1,
        RunOutcome::Noop => 2,
        RunOutcome::Changed => 3,
        RunOutcome::Failed => 4,
    }
}
