//! The run_queue: one run at a time on a thread of its own, the rest in a short queue. The thread comes
//! with the first job and goes after a while without one.
//!
//! Before a job begins the node must be free of runs by other programs, see `run::RunLock`.
//!
//! Knows nothing of manifests or of the bus. A job is told either that it may begin or why it may
//! not, exactly once, so that nobody waits for an answer that never comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::{Condvar, Mutex};

use ccm_core::model::run::{CurrentRun, RunId};
use ccm_core::run::RunLock;
use ccm_core::system::{Cancel, Clock, FileLock, LockError, RunError};
use ccm_value::text::go_duration;

/// How long the thread waits for another job before it goes.
const LINGER: Duration = Duration::from_secs(10);

/// How long to wait for the run of another program before looking whether that is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Why a job did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("busy: {0} runs are waiting already")]
    Busy(usize),
    /// Another program did not end its run in time.
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

/// Leave to run, and how to know that it was taken back.
#[derive(Clone, Debug)]
pub struct Permit {
    pub cancel: Cancel,
    reason: Arc<Mutex<Option<String>>>,
    deadline: Option<DateTime<Utc>>,
}

impl Permit {
    /// Returns why no further resource may begin, once that is so.
    pub fn stop_reason(&self, now: DateTime<Utc>) -> Option<String> {
        if self.deadline.is_some_and(|deadline| now > deadline) {
            return Some("deadline passed".into());
        }
        self.reason.lock().clone()
    }

    /// Returns why a run that has not begun must not begin any more, once that is so.
    fn refusal(&self, now: DateTime<Utc>) -> Option<Refusal> {
        if self.deadline.is_some_and(|deadline| now > deadline) {
            return Some(Refusal::Deadline);
        }
        self.reason.lock().is_some().then_some(Refusal::Cancelled)
    }

    fn take_back(&self, reason: &str) {
        self.reason.lock().get_or_insert_with(|| reason.into());
        self.cancel.cancel();
    }
}

type Work = Box<dyn FnOnce(Result<Permit, Refusal>) + Send>;

/// One thing to do.
pub struct Job {
    pub run: CurrentRun,
    /// After this the job must not begin.
    pub deadline: Option<DateTime<Utc>>,
    pub work: Work,
}

/// Takes jobs and does them one after another.
#[derive(Clone)]
pub struct RunQueue(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    most_waiting: usize,
    time_limit: Duration,
    /// What is shared with other programs, if anything is.
    run_lock: Option<RunLock>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    current: Option<(CurrentRun, Permit)>,
    is_closed: bool,
    /// There is a thread that will look at what waits.
    has_worker: bool,
}

