//! Assignments: applies the manifests that the fleet controller assigned to this node, and reports
//! the result.
//!
//! Reads the key of this node from the KV bucket whenever it may have changed. The assignment and
//! its bundles are kept on disk, so that the node converges also while NATS is unreachable or after
//! its storage was lost: the assignment ends only if its key was removed in the incarnation of the
//! fleet that the assignment is of. Needs no consumer on the server: a change that was missed is
//! found at the next read.

mod acceptance;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::bundle_cache::{BundleCache, CachedBundle};
use super::manifest_watch::{FetchError, fetch_object};
use super::node::{Node, Problem};
use super::run::{RunResult, RunTask};
use super::schedule::execute_queued;
use super::trust::Requester;
use ccm_core::engine::{Level, Mode};
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::drift::{Drift, ReportSource, UncheckedResource};
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{Assignment, BundleRef, NodeReport, REPORT, Refusal};
use ccm_core::model::run::{RunOutcome, RunSummary, Trigger};
use ccm_core::run::Request;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::system::files::{self, Durability};
use ccm_nats::streams::{MANIFESTS, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects, backoff};
use ccm_value::json;

/// Longest assignment or report on disk.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Most attempts to find a bundle that does not exist; a replica may be behind.
const MAX_LOOKUPS: usize = 4;

/// Most drifted resources in a report; the summary counts all.
const MAX_DRIFT: usize = 500;

/// Largest size of all diffs in a report, but for the last one.
const MAX_DIFFS: usize = 64 * 1024;

/// Start of the message of a drift that a health check found.
const HEALTH_CHECK: &str = "health check status";

/// When to apply an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    Always,
    IfNew,
}

/// What makes an assignment different from the one before it: an unsigned one may have the same
/// generation.
#[derive(Clone, Debug, PartialEq)]
struct AssignmentId {
    incarnation: Option<Incarnation>,
    generation: u64,
    signature: Option<AssignmentSignature>,
}

impl AssignmentId {
    fn of(assignment: &Assignment) -> Self {
        Self {
            incarnation: assignment.incarnation.clone(),
            generation: assignment.generation,
            signature: assignment.signature.clone(),
        }
    }
}

/// Why a bundle was not applied or a report not written.
#[derive(Debug, thiserror::Error)]
enum AssignmentError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("unexpected digest {0}")]
    Digest(String),
    #[error(transparent)]
    Refused(#[from] super::run_queue::Refusal),
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// Why the assignment could not be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error("the node has no assignment that it accepts")]
    NotAssigned,
    #[error("the assignment of generation {0} was not applied yet")]
    NotApplied(u64),
    #[error("{0}")]
    Failed(String),
}

/// Channel for the result of a check.
pub(crate) type CheckReply = oneshot::Sender<Result<NodeReport, CheckError>>;

/// Results of all bundles of an assignment.
#[derive(Default)]
struct BundleResults {
    worst: Option<RunSummary>,
    drift: Vec<Drift>,
    unchecked: Vec<UncheckedResource>,
    /// Why a bundle was not run.
    error: String,
}

impl BundleResults {
    fn add(&mut self, result: RunResult) {
        let RunResult {
            run,
            events,
            mut diffs,
            ..
        } = result;
        for event in &events {
            let diff = diffs.remove(&event.event_id).unwrap_or_default();
            let shown: usize = self.drift.iter().map(|it| it.diff.len()).sum();
            let diff = if shown < MAX_DIFFS { diff.as_str() } else { "" };
            self.drift.extend(Drift::from_event(event, run.noop, diff));
            self.unchecked
                .extend(UncheckedResource::from_event(event, run.noop));
        }
        self.drift.truncate(MAX_DRIFT);
        self.unchecked.truncate(MAX_DRIFT);
        let is_worse = |worst: &RunSummary| rank(&run) > rank(worst);
        if self.worst.as_ref().is_none_or(is_worse) {
            self.worst = Some(run);
        }
    }
}

impl AssignmentError {
    /// Reports whether to wait for the bundle after so many attempts, instead of reporting a failure.
    fn is_temporary(&self, attempts: usize) -> bool {
        match self {
            Self::Fetch(err) => err.is_temporary() || (err.is_missing() && attempts < MAX_LOOKUPS),
            Self::Digest(_) | Self::Refused(_) | Self::Document(_) | Self::Nats(_) => false,
        }
    }
}

