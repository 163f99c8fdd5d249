//! Rollout executor: drives a rollout step by step, as [`planner`] decides, until it is at rest.
//!
//! All state is in the stored object. A step is: read reports, decide, store the intent, act,
//! record. The intent is stored first, so that another controller can complete what a dead one has
//! left: an assignment is written only over the revision that was read, with the generation of the
//! intent, so writing it twice has no effect.
//!
//! A lease in the object names the controller that drives. It only avoids duplicate work:
//! consistency comes from compare-and-set on every write. A controller whose write conflicts has
//! lost the lease and waits; `lease` has when it is free. The actions on nodes are in `actions`
//! and, for a rollback, `restore`. Timeouts are compared with `steady_time`, not with the clock.
//!
//! An outage of NATS ends no controller: it waits, reports that to its observer, and goes on.
//!
//! The object can be changed by anyone with write access to the bucket. So its signature is
//! verified each time it is read, before anything is done; a rollout that differs from what was
//! signed is halted.

mod actions;
mod lease;
mod observer;
mod reports;
mod restore;
mod steady_time;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use self::lease::LeaseObserver;
pub use self::observer::FollowEvent;
use self::observer::Observer;
use self::reports::Waited;
use self::steady_time::{SteadyTime, add};
use super::assignments::AssignmentStore;
use super::decision::{self, Proofs, TrustedSigners};
use super::late_reports;
use super::nats_waits::NatsWaits;
use super::node_progress::ReportSummary;
use super::planner::{self, Decision, WavePosition};
use super::records::Unreadable;
use super::rollout_store::{RolloutError, RolloutHead, RolloutStore, RolloutWatch, StoredRollout};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{Lease, Rollout};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::kv::Watch;
use ccm_nats::streams::{REPORTED, ROLLOUTS};
use ccm_nats::{Connection, NatsError, Subjects};

/// Default lease: time without renewal after which another controller takes over.
pub const LEASE: Duration = Lease::default_duration();

/// Maximum number of nodes assigned between two writes of the rollout.
const MAX_CHUNK: usize = 1024;

/// Number of concurrent requests.
const MAX_CONCURRENT: usize = 256;

/// Interval of repeated notifications; a node may have been reconnecting.
const NUDGE_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which results are stored while a wave goes on. Nothing is lost with a controller that
/// dies before: the reports of the nodes are stored by themselves.
const STORE_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout for the initial read of all reports.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which a watched rollout without changes is checked for an outage.
const WATCH_CHECK: Duration = Duration::from_secs(5);

/// Number of consecutive NATS errors after which the controller gives up, unless NATS is not available:
/// then it waits.
const MAX_ERRORS: u32 = 30;

/// Role of a controller for a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes the lease when it is free.
    Drive,
    /// Only observes.
    Watch,
}

/// The rollout to follow.
#[derive(Clone, Debug)]
pub enum FollowTarget {
    Id(Token),
    /// A rollout that the caller has just stored.
    Stored(Box<StoredRollout>),
}

impl FollowTarget {
    /// Returns the id of the rollout.
    pub fn id(&self) -> &Token {
        match self {
            Self::Id(id) => id,
            Self::Stored(stored) => &stored.rollout.id,
        }
    }
}

impl From<StoredRollout> for FollowTarget {
    fn from(stored: StoredRollout) -> Self {
        Self::Stored(Box::new(stored))
    }
}

/// How [`Controller::follow`] ended.
#[derive(Clone, Debug)]
pub enum FollowOutcome {
    /// The rollout is at rest until an operator acts.
    AtRest(Box<Rollout>),
    /// The caller stopped it; other controllers may continue.
    Stopped,
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
    /// Leases of other controllers.
    leases: LeaseObserver,
    waits: NatsWaits,
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
            leases: LeaseObserver::default(),
            waits: NatsWaits::default(),
        }
    }

    /// Returns the controller with another record of what waits for NATS.
    #[must_use]
    pub fn with_waits(self, waits: NatsWaits) -> Self {
        Self { waits, ..self }
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
            duration: self.lease,
            until: add(SystemClock.now(), self.lease),
        }
    }

    /// Returns the time until the lease of a rollout is free, unless it is renewed: it must be observed
    /// for its duration, from the first call on.
    pub fn lease_remaining(&self, head: &RolloutHead) -> Duration {
        let now = Instant::now();
        self.leases.remaining(&head.rollout, head.revision, now)
    }

    /// Follows a rollout until it is at rest or `stop` completes, through outages of NATS. `observe` is
    /// called with every new state.
    pub async fn follow(
        &self,
        target: FollowTarget,
        role: Role,
        stop: impl Future<Output = ()>,
        observe: impl FnMut(FollowEvent<'_>),
    ) -> Result<FollowOutcome, RolloutError> {
        let mut stop = std::pin::pin!(stop);
        let mut observer = Observer::new(self.waits.clone(), target.id(), observe);
        let mut drive = tokio::select! {
            drive = Drive::begin(self, target, role, &mut observer) => drive?,
            () = &mut stop => return Ok(FollowOutcome::Stopped),
        };
        let ended = tokio::select! {
            ended = drive.run() => Some(ended),
            () = stop => None,
        };
        match ended {
            Some(Ok(())) => Ok(FollowOutcome::AtRest(Box::new(drive.stored.rollout))),
            Some(Err(err)) => Err(err),
            None => match drive.release().await {
                Err(err) if !err.is_outage() => Err(err),
                // Without NATS the lease ends by itself.
                _ => Ok(FollowOutcome::Stopped),
            },
        }
    }
}

