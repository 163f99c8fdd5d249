//! Tests of the run queue.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::job_host;
use ccm_core::model::id::EventId;
use ccm_core::model::run::Trigger;
use ccm_core::system::FixedClock;

fn start() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn id(number: u128) -> RunId {
    EventId::new(start(), number)
}

fn job(number: u128, callback: Callback) -> Job {
    Job {
        run: CurrentRun {
            run_id: id(number),
            source: format!("s{number}"),
            trigger: Trigger::Request,
            since: start(),
            noop: false,
            waiting_for: None,
        },
        request_id: String::new(),
        deadline: None,
        callback,
    }
}

fn outcome_channel() -> (Callback, Receiver<Result<(), Refusal>>) {
    let (sender, receiver) = channel();
    let callback: Callback = Box::new(move |permit| sender.send(permit.map(|_| ())).unwrap());
    (callback, receiver)
}

/// Returns a queue whose one run continues until the sender is dropped.
fn busy_queue(
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
        Box::new(move |permit| {
            let permit = permit.unwrap();
            begun.send(()).unwrap();
            let _ = held.recv();
            end.send(permit.stop_reason(now.now())).unwrap();
        }),
    ));
    begins.recv().unwrap();
    (run_queue, hold, ended)
}

#[test]
fn jobs_run_one_after_another_and_a_full_queue_refuses() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, _ended) = busy_queue(&clock);
    let (callback, second) = outcome_channel();
    run_queue.submit(job(2, callback));
    let (callback, third) = outcome_channel();
    run_queue.submit(job(3, callback));
    assert!(matches!(third.recv().unwrap(), Err(Refusal::Busy(1))));
    assert_eq!(run_queue.status().0.unwrap().run_id, id(1));
    assert_eq!(run_queue.status().1, 1);
    drop(hold);
    second.recv().unwrap().unwrap();
}

#[test]
fn a_job_whose_deadline_passed_in_the_queue_does_not_begin() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, _ended) = busy_queue(&clock);
    let (callback, late) = outcome_channel();
    let mut late_job = job(2, callback);
    late_job.deadline = Some(start() + chrono::TimeDelta::seconds(5));
    run_queue.submit(late_job);
    clock.advance(Duration::from_secs(6));
    drop(hold);
    assert!(matches!(late.recv().unwrap(), Err(Refusal::Deadline)));
}

#[test]
fn the_time_limit_of_a_run_does_not_depend_on_the_date() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, ended) = busy_queue(&clock);
    clock.set(start() + chrono::TimeDelta::days(1));
    run_queue.enforce_time_limit();
    drop(hold);
    assert_eq!(ended.recv().unwrap(), None);
}

#[test]
fn a_waiting_run_and_the_current_one_can_be_cancelled() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, ended) = busy_queue(&clock);
    let (callback, second) = outcome_channel();
    run_queue.submit(job(2, callback));
    assert!(run_queue.cancel(&id(2), "by ann", false));
    assert!(matches!(second.recv().unwrap(), Err(Refusal::Cancelled)));
    assert!(run_queue.cancel(&id(1), "by ann", false));
    assert!(!run_queue.cancel(&id(9), "by ann", false));
    drop(hold);
    assert_eq!(ended.recv().unwrap().as_deref(), Some("by ann"));
}

#[test]
fn the_running_command_is_killed_only_now() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, ended) = busy_queue(&clock);
    let is_killed = || {
        let state = run_queue.0.state.lock();
        state.current.as_ref().unwrap().permit.cancel.is_cancelled()
    };
    assert!(run_queue.cancel(&id(1), "by ann", false));
    assert!(!is_killed());
    assert!(run_queue.cancel(&id(1), "by bob", true));
    assert!(is_killed());
    drop(hold);
    assert_eq!(ended.recv().unwrap().as_deref(), Some("by ann"));
}

#[test]
fn a_run_can_be_cancelled_by_the_id_of_its_request() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, _ended) = busy_queue(&clock);
    let (callback, second) = outcome_channel();
    let mut requested = job(2, callback);
    requested.request_id = id(7).to_string();
    run_queue.submit(requested);
    assert!(run_queue.cancel(&id(7), "by ann", false));
    assert!(matches!(second.recv().unwrap(), Err(Refusal::Cancelled)));
    drop(hold);
}