/// Assignment of a node, its state and its report.
pub(crate) struct Assignments {
    node: Arc<Node>,
    connection: Connection,
    subjects: Subjects,
    cache: BundleCache,
    /// The assignment applied since the agent started.
    followed: Option<AssignmentId>,
    /// Failed attempts to fetch the bundles of the assignment, and when to try again.
    waiting: Option<(usize, Instant)>,
    /// Last report, and whether it is published.
    report: Option<(NodeReport, bool)>,
    /// Last refusal since the agent started, so that it is logged once.
    refused: Option<Refusal>,
}

impl Assignments {
    pub(crate) fn new(
        node: Arc<Node>,
        connection: Connection,
        subjects: Subjects,
        cache: BundleCache,
    ) -> Self {
        let report = read_document(&node.identity.state_dir.join("report.json"));
        Self {
            node,
            connection,
            subjects,
            cache,
            followed: None,
            waiting: None,
            // NATS may have been unreachable when it was written.
            report: report.map(|report| (report, false)),
            refused: None,
        }
    }

    /// Applies the assignment and publishes the report.
    pub(crate) async fn follow(&mut self, follow: Follow) {
        self.node.refresh_signers().await;
        if let Some((assignment, requester)) = self.current().await
            && (follow == Follow::Always || self.is_new(&assignment))
            && self.node.services.pause.current().is_none()
        {
            self.converge(assignment, &requester, Trigger::Assignment)
                .await;
        }
        self.publish_report().await;
    }

