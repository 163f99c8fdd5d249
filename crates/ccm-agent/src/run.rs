//! The daemon's way into a run: what it gives the pipeline to work with, and on whose behalf.

use std::path::Path;
use std::sync::Arc;

use super::data_cache::{DataCache, DataProblem, Resolved};
use super::handlers::looking_at;
use super::node::Node;
use super::registration_watch::{Lookups, Notes};
use super::reporter::Reporter;
use super::run_queue::Permit;
use super::trust::{Authorizer, Requester, audit};
use ccm_core::engine::{Level, Line, StatusError, Mode, Session};
use ccm_core::model::cloudevent::SlotEvent;
use ccm_core::model::event::{Outcome, TransactionEvent};
use ccm_core::model::governor::GovernorName;
use ccm_core::model::policy::{Lookup, PolicyRequest};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::{CurrentRun, RunSummary, Trigger};
use ccm_core::model::state::State;
use ccm_core::run::nats_client::StopCheck;
use ccm_core::run::environment::TemplateContext;
use ccm_core::run::{
    self, CompletedRun, DataError, EvictionCallback, Governors, RunContext, ExternalData, ManifestDir, RunError,
};
use ccm_core::system::Clock;
use ccm_nats::{BlockingClient, Verb};
use ccm_template::Env;
use ccm_template::env::Facts;

/// A manifest to apply, and who it is done for.
#[derive(Clone, Debug)]
pub struct Order {
    pub request: run::Request,
    /// Decides what may be done.
    pub asker: Requester,
}

/// How fresh external data has to be.
type Resolve = fn(
    &DataCache,
    &Facts,
    &BlockingClient,
    &dyn Clock,
    &Authorizer,
) -> Result<Resolved, DataProblem>;

/// What came of an order.
#[derive(Clone, Debug)]
pub struct Done {
    pub run: RunSummary,
    pub events: Vec<TransactionEvent>,
    /// What changed in files, or would; empty unless the order asks for it.
    pub diff: String,
}

impl Order {
    /// Returns the order as what is going on.
    pub fn as_current(&self, node: &Node) -> CurrentRun {
        CurrentRun {
            run_id: self.request.run_id.clone(),
            source: self.request.manifest.display_name(),
            trigger: self.request.trigger,
            since: node.services.clock.now(),
            noop: self.request.mode.noop,
            waiting_for: None,
        }
    }

    /// Applies the manifest; the summary is published when this returns.
    pub fn carry_out(&self, node: &Node, permit: &Permit) -> Done {
        node.has_news();
        let mut request = self.request.clone();
        request.mode.noop |= node.identity.noop && !request.mode.health_check_only;
        let asked = PolicyRequest {
            verb: Verb::Apply.as_str(),
            noop: request.mode.noop,
            ..PolicyRequest::default()
        };
        // A diff shows what a file holds.
        request.mode.diff &= self.asker.may_look_up(&asked, Lookup::Files);
        let notes = Notes::default();
        let lookups = lookups(&request, node);
        let behalf = Behalf {
            asker: &self.asker,
            asked: &asked,
            permit,
            resolve: DataCache::resolve,
            notes: lookups.is_some().then_some(&notes),
        };
        let mut reporter = Reporter::new(node);
        let CompletedRun { run, session, .. } =
            node.with_host(&behalf, |host| run::apply(&request, host, &mut reporter));
        if let Some(lookups) = lookups {
            lookups.settle(&run.source, run.generation, &notes, run.error.is_empty());
        }
        Done {
            run,
            events: session.events().to_vec(),
            diff: reporter.diff,
        }
    }
}

/// Returns who wants to know what is looked up: nobody for a run that is not repeated, or that
/// looks at half of the manifest.
fn lookups<'n>(request: &run::Request, node: &'n Node) -> Option<&'n Lookups> {
    let is_repeated = request.trigger != Trigger::Request && !request.mode.health_check_only;
    node.services.lookups.as_ref().filter(|_| is_repeated)
}

/// On whose behalf a run is made, and how.
struct Behalf<'a> {
    asker: &'a Requester,
    /// What its policy is asked about the request as a whole.
    asked: &'a PolicyRequest<'a>,
    permit: &'a Permit,
    resolve: Resolve,
    /// Takes what templates look up.
    notes: Option<&'a Notes>,
}