#[test]
fn a_run_that_takes_too_long_is_cancelled() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, ended) = busy_queue(&clock);
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
    let (run_queue, hold, ended) = busy_queue(&clock);
    run_queue.set_waiting_for(Some("governor deploys".into()));
    clock.advance(Duration::from_secs(61));
    run_queue.enforce_time_limit();
    let (current, _) = run_queue.status();
    let waiting_for = current.unwrap().waiting_for;
    assert_eq!(waiting_for.as_deref(), Some("governor deploys"));
    run_queue.set_waiting_for(None);
    clock.advance(Duration::from_secs(59));
    run_queue.enforce_time_limit();
    drop(hold);
    assert_eq!(ended.recv().unwrap(), None);
}

/// Returns a queue whose run lock is held by another program until the lock is dropped.
fn shared_queue(clock: &Arc<FixedClock>) -> (tempfile::TempDir, RunQueue, FileLock) {
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
    let (_directory, run_queue, other) = shared_queue(&clock);
    // The test clock advances only by waiting.
    let (callback, first) = outcome_channel();
    run_queue.submit(job(1, callback));
    let Err(Refusal::Held(holder)) = first.recv().unwrap() else {
        panic!("it is not busy");
    };
    assert!(holder.ends_with(&format!("(run {})", id(9))), "{holder}");
    drop(other);
    let (callback, second) = outcome_channel();
    run_queue.submit(job(2, callback));
    second.recv().unwrap().unwrap();
}

#[test]
fn a_run_that_waits_for_another_program_still_has_a_deadline() {
    let clock = Arc::new(FixedClock::new(start()));
    let (_directory, run_queue, _other) = shared_queue(&clock);
    let (callback, late) = outcome_channel();
    let mut late_job = job(1, callback);
    late_job.deadline = Some(start() + chrono::TimeDelta::seconds(5));
    run_queue.submit(late_job);
    assert!(matches!(late.recv().unwrap(), Err(Refusal::Deadline)));
}

#[test]
fn a_closed_queue_refuses_waiting_and_new_jobs() {
    let clock = Arc::new(FixedClock::new(start()));
    let (run_queue, hold, ended) = busy_queue(&clock);
    let (callback, second) = outcome_channel();
    run_queue.submit(job(2, callback));
    run_queue.close();
    assert!(matches!(second.recv().unwrap(), Err(Refusal::Closing)));
    let (callback, third) = outcome_channel();
    run_queue.submit(job(3, callback));
    assert!(matches!(third.recv().unwrap(), Err(Refusal::Closing)));
    drop(hold);
    assert_eq!(ended.recv().unwrap(), None, "the current run goes on");
    assert!(run_queue.wait_until_idle(Duration::from_secs(30)));
}

#[test]
fn a_host_performs_the_jobs_on_its_thread_and_cancels_waiting_ones() {
    let clock = Arc::new(FixedClock::new(start()));
    let run_queue = RunQueue::open(clock, 3, Duration::from_secs(60), None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let main_thread = std::thread::current().id();
    let queue = run_queue.clone();
    let threads = job_host::run(runtime, |host| async move {
        queue.perform_on(host);
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (hold, held) = channel::<()>();
        let (sender, threads) = channel();
        let first = sender.clone();
        queue.submit(job(
            1,
            Box::new(move |permit| {
                permit.unwrap();
                begun.send(()).unwrap();
                let _ = held.recv();
                first.send(std::thread::current().id()).unwrap();
            }),
        ));
        let (callback, second) = outcome_channel();
        queue.submit(job(2, callback));
        let last = tokio::sync::oneshot::channel();
        queue.submit(job(
            3,
            Box::new(move |permit| {
                permit.unwrap();
                sender.send(std::thread::current().id()).unwrap();
                last.0.send(()).unwrap();
            }),
        ));
        // The first job keeps the main thread; this task goes on.
        begins.await.unwrap();
        assert_eq!(queue.status().1, 2);
        assert!(queue.cancel(&id(2), "not needed", false));
        assert!(matches!(second.recv().unwrap(), Err(Refusal::Cancelled)));
        drop(hold);
        last.1.await.unwrap();
        threads.try_iter().collect::<Vec<_>>()
    });
    assert_eq!(threads.unwrap(), [main_thread; 2]);
    assert!(run_queue.wait_until_idle(Duration::from_secs(30)));
}