    /// Returns when to try again to fetch a bundle.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.waiting.map(|(_, at)| at)
    }

    /// Reports whether an assignment was not applied yet.
    fn is_new(&self, assignment: &Assignment) -> bool {
        self.followed != Some(AssignmentId::of(assignment))
    }

    /// Applies the assignment again if one of its bundles is this manifest, whose looked-up
    /// services have changed.
    pub(crate) async fn reapply(&mut self, manifest: &str) {
        if let Some((assignment, requester)) = self.last_accepted()
            && assignment
                .manifests
                .iter()
                .any(|it| source_of(it) == manifest)
            && self.node.services.pause.current().is_none()
        {
            self.converge(assignment, &requester, Trigger::Registration)
                .await;
            self.publish_report().await;
        }
    }

    /// Runs the health checks of the last accepted assignment, and applies it if one is critical. A
    /// noop assignment is only checked.
    pub(crate) async fn check_health(&mut self) {
        let Some((assignment, requester)) = self.last_accepted() else {
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
                &requester,
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
        let may_remediate = !assignment.noop && self.node.services.pause.current().is_none();
        if may_remediate && !critical.is_empty() {
            for bundle in &critical {
                self.node.services.metrics.remediated(bundle);
            }
            self.converge(assignment, &requester, Trigger::Remediation)
                .await;
            self.publish_report().await;
        }
    }

    /// Returns the report of a node that has not applied any assignment.
    fn empty_report(&self) -> NodeReport {
        NodeReport {
            protocol: REPORT.into(),
            identity: self.node.identity.name.clone(),
            generation: 0,
            incarnation: None,
            manifests: Vec::new(),
            run: None,
            drift: Vec::new(),
            unchecked: Vec::new(),
            source: ReportSource::Run,
            error: String::new(),
            refusal: None,
            timestamp: self.node.services.clock.now(),
        }
    }

    /// Fetches the bundles of an assignment that are not cached. Returns whether to go on; otherwise a
    /// retry is due later, and the assignment is neither applied nor reported as failed.
    async fn fetch_bundles(&mut self, assignment: &Assignment) -> bool {
        let attempts = self.waiting.map_or(0, |(attempts, _)| attempts);
        for bundle in &assignment.manifests {
            let Err(err) = self.bundle(&source_of(bundle), bundle).await else {
                continue;
            };
            if !err.is_temporary(attempts) {
                continue;
            }
            let reason = format!("waiting for the bundle {}: {err}", bundle.object());
            if attempts == 0 {
                let fields = [("bundle", bundle.object()), ("error", err.to_string())];
                self.node.log(Level::Warn, "Waiting for a bundle", &fields);
            }
            self.node.set_problem(Problem::Bundle, Some(reason));
            self.waiting = Some((attempts + 1, Instant::now() + backoff::delay(attempts)));
            self.followed = None;
            return false;
        }
        self.waiting = None;
        self.node.set_problem(Problem::Bundle, None);
        true
    }

    async fn converge(&mut self, assignment: Assignment, requester: &Requester, trigger: Trigger) {
        if !self.fetch_bundles(&assignment).await {
            return;
        }
        let slot = assignment
            .governor
            .as_ref()
            .filter(|_| !self.was_applied(&assignment));
        let mode = Mode {
            noop: assignment.noop,
            diff: assignment.noop,
            ..Mode::default()
        };
        let results = self
            .run_all(&assignment, requester, mode, slot, trigger)
            .await;
        self.followed = Some(AssignmentId::of(&assignment));
        self.node.set_generation(assignment.generation);
        self.store_report(NodeReport {
            protocol: REPORT.into(),
            identity: self.node.identity.name.clone(),
            generation: assignment.generation,
            incarnation: assignment.incarnation,
            manifests: assignment.manifests,
            run: results.worst,
            drift: self.with_known_start(results.drift),
            unchecked: results.unchecked,
            source: ReportSource::Run,
            error: results.error,
            refusal: self.refused.clone(),
            timestamp: self.node.services.clock.now(),
        });
    }

    /// Compares the node with its assignment in noop mode, and stores and publishes the drift. Reports
    /// only on an assignment that was applied.
    pub(crate) async fn check(&mut self) -> Result<NodeReport, CheckError> {
        let (assignment, requester) = self.current().await.ok_or(CheckError::NotAssigned)?;
        let generation = assignment.generation;
        let report = self.report.as_ref().map(|(report, _)| report);
        let report = report
            .filter(|it| is_about(it, &assignment))
            .cloned()
            .ok_or(CheckError::NotApplied(generation))?;
        let mode = Mode {
            noop: true,
            diff: true,
            ..Mode::default()
        };
        let mut results = self
            .run_all(&assignment, &requester, mode, None, Trigger::Request)
            .await;
        let failed = results.worst.as_ref().filter(|run| !run.error.is_empty());
        if let Some(run) = failed {
            results.error.clone_from(&run.error);
        }
        if !results.error.is_empty() {
            return Err(CheckError::Failed(results.error));
        }
        let mut drift = self.with_known_start(results.drift);
        let kept = report.drift.iter().filter(|known| {
            let is_unchecked = results.unchecked.iter().any(|it| it.is_of(known));
            let is_found = drift.iter().any(|it| it.is_same_resource(known));
            // A check runs no health checks.
            !is_found && (is_unchecked || known.message.starts_with(HEALTH_CHECK))
        });
        let kept: Vec<Drift> = kept.cloned().collect();
        drift.extend(kept);
        drift.truncate(MAX_DRIFT);
        self.store_report(NodeReport {
            drift,
            unchecked: results.unchecked,
            source: ReportSource::Check,
            timestamp: self.node.services.clock.now(),
            ..report.clone()
        });
        self.publish_report().await;
        let report = self.report.as_ref().map(|(report, _)| report.clone());
        report.ok_or(CheckError::NotApplied(generation))
    }

    /// Runs all bundles of an assignment.
    async fn run_all(
        &self,
        assignment: &Assignment,
        requester: &Requester,
        mode: Mode,
        slot: Option<&GovernorClaim>,
        trigger: Trigger,
    ) -> BundleResults {
        let mut results = BundleResults::default();
        for bundle in &assignment.manifests {
            let run = self.run(assignment, requester, bundle, mode, slot, trigger);
            match run.await {
                Ok(result) => results.add(result),
                Err(reason) => {
                    let fields = [("bundle", bundle.object()), ("error", reason.to_string())];
                    self.node
                        .log(Level::Error, "Could not apply a bundle", &fields);
                    results.error = format!("{}: {reason}", bundle.name);
                }
            }
        }
        results
    }

    fn store_report(&mut self, report: NodeReport) {
        self.write_document("report.json", &report);
        self.report = Some((report, false));
    }

    async fn run(
        &self,
        assignment: &Assignment,
        requester: &Requester,
        bundle: &BundleRef,
        mode: Mode,
        governor: Option<&GovernorClaim>,
        trigger: Trigger,
    ) -> Result<RunResult, AssignmentError> {
        let source = source_of(bundle);
        let cached = self.bundle(&source, bundle).await?;
        let manifest = ManifestSource::Copy {
            manifest: cached.manifest,
            display_name: source,
        };
        let task = RunTask {
            request: Request {
                data: assignment.data.clone(),
                governor: governor.cloned(),
                trigger,
                generation: Some(assignment.generation),
                ..Request::new(self.node.next_id(), manifest, mode)
            },
            requester: requester.clone(),
        };
        Ok(execute_queued(&self.node, task).await?)
    }

    /// Reports whether this assignment was applied completely, also before a restart.
    fn was_applied(&self, assignment: &Assignment) -> bool {
        let ended = |report: &NodeReport| {
            let run = report.run.as_ref();
            report.error.is_empty() && run.is_some_and(|run| run.error.is_empty())
        };
        let report = self.report.as_ref().map(|(report, _)| report);
        report.is_some_and(|report| is_about(report, assignment) && ended(report))
    }

    /// Returns a bundle from the cache, after fetching it if need be.
    async fn bundle(
        &self,
        source: &str,
        bundle: &BundleRef,
    ) -> Result<CachedBundle, AssignmentError> {
        let has_digest = |cached: &CachedBundle| cached.digest == bundle.digest.as_str();
        if let Some(cached) = self.cached(source).await?.filter(has_digest) {
            return Ok(cached);
        }
        let _lock = self.cache.fetching.lock().await;
        // Another task may have fetched it meanwhile.
        if let Some(cached) = self.cached(source).await?.filter(has_digest) {
            return Ok(cached);
        }
        let object = bundle.object();
        let cached = fetch_object(&self.cache, &self.connection, MANIFESTS, &object).await?;
        // The store verified the digest of the object; the assignment has its own.
        if !has_digest(&cached) {
            return Err(AssignmentError::Digest(cached.digest));
        }
        Ok(cached)
    }

    /// Returns a bundle from the cache, after verifying its files.
    async fn cached(&self, source: &str) -> Result<Option<CachedBundle>, FetchError> {
        let (cache, source) = (self.cache.clone(), source.to_owned());
        Ok(tokio::task::spawn_blocking(move || cache.find(&source)).await?)
    }

    /// Returns the drift with the start of each known one from the last report.
    fn with_known_start(&self, mut drift: Vec<Drift>) -> Vec<Drift> {
        let before = self.report.as_ref().map(|(report, _)| &report.drift);
        for item in &mut drift {
            let mut known = before.into_iter().flatten();
            if let Some(known) = known.find(|it| it.is_same_resource(item)) {
                item.since = known.since;
            }
        }
        drift
    }

    /// Publishes the report, unless that was done.
    async fn publish_report(&mut self) {
        let Some((report, is_published @ false)) = &mut self.report else {
            return;
        };
        if !self.connection.is_up() {
            return;
        }
        let key = self.subjects.key(&self.node.identity.name.token());
        let publishing = async {
            let text = json::compact(report)?;
            let bucket = self.connection.bucket(REPORTED).await?;
            Ok::<_, AssignmentError>(bucket.put(&key, text.into()).await?)
        };
        match publishing.await {
            Ok(_) => *is_published = true,
            Err(err) => self.log_error("Could not publish the report", &err),
        }
    }

    fn write_document(&self, name: &str, document: &impl serde::Serialize) {
        let text = match json::compact(document) {
            Ok(text) => text,
            Err(err) => {
                return self.log_error("Could not write the assignment or report to disk", &err);
            }
        };
        let file = self.file(name);
        if let Err(err) = files::write_private(&file, text.as_bytes(), Durability::Content) {
            self.log_error("Could not write the assignment or report to disk", &err);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.identity.state_dir.join(name)
    }

    fn log_error(&self, text: &str, error: &dyn fmt::Display) {
        let fields = [("error", error.to_string())];
        self.node.log(Level::Warn, text, &fields);
    }
}

fn read_document<T: serde::de::DeserializeOwned>(file: &std::path::Path) -> Option<T> {
    let text = files::read_to_string(file, MAX_BYTES).ok()?;
    serde_json::from_str(&text).ok()
}

/// Reports whether a report is about this assignment.
fn is_about(report: &NodeReport, assignment: &Assignment) -> bool {
    report.generation == assignment.generation
        && report.incarnation == assignment.incarnation
        && report.manifests == assignment.manifests
}

/// Returns the source name of a bundle.
fn source_of(bundle: &BundleRef) -> String {
    format!("obj://{MANIFESTS}/{}", bundle.object())
}

/// Ranks outcomes by severity.
fn rank(run: &RunSummary) -> u8 {
    match run.outcome {
        RunOutcome::Skipped => 0,
        RunOutcome::Stable => 1,
        RunOutcome::Noop => 2,
        RunOutcome::Changed => 3,
        RunOutcome::Failed => 4,
    }
}