/// What to do after a step.
enum Next {
    /// Decide again immediately.
    Again,
    /// Wait for a report, or until this time.
    Wait(Option<DateTime<Utc>>),
}

/// A rollout that is being followed.
struct Drive<'c, T: FnMut(FollowEvent<'_>)> {
    controller: &'c Controller,
    role: Role,
    observer: &'c mut Observer<T>,
    rollouts: RolloutStore,
    changes: RolloutWatch,
    assignments: AssignmentStore,
    reports: Watch,
    /// Nodes of the plan by token.
    names: BTreeMap<Token, NodeName>,
    /// Last reports of the nodes of the plan.
    reported: BTreeMap<NodeName, ReportSummary>,
    /// Nodes of the plan whose last report can't be read.
    unreadable: BTreeMap<NodeName, Unreadable>,
    /// Nodes whose last report is not recorded in the rollout.
    unrecorded: BTreeSet<NodeName>,
    stored: StoredRollout,
    /// The position of the planner in `stored`.
    position: WavePosition,
    /// The rollout has changes that are not stored.
    is_dirty: bool,
    /// Stored intents may not have been executed: after another controller, or after a NATS error.
    may_be_incomplete: bool,
    /// Set once the signature of the current object is verified.
    verified: Option<Verified>,
    /// Time of our last write with a lease, on the monotonic clock.
    renewed: Option<Instant>,
    nudged: Option<Instant>,
    /// The time with which timeouts are compared.
    time: SteadyTime,
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

/// Opens the buckets of a rollout, and reads it unless it is known.
async fn open(
    controller: &Controller,
    target: &mut FollowTarget,
) -> Result<(RolloutStore, AssignmentStore, StoredRollout), RolloutError> {
    let (connection, subjects) = (&controller.connection, &controller.subjects);
    let rollouts = RolloutStore::open(connection, subjects).await?;
    let assignments = AssignmentStore::open(connection, subjects).await?;
    let id = target.id().clone();
    let stored = match std::mem::replace(target, FollowTarget::Id(id.clone())) {
        FollowTarget::Id(_) => rollouts.get(&id).await?,
        FollowTarget::Stored(stored) => *stored,
    };
    Ok((rollouts, assignments, stored))
}

impl<'c, T: FnMut(FollowEvent<'_>)> Drive<'c, T> {
    async fn begin(
        controller: &'c Controller,
        mut target: FollowTarget,
        role: Role,
        observer: &'c mut Observer<T>,
    ) -> Result<Self, RolloutError> {
        let (rollouts, assignments, stored) = loop {
            match open(controller, &mut target).await {
                Err(err) if err.is_outage() => observer.wait(&err).await,
                opened => break opened?,
            }
        };
        let (connection, subjects) = (&controller.connection, &controller.subjects);
        let planned = stored.rollout.plan.nodes();
        let names = planned.map(|node| (node.token(), node.clone())).collect();
        let mut drive = Self {
            controller,
            role,
            observer,
            changes: rollouts.watch(target.id())?,
            rollouts,
            assignments,
            reports: connection.watch_bucket(REPORTED, &subjects.all_keys())?,
            names,
            reported: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            unrecorded: BTreeSet::new(),
            stored,
            position: WavePosition::default(),
            is_dirty: false,
            may_be_incomplete: true,
            verified: None,
            renewed: None,
            nudged: None,
            time: SteadyTime::start(&SystemClock),
        };
        loop {
            match drive.prepare().await {
                Err(err) if err.is_outage() => drive.observer.wait(&err).await,
                prepared => break prepared?,
            }
        }
        drive.observer.resume();
        drive.report_change();
        Ok(drive)
    }

    /// Reads the current reports of all nodes. A controller also stores those that belong to ended
    /// rollouts, before a new assignment replaces them.
    async fn prepare(&mut self) -> Result<(), RolloutError> {
        let read = tokio::time::timeout(READ_TIMEOUT, self.read_current_reports()).await;
        read.map_err(|_| NatsError::NoReply {
            subject: REPORTED.into(),
            limit: READ_TIMEOUT,
        })??;
        if self.role == Role::Drive {
            let (connection, subjects) = (&self.controller.connection, &self.controller.subjects);
            let (all, _) = self.rollouts.list().await?;
            late_reports::store(connection, subjects, &self.rollouts, &all).await?;
            self.rollouts.remove_orphans(&self.stored).await?;
        }
        Ok(())
    }

    /// Runs until the rollout is at rest.
    async fn run(&mut self) -> Result<(), RolloutError> {
        let mut errors = 0;
        loop {
            match self.advance().await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    errors = 0;
                    self.observer.resume();
                }
                Err(RolloutError::Nats(err)) if err.is_denied() => {
                    // A controller with the permission can take over at once.
                    let _ = self.release().await;
                    return Err(err.into());
                }
                Err(err @ (RolloutError::Nats(_) | RolloutError::Busy(_))) => {
                    errors += 1;
                    if errors > MAX_ERRORS && !err.is_outage() {
                        return Err(err);
                    }
                    self.recover(&err).await;
                }
                Err(err) => return Err(err),
            }
        }
    }

    /// Waits after an error, and reads the rollout again.
    async fn recover(&mut self, err: &RolloutError) {
        self.may_be_incomplete = true;
        self.observer.wait(err).await;
        let id = &self.stored.rollout.id;
        // Another controller could not renew its lease either.
        self.controller.leases.forget(id);
        // Our copy may be older or newer than the stored one.
        if let Ok(stored) = self.rollouts.get(id).await {
            self.replace(stored);
        }
    }

    /// Executes the next step or waits. Returns whether the rollout is at rest.
    async fn advance(&mut self) -> Result<bool, RolloutError> {
        if self.stored.rollout.state.is_finished() {
            self.release().await?;
            return Ok(self.stored.rollout.state.is_finished());
        }
        if !self.holds_lease() {
            match (self.role, self.lease_remaining()) {
                (Role::Watch, _) => {
                    if self.wait(WATCH_CHECK).await? == Waited::Limit {
                        self.controller.connection.check_leader(ROLLOUTS).await?;
                    }
                }
                (Role::Drive, Duration::ZERO) => {
                    self.store().await?;
                }
                (Role::Drive, remaining) => {
                    self.wait(remaining).await?;
                }
            }
            return Ok(false);
        }
        let now = self.time.now(&SystemClock);
        match self.step(now).await? {
            Next::Again => {}
            Next::Wait(until) => {
                // Results of a wave that goes on are stored together.
                let written = self.renewed.map_or(STORE_INTERVAL, |at| at.elapsed());
                let unstored = match until {
                    Some(_) if self.is_dirty => STORE_INTERVAL.saturating_sub(written),
                    _ => Duration::ZERO,
                };
                if self.is_lease_due() || self.is_dirty && unstored.is_zero() {
                    // After a conflict there is something else to decide.
                    self.store().await?;
                    return Ok(false);
                }
                self.nudge_again().await?;
                let left = until.map(|until| (until - now).to_std().unwrap_or_default());
                // Not for longer: the lease must be renewed.
                let renewal = self.controller.lease / 3;
                let limits = [left, self.is_dirty.then_some(unstored)];
                let limit = limits.into_iter().flatten().fold(renewal, Duration::min);
                self.wait(limit).await?;
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
        let (position, rollout) = (&mut self.position, &self.stored.rollout);
        let decision = planner::decide_from(position, rollout, now, MAX_CHUNK);
        match decision {
            Decision::Assign(mut nodes) => {
                self.limit_chunk(&mut nodes);
                self.assign(nodes, now).await?;
            }
            Decision::Unreachable(nodes) => self.record_unreachable(nodes).await?,
            Decision::Restore(mut nodes) => {
                self.limit_chunk(&mut nodes);
                self.restore(nodes, now).await?;
            }
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

    /// Returns the time until the lease of another controller is free.
    fn lease_remaining(&self) -> Duration {
        let StoredRollout {
            rollout, revision, ..
        } = &self.stored;
        let leases = &self.controller.leases;
        leases.remaining(rollout, *revision, Instant::now())
    }

    /// Reports whether the lease must be renewed.
    fn is_lease_due(&self) -> bool {
        let due = self.controller.lease / 3;
        self.renewed.is_none_or(|at| at.elapsed() >= due)
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
        match self.rollouts.update(&self.stored).await {
            Ok((revision, layout)) => {
                (self.stored.revision, self.stored.layout) = (revision, layout);
                self.is_dirty = false;
                self.may_be_incomplete |= may_be_incomplete;
                self.renewed = Some(Instant::now());
                self.report_change();
                Ok(true)
            }
            Err(err) if err.is_conflict() => {
                let (id, revision) = (self.stored.rollout.id.clone(), self.stored.revision);
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
        self.position = WavePosition::default();
        self.verified = None;
        self.renewed = None;
        self.is_dirty = false;
        self.unrecorded = self.reported.keys().cloned().collect();
        self.report_change();
    }

    /// Reports what is stored now. From then on, only changes of it are looked at.
    fn report_change(&mut self) {
        let rollout = &mut self.stored.rollout;
        self.observer.change(rollout);
        rollout.nodes.settle();
    }
}
