//! Actions of the agent `ccm`: converts inputs to runs of the run queue, and results to outputs.
//!
//! Runs are recorded in the run store of the external agent, so that `run_status` reports those of
//! both. As there, one run is active at a time, and another one is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::Value;

use super::{AuditDetails, ChoriaServer, Incoming};
use crate::choria_rpc::ddl::Action;
use crate::choria_rpc::inputs::{ActionInput, ApplyInput, EnsureInput, StatusInput};
use crate::choria_rpc::outputs::{
    FactsOutput, PingOutput, StatusOutput, apply_output, ensure_output, failure_of, run_status,
};
use crate::choria_rpc::reply::{ActionReply, Failure};
use crate::choria_rpc::run_store::{Record, RunResult, State};
use crate::handlers::{MALFORMED, ensure_policy_request, status_policy_request};
use crate::node::Node;
use crate::run::RunTask;
use crate::run_queue::{Job, Permit};
use ccm_core::engine::{Level, Mode};
use ccm_core::model::event::Summary;
use ccm_core::model::policy::PolicyRequest;
use ccm_core::model::run::{CurrentRun, RunId, Trigger};
use ccm_core::run::{Request, RunError, RunLock};
use ccm_nats::Verb;

/// Longest wait for the start of a run.
const START_LIMIT: Duration = Duration::from_secs(5);

/// A run to start.
struct NewRun {
    action: Action,
    run_id: RunId,
    /// Resource or source, without secrets.
    label: String,
    noop: bool,
    health_check_only: bool,
    /// Time to wait for its end.
    wait: Duration,
}

impl ChoriaServer {
    /// Executes an action of `ccm`.
    pub(super) fn ccm(&self, incoming: &Incoming, data: &Value) -> Result<ActionReply, Failure> {
        let malformed = |failure| self.deny(incoming, &AuditDetails::default(), MALFORMED, failure);
        let action = Action::named(&incoming.action)
            .map_err(|unknown| malformed(Failure::UnknownAction(unknown.to_string())))?;
        match ActionInput::parse(action, data).map_err(malformed)? {
            ActionInput::Apply(input) => self.apply(incoming, input),
            ActionInput::Ensure(input) => self.ensure(incoming, input),
            ActionInput::Facts(query) => {
                let details = AuditDetails {
                    label: query.as_deref().unwrap_or_default(),
                    ..AuditDetails::read_only()
                };
                self.allow(incoming, &details);
                let facts = self.node.services.facts.current();
                ActionReply::new(&FactsOutput::of(&facts, query.as_deref())?)
            }
            ActionInput::Ping => self.ping(incoming),
            ActionInput::RunStatus(id) => self.run_status(incoming, id),
            ActionInput::Status(input) => self.status(incoming, &input),
        }
    }

    fn apply(&self, incoming: &Incoming, input: ApplyInput) -> Result<ActionReply, Failure> {
        let node = &self.node;
        let mut mode = input.mode;
        mode.noop |= node.identity.noop && !mode.health_check_only;
        let run = NewRun {
            action: Action::Apply,
            run_id: node.next_id(),
            label: input.manifest.display_name(),
            noop: mode.noop,
            health_check_only: mode.health_check_only,
            wait: input.wait,
        };
        self.check_policy(
            incoming,
            &run,
            &PolicyRequest {
                verb: Verb::Apply.as_str(),
                noop: mode.noop,
                ..PolicyRequest::default()
            },
        )?;
        let request = &incoming.authentic.request;
        let task = RunTask {
            request: Request {
                data: input.data,
                governor: input.governor,
                request_id: request.id.clone(),
                caller: request.caller.clone(),
                ..Request::new(run.run_id.clone(), input.manifest, mode)
            },
            requester: incoming.requester.clone(),
        };
        let noop = mode.noop;
        let (record, state) = self.start_run(incoming, run, move |node, permit| {
            let done = task.execute(node, permit);
            let (summary, error) = (done.run.summary, done.run.error);
            RunResult::of(summary, &done.events, &error, done.is_invalid, noop)
        })?;
        let failure = failure_of(&record, state);
        Ok(ActionReply::new(&apply_output(&record, state)?)?.failing(failure))
    }

    fn ensure(&self, incoming: &Incoming, input: EnsureInput) -> Result<ActionReply, Failure> {
        let noop = input.noop || self.node.identity.noop;
        let resource = input.resource;
        let run = NewRun {
            action: Action::Ensure,
            run_id: self.node.next_id(),
            label: resource.label(),
            noop,
            health_check_only: false,
            wait: input.wait,
        };
        self.check_policy(incoming, &run, &ensure_policy_request(&resource, noop))?;
        let requester = incoming.requester.clone();
        let (record, state) = self.start_run(incoming, run, move |node, permit| {
            let mode = Mode {
                noop,
                ..Mode::default()
            };
            let began = node.services.clock.now();
            let done = node.ensure(resource, mode, &requester, permit);
            let is_invalid = done.as_ref().is_err_and(RunError::is_invalid);
            let (events, error) = match done {
                Ok(done) => (vec![done.event], String::new()),
                Err(error) => (Vec::new(), error.to_string()),
            };
            let summary = Summary::of(Some(began), &events);
            RunResult::of(summary, &events, &error, is_invalid, noop).with_event(&events)
        })?;
        let failure = failure_of(&record, state);
        Ok(ActionReply::new(&ensure_output(&record, state))?.failing(failure))
    }

