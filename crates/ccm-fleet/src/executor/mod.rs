//! Rollout executor: drives a rollout step by step, as [`planner`] decides, until it is at rest.
//!
//! All state is in the stored object. A step is: read reports, decide, store the intent, act,
//! record. The intent is stored first, so that another controller can complete what a dead one has
//! left: an assignment is written only over the revision that was read, with the generation of the
//! intent, so writing it twice has no effect.
//!
//! A lease in the object names the controller that drives. It only avoids duplicate work:
//! consistency comes from compare-and-set on every write. A controller whose write conflicts has
//! lost the lease and waits. The actions on nodes are in `actions`
//! and, for a rollback, `restore`.
//!
//! The object can be changed by anyone with write access to the bucket. So its signature is
//! verified each time it is read, before anything is done; a rollout that differs from what was
//! signed is halted.

mod actions;
mod restore;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::assignments::AssignmentStore;
use super::decision::{self, Proofs, TrustedSigners};
use super::node_progress::{self, ReportSummary};
use super::planner::{self, Decision};
use super::rollout_store::{RolloutError, RolloutStore, RolloutWatch, StoredRollout};
use ccm_core::model::node::{NodeName, NodeReport, Token};
use ccm_core::model::rollout::{Lease, Rollout};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::kv::{Change, Watch};
use ccm_nats::streams::REPORTED;
use ccm_nats::{Connection, NatsError, Subjects};

/// Default lease: time without renewal after which another controller takes over.
pub const LEASE: Duration = Duration::from_secs(15);

/// Maximum number of nodes assigned between two writes of the rollout.
const MAX_CHUNK: usize = 256;

/// Number of concurrent requests.
const MAX_CONCURRENT: usize = 32;

/// Interval of repeated notifications; a node may have been reconnecting.
const NUDGE_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which reports are collected before they are recorded.
const REPORT_WINDOW: Duration = Duration::from_millis(50);

/// Timeout for the initial read of all reports.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of consecutive NATS errors after which the controller gives up.
const MAX_ERRORS: u32 = 30;

/// Delay after a NATS error.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// Role of a controller for a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes the lease when it is free.
    Drive,
    /// Only observes.
    Watch,
}

/// How [`Controller::follow`] ended.
#[derive(Clone, Debug)]
pub enum FollowOutcome {
    /// The rollout is at rest until an operator acts.
    AtRest(Rollout),
    /// The caller stopped it; other controllers may continue.
    Stopped(Rollout),
}

/// Drives rollouts of one collective.
#[derive(Clone, Debug)]
pub struct Controller {
    connection: Connection,
    subjects: Subjects,
    /// Unique name of this controller.
    holder: String,
    lease: Duration,
    trusted: TrustedSigners,
}

impl Controller {
    /// Returns a controller. `holder` must be unique, `lease` is the time without renewal after
    /// which another controller may take over. If the connection signs, only signed rollouts are
    /// driven.
    pub fn new(
        connection: &Connection,
        subjects: &Subjects,
        holder: String,
        lease: Duration,
    ) -> Self {
        Self {
            connection: connection.clone(),
            subjects: subjects.clone(),
            holder,
            lease,
            trusted: TrustedSigners::new([], connection.signer().is_some()),
        }
    }

    /// Returns the controller restricted to rollouts of these signers.
    #[must_use]
    pub fn with_trusted_signers(self, trusted: TrustedSigners) -> Self {
        Self { trusted, ..self }
    }

    /// Returns a lease of this controller that starts now.
    pub fn lease(&self) -> Lease {
        Lease {
            holder: self.holder.clone(),
            until: add(SystemClock.now(), self.lease),
        }
    }

    /// Follows a rollout until it is at rest or `stop` completes. `on_change` is called with every
    /// new state.
    pub async fn follow(
        &self,
        id: &Token,
        role: Role,
        stop: impl Future<Output = ()>,
        on_change: impl FnMut(&Rollout),
    ) -> Result<FollowOutcome, RolloutError> {
        let mut drive = Drive::begin(self, id, role, on_change).await?;
        let ended = {
            let run = drive.run();
            tokio::select! {
                ended = run => Some(ended),
                () = stop => None,
            }
        };
        match ended {
            Some(Ok(())) => Ok(FollowOutcome::AtRest(drive.stored.rollout)),
            Some(Err(err)) => Err(err),
            None => {
                drive.release().await?;
                Ok(FollowOutcome::Stopped(drive.stored.rollout))
            }
        }
    }
}

/// Reports whether the lease of a rollout is free or expired.
pub fn is_lease_free(rollout: &Rollout, now: DateTime<Utc>) -> bool {
    match &rollout.lease {
        None => true,
        Some(lease) => lease.until <= now,
    }
}