impl Node {
    /// Gives a run what it works with.
    fn with_host<T>(&self, behalf: &Behalf<'_>, run: impl FnOnce(&RunContext<'_>) -> T) -> T {
        let env = |place: ManifestDir<'_>| {
            let mut env = self.env(place.directory);
            if let Some(notes) = behalf.notes {
                let stream = self.identity.registration_stream.clone();
                env.registrations = Some(notes.taking(Arc::new(self.services.bus.clone()), stream));
            }
            let bundle = place.is_bundle.then_some(place.directory);
            Ok(behalf.asker.limit(env, behalf.asked, bundle))
        };
        let data = |facts: &Facts| self.outside_data(facts, behalf.resolve);
        let gate = |resource: &Resource, provider: &str, mode: Mode| {
            let (asker, verb) = (behalf.asker, behalf.asked.verb);
            asker.may_apply(verb, resource, provider, mode.noop)
        };
        let next_id = || self.next_id();
        run(&RunContext {
            identity: &self.identity.name,
            collective: &self.identity.collective,
            clock: &*self.services.clock,
            nats: &self.services.bus,
            executor: &*self.services.executor,
            base: Path::new("/"),
            state_dir: Some(&self.identity.state_dir),
            cfengine_module: self.identity.cfengine_module.as_deref(),
            governors: Governors {
                collective: self.identity.choria.clone(),
                default: self.identity.governor.clone(),
                ignored: false,
                give_up: self.give_up(behalf.permit),
                evicted: self.evicted(),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: self.stop(behalf.permit),
            cancel: Some(behalf.permit.cancel.clone()),
            next_id: &next_id,
        })
    }

    fn stop(&self, permit: &Permit) -> StopCheck {
        let (permit, clock) = (permit.clone(), self.services.clock.clone());
        Arc::new(move || permit.stop_reason(clock.now()))
    }

    /// Returns why a run must not wait for its slot any longer, once that is so.
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

    /// Returns what is to be done when a slot is taken away.
    fn evicted(&self) -> EvictionCallback {
        let (choria_events, log) = (
            self.services.choria_events.clone(),
            self.services.log.clone(),
        );
        Arc::new(move |governor: &GovernorName, sequence| {
            choria_events.slot(governor, sequence, SlotEvent::Eviction);
            let text = "Lost the slot before the run was over; the run goes on";
            let line = Line::new(Level::Warn, text).with("governor", governor);
            log.line(&line.with("slot", sequence));
        })
    }

    /// Returns what templates see in a run whose relative paths start at `directory`.
    pub fn env(&self, directory: &Path) -> Env {
        let surroundings = TemplateContext {
            facts: self.services.facts.current(),
            environ: self.identity.environ.clone(),
            nats: Arc::new(self.services.bus.clone()),
            registration_stream: self.identity.registration_stream.clone(),
        };
        surroundings.env(directory)
    }

    /// Returns the external data of a run or of one resource, or why there is none.
    fn outside_data(&self, facts: &Facts, resolve: Resolve) -> Result<ExternalData, DataError> {
        let began = self.services.clock.monotonic();
        let clock = &*self.services.clock;
        let resolved = resolve(
            &self.services.data,
            facts,
            &self.services.bus,
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
                let request = audit::Request {
                    about: &source.place(),
                    ..audit::Request::default()
                };
                let reason = refusal.to_string();
                self.services
                    .audit
                    .denied(self, Verb::Apply, &request, &reason);
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

    /// Brings one resource to its state and returns its event, which is published, and what
    /// changed in files.
    pub fn ensure(
        &self,
        resource: Resource,
        mode: Mode,
        asker: &Requester,
        permit: &Permit,
    ) -> Result<(TransactionEvent, String), RunError> {
        let (type_name, name) = (resource.type_name(), resource.common.name.clone());
        let asked = PolicyRequest {
            verb: Verb::Ensure.as_str(),
            noop: mode.noop || self.identity.noop,
            type_name: Some(type_name),
            name: Some(&name),
            ..PolicyRequest::default()
        };
        let mode = Mode {
            noop: asked.noop,
            // A diff shows what a file holds.
            diff: mode.diff && asker.may_look_up(&asked, Lookup::Files),
            ..mode
        };
        let behalf = Behalf {
            asker,
            asked: &asked,
            permit,
            resolve: DataCache::recent,
            notes: None,
        };
        let mut reporter = Reporter::new(self);
        let session = Session::memory(self.services.clock.now());
        let (_, result) = self.with_host(&behalf, |host| {
            run::ensure(resource, mode, session, host, &mut reporter)
        });
        let event = result?;
        // A power cut may take the news that nothing had to be done; nobody waits for a disk for
        // that.
        if event.outcome() != Outcome::Stable {
            self.services.event_sink.sync();
        }
        Ok((event, reporter.diff))
    }

    /// Returns the state of a resource, changing nothing.
    pub fn state_of(&self, resource: &Resource, asker: &Requester) -> Result<State, StatusError> {
        let env = asker.limit(self.env(Path::new("/")), &looking_at(resource), None);
        let module = self.identity.cfengine_module.as_deref();
        run::inspect(resource, env, module, &*self.services.clock)
    }
}
