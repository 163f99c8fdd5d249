//! Run queue: runs one job at a time on a worker thread, or on the thread of a [`JobHost`]; the others
//! wait in a short queue. The worker thread starts with the first job and ends after a while without one.
//!
//! A job also waits for runs of other programs on this node, see `run::RunLock`. The callback of a
//! job is called exactly once, with a permit or with the reason of the refusal. Knows nothing of
//! manifests or NATS.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::{Condvar, Mutex};

use super::job_host::JobHost;
use ccm_core::model::run::{CurrentRun, RunId};
use ccm_core::run::RunLock;
use ccm_core::system::{Cancel, Clock, FileLock, LockError, RunError};
use ccm_value::text::go_duration;

/// Idle time after which the worker thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the run lock before cancellation and deadline are checked again.
const LOCK_POLL: Duration = Duration::from_millis(250);

/// Why a job was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("busy: {0} runs are waiting already")]
    Busy(usize),
    /// Another program held the run lock for too long.
    #[error("busy: another run is going on: {0}")]
    Held(String),
    #[error("deadline passed before the run could begin")]
    Deadline,
    #[error("cancelled before the run could begin")]
    Cancelled,
    #[error("the agent is shutting down")]
    Closing,
    #[error(transparent)]
    Cancel(#[from] RunError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Permission to run, with its cancellation and deadline.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub(crate) cancel: Cancel,
    reason: Arc<Mutex<Option<String>>>,
    deadline: Option<DateTime<Utc>>,
}

impl Permit {
    /// Returns the reason to start no further resource, if there is one.
    pub(crate) fn stop_reason(&self, now: DateTime<Utc>) -> Option<String> {
        if self.deadline.is_some_and(|deadline| now > deadline) {
            return Some("deadline passed".into());
        }
        self.reason.lock().clone()
    }

    /// Returns the reason not to start a waiting run, if there is one.
    fn refusal(&self, now: DateTime<Utc>) -> Option<Refusal> {
        if self.deadline.is_some_and(|deadline| now > deadline) {
            return Some(Refusal::Deadline);
        }
        self.reason.lock().is_some().then_some(Refusal::Cancelled)
    }

    /// Starts no further resource.
    fn stop(&self, reason: &str) {
        self.reason.lock().get_or_insert_with(|| reason.into());
    }

    /// Starts no further resource and kills the running command.
    fn revoke(&self, reason: &str) {
        self.stop(reason);
        self.cancel.cancel();
    }
}

type Callback = Box<dyn FnOnce(Result<Permit, Refusal>) + Send>;

/// A run with its deadline and callback.
pub(crate) struct Job {
    pub(crate) run: CurrentRun,
    /// Id of the request that started the run; it can be cancelled by it. Empty without a request.
    pub(crate) request_id: String,
    /// The job is not started later than this.
    pub(crate) deadline: Option<DateTime<Utc>>,
    pub(crate) callback: Callback,
}