fn add(time: DateTime<Utc>, span: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| time.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// What to do after a step.
enum Next {
    /// Decide again immediately.
    Again,
    /// Wait for a report, or until this time.
    Wait(Option<DateTime<Utc>>),
}

/// A rollout that is being followed.
struct Drive<'c, T> {
    controller: &'c Controller,
    role: Role,
    on_change: T,
    rollouts: RolloutStore,
    changes: RolloutWatch,
    assignments: AssignmentStore,
    reports: Watch,
    /// Nodes of the plan by token.
    names: BTreeMap<Token, NodeName>,
    /// Last reports of the nodes of the plan.
    reported: BTreeMap<NodeName, ReportSummary>,
    stored: StoredRollout,
    /// The rollout has changes that are not stored.
    is_dirty: bool,
    /// Stored intents may not have been executed: after another controller, or after a NATS error.
    may_be_incomplete: bool,
    /// Set once the signature of the current object is verified.
    verified: Option<Verified>,
    nudged: Option<Instant>,
}

/// A rollout with a verified signature, or without one where that is accepted.
struct Verified {
    /// Membership proofs for nodes; none if the rollout is not signed.
    proofs: Option<Proofs>,
}

impl Verified {
    fn proofs(&self) -> Option<&Proofs> {
        self.proofs.as_ref()
    }
}

impl<'c, T: FnMut(&Rollout)> Drive<'c, T> {
    async fn begin(
        controller: &'c Controller,
        id: &Token,
        role: Role,
        on_change: T,
    ) -> Result<Self, RolloutError> {
        let (connection, subjects) = (&controller.connection, &controller.subjects);
        let rollouts = RolloutStore::open(connection, subjects).await?;
        let stored = rollouts.get(id).await?;
        let planned = stored.rollout.plan.waves.iter().flat_map(|it| &it.nodes);
        let names = planned.map(|node| (node.token(), node.clone())).collect();
        let mut drive = Self {
            controller,
            role,
            on_change,
            changes: rollouts.watch(id)?,
            rollouts,
            assignments: AssignmentStore::open(connection, subjects).await?,
            reports: connection.watch_bucket(REPORTED, &subjects.all_keys())?,
            names,
            reported: BTreeMap::new(),
            stored,
            is_dirty: false,
            may_be_incomplete: true,
            verified: None,
            nudged: None,
        };
        let read = tokio::time::timeout(READ_TIMEOUT, drive.read_current_reports()).await;
        read.map_err(|_| NatsError::NoReply {
            subject: REPORTED.into(),
            limit: READ_TIMEOUT,
        })??;
        (drive.on_change)(&drive.stored.rollout);
        Ok(drive)
    }

    /// Runs until the rollout is at rest.
    async fn run(&mut self) -> Result<(), RolloutError> {
        let mut errors = 0;
        loop {
            match self.advance().await {
                Ok(true) => return Ok(()),
                Ok(false) => errors = 0,
                Err(RolloutError::Nats(err)) if err.is_denied() => {
                    // A controller with the permission can take over at once.
                    let _ = self.release().await;
                    return Err(err.into());
                }
                Err(err @ RolloutError::Nats(_)) => {
                    errors += 1;
                    if errors > MAX_ERRORS {
                        return Err(err);
                    }
                    self.may_be_incomplete = true;
                    tokio::time::sleep(ERROR_DELAY).await;
                    // Our copy may be older or newer than the stored one.
                    if let Ok(stored) = self.rollouts.get(&self.stored.rollout.id).await {
                        self.replace(stored);
                    }
                }
                Err(err) => return Err(err),
            }
        }
    }

    /// Executes the next step or waits. Returns whether the rollout is at rest.
    async fn advance(&mut self) -> Result<bool, RolloutError> {
        if self.stored.rollout.state.is_finished() {
            self.release().await?;
            return Ok(self.stored.rollout.state.is_finished());
        }
        let now = SystemClock.now();
        if !self.holds_lease() {
            if self.role == Role::Drive && is_lease_free(&self.stored.rollout, now) {
                self.store().await?;
            } else {
                let lease = self.stored.rollout.lease.as_ref();
                let until = lease.map(|lease| lease.until);
                self.wait(until.filter(|_| self.role == Role::Drive))
                    .await?;
            }
            return Ok(false);
        }
        match self.step(now).await? {
            Next::Again => {}
            Next::Wait(until) => {
                if self.is_dirty || self.is_lease_due(now) {
                    // After a conflict there is something else to decide.
                    self.store().await?;
                    return Ok(false);
                }
                self.nudge_again().await?;
                let renewal = add(now, self.controller.lease / 3);
                let until = until.map_or(renewal, |until| until.min(renewal));
                self.wait(Some(until)).await?;
            }
        }
        Ok(false)
    }

