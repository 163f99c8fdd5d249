//! Runs of the agent: passes the services of the node, the policy of the requester and the
//! cancellation to the pipeline of `ccm_core::run`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::data_cache::{DataCache, DataCacheError, Resolved};
use super::handlers::status_policy_request;
use super::node::Node;
use super::registration_watch::{LookupRecorder, Lookups};
use super::reporter::Reporter;
use super::run_queue::Permit;
use super::trust::{Authorizer, Requester, audit};
use ccm_core::engine::{Level, Line, Mode, Session, StatusError};
use ccm_core::model::cloudevent::SlotEvent;
use ccm_core::model::event::{Outcome, TransactionEvent};
use ccm_core::model::governor::{GovernorName, SlotLoss};
use ccm_core::model::id::EventId;
use ccm_core::model::output::CommandOutput;
use ccm_core::model::policy::{Lookup, PolicyRequest};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{CurrentRun, RunSummary, Trigger};
use ccm_core::model::state::State;
use ccm_core::run::environment::TemplateContext;
use ccm_core::run::nats_client::StopCheck;
use ccm_core::run::{
    self, CompletedRun, DataError, ExternalData, Governors, ManifestDir, RunContext, RunError,
    SlotLossCallback,
};
use ccm_core::system::{Accounts, Clock};
use ccm_nats::{BlockingClient, Verb};
use ccm_template::Env;
use ccm_template::env::Facts;

/// A run request and its requester.
#[derive(Clone, Debug)]
pub(crate) struct RunTask {
    pub(crate) request: run::Request,
    /// Limits the run by its policy.
    pub(crate) requester: Requester,
}

/// Function that resolves external data: always fresh, or recent.
type Resolve = fn(
    &DataCache,
    &Facts,
    &BlockingClient,
    &dyn Clock,
    &Authorizer,
) -> Result<Resolved, DataCacheError>;

/// Result of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunResult {
    pub(crate) run: RunSummary,
    pub(crate) events: Vec<TransactionEvent>,
    /// Diff of changed files; empty unless requested.
    pub(crate) diff: String,
    /// The same by event, shortened.
    pub(crate) diffs: BTreeMap<EventId, String>,
    /// The request or the manifest was invalid; nothing was changed.
    pub(crate) is_invalid: bool,
}

/// Result of applying one resource.
pub(crate) struct EnsureResult {
    pub(crate) event: TransactionEvent,
    /// Diff of changed files; empty unless requested.
    pub(crate) diff: String,
    /// Output of a command that failed or whose output was requested.
    pub(crate) output: CommandOutput,
}

impl RunTask {
    /// Returns the description of the run for the queue and the status of the node.
    pub(crate) fn current_run(&self, node: &Node) -> CurrentRun {
        CurrentRun {
            run_id: self.request.run_id.clone(),
            source: self.request.manifest.display_name(),
            trigger: self.request.trigger,
            since: node.services.clock.now(),
            noop: self.request.mode.noop,
            waiting_for: None,
        }
    }

    /// Applies the manifest. The summary is published when this returns.
    pub(crate) fn execute(&self, node: &Node, permit: &Permit) -> RunResult {
        node.notify_status_changed();
        let mut request = self.request.clone();
        request.mode.noop |= node.identity.noop && !request.mode.health_check_only;
        let policy_request = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: request.mode.noop,
            ..PolicyRequest::default()
        };
        // A diff shows file content.
        request.mode.diff &= self.requester.may_look_up(&policy_request, Lookup::Files);
        let recorder = LookupRecorder::default();
        let lookups = lookups(&request, node);
        let scope = RunScope {
            requester: &self.requester,
            policy_request: &policy_request,
            permit,
            resolve: DataCache::resolve,
            recorder: lookups.is_some().then_some(&recorder),
        };
        let mut reporter = Reporter::new(node);
        let CompletedRun {
            run,
            session,
            error,
            ..
        } = node.with_context(&scope, |context| {
            run::apply(&request, context, &mut reporter)
        });
        if let Some(lookups) = lookups {
            lookups.record_run(&run.source, run.generation, &recorder, run.error.is_empty());
        }
        RunResult {
            run,
            events: session.events().to_vec(),
            diff: reporter.diff,
            diffs: reporter.diffs,
            is_invalid: error.as_ref().is_some_and(RunError::is_invalid),
        }
    }
}

