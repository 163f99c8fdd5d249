//! Assignments: what the fleet wants this node to be, followed level by level.
//!
//! Reads the one key that is this node's, whenever something may have changed; keeps it and its
//! bundles on disk, so that a node converges also while nobody can be asked; and writes what it
//! converged to. No consumer is kept on the servers, so nothing is lost while the node is away.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::bundle_cache::{BundleCache, Copy};
use super::manifest_watch::{Problem, fetch_object};
use super::node::Node;
use super::run::{RunResult, RunTask};
use super::schedule::perform;
use super::trust::loopback::LoopbackError;
use super::trust::{Requester, UntrustedAssignment, RolloutProofError};
use ccm_core::engine::{Level, Mode};
use ccm_core::model::decision::AssignmentSignature;
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::node::{Assignment, BundleRef, Drift, NodeReport, REPORT, Refusal};
use ccm_core::model::run::{RunOutcome, RunSummary, Trigger};
use ccm_core::run::Request;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::system::files::{self, Durability};
use ccm_nats::streams::{DESIRED, MANIFESTS, REPORTED};
use ccm_nats::{Connection, NatsError, Subjects};
use ccm_value::json;

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

/// Why an assignment is not followed.
#[derive(Debug, thiserror::Error)]
enum AssignmentRefusal {
    /// What it holds is not repeated: it may be a secret.
    #[error("the assignment can't be read beyond line {}, column {}", .0.line(), .0.column())]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    LoopbackError(#[from] LoopbackError),
    #[error(transparent)]
    UntrustedAssignment(#[from] UntrustedAssignment),
}

/// Why a bundle was not applied, or a report not written.
#[derive(Debug, thiserror::Error)]
enum AssignmentError {
    #[error(transparent)]
    Fetch(#[from] Problem),
    #[error("has the digest {0}")]
    Digest(String),
    #[error(transparent)]
    Refused(#[from] super::run_queue::Refusal),
    #[error(transparent)]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// Follows the assignment of a node.
pub struct Assignments {
    node: Arc<Node>,
    connection: Connection,
    subjects: Subjects,
    cache: BundleCache,
    /// What was followed since the agent started: its generation, and who stood for it.
    followed: Option<(u64, Option<AssignmentSignature>)>,
    /// What was last reported, and whether the bus has it.
    report: Option<(NodeReport, bool)>,
    /// What was refused last since the agent started, so that it is told once.
    refused: Option<Refusal>,
}

impl Assignments {
    pub fn new(node: Arc<Node>, connection: Connection, subjects: Subjects, cache: BundleCache) -> Self {
        let report = read_document(&node.identity.state_dir.join("report.json"));
        Self {
            node,
            connection,
            subjects,
            cache,
            followed: None,
            // The bus may have been away when it was written.
            report: report.map(|report| (report, false)),
            refused: None,
        }
    }

    /// Converges to the assignment and reports.
    pub async fn follow(&mut self, check: Check) {
        if let Some((wanted, requester)) = self.wanted().await
            && (check == Check::Always || self.is_new(&wanted))
            && self.node.services.pause.current().is_none()
        {
            self.converge(wanted, &requester, Trigger::Assignment).await;
        }
        self.tell().await;
    }

    /// Reports whether an assignment was not followed yet. Its generation alone does not tell: not
    /// everyone who can write one signs it.
    fn is_new(&self, wanted: &Assignment) -> bool {
        let followed = self.followed.as_ref();
        followed.is_none_or(|(generation, signature)| {
            *generation != wanted.generation || *signature != wanted.signature
        })
    }

    /// Converges again if a bundle of the assignment looked up what has changed since.
    pub async fn look_again(&mut self, manifest: &str) {
        if let Some((wanted, requester)) = self.last_seen()
            && wanted.manifests.iter().any(|it| source_of(it) == manifest)
            && self.node.services.pause.current().is_none()
        {
            self.converge(wanted, &requester, Trigger::Registration).await;
            self.tell().await;
        }
    }

    /// Runs the health checks of what this node last accepted, and converges anew if they find
    /// something critical. An assignment that only looks is not there to mend.
    pub async fn check_health(&mut self) {
        let Some((assignment, requester)) = self.last_seen() else {
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
        let may_mend = !assignment.noop && self.node.services.pause.current().is_none();
        if may_mend && !critical.is_empty() {
            for bundle in &critical {
                self.node.services.metrics.remediated(bundle);
            }
            self.converge(assignment, &requester, Trigger::Remediation)
                .await;
            self.tell().await;
        }
    }

    /// Returns the assignment: the one on the bus, or the last one seen while the bus is away.
    async fn wanted(&mut self) -> Option<(Assignment, Requester)> {
        match self.ask().await {
            Ok(Some(text)) => match self.read(&text).await {
                Ok((assignment, requester)) => {
                    self.keep("assignment.json", &assignment);
                    self.note_refusal(None);
                    Some((assignment, requester))
                }
                // The connection was lost meanwhile; that is no refusal.
                Err((_, AssignmentRefusal::LoopbackError(LoopbackError::Unknown(_)))) => self.last_seen(),
                Err((found, reason)) => {
                    self.refuse(found.as_ref(), &reason);
                    self.last_seen()
                }
            },
            Ok(None) => {
                // No longer assigned: forgotten here, too.
                let _ = files::remove(&self.file("assignment.json"));
                self.note_refusal(None);
                None
            }
            Err(NatsError::NoBucket(_)) => None,
            Err(NatsError::Denied(denial)) => {
                self.complain("Could not read the assignment", &denial);
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
        let key = self.subjects.key(&self.node.identity.name.token());
        Ok(bucket.get(&key).await?.map(|entry| entry.value))
    }

    /// Reads an assignment, if whoever stands for it may assign; else returns what could be read.
    async fn read(
        &self,
        text: &[u8],
    ) -> Result<(Assignment, Requester), (Option<Assignment>, AssignmentRefusal)> {
        let found: Assignment =
            serde_json::from_slice(text).map_err(|err| (None, AssignmentRefusal::from(err)))?;
        let checked = match &self.node.services.loopback_only {
            Some(loopback) => loopback.check().await.map_err(AssignmentRefusal::from),
            None => Ok(()),
        };
        match checked.and_then(|()| Ok(self.accept(&found)?)) {
            Ok(requester) => Ok((found, requester)),
            Err(reason) => Err((Some(found), reason)),
        }
    }

    fn accept(&self, assignment: &Assignment) -> Result<Requester, UntrustedAssignment> {
        let collective = self.subjects.collective();
        let mut decisions = assignment.signature.iter().flat_map(|it| it.decisions());
        if let Some(foreign) = decisions.find(|it| it.collective != *collective) {
            let unproven = RolloutProofError::Collective {
                rollout: foreign.rollout.clone(),
                collective: foreign.collective.clone(),
            };
            return Err(unproven.into());
        }
        self.node
            .services
            .authorizer
            .accept(assignment, &self.node.identity.name)
    }

    /// Returns the last one seen, if it would still be followed.
    fn last_seen(&self) -> Option<(Assignment, Requester)> {
        let loopback = self.node.services.loopback_only.as_ref();
        if loopback.is_some_and(|loopback| loopback.remote().is_some()) {
            return None;
        }
        let assignment = read_document(&self.file("assignment.json"))?;
        let requester = self.accept(&assignment).ok()?;
        Some((assignment, requester))
    }

    /// Tells everyone who looks at the node why its assignment is not followed.
    fn refuse(&mut self, found: Option<&Assignment>, reason: &AssignmentRefusal) {
        let signature = found.and_then(|found| found.signature.as_ref());
        let refusal = Refusal {
            time: self.node.services.clock.now(),
            what: Refusal::ASSIGNMENT.into(),
            generation: found.map(|found| found.generation),
            who: signature.map_or_else(String::new, |it| it.signer().to_owned()),
            reason: reason.to_string(),
        }
        .shortened();
        let is_repeated = |before: &Refusal| before.is_repeated_by(&refusal);
        if self.refused.as_ref().is_some_and(is_repeated) {
            return;
        }
        self.complain("Not following the assignment", &refusal.reason);
        self.node.services.refusals.add(refusal.clone());
        self.note_refusal(Some(refusal));
    }

    /// Puts into the report why the present assignment is not followed, or that it is.
    fn note_refusal(&mut self, refusal: Option<Refusal>) {
        self.refused.clone_from(&refusal);
        let before = self.report.as_ref().map(|(report, _)| report);
        if before.and_then(|report| report.refusal.as_ref()) == refusal.as_ref() {
            return;
        }
        let report = NodeReport {
            refusal,
            timestamp: self.node.services.clock.now(),
            ..before.cloned().unwrap_or_else(|| self.empty_report())
        };
        self.keep("report.json", &report);
        self.report = Some((report, false));
    }

    /// Returns the report of a node that has not followed anything yet.
    fn empty_report(&self) -> NodeReport {
        NodeReport {
            protocol: REPORT.into(),
            identity: self.node.identity.name.clone(),
            generation: 0,
            manifests: Vec::new(),
            run: None,
            drift: Vec::new(),
            error: String::new(),
            refusal: None,
            timestamp: self.node.services.clock.now(),
        }
    }

    async fn converge(&mut self, assignment: Assignment, requester: &Requester, trigger: Trigger) {
        let mut worst: Option<RunSummary> = None;
        let mut drift = Vec::new();
        let mut error = String::new();
        let slot = assignment
            .governor
            .as_ref()
            .filter(|_| !self.came_through(&assignment));
        for bundle in &assignment.manifests {
            let mode = Mode {
                noop: assignment.noop,
                ..Mode::default()
            };
            let run = self.run(&assignment, requester, bundle, mode, slot, trigger);
            match run.await {
                Ok(RunResult { run, events, .. }) => {
                    drift.extend(
                        events
                            .iter()
                            .filter_map(|it| Drift::from_event(it, run.noop)),
                    );
                    let is_worse = |worst: &RunSummary| rank(&run) > rank(worst);
                    if worst.as_ref().is_none_or(is_worse) {
                        worst = Some(run);
                    }
                }
                Err(reason) => {
                    let fields = [("bundle", bundle.object()), ("error", reason.to_string())];
                    self.node
                        .log(Level::Error, "Could not apply a bundle", &fields);
                    error = format!("{}: {reason}", bundle.name);
                }
            }
        }
        self.followed = Some((assignment.generation, assignment.signature));
        self.node.set_generation(assignment.generation);
        self.remember_since(&mut drift);
        drift.truncate(MAX_DRIFT);
        let report = NodeReport {
            protocol: REPORT.into(),
            identity: self.node.identity.name.clone(),
            generation: assignment.generation,
            manifests: assignment.manifests,
            run: worst,
            drift,
            error,
            refusal: self.refused.clone(),
            timestamp: self.node.services.clock.now(),
        };
        self.keep("report.json", &report);
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
        let copy = self.copy(&source, bundle).await?;
        let manifest = ManifestSource::Copy {
            manifest: copy.manifest,
            display_name: source,
        };
        let order = RunTask {
            request: Request {
                data: assignment.data.clone(),
                governor: governor.cloned(),
                trigger,
                generation: Some(assignment.generation),
                ..Request::new(self.node.next_id(), manifest, mode)
            },
            requester: requester.clone(),
        };
        Ok(perform(&self.node, order).await?)
    }

    /// Reports whether this assignment was applied to its end, in this life of the agent or before.
    fn came_through(&self, assignment: &Assignment) -> bool {
        let ended = |report: &NodeReport| {
            let run = report.run.as_ref();
            report.error.is_empty() && run.is_some_and(|run| run.error.is_empty())
        };
        self.report.as_ref().is_some_and(|(report, _)| {
            let Assignment {
                generation,
                manifests,
                ..
            } = assignment;
            report.generation == *generation && report.manifests == *manifests && ended(report)
        })
    }

    /// Returns the copy of a bundle, fetched if need be.
    async fn copy(&self, source: &str, bundle: &BundleRef) -> Result<Copy, AssignmentError> {
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
        if !promised(&copy) {
            return Err(AssignmentError::Digest(copy.digest));
        }
        Ok(copy)
    }

    /// Keeps the time since when a resource has been drifting.
    fn remember_since(&self, drift: &mut [Drift]) {
        let Some((before, _)) = &self.report else {
            return;
        };
        for item in drift {
            let known = before.drift.iter().find(|it| it.is_same_resource(item));
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
        let key = self.subjects.key(&self.node.identity.name.token());
        let told = async {
            let text = json::compact(report)?;
            let bucket = self.connection.bucket(REPORTED).await?;
            Ok::<_, AssignmentError>(bucket.put(&key, text.into()).await?)
        };
        match told.await {
            Ok(_) => *is_told = true,
            Err(err) => self.complain("Could not report", &err),
        }
    }

    fn keep(&self, name: &str, document: &impl serde::Serialize) {
        let text = match json::compact(document) {
            Ok(text) => text,
            Err(err) => return self.complain("Could not keep a document", &err),
        };
        let file = self.file(name);
        if let Err(err) = files::write_private(&file, text.as_bytes(), Durability::Content) {
            self.complain("Could not keep a document", &err);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.identity.state_dir.join(name)
    }

    fn complain(&self, text: &str, error: &dyn fmt::Display) {
        let fields = [("error", error.to_string())];
        self.node.log(Level::Warn, text, &fields);
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
