//! The controller: follows what [`planner`] decides, one step after another, until the rollout is
//! at rest.
//!
//! Nothing is known here that is not in the stored object. A step is: hear the nodes, decide,
//! store the intent, act, note. The intent comes first, so a controller that dies in between is
//! replaced by one that does what may be missing: an assignment is written only over the one that
//! was read, with the generation that the intent names, so doing it twice does nothing.
//!
//! A lease in the object says who drives. It spares two controllers the trouble, no more: what
//! makes sure that only one moves a rollout is that every change compares. Whoever loses that
//! comparison has lost the lease and waits. What is done to nodes is in `acts`.
//!
//! Whoever can write the bucket can change the object. So what was signed is checked each time the
//! object comes from outside, before anything follows from it; a rollout that is not what its
//! signer decided is halted.

mod actions;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::assignments::Assigning;
use super::decision::{self, Proofs, TrustedSigners};
use super::node_progress::{self, Heard};
use super::planner::{self, Decision};
use super::rollout_store::{Following, RolloutError, Rollouts, Stored};
use ccm_core::model::node::{NodeName, Report, Token};
use ccm_core::model::rollout::{Lease, Rollout, State};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::kv::{Change, Watch};
use ccm_nats::streams::REPORTED;
use ccm_nats::{Connection, NatsError, Subjects};

/// How long a controller may stay silent before another takes over, unless configured.
pub const LEASE: Duration = Duration::from_secs(15);

/// How many nodes are assigned between two writes of the rollout.
const CHUNK: usize = 256;

/// How many nodes are asked or told at once.
const AT_ONCE: usize = 32;

/// How often nodes that were told are told again; one of them may have been reconnecting.
const NUDGE_EVERY: Duration = Duration::from_secs(10);

/// How long answers that come together are collected before they are noted.
const GATHER: Duration = Duration::from_millis(50);

/// How long it may take until all that nodes reported before is read.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// How often in a row the bus may fail before the controller gives up.
const MOST_TROUBLE: u32 = 30;

/// How long to wait after the bus failed.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Whether a controller acts or only looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes the lease as soon as nobody holds it.
    Drive,
    Watch,
}

/// How following a rollout ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// Nothing more happens unless somebody wants it.
    AtRest(Rollout),
    /// We were told to stop; others may go on.
    Stopped(Rollout),
}

/// Drives rollouts of one collective.
#[derive(Clone, Debug)]
pub struct Controller {
    connection: Connection,
    subjects: Subjects,
    /// A name that no other controller has.
    holder: String,
    lease: Duration,
    trusted: TrustedSigners,
}

impl Controller {
    /// Returns a controller. `holder` must be its own, `lease` how long it may stay silent. One
    /// whose connection signs drives only rollouts that are signed.
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

    /// Returns the controller, driving only rollouts that these signed.
    #[must_use]
    pub fn trusting(self, trusted: TrustedSigners) -> Self {
        Self { trusted, ..self }
    }

    /// Returns the lease of this controller as of now.
    pub fn lease(&self) -> Lease {
        Lease {
            holder: self.holder.clone(),
            until: later(SystemClock.now(), self.lease),
        }
    }

    /// Follows a rollout until it is at rest or `stop` says so. `tell` hears of every change.
    pub async fn follow(
        &self,
        id: &Token,
        role: Role,
        stop: impl Future<Output = ()>,
        tell: impl FnMut(&Rollout),
    ) -> Result<Ending, RolloutError> {
        let mut drive = Drive::begin(self, id, role, tell).await?;
        let ended = {
            let run = drive.run();
            tokio::select! {
                ended = run => Some(ended),
                () = stop => None,
            }
        };
        match ended {
            Some(Ok(())) => Ok(Ending::AtRest(drive.stored.rollout)),
            Some(Err(err)) => Err(err),
            None => {
                drive.leave().await?;
                Ok(Ending::Stopped(drive.stored.rollout))
            }
        }
    }
}

/// Reports whether nobody else drives a rollout at this time.
pub fn is_free(rollout: &Rollout, now: DateTime<Utc>) -> bool {
    match &rollout.lease {
        None => true,
        Some(lease) => lease.until <= now,
    }
}

fn later(time: DateTime<Utc>, span: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| time.checked_add_signed(span))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// What a step leaves to do.
enum Next {
    /// Decide again at once.
    Again,
    /// Nothing until something is heard or this time has come.
    Wait(Option<DateTime<Utc>>),
}