    fn check_policy(
        &self,
        incoming: &Incoming,
        run: &NewRun,
        policy_request: &PolicyRequest<'_>,
    ) -> Result<(), Failure> {
        let allowed = incoming.requester.may(policy_request);
        allowed.map_err(|denied| self.refuse_run(incoming, run, Failure::aborted(denied)))
    }

    /// Audits that a run is refused.
    fn refuse_run(&self, incoming: &Incoming, run: &NewRun, failure: Failure) -> Failure {
        let details = AuditDetails {
            label: &run.label,
            noop: run.noop,
            run_id: None,
        };
        let reason = failure.to_string();
        self.deny(incoming, &details, &reason, failure)
    }

    /// Returns why no run can start, if there is a reason.
    fn obstacle(&self, run: &NewRun) -> Result<Option<Failure>, Failure> {
        let pause = self.node.services.pause.current();
        if let Some(pause) = pause.filter(|_| !run.noop && !run.health_check_only) {
            let reason = format!("the node is paused: {}", pause.reason);
            return Ok(Some(Failure::Aborted(reason)));
        }
        let (current, _) = self.node.services.run_queue.status();
        let other = match current {
            Some(current) => Some(current.run_id),
            None => self.store.current().map_err(Failure::unknown)?,
        };
        Ok(other.map(|id| busy(&id)))
    }

    /// Starts a run, and returns its record after it ended or the wait expired.
    fn start_run(
        &self,
        incoming: &Incoming,
        run: NewRun,
        work: impl FnOnce(&Node, &Permit) -> RunResult + Send + 'static,
    ) -> Result<(Record, State), Failure> {
        if let Some(failure) = self.obstacle(&run)? {
            return Err(self.refuse_run(incoming, &run, failure));
        }
        let (started, starts) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let claim = Claim::default();
        let run_claim = claim.clone();
        let record = self.record_of(incoming, &run);
        let (node, store) = (self.node.clone(), self.store.clone());
        self.node.services.run_queue.submit(Job {
            run: CurrentRun {
                run_id: run.run_id.clone(),
                source: run.label.clone(),
                trigger: Trigger::Request,
                since: record.started,
                noop: run.noop,
                waiting_for: None,
            },
            request_id: incoming.authentic.request.id.clone(),
            deadline: None,
            callback: Box::new(move |permit| {
                let clock = node.services.clock.clone();
                let begin = || {
                    let permit = permit.map_err(Failure::aborted)?;
                    // Runs of the external agent may have another state directory.
                    let lock = store
                        .lock(&record.run_id, &*clock)
                        .map_err(Failure::aborted)?;
                    if !run_claim.take() {
                        return Err(Failure::aborted("it could not start in time"));
                    }
                    store.begin(&record).map_err(Failure::unknown)?;
                    Ok((permit, lock))
                };
                let (permit, lock) = match begin() {
                    Ok(begun) => begun,
                    // Nobody waits for it any more.
                    Err(failure) => return drop(started.send(Err(failure))),
                };
                let _ = started.send(Ok(()));
                node.notify_status_changed();
                let result = work(&node, &permit);
                let record = Record {
                    ended: Some(clock.now()),
                    result: Some(result),
                    ..record
                };
                if let Err(error) = store.end(&record) {
                    let fields = [("error", error.to_string())];
                    node.log(Level::Error, "Could not store the record of a run", &fields);
                }
                drop(lock);
                let _ = ended.send(());
            }),
        });
        let failure = match await_start(&starts, &claim, START_LIMIT) {
            Start::Begun => None,
            Start::Refused(failure) => Some(failure),
            Start::TooLate => {
                let queue = &self.node.services.run_queue;
                queue.cancel(&run.run_id, "it could not start in time", false);
                let current = RunLock::of(&self.node.identity.state_dir).current();
                Some(match current {
                    Ok(Some(id)) => busy(&id),
                    _ => Failure::aborted("another run is active"),
                })
            }
        };
        if let Some(failure) = failure {
            return Err(self.refuse_run(incoming, &run, failure));
        }
        self.allow(
            incoming,
            &AuditDetails {
                label: &run.label,
                noop: run.noop,
                run_id: Some(run.run_id.clone()),
            },
        );
        // Both a timeout and the end of the run end the wait.
        let _ = ends.recv_timeout(run.wait);
        let found = self.store.find(&run.run_id).map_err(Failure::unknown)?;
        found.ok_or_else(|| Failure::unknown(format!("run {} has no record", run.run_id)))
    }