impl RunQueue {
    /// Opens a run_queue. Its jobs take turns with the runs of other programs, if there may be any.
    pub fn open(
        clock: Arc<dyn Clock>,
        most_waiting: usize,
        time_limit: Duration,
        run_lock: Option<RunLock>,
    ) -> Self {
        Self(Arc::new(Inner {
            clock,
            most_waiting,
            time_limit,
            run_lock,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Queues a job, or hands its work the reason why not.
    pub fn submit(&self, job: Job) {
        let refused = {
            let mut state = self.0.state.lock();
            if state.is_closed {
                Some((job, Refusal::Closing))
            } else if state.waiting.len() >= self.0.most_waiting {
                Some((job, Refusal::Busy(state.waiting.len())))
            } else {
                state.waiting.push_back(job);
                if !state.has_worker {
                    state.has_worker = true;
                    let worker = self.clone();
                    std::thread::spawn(move || worker.work());
                }
                self.0.changed.notify_all();
                None
            }
        };
        if let Some((job, refusal)) = refused {
            (job.work)(Err(refusal));
        }
    }

    /// Returns the current run and how many wait.
    pub fn status(&self) -> (Option<CurrentRun>, usize) {
        let state = self.0.state.lock();
        let current = state.current.as_ref().map(|(run, _)| run.clone());
        (current, state.waiting.len())
    }

    /// Reports whether a run of this source waits for its turn.
    pub fn is_waiting(&self, source: &str) -> bool {
        let state = self.0.state.lock();
        state.waiting.iter().any(|job| job.run.source == source)
    }

    /// Cancels a run, whether it waits or is going on. Returns whether there was one.
    pub fn cancel(&self, id: &RunId, reason: &str) -> bool {
        let waiting = {
            let mut state = self.0.state.lock();
            if let Some((run, permit)) = &state.current
                && run.run_id == *id
            {
                permit.take_back(reason);
                return true;
            }
            let at = state.waiting.iter().position(|job| job.run.run_id == *id);
            at.and_then(|at| state.waiting.remove(at))
        };
        match waiting {
            Some(job) => {
                (job.work)(Err(Refusal::Cancelled));
                true
            }
            None => false,
        }
    }

    /// Notes what the current run waits for before it begins, or that it begins now: only from
    /// then on its time counts.
    pub fn wait_for(&self, what: Option<String>) {
        let now = self.0.clock.now();
        if let Some((run, _)) = &mut self.0.state.lock().current {
            run.waiting_for = what;
            run.since = now;
        }
    }

    /// Reports whether no more jobs are taken.
    pub fn is_closed(&self) -> bool {
        self.0.state.lock().is_closed
    }

    /// Cancels a run that takes too long; to be called now and then. What it waits for has a limit
    /// of its own.
    pub fn enforce_time_limit(&self) {
        let state = self.0.state.lock();
        if let Some((run, permit)) = &state.current
            && run.waiting_for.is_none()
        {
            let taken = (self.0.clock.now() - run.since)
                .to_std()
                .unwrap_or_default();
            if taken > self.0.time_limit {
                let limit = go_duration(self.0.time_limit);
                permit.take_back(&format!("run took longer than {limit}"));
            }
        }
    }

    /// Takes no more jobs, and refuses those that wait. The current run goes on.
    pub fn close(&self) {
        let waiting = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            self.0.changed.notify_all();
            std::mem::take(&mut state.waiting)
        };
        for job in waiting {
            (job.work)(Err(Refusal::Closing));
        }
    }

    /// Takes the current run's permit back.
    pub fn cancel_current(&self, reason: &str) {
        if let Some((_, permit)) = &self.0.state.lock().current {
            permit.take_back(reason);
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let Job {
                mut run,
                deadline,
                work,
            } = job;
            let now = self.0.clock.now();
            if deadline.is_some_and(|deadline| now > deadline) {
                work(Err(Refusal::Deadline));
                continue;
            }
            let cancel = match Cancel::new() {
                Ok(cancel) => cancel,
                Err(err) => {
                    work(Err(err.into()));
                    continue;
                }
            };
            let permit = Permit {
                cancel,
                reason: Arc::default(),
                deadline,
            };
            run.since = now;
            let id = run.run_id.clone();
            self.0.state.lock().current = Some((run, permit.clone()));
            match self.take_turn(&id, &permit) {
                Ok(_turn) => work(Ok(permit)),
                Err(refusal) => work(Err(refusal)),
            }
            self.0.state.lock().current = None;
        }
    }

    /// Waits until no other program has a run going on, for as long as a run may take.
    fn take_turn(&self, id: &RunId, permit: &Permit) -> Result<Option<FileLock>, Refusal> {
        let Some(run_lock) = &self.0.run_lock else {
            return Ok(None);
        };
        let clock = &*self.0.clock;
        let began = clock.monotonic();
        let mut has_waited = false;
        loop {
            let holder = match run_lock.take(id, LOOK_AGAIN, clock) {
                Ok(turn) => {
                    if has_waited {
                        self.wait_for(None);
                    }
                    return Ok(Some(turn));
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
            self.wait_for(Some(format!("another run: {holder}")));
        }
    }

    /// Waits for the next job; without one the thread says goodbye.
    fn next(&self) -> Option<Job> {
        let mut state = self.0.state.lock();
        let mut is_over = false;
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if is_over || state.is_closed {
                state.has_worker = false;
                self.0.changed.notify_all();
                return None;
            }
            is_over = self.0.changed.wait_for(&mut state, LINGER).timed_out();
        }
    }

    /// Waits until nothing runs any more, but no longer than this. Returns whether that is so.
    pub fn wait_until_idle(&self, limit: Duration) -> bool {
        let mut state = self.0.state.lock();
        let has_worker = |state: &mut State| state.has_worker;
        self.0.changed.wait_while_for(&mut state, has_worker, limit);
        !state.has_worker
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use ccm_core::model::id::EventId;
    use ccm_core::model::run::Trigger;
    use ccm_core::system::FixedClock;

    fn start() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn id(number: u128) -> RunId {
        EventId::new(start(), number)
    }

    fn job(number: u128, work: Work) -> Job {
        Job {
            run: CurrentRun {
                run_id: id(number),
                source: format!("s{number}"),
                trigger: Trigger::Request,
                since: start(),
                noop: false,
                waiting_for: None,
            },
            deadline: None,
            work,
        }
    }

    fn told() -> (Work, Receiver<Result<(), Refusal>>) {
        let (tell, told) = channel();
        let work: Work = Box::new(move |leave| tell.send(leave.map(|_| ())).unwrap());
        (work, told)
    }

    /// Opens a run_queue whose one run goes on until the sender is dropped.
    fn busy_desk(
        clock: &Arc<FixedClock>,
    ) -> (
        RunQueue,
        std::sync::mpsc::Sender<()>,
        Receiver<Option<String>>,
    ) {
        let run_queue = RunQueue::open(clock.clone(), 1, Duration::from_secs(60), None);
        let (hold, held) = channel::<()>();
        let (begun, begins) = channel();
        let (end, ended) = channel();
        let now = clock.clone();
        run_queue.submit(job(
            1,
            Box::new(move |leave| {
                let permit = leave.unwrap();
                begun.send(()).unwrap();
                let _ = held.recv();
                end.send(permit.stop_reason(now.now())).unwrap();
            }),
        ));
        begins.recv().unwrap();
        (run_queue, hold, ended)
    }

    #[test]
    fn jobs_run_one_after_another_and_a_full_queue_says_busy() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, _ended) = busy_desk(&clock);
        let (work, second) = told();
        run_queue.submit(job(2, work));
        let (work, third) = told();
        run_queue.submit(job(3, work));
        assert!(matches!(third.recv().unwrap(), Err(Refusal::Busy(1))));
        assert_eq!(run_queue.status().0.unwrap().run_id, id(1));
        assert!(run_queue.is_waiting("s2"));
        drop(hold);
        second.recv().unwrap().unwrap();
    }

    #[test]
    fn a_job_whose_deadline_passed_in_the_queue_does_not_begin() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, _ended) = busy_desk(&clock);
        let (work, late) = told();
        let mut late_job = job(2, work);
        late_job.deadline = Some(start() + chrono::TimeDelta::seconds(5));
        run_queue.submit(late_job);
        clock.advance(Duration::from_secs(6));
        drop(hold);
        assert!(matches!(late.recv().unwrap(), Err(Refusal::Deadline)));
    }

    #[test]
    fn a_waiting_run_and_the_current_one_can_be_cancelled() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, ended) = busy_desk(&clock);
        let (work, second) = told();
        run_queue.submit(job(2, work));
        assert!(run_queue.cancel(&id(2), "by ann"));
        assert!(matches!(second.recv().unwrap(), Err(Refusal::Cancelled)));
        assert!(run_queue.cancel(&id(1), "by ann"));
        assert!(!run_queue.cancel(&id(9), "by ann"));
        drop(hold);
        assert_eq!(ended.recv().unwrap().as_deref(), Some("by ann"));
    }

    #[test]
    fn a_run_that_takes_too_long_is_told_to_stop() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, ended) = busy_desk(&clock);
        run_queue.enforce_time_limit();
        clock.advance(Duration::from_secs(61));
        run_queue.enforce_time_limit();
        drop(hold);
        let reason = ended.recv().unwrap();
        assert_eq!(reason.as_deref(), Some("run took longer than 1m0s"));
    }

    #[test]
    fn the_time_of_a_run_counts_from_when_it_need_not_wait_any_more() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, ended) = busy_desk(&clock);
        run_queue.wait_for(Some("governor deploys".into()));
        clock.advance(Duration::from_secs(61));
        run_queue.enforce_time_limit();
        let (current, _) = run_queue.status();
        let waiting_for = current.unwrap().waiting_for;
        assert_eq!(waiting_for.as_deref(), Some("governor deploys"));
        run_queue.wait_for(None);
        clock.advance(Duration::from_secs(59));
        run_queue.enforce_time_limit();
        drop(hold);
        assert_eq!(ended.recv().unwrap(), None);
    }

    /// Opens a run_queue beside another program that has a run going on until the lock is dropped.
    fn shared_desk(clock: &Arc<FixedClock>) -> (tempfile::TempDir, RunQueue, FileLock) {
        let directory = tempfile::tempdir().unwrap();
        let run_lock = RunLock::of(directory.path());
        let other = run_lock.take(&id(9), Duration::ZERO, &**clock).unwrap();
        let limit = Duration::from_secs(60);
        let run_queue = RunQueue::open(clock.clone(), 1, limit, Some(run_lock));
        (directory, run_queue, other)
    }

    #[test]
    fn a_run_of_another_program_is_waited_for_but_not_for_ever() {
        let clock = Arc::new(FixedClock::new(start()));
        let (_directory, run_queue, other) = shared_desk(&clock);
        // Time passes only by waiting here.
        let (work, first) = told();
        run_queue.submit(job(1, work));
        let Err(Refusal::Held(holder)) = first.recv().unwrap() else {
            panic!("it is not busy");
        };
        assert!(holder.ends_with(&format!("(run {})", id(9))), "{holder}");
        drop(other);
        let (work, second) = told();
        run_queue.submit(job(2, work));
        second.recv().unwrap().unwrap();
    }

    #[test]
    fn who_waits_for_another_program_still_has_a_deadline() {
        let clock = Arc::new(FixedClock::new(start()));
        let (_directory, run_queue, _other) = shared_desk(&clock);
        let (work, late) = told();
        let mut late_job = job(1, work);
        late_job.deadline = Some(start() + chrono::TimeDelta::seconds(5));
        run_queue.submit(late_job);
        assert!(matches!(late.recv().unwrap(), Err(Refusal::Deadline)));
    }

    #[test]
    fn a_closed_desk_refuses_what_waits_and_what_comes() {
        let clock = Arc::new(FixedClock::new(start()));
        let (run_queue, hold, ended) = busy_desk(&clock);
        let (work, second) = told();
        run_queue.submit(job(2, work));
        run_queue.close();
        assert!(matches!(second.recv().unwrap(), Err(Refusal::Closing)));
        let (work, third) = told();
        run_queue.submit(job(3, work));
        assert!(matches!(third.recv().unwrap(), Err(Refusal::Closing)));
        drop(hold);
        assert_eq!(ended.recv().unwrap(), None, "the current run goes on");
        assert!(run_queue.wait_until_idle(Duration::from_secs(30)));
    }
}