/// One rollout being followed.
struct Drive<'c, T> {
    controller: &'c Controller,
    role: Role,
    tell: T,
    rollouts: Rollouts,
    following: Following,
    assigning: Assigning,
    reports: Watch,
    /// The nodes of the plan by their keys.
    names: BTreeMap<Token, NodeName>,
    /// What the nodes of the plan last reported.
    heard: BTreeMap<NodeName, Heard>,
    stored: Stored,
    /// The rollout differs from what is stored.
    is_dirty: bool,
    /// What was intended may not have been done: another controller, or trouble on the bus.
    is_unsure: bool,
    /// That what we hold is what was signed.
    verified: Option<Verified>,
    nudged: Option<Instant>,
}

/// A rollout that was held against its signature.
struct Verified {
    /// What proves to nodes that they are part of it; nothing where nobody signed.
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
        tell: T,
    ) -> Result<Self, RolloutError> {
        let (connection, subjects) = (&controller.connection, &controller.subjects);
        let rollouts = Rollouts::open(connection, subjects).await?;
        let stored = rollouts.get(id).await?;
        let planned = stored.rollout.plan.waves.iter().flat_map(|it| &it.nodes);
        let names = planned.map(|node| (node.token(), node.clone())).collect();
        let mut drive = Self {
            controller,
            role,
            tell,
            following: rollouts.follow(id)?,
            rollouts,
            assigning: Assigning::open(connection, subjects).await?,
            reports: connection.watch_bucket(REPORTED, &subjects.keys())?,
            names,
            heard: BTreeMap::new(),
            stored,
            is_dirty: false,
            is_unsure: true,
            verified: None,
            nudged: None,
        };
        let reading = tokio::time::timeout(READ_LIMIT, drive.hear_present()).await;
        reading.map_err(|_| NatsError::NoAnswer {
            subject: REPORTED.into(),
            limit: READ_LIMIT,
        })??;
        (drive.tell)(&drive.stored.rollout);
        Ok(drive)
    }

    /// Goes on until the rollout is at rest.
    async fn run(&mut self) -> Result<(), RolloutError> {
        let mut trouble = 0;
        loop {
            match self.turn().await {
                Ok(true) => return Ok(()),
                Ok(false) => trouble = 0,
                Err(RolloutError::Nats(err)) if err.is_denied() => {
                    // Whoever may write assignments can go on at once.
                    let _ = self.leave().await;
                    return Err(err.into());
                }
                Err(err @ RolloutError::Nats(_)) => {
                    trouble += 1;
                    if trouble > MOST_TROUBLE {
                        return Err(err);
                    }
                    self.is_unsure = true;
                    tokio::time::sleep(TROUBLE_PAUSE).await;
                    // What we hold may be older or newer than what is stored.
                    if let Ok(stored) = self.rollouts.get(&self.stored.rollout.id).await {
                        self.replace(stored);
                    }
                }
                Err(err) => return Err(err),
            }
        }
    }

    /// Does what is to be done now and waits for more. Returns whether the rollout is at rest.
    async fn turn(&mut self) -> Result<bool, RolloutError> {
        if self.stored.rollout.state.is_at_rest() {
            self.leave().await?;
            return Ok(self.stored.rollout.state.is_at_rest());
        }
        let now = SystemClock.now();
        if !self.is_ours() {
            if self.role == Role::Drive && is_free(&self.stored.rollout, now) {
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
                    // Somebody may have been quicker; then there is something else to decide.
                    self.store().await?;
                    return Ok(false);
                }
                self.nudge_again().await?;
                let renewal = later(now, self.controller.lease / 3);
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
                Err(tampered) => {
                    let reason = format!("the stored rollout can't be trusted: {tampered}");
                    planner::note(&mut self.stored.rollout, &Decision::Halt(reason));
                    self.is_dirty = true;
                    return Ok(Next::Wait(None));
                }
            }
        }
        if self.is_unsure && self.is_under_way() {
            self.make_sure(now).await?;
        }
        self.note_heard();
        let decision = planner::decide(&self.stored.rollout, now);
        match decision {
            Decision::Assign(nodes) => self.assign(nodes, now).await?,
            Decision::Restore(nodes) => self.restore(nodes, now).await?,
            Decision::Wait(until) => return Ok(Next::Wait(until)),
            Decision::Rest => return Ok(Next::Wait(None)),
            decision => {
                planner::note(&mut self.stored.rollout, &decision);
                self.is_dirty = true;
            }
        }
        Ok(Next::Again)
    }

    fn is_under_way(&self) -> bool {
        matches!(
            self.stored.rollout.state,
            State::Running | State::Baking { .. }
        )
    }

    fn is_ours(&self) -> bool {
        let lease = self.stored.rollout.lease.as_ref();
        lease.is_some_and(|lease| lease.holder == self.controller.holder)
    }

    /// Reports whether it is time to say that we are still here.
    fn is_lease_due(&self, now: DateTime<Utc>) -> bool {
        let lease = self.stored.rollout.lease.as_ref();
        let left = self.controller.lease * 2 / 3;
        lease.is_none_or(|lease| lease.until <= later(now, left))
    }

    /// Stores the rollout with our lease on it. Returns false if somebody else was quicker; then
    /// theirs is what we hold.
    async fn store(&mut self) -> Result<bool, RolloutError> {
        let before = self.stored.rollout.lease.replace(self.controller.lease());
        let is_new = before.is_none_or(|lease| lease.holder != self.controller.holder);
        self.write(is_new).await
    }

    /// Gives our lease back, if we have it.
    async fn leave(&mut self) -> Result<(), RolloutError> {
        while self.is_ours() {
            self.stored.rollout.lease = None;
            if self.write(false).await? {
                break;
            }
        }
        Ok(())
    }

    async fn write(&mut self, is_unsure: bool) -> Result<bool, RolloutError> {
        let Stored { rollout, revision } = &mut self.stored;
        match self.rollouts.update(rollout, *revision).await {
            Ok(written) => {
                *revision = written;
                self.is_dirty = false;
                self.is_unsure |= is_unsure;
                (self.tell)(&self.stored.rollout);
                Ok(true)
            }
            Err(err) if err.is_conflict() => {
                let (id, revision) = (rollout.id.clone(), *revision);
                let stored = self.rollouts.get_beyond(&id, revision).await?;
                self.replace(stored);
                Ok(false)
            }
            Err(err) => Err(err),
        }
    }

    /// Takes what somebody else stored.
    fn replace(&mut self, stored: Stored) {
        self.is_unsure |= !self.is_ours();
        self.stored = stored;
        self.verified = None;
        self.is_dirty = false;
        (self.tell)(&self.stored.rollout);
    }

    /// Waits until a node or somebody else is heard, or this time has come.
    async fn wait(&mut self, until: Option<DateTime<Utc>>) -> Result<(), RolloutError> {
        let left = until.map(|until| (until - SystemClock.now()).to_std().unwrap_or_default());
        let timer = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            stored = self.following.next() => {
                let stored = stored?;
                if stored.revision > self.stored.revision {
                    self.replace(stored);
                }
                return Ok(());
            }
            change = self.reports.next() => self.hear(change)?,
            () = timer => return Ok(()),
        }
        // Many nodes answer at once; they are noted together.
        let end = Instant::now() + GATHER;
        while let Ok(change) = tokio::time::timeout_at(end, self.reports.next()).await {
            self.hear(change)?;
        }
        Ok(())
    }

    /// Hears what the nodes said before we were here.
    async fn hear_present(&mut self) -> Result<(), RolloutError> {
        loop {
            match self.reports.next().await {
                Some(Change::Current) => return Ok(()),
                change => self.hear(change)?,
            }
        }
    }

    fn hear(&mut self, change: Option<Change>) -> Result<(), RolloutError> {
        match change {
            None => Err(NatsError::Closed.into()),
            Some(Change::Put(entry)) => {
                let token = self.controller.subjects.read_key(&entry.key);
                let name = token.and_then(|token| self.names.get(&token));
                // What can't be read is as good as not said: the node counts as silent.
                if let Some(name) = name
                    && let Ok(report) = serde_json::from_slice::<Report>(&entry.value)
                {
                    let heard = Heard::of(&report, &self.stored.rollout);
                    self.heard.insert(name.clone(), heard);
                }
                Ok(())
            }
            Some(Change::Denied(denial)) => Err(NatsError::from(denial).into()),
            Some(Change::Restart | Change::Current | Change::Removed { .. }) => Ok(()),
        }
    }

    fn note_heard(&mut self) {
        for (node, heard) in &self.heard {
            self.is_dirty |= node_progress::note(&mut self.stored.rollout, node, heard);
        }
    }
}