    fn record_of(&self, incoming: &Incoming, run: &NewRun) -> Record {
        let request = &incoming.authentic.request;
        Record {
            run_id: run.run_id.clone(),
            action: run.action.as_str().into(),
            source: run.label.clone(),
            noop: run.noop,
            health_check_only: run.health_check_only,
            caller: request.caller.clone(),
            request_id: request.id.clone(),
            started: self.node.services.clock.now(),
            ended: None,
            result: None,
            waiting_for: String::new(),
            handover_error: String::new(),
        }
    }

    fn status(&self, incoming: &Incoming, input: &StatusInput) -> Result<ActionReply, Failure> {
        let details = AuditDetails {
            label: &input.label,
            ..AuditDetails::read_only()
        };
        let resource = input
            .resource
            .as_ref()
            .map_err(|reason| self.deny(incoming, &details, MALFORMED, Failure::invalid(reason)))?;
        if let Err(denied) = incoming.requester.may(&status_policy_request(resource)) {
            let reason = denied.to_string();
            return Err(self.deny(incoming, &details, &reason, Failure::aborted(denied)));
        }
        self.allow(incoming, &details);
        let state = self.node.state_of(resource, &incoming.requester);
        ActionReply::new(&StatusOutput::of(&state.map_err(Failure::aborted)?)?)
    }

    fn ping(&self, incoming: &Incoming) -> Result<ActionReply, Failure> {
        self.allow(incoming, &AuditDetails::read_only());
        let run_lock = RunLock::of(&self.node.identity.state_dir);
        let current = run_lock.current().map_err(Failure::unknown)?;
        let pause = self.node.services.pause.current().map(|pause| pause.reason);
        let identity = self.node.identity.name.as_str();
        ActionReply::new(&PingOutput::of(identity, pause, current, &self.store)?)
    }

    fn run_status(&self, incoming: &Incoming, id: Option<RunId>) -> Result<ActionReply, Failure> {
        let details = AuditDetails {
            run_id: id.clone(),
            ..AuditDetails::read_only()
        };
        self.allow(incoming, &details);
        let mut reply = run_status(&self.store, id)?;
        let (current, _) = self.node.services.run_queue.status();
        if let Some(CurrentRun {
            run_id,
            waiting_for: Some(what),
            ..
        }) = current
            && reply.data.get("run_id").and_then(Value::as_str) == Some(run_id.as_str())
        {
            reply.data.insert("waiting_for".into(), what.into());
        }
        Ok(reply)
    }
}

/// Returns the failure for a node that is busy with another run.
fn busy(id: &RunId) -> Failure {
    Failure::aborted(format!("run {id} is still running: wait for it to end"))
}

/// Decides between the start of a run and the end of the wait for it: the first to take it wins.
#[derive(Clone, Debug, Default)]
struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Reports whether this call was the first.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// Result of the wait for the start of a run.
#[derive(Debug)]
enum Start {
    Begun,
    Refused(Failure),
    /// It has not started, and will not.
    TooLate,
}

/// Waits until a run has started. One that starts as the time limit expires counts as started.
fn await_start(
    starts: &mpsc::Receiver<Result<(), Failure>>,
    claim: &Claim,
    limit: Duration,
) -> Start {
    let started = match starts.recv_timeout(limit) {
        Ok(started) => Some(started),
        Err(_) if claim.take() => None,
        // It is about to report its start.
        Err(_) => starts.recv().ok(),
    };
    match started {
        Some(Ok(())) => Start::Begun,
        Some(Err(failure)) => Start::Refused(failure),
        None => Start::TooLate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_starts_as_the_time_limit_expires_has_started() {
        let (claim, (started, starts)) = (Claim::default(), mpsc::channel());
        assert!(claim.take(), "by the run");
        let (waiting, waits) = mpsc::channel();
        let wait = std::thread::spawn(move || {
            let start = await_start(&starts, &claim, Duration::ZERO);
            waiting.send(()).unwrap();
            start
        });
        // It can't have decided before the run reports.
        assert!(waits.try_recv().is_err());
        started.send(Ok(())).unwrap();
        assert!(matches!(wait.join().unwrap(), Start::Begun));
    }

    #[test]
    fn a_run_that_has_not_started_in_time_does_not_start_later() {
        let (claim, (_started, starts)) = (Claim::default(), mpsc::channel());
        let start = await_start(&starts, &claim, Duration::ZERO);
        assert!(matches!(start, Start::TooLate));
        assert!(!claim.take(), "by the run");
    }
}