    async fn step(&mut self, now: DateTime<Utc>) -> Result<Next, RolloutError> {
        if self.verified.is_none() && self.stored.rollout.state.is_active() {
            match decision::verify(&self.stored.rollout, &self.controller.trusted) {
                Ok(proofs) => self.verified = Some(Verified { proofs }),
                Err(error) => {
                    let reason = format!("the stored rollout is not trusted: {error}");
                    planner::record(&mut self.stored.rollout, &Decision::Halt(reason));
                    self.is_dirty = true;
                    return Ok(Next::Wait(None));
                }
            }
        }
        if self.may_be_incomplete && self.is_under_way() {
            self.complete_intents(now).await?;
        }
        self.record_reports();
        let decision = planner::decide(&self.stored.rollout, now);
        match decision {
            Decision::Assign(nodes) => self.assign(nodes, now).await?,
            Decision::Restore(nodes) => self.restore(nodes, now).await?,
            Decision::Wait(until) => return Ok(Next::Wait(until)),
            Decision::Rest => return Ok(Next::Wait(None)),
            decision => {
                planner::record(&mut self.stored.rollout, &decision);
                self.is_dirty = true;
            }
        }
        Ok(Next::Again)
    }

    fn is_under_way(&self) -> bool {
        self.stored.rollout.state.is_active()
    }

    fn holds_lease(&self) -> bool {
        let lease = self.stored.rollout.lease.as_ref();
        lease.is_some_and(|lease| lease.holder == self.controller.holder)
    }

    /// Reports whether the lease must be renewed.
    fn is_lease_due(&self, now: DateTime<Utc>) -> bool {
        let lease = self.stored.rollout.lease.as_ref();
        let left = self.controller.lease * 2 / 3;
        lease.is_none_or(|lease| lease.until <= add(now, left))
    }

    /// Stores the rollout with our lease. Returns false after a conflict; then the stored rollout
    /// has been loaded.
    async fn store(&mut self) -> Result<bool, RolloutError> {
        let before = self.stored.rollout.lease.replace(self.controller.lease());
        let is_new = before.is_none_or(|lease| lease.holder != self.controller.holder);
        self.write(is_new).await
    }

    /// Releases our lease, if we have it.
    async fn release(&mut self) -> Result<(), RolloutError> {
        while self.holds_lease() {
            self.stored.rollout.lease = None;
            if self.write(false).await? {
                break;
            }
        }
        Ok(())
    }

    async fn write(&mut self, may_be_incomplete: bool) -> Result<bool, RolloutError> {
        let StoredRollout { rollout, revision } = &mut self.stored;
        match self.rollouts.update(rollout, *revision).await {
            Ok(written) => {
                *revision = written;
                self.is_dirty = false;
                self.may_be_incomplete |= may_be_incomplete;
                (self.on_change)(&self.stored.rollout);
                Ok(true)
            }
            Err(err) if err.is_conflict() => {
                let (id, revision) = (rollout.id.clone(), *revision);
                let stored = self.rollouts.get_newer(&id, revision).await?;
                self.replace(stored);
                Ok(false)
            }
            Err(err) => Err(err),
        }
    }

    /// Replaces our copy by the stored rollout.
    fn replace(&mut self, stored: StoredRollout) {
        self.may_be_incomplete |= !self.holds_lease();
        self.stored = stored;
        self.verified = None;
        self.is_dirty = false;
        (self.on_change)(&self.stored.rollout);
    }

    /// Waits for a report, for a change of the rollout by others, or until this time.
    async fn wait(&mut self, until: Option<DateTime<Utc>>) -> Result<(), RolloutError> {
        let left = until.map(|until| (until - SystemClock.now()).to_std().unwrap_or_default());
        let timer = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            stored = self.changes.next() => {
                let stored = stored?;
                if stored.revision > self.stored.revision {
                    self.replace(stored);
                }
                return Ok(());
            }
            change = self.reports.next() => self.receive(change)?,
            () = timer => return Ok(()),
        }
        // Reports often arrive together; they are recorded together.
        let end = Instant::now() + REPORT_WINDOW;
        while let Ok(change) = tokio::time::timeout_at(end, self.reports.next()).await {
            self.receive(change)?;
        }
        Ok(())
    }

    /// Reads the current reports of all nodes.
    async fn read_current_reports(&mut self) -> Result<(), RolloutError> {
        loop {
            match self.reports.next().await {
                Some(Change::Current) => return Ok(()),
                change => self.receive(change)?,
            }
        }
    }

    fn receive(&mut self, change: Option<Change>) -> Result<(), RolloutError> {
        match change {
            None => Err(NatsError::Closed.into()),
            Some(Change::Put(entry)) => {
                let token = self.controller.subjects.parse_key(&entry.key);
                let name = token.and_then(|token| self.names.get(&token));
                // An unreadable report is ignored: the node counts as not having reported.
                if let Some(name) = name
                    && let Ok(report) = serde_json::from_slice::<NodeReport>(&entry.value)
                {
                    let summary = ReportSummary::new(&report, &self.stored.rollout);
                    self.reported.insert(name.clone(), summary);
                }
                Ok(())
            }
            Some(Change::Denied(denial)) => Err(NatsError::from(denial).into()),
            Some(Change::Restart | Change::Current | Change::Removed { .. }) => Ok(()),
        }
    }

    fn record_reports(&mut self) {
        for (node, report) in &self.reported {
            self.is_dirty |= node_progress::record_report(&mut self.stored.rollout, node, report);
        }
    }
}
