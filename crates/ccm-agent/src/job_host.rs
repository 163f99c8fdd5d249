//! The main thread of an agent: drives the async runtime, and between its tasks performs the jobs of
//! the run queue itself, so that a short run needs no hand-over to another thread and back.
//!
//! While a job takes longer than `BRIEF`, a second thread drives the runtime, so that requests are
//! answered, connections kept and signals handled whatever the job waits for. Knows nothing of runs.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinError;

/// Time that a job may keep the main thread before the second thread drives the runtime.
const BRIEF: Duration = Duration::from_millis(2);

/// Time without a job after which the second thread no longer looks every [`BRIEF`] for one that takes
/// longer, but sleeps until it is woken.
const WATCH: Duration = Duration::from_millis(100);

/// Time without a job after which the second thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// Where jobs for the main thread are submitted. Clones share it.
#[derive(Clone, Default)]
pub struct JobHost(Arc<Jobs>);

#[derive(Default)]
struct Jobs {
    waiting: Mutex<VecDeque<Job>>,
    submitted: Notify,
}

impl JobHost {
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.0.waiting.lock().push_back(Box::new(job));
        self.0.submitted.notify_one();
    }

    /// Returns the next job. Cancel safe.
    async fn next(&self) -> Job {
        loop {
            let first = self.0.waiting.lock().pop_front();
            if let Some(job) = first {
                return job;
            }
            self.0.submitted.notified().await;
        }
    }
}

/// What the main thread does next.
enum Next<T> {
    Perform(Job),
    End(Result<T, JoinError>),
}

/// Runs a future to completion on this thread, and the jobs that it submits to the host. Tasks that are
/// still running are dropped.
pub fn run<T, F>(runtime: Runtime, main: impl FnOnce(JobHost) -> F) -> Result<T, JoinError>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let host = JobHost::default();
    let mut main = runtime.spawn(main(host.clone()));
    let substitute = Arc::new(Substitute {
        runtime,
        state: Mutex::default(),
        changed: Condvar::new(),
        ended: Notify::new(),
    });
    let result = loop {
        let next = substitute.runtime.block_on(async {
            tokio::select! {
                biased;
                job = host.next() => Next::Perform(job),
                result = &mut main => Next::End(result),
            }
        });
        match next {
            Next::Perform(job) => {
                substitute.job_begins();
                job();
                substitute.job_ends();
            }
            Next::End(result) => break result,
        }
    };
    substitute.close();
    if let Some(Substitute { runtime, .. }) = Arc::into_inner(substitute) {
        // Don't wait for a host name lookup that is still running on a blocking thread.
        runtime.shutdown_background();
    }
    result
}

/// The thread that drives the runtime during a long job.
struct Substitute {
    runtime: Runtime,
    state: Mutex<State>,
    changed: Condvar,
    /// Notified at the end of a job during which the thread drives the runtime.
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// Start of the current job.
    began: Option<Instant>,
    /// End of the last job.
    last: Option<Instant>,
    has_thread: bool,
    /// The thread sleeps until it is woken.
    is_asleep: bool,
    /// The thread drives the runtime.
    is_driving: bool,
    is_closed: bool,
}

impl Substitute {
    fn job_begins(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.began = Some(Instant::now());
        if !state.has_thread {
            state.has_thread = true;
            let substitute = Arc::clone(self);
            std::thread::spawn(move || substitute.watch());
        } else if state.is_asleep {
            state.is_asleep = false;
            self.changed.notify_all();
        }
    }

    fn job_ends(&self) {
        let mut state = self.state.lock();
        state.began = None;
        state.last = Some(Instant::now());
        if state.is_driving {
            self.ended.notify_one();
        }
    }

    /// Waits until the thread has ended.
    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        let has_thread = |state: &mut State| state.has_thread;
        self.changed.wait_while(&mut state, has_thread);
    }

    /// Drives the runtime during long jobs, until there was no job for a while.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let now = Instant::now();
            let taken = state.began.map(|began| now.duration_since(began));
            let idle = state.last.map(|last| now.duration_since(last));
            match (taken, idle) {
                (Some(taken), _) if taken >= BRIEF => {
                    state.is_driving = true;
                    drop(state);
                    self.runtime.block_on(self.ended.notified());
                    state = self.state.lock();
                    state.is_driving = false;
                }
                (Some(taken), _) => {
                    self.changed
                        .wait_for(&mut state, BRIEF.saturating_sub(taken));
                }
                (None, Some(idle)) if idle >= IDLE_TIMEOUT => break,
                (None, Some(idle)) if idle >= WATCH => {
                    state.is_asleep = true;
                    self.changed
                        .wait_for(&mut state, IDLE_TIMEOUT.saturating_sub(idle));
                    state.is_asleep = false;
                }
                (None, _) => {
                    self.changed.wait_for(&mut state, BRIEF);
                }
            }
        }
        state.has_thread = false;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn jobs_are_performed_on_the_main_thread() {
        let main_thread = std::thread::current().id();
        let found = run(runtime(), |host| async move {
            let (sender, receiver) = oneshot::channel();
            host.submit(move || sender.send(std::thread::current().id()).unwrap());
            receiver.await.unwrap()
        });
        assert_eq!(found.unwrap(), main_thread);
    }

    #[test]
    fn tasks_and_timers_continue_during_a_job() {
        for _ in 0..20 {
            let ended = run(runtime(), |host| async move {
                let (release, released) = mpsc::channel::<()>();
                let (sender, receiver) = oneshot::channel();
                // The job ends only after a task has run, and the next job waits for the first.
                host.submit(move || {
                    released.recv().unwrap();
                    sender.send(()).unwrap();
                });
                let task = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    release.send(()).unwrap();
                });
                task.await.unwrap();
                receiver.await
            });
            ended.unwrap().unwrap();
        }
    }

    #[test]
    fn jobs_are_performed_in_order_and_the_second_thread_ends_with_the_program() {
        let order = run(runtime(), |host| async move {
            let (sender, receiver) = mpsc::channel();
            let (last, ended) = oneshot::channel();
            for number in 0..50 {
                let sender = sender.clone();
                host.submit(move || sender.send(number).unwrap());
            }
            host.submit(move || last.send(()).unwrap());
            ended.await.unwrap();
            receiver.try_iter().collect::<Vec<i32>>()
        });
        assert_eq!(order.unwrap(), (0..50).collect::<Vec<_>>());
    }
}