/// Queue of jobs and their worker. Clones share it.
#[derive(Clone)]
pub(crate) struct RunQueue(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    max_waiting: usize,
    time_limit: Duration,
    /// Lock shared with other programs that make runs, if any.
    run_lock: Option<RunLock>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The job that is running or waiting for the run lock.
struct CurrentJob {
    run: CurrentRun,
    request_id: String,
    permit: Permit,
}

/// Reports whether a job has this id, as its run or its request.
fn has_id(run: &CurrentRun, request_id: &str, id: &RunId) -> bool {
    run.run_id == *id || request_id == id.as_str()
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    current: Option<CurrentJob>,
    /// When the current run began or stopped waiting, on the monotonic clock: the date may be set
    /// meanwhile.
    began: Duration,
    is_closed: bool,
    /// A worker thread is running, or a job was submitted to the host.
    has_worker: bool,
    /// Where jobs are performed instead of a worker thread.
    host: Option<JobHost>,
}

impl RunQueue {
    /// Returns an empty queue. With a run lock its jobs exclude the runs of other programs.
    pub(crate) fn open(
        clock: Arc<dyn Clock>,
        max_waiting: usize,
        time_limit: Duration,
        run_lock: Option<RunLock>,
    ) -> Self {
        Self(Arc::new(Inner {
            clock,
            max_waiting,
            time_limit,
            run_lock,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Queues a job, or calls its callback with a refusal.
    pub(crate) fn submit(&self, job: Job) {
        let refused = {
            let mut state = self.0.state.lock();
            if state.is_closed {
                Some((job, Refusal::Closing))
            } else if state.waiting.len() >= self.0.max_waiting {
                Some((job, Refusal::Busy(state.waiting.len())))
            } else {
                state.waiting.push_back(job);
                if !state.has_worker {
                    state.has_worker = true;
                    let worker = self.clone();
                    match &state.host {
                        Some(host) => host.submit(move || worker.run_hosted_job()),
                        None => drop(std::thread::spawn(move || worker.run_jobs())),
                    }
                }
                self.0.changed.notify_all();
                None
            }
        };
        if let Some((job, refusal)) = refused {
            (job.callback)(Err(refusal));
        }
    }

    /// Performs further jobs on the thread of a host instead of a worker thread.
    pub(crate) fn perform_on(&self, host: JobHost) {
        self.0.state.lock().host = Some(host);
    }

    /// Returns the current run and the number of waiting ones.
    pub(crate) fn status(&self) -> (Option<CurrentRun>, usize) {
        let state = self.0.state.lock();
        let current = state.current.as_ref().map(|job| job.run.clone());
        (current, state.waiting.len())
    }

    /// Cancels a waiting or current run, by its id or that of its request. The current resource is
    /// finished first, unless `now`. Returns whether there was such a run.
    pub(crate) fn cancel(&self, id: &RunId, reason: &str, now: bool) -> bool {
        let waiting = {
            let mut state = self.0.state.lock();
            if let Some(job) = &state.current
                && has_id(&job.run, &job.request_id, id)
            {
                match now {
                    true => job.permit.revoke(reason),
                    false => job.permit.stop(reason),
                }
                return true;
            }
            let is_named = |job: &Job| has_id(&job.run, &job.request_id, id);
            let at = state.waiting.iter().position(is_named);
            at.and_then(|at| state.waiting.remove(at))
        };
        match waiting {
            Some(job) => {
                (job.callback)(Err(Refusal::Cancelled));
                true
            }
            None => false,
        }
    }

    /// Sets what the current run is waiting for, or `None` when it starts; its time limit counts
    /// from then on.
    pub(crate) fn set_waiting_for(&self, what: Option<String>) {
        let (now, began) = (self.0.clock.now(), self.0.clock.monotonic());
        let mut state = self.0.state.lock();
        state.began = began;
        if let Some(job) = &mut state.current {
            job.run.waiting_for = what;
            job.run.since = now;
        }
    }

    /// Reports whether the queue is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.state.lock().is_closed
    }

    /// Cancels the current run if it exceeds the time limit; called periodically. Waiting times
    /// have limits of their own.
    pub(crate) fn enforce_time_limit(&self) {
        let state = self.0.state.lock();
        if let Some(job) = &state.current
            && job.run.waiting_for.is_none()
        {
            let taken = self.0.clock.monotonic().saturating_sub(state.began);
            if taken > self.0.time_limit {
                let limit = go_duration(self.0.time_limit);
                job.permit.revoke(&format!("run took longer than {limit}"));
            }
        }
    }

    /// Closes the queue and refuses waiting jobs. The current run continues.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            self.0.changed.notify_all();
            std::mem::take(&mut state.waiting)
        };
        for job in waiting {
            (job.callback)(Err(Refusal::Closing));
        }
    }

    /// Cancels the current run.
    pub(crate) fn cancel_current(&self, reason: &str) {
        if let Some(job) = &self.0.state.lock().current {
            job.permit.revoke(reason);
        }
    }

    fn run_jobs(&self) {
        while let Some(job) = self.next() {
            self.run_job(job);
        }
    }

    /// Runs the first job, and submits the next one to the host, which does other work between them.
    fn run_hosted_job(&self) {
        let first = self.0.state.lock().waiting.pop_front();
        if let Some(job) = first {
            self.run_job(job);
        }
        let mut state = self.0.state.lock();
        match &state.host {
            Some(host) if !state.waiting.is_empty() => {
                let worker = self.clone();
                host.submit(move || worker.run_hosted_job());
            }
            _ => {
                state.has_worker = false;
                self.0.changed.notify_all();
            }
        }
    }

    fn run_job(&self, job: Job) {
        let Job {
            mut run,
            request_id,
            deadline,
            callback,
        } = job;
        let now = self.0.clock.now();
        if deadline.is_some_and(|deadline| now > deadline) {
            callback(Err(Refusal::Deadline));
            return;
        }
        let cancel = match Cancel::new() {
            Ok(cancel) => cancel,
            Err(err) => {
                callback(Err(err.into()));
                return;
            }
        };
        let permit = Permit {
            cancel,
            reason: Arc::default(),
            deadline,
        };
        run.since = now;
        let id = run.run_id.clone();
        {
            let mut state = self.0.state.lock();
            state.began = self.0.clock.monotonic();
            state.current = Some(CurrentJob {
                run,
                request_id,
                permit: permit.clone(),
            });
        }
        match self.acquire_run_lock(&id, &permit) {
            Ok(_lock) => callback(Ok(permit)),
            Err(refusal) => callback(Err(refusal)),
        }
        self.0.state.lock().current = None;
    }

    /// Waits for the run lock, at most for the time limit of a run.
    fn acquire_run_lock(&self, id: &RunId, permit: &Permit) -> Result<Option<FileLock>, Refusal> {
        let Some(run_lock) = &self.0.run_lock else {
            return Ok(None);
        };
        let clock = &*self.0.clock;
        let began = clock.monotonic();
        let mut has_waited = false;
        loop {
            let holder = match run_lock.take(id, LOCK_POLL, clock) {
                Ok(lock) => {
                    if has_waited {
                        self.set_waiting_for(None);
                    }
                    return Ok(Some(lock));
                }
                Err(LockError::Held { holder, .. }) => holder,
                Err(error) => return Err(error.into()),
            };
            if self.is_closed() {
                return Err(Refusal::Closing);
            }
            if let Some(refusal) = permit.refusal(clock.now()) {
                return Err(refusal);
            }
            if clock.monotonic().saturating_sub(began) >= self.0.time_limit {
                return Err(Refusal::Held(holder.to_string()));
            }
            has_waited = true;
            self.set_waiting_for(Some(format!("another run: {holder}")));
        }
    }

    /// Waits for the next job; returns `None` when the worker should end.
    fn next(&self) -> Option<Job> {
        let mut state = self.0.state.lock();
        let mut is_idle_too_long = false;
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if is_idle_too_long || state.is_closed {
                state.has_worker = false;
                self.0.changed.notify_all();
                return None;
            }
            is_idle_too_long = self
                .0
                .changed
                .wait_for(&mut state, IDLE_TIMEOUT)
                .timed_out();
        }
    }

    /// Waits until the worker has ended, at most for `limit`. Returns whether it has.
    pub(crate) fn wait_until_idle(&self, limit: Duration) -> bool {
        let mut state = self.0.state.lock();
        let has_worker = |state: &mut State| state.has_worker;
        self.0.changed.wait_while_for(&mut state, has_worker, limit);
        !state.has_worker
    }
}

#[cfg(test)]
mod tests;