/// Returns the record of lookups for repeated runs of a whole manifest; none for requested runs and
/// health checks.
fn lookups<'n>(request: &run::Request, node: &'n Node) -> Option<&'n Lookups> {
    let is_repeated = request.trigger != Trigger::Request && !request.mode.health_check_only;
    node.services.lookups.as_ref().filter(|_| is_repeated)
}

/// Requester, permit and data source of a run.
struct RunScope<'a> {
    requester: &'a Requester,
    /// The request as the policy sees it, as a whole.
    policy_request: &'a PolicyRequest<'a>,
    permit: &'a Permit,
    resolve: Resolve,
    /// Records service lookups of templates.
    recorder: Option<&'a LookupRecorder>,
}

impl Node {
    /// Calls `run` with the context of this node.
    fn with_context<T>(&self, scope: &RunScope<'_>, run: impl FnOnce(&RunContext<'_>) -> T) -> T {
        let env = |manifest_dir: ManifestDir<'_>| {
            let mut env = self.env(manifest_dir.directory);
            if let Some(recorder) = scope.recorder {
                let stream = self.identity.registration_stream.clone();
                env.registrations =
                    Some(recorder.recording(Arc::new(self.services.nats.clone()), stream));
            }
            let bundle = manifest_dir.is_bundle.then_some(manifest_dir.directory);
            Ok(scope.requester.limit(env, scope.policy_request, bundle))
        };
        let data = |facts: &Facts| self.external_data(facts, scope.resolve);
        let gate = |resource: &Resource, provider: &str, mode: Mode| {
            let (requester, verb) = (scope.requester, scope.policy_request.verb);
            requester.may_apply(verb, resource, provider, mode.noop)
        };
        let next_id = || self.next_id();
        run(&RunContext {
            identity: &|| self.identity.name.clone(),
            collective: &self.identity.collective,
            clock: &*self.services.clock,
            accounts: Accounts::default(),
            nats: &self.services.nats,
            executor: &*self.services.executor,
            base: Path::new("/"),
            state_dir: Some(&self.identity.state_dir),
            cfengine_module: self.identity.cfengine_module.as_deref(),
            governors: Governors {
                collective: self.identity.choria.clone(),
                default: self.identity.governor.clone(),
                ignored: false,
                give_up: self.give_up(scope.permit),
                lost: self.lost_slot(),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: self.stop(scope.permit),
            cancel: Some(scope.permit.cancel.clone()),
            next_id: &next_id,
        })
    }

    fn stop(&self, permit: &Permit) -> StopCheck {
        let (permit, clock) = (permit.clone(), self.services.clock.clone());
        Arc::new(move || permit.stop_reason(clock.now()))
    }

    /// Returns a check for reasons to stop waiting for a governor slot.
    fn give_up(&self, permit: &Permit) -> StopCheck {
        let (stop, run_queue) = (self.stop(permit), self.services.run_queue.clone());
        Arc::new(move || {
            let closing = || {
                let is_closed = run_queue.is_closed();
                is_closed.then(|| "the agent is shutting down".into())
            };
            stop().or_else(closing)
        })
    }

    /// Returns a callback that logs and publishes the loss of a governor slot.
    fn lost_slot(&self) -> SlotLossCallback {
        let (choria_events, log) = (
            self.services.choria_events.clone(),
            self.services.log.clone(),
        );
        Arc::new(move |governor: &GovernorName, sequence, loss| {
            let text = match loss {
                SlotLoss::LeaseEnded => {
                    choria_events.slot(governor, sequence, SlotEvent::Eviction);
                    "The lease of the governor slot ended before the run; the run continues"
                }
                // Choria's tool has published the event.
                SlotLoss::Evicted => "The governor slot was evicted; the run continues",
            };
            let line = Line::new(Level::Warn, text).with("governor", governor);
            log.line(&line.with("slot", sequence));
        })
    }

    /// Returns the template environment of a run whose relative paths start at `directory`.
    pub(crate) fn env(&self, directory: &Path) -> Env {
        let context = TemplateContext {
            facts: self.services.facts.current(),
            environ: self.identity.environ.clone(),
            nats: Arc::new(self.services.nats.clone()),
            registration_stream: self.identity.registration_stream.clone(),
            secrets: self.services.secrets.clone(),
        };
        context.env(directory)
    }

    /// Returns the external data of a run or of one resource, or why there is none.
    fn external_data(&self, facts: &Facts, resolve: Resolve) -> Result<ExternalData, DataError> {
        let began = self.services.clock.monotonic();
        let clock = &*self.services.clock;
        let resolved = resolve(
            &self.services.data,
            facts,
            &self.services.nats,
            clock,
            &self.services.authorizer,
        );
        let problem = match &resolved {
            Ok(resolved) => resolved.stale.as_ref(),
            Err(problem) => Some(problem),
        };
        if let Some(source) = self.services.data.source() {
            let took = self.services.clock.monotonic().saturating_sub(began);
            self.services.metrics.data_resolved(took);
            if problem.is_some() {
                self.services.metrics.data_failed(&source.to_string());
            }
            if let Some(refusal) = self.services.data.new_refusal(problem) {
                let request = audit::AuditRequest {
                    about: &source.location(),
                    ..audit::AuditRequest::default()
                };
                let reason = refusal.to_string();
                self.services
                    .audit
                    .denied(self, Verb::Apply.as_str(), &request, &reason);
            }
        }
        let resolved = resolved.map_err(|problem| DataError::Unavailable(problem.into()))?;
        let stale = resolved.stale.map(|problem| {
            Line::new(Level::Warn, "Using the last good external data").with("error", problem)
        });
        Ok(ExternalData {
            external: resolved.data,
            warnings: stale.into_iter().collect(),
            ..ExternalData::default()
        })
    }

    /// Applies one resource. Its event is published.
    pub(crate) fn ensure(
        &self,
        resource: Resource,
        mode: Mode,
        requester: &Requester,
        permit: &Permit,
    ) -> Result<EnsureResult, RunError> {
        let (type_name, name) = (resource.type_name(), resource.policy_name().to_owned());
        let policy_request = PolicyRequest {
            verb: Verb::Ensure.as_str(),
            noop: mode.noop || self.identity.noop,
            type_name: Some(type_name),
            name: Some(&name),
            ..PolicyRequest::default()
        };
        let mode = Mode {
            noop: policy_request.noop,
            // A diff shows file content.
            diff: mode.diff && requester.may_look_up(&policy_request, Lookup::Files),
            ..mode
        };
        let scope = RunScope {
            requester,
            policy_request: &policy_request,
            permit,
            resolve: DataCache::recent,
            recorder: None,
        };
        let mut reporter = Reporter::new(self);
        let session = Session::memory(self.services.clock.now());
        let (_, result) = self.with_context(&scope, |context| {
            run::ensure(resource, mode, session, context, &mut reporter)
        });
        let event = result?;
        // A stable event may be lost in a power cut, so it is not worth a disk sync.
        if event.outcome() != Outcome::Stable {
            self.services.event_sink.sync();
        }
        Ok(EnsureResult {
            event,
            diff: reporter.diff,
            output: reporter.output,
        })
    }

    /// Returns the state of a resource without changing it.
    pub(crate) fn state_of(
        &self,
        resource: &Resource,
        requester: &Requester,
    ) -> Result<State, StatusError> {
        let env = requester.limit(
            self.env(Path::new("/")),
            &status_policy_request(resource),
            None,
        );
        let module = self.identity.cfengine_module.as_deref();
        run::inspect(resource, env, module, &*self.services.clock)
    }
}
