//! Work: one manifest applied, or one resource ensured, on the thread of the desk.
//!
//! Whatever goes wrong ends in a summary or an answer; nothing here decides when to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::data::{DataKeeper, DataProblem, Resolved};
use super::desk::Permit;
use super::lookups::{Lookups, Notes};
use super::node::Node;
use super::slots::claim_of;
use super::sources::{self, Fetched};
use super::trust::{Asker, Gatekeeper, audit};
use super::verbs::looking_at;
use crate::engine::{
    Checked, Engine, FlowError, Level, Line, Machine, Mode, Owed, Scope, Session, Sink, Standing,
    directory_of, look, status_line,
};
use crate::hiera::Layers;
use crate::manifest::{self, Input, Manifest};
use crate::model::Value;
use crate::model::event::{Outcome, Summary, TransactionEvent};
use crate::model::governor::Claim;
use crate::model::policy::{Asked, Lookup};
use crate::model::registration::Entry;
use crate::model::resource::{Phase, Resource};
use crate::model::run::{CurrentRun, RUN_SUMMARY, RunId, RunOutcome, RunSummary, Trigger};
use crate::model::secret::redact_url;
use crate::model::state::State;
use crate::nats::{Bus, Verb};
use crate::resource::package;
use crate::system::{Accounts, Clock, Digest, SystemRunner, files};
use crate::template::env::Facts;
use crate::template::expr::Cache as Programs;
use crate::template::{Env, resolve};

/// The largest manifest that is read.
const MAX_MANIFEST_BYTES: u64 = 256 * 1024 * 1024;

/// How much of a diff an answer holds; servers take messages of a megabyte unless told otherwise.
const MAX_DIFF: usize = 256 * 1024;

/// Stands where a diff was too long.
const CUT: &str = "(more than fits into an answer)\n";

/// A manifest to apply, and how.
#[derive(Clone, Debug)]
pub struct Order {
    pub run_id: RunId,
    pub what: What,
    pub mode: Mode,
    /// Data that whoever asks insists on.
    pub data: Value,
    /// The slot that whoever asks insists on.
    pub governor: Option<Claim>,
    pub trigger: Trigger,
    /// The generation of the assignment that is being followed.
    pub generation: Option<u64>,
    pub request_id: String,
    pub caller: String,
    /// Who it is done for, and so what may be done.
    pub asker: Asker,
}

/// Where a manifest is.
#[derive(Clone, Debug)]
pub enum What {
    /// A source as people write it: a path, a bundle, a URL.
    Source(String),
    /// A manifest that was fetched before.
    Copy { manifest: PathBuf, shown: String },
    /// The manifest itself.
    Text(String),
}

impl What {
    /// Returns the manifest's name as people may see it.
    pub fn shown(&self) -> String {
        match self {
            Self::Source(source) => redact_url(source).into_owned(),
            Self::Copy { shown, .. } => shown.clone(),
            Self::Text(_) => "inline".into(),
        }
    }
}

/// How fresh external data has to be.
type Resolve =
    fn(&DataKeeper, &Facts, &Bus, &dyn Clock, &Gatekeeper) -> Result<Resolved, DataProblem>;

/// How far a manifest came.
struct Applied {
    session: Session,
    diff: String,
    /// Why it ended early.
    error: Option<String>,
}

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
            run_id: self.run_id.clone(),
            source: self.what.shown(),
            trigger: self.trigger,
            since: node.clock.now(),
            noop: self.mode.noop,
            waiting_for: None,
        }
    }

    /// Applies the manifest; the summary is published when this returns.
    pub fn carry_out(&self, node: &Node, permit: &Permit) -> Done {
        node.has_news();
        let mut order = self.clone();
        order.mode.noop |= node.noop && !order.mode.health_check_only;
        // A diff shows what a file holds.
        order.mode.diff &= order.asker.may_look_up(&order.asked(), Lookup::Files);
        let notes = Notes::default();
        let Applied {
            session,
            diff,
            error,
        } = match order.apply(node, permit, &notes) {
            Ok(applied) => applied,
            Err(error) => Applied {
                session: Session::memory(node.clock.now()),
                diff: String::new(),
                error: Some(error),
            },
        };
        let run = order.summary(node, session.summary(), error.unwrap_or_default());
        node.finish(&run);
        if let Some(lookups) = order.lookups(node) {
            lookups.settle(&run.source, run.generation, &notes, run.error.is_empty());
        }
        node.log.line(&closing(&run));
        Done {
            run,
            events: session.events().to_vec(),
            diff,
        }
    }

    /// Returns who wants to know what is looked up: nobody for a run that is not repeated, or that
    /// looks at half of the manifest.
    fn lookups<'n>(&self, node: &'n Node) -> Option<&'n Lookups> {
        let is_repeated = self.trigger != Trigger::Request && !self.mode.health_check_only;
        node.lookups.as_ref().filter(|_| is_repeated)
    }

    /// Returns the summary of an order that did not even begin.
    pub fn refused(&self, node: &Node, reason: String) -> RunSummary {
        self.summary(node, Summary::of(Some(node.clock.now()), []), reason)
    }

    fn summary(&self, node: &Node, summary: Summary, error: String) -> RunSummary {
        RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: node.next_id(),
            run_id: self.run_id.clone(),
            identity: node.identity.clone(),
            collective: node.collective.clone(),
            source: self.what.shown(),
            trigger: self.trigger,
            outcome: RunSummary::outcome_of(&summary, self.mode.noop, &error),
            noop: self.mode.noop,
            health_check_only: self.mode.health_check_only,
            generation: self.generation,
            request_id: self.request_id.clone(),
            caller: self.caller.clone(),
            error,
            timestamp: node.clock.now(),
            summary,
        }
    }

    /// Runs the manifest; an early end comes back beside what was done until then.
    fn apply(&self, node: &Node, permit: &Permit, notes: &Notes) -> Result<Applied, String> {
        let (env, external, manifest, _kept) = self.load(node, notes)?;
        let claims = [&manifest.governor, &self.governor, &node.governor].map(Option::as_ref);
        let slot = match claim_of(self.mode, claims) {
            Some(claim) => Some(node.take_slot(claim, permit)?),
            None => None,
        };
        let applied = self.run(node, permit, env, external, &manifest);
        if let Some(slot) = slot {
            slot.leave();
        }
        applied
    }

    fn run(
        &self,
        node: &Node,
        permit: &Permit,
        env: Env,
        external: Value,
        manifest: &Manifest,
    ) -> Result<Applied, String> {
        if let Some(pretend) = &node.pretend {
            let (session, error) = pretend.run(node, manifest, self.mode, permit);
            let diff = String::new();
            return Ok(Applied {
                session,
                diff,
                error,
            });
        }
        let mut scope = Scope::new(env, self.mode);
        scope.external = external;
        let runner = SystemRunner::cancellable(permit.cancel.clone());
        let machine = Machine {
            runner: &runner,
            clock: &*node.clock,
            accounts: Accounts::default(),
        };
        let owed = Owed::open(&self.owed_file(node)?).map_err(|err| err.to_string())?;
        let stop = || permit.stop_reason(node.clock.now());
        let gate = |resource: &Resource, provider: &str, mode: Mode| {
            self.asker
                .may_apply(Verb::Apply, resource, provider, mode.noop)
        };
        let mut reporter = Reporter::new(node);
        let session = Session::memory(node.clock.now());
        let mut engine = Engine::new(machine, session, &mut reporter)
            .with_packages(node.packages())
            .owing(owed)
            .guarded(&gate)
            .stopping(&stop);
        let result = engine.run(&scope, manifest);
        let session = engine.into_session();
        Ok(Applied {
            session,
            diff: reporter.diff,
            error: result.err().map(|err| err.to_string()),
        })
    }

    /// Returns what a policy is asked about the manifest as a whole.
    fn asked(&self) -> Asked<'static> {
        Asked {
            verb: Verb::Apply.as_str(),
            noop: self.mode.noop,
            ..Asked::default()
        }
    }

    fn load(
        &self,
        node: &Node,
        notes: &Notes,
    ) -> Result<(Env, Value, Manifest, Option<Fetched>), String> {
        let shown = self.what.shown();
        let (text, directory, kept) = match &self.what {
            What::Text(text) => (text.clone(), PathBuf::from("/"), None),
            What::Copy { manifest, .. } => (read(manifest)?, directory_of(manifest), None),
            What::Source(source) => {
                let temporary = std::env::temp_dir();
                let fetched =
                    sources::fetch(source, Path::new("/"), &temporary, &*node.clock, &node.bus)
                        .map_err(|err| err.to_string())?;
                let text = read(&fetched.manifest_path)?;
                (text, fetched.directory.clone(), Some(fetched))
            }
        };
        let mut env = node.env(&directory);
        if self.lookups(node).is_some() {
            let stream = node.registration_stream.clone();
            env.registrations = Some(notes.taking(node.bus.clone(), stream));
        }
        // Only what was unpacked for this run is whoever's sent it.
        let is_sent = match &self.what {
            What::Text(_) => false,
            What::Copy { .. } => true,
            What::Source(_) => kept.as_ref().is_some_and(|it: &Fetched| it.temp.is_some()),
        };
        let bundle = is_sent.then_some(directory.as_path());
        let mut env = self.asker.limit(env, &self.asked(), bundle);
        let external = node.external_data(&env, DataKeeper::resolve)?;
        let external = match self.data.as_map() {
            Some(_) => external.merge_deep(&self.data),
            None => external,
        };
        let input = Input {
            text: &text,
            source: &shown,
            layers: Layers {
                external: external.clone(),
                ..Layers::default()
            },
        };
        let loaded = manifest::load(input, &mut env, &Programs::default());
        // Only of a text that renders nothing nothing has to be hidden.
        let is_plain = matches!(self.what, What::Text(_))
            && !["{{", "${", "jet", "template"]
                .iter()
                .any(|it| text.contains(it))
            && external.as_map().is_none_or(|data| data.is_empty());
        let loaded = loaded.map_err(|err| match env.hide_rendered && !is_plain {
            true => err.hidden(),
            false => err,
        });
        let manifest = loaded.map_err(|err| err.to_string())?;
        for warning in &manifest.warnings {
            node.log.line(&Line::new(Level::Warn, warning));
        }
        Ok((env, external, manifest, kept))
    }

    /// Returns where the refreshes are noted that runs of this source owe.
    fn owed_file(&self, node: &Node) -> Result<PathBuf, String> {
        let directory = node.state_dir.join("owed");
        files::create_private_dir(&directory).map_err(|err| err.to_string())?;
        // Every inline manifest is a source of its own.
        let key = match &self.what {
            What::Text(text) => Digest::of(text.as_bytes()),
            other => Digest::of(other.shown().as_bytes()),
        };
        Ok(directory.join(key.to_string()))
    }
}

fn read(path: &Path) -> Result<String, String> {
    files::read_to_string(path, MAX_MANIFEST_BYTES).map_err(|err| err.to_string())
}

impl Node {
    /// Returns the external data of a run or of one resource, or why there is none.
    fn external_data(&self, env: &Env, resolve: Resolve) -> Result<Value, String> {
        let began = self.clock.monotonic();
        let clock = &*self.clock;
        let resolved = resolve(&self.data, &env.facts, &self.bus, clock, &self.gatekeeper);
        let problem = match &resolved {
            Ok(resolved) => resolved.stale.as_ref(),
            Err(problem) => Some(problem),
        };
        if let Some(source) = self.data.source() {
            let took = self.clock.monotonic().saturating_sub(began);
            self.metrics.data_resolved(took);
            if problem.is_some() {
                self.metrics.data_failed(&source.to_string());
            }
            if let Some(refusal) = self.data.new_refusal(problem) {
                let request = audit::Request {
                    about: &source.place(),
                    ..audit::Request::default()
                };
                let reason = refusal.to_string();
                self.audit.denied(self, Verb::Apply, &request, &reason);
            }
        }
        let resolved = resolved.map_err(|problem| problem.to_string())?;
        if let Some(problem) = resolved.stale {
            let text = "Using the last good external data";
            let line = Line::new(Level::Warn, text).with("error", problem.to_string());
            self.log.line(&line);
        }
        Ok(resolved.data)
    }

    /// Returns what the packages of one run share.
    fn packages(&self) -> package::Shared {
        package::Shared::default().with_default_module(self.cfengine_module.clone())
    }

    /// Brings one resource to its state and returns its event, which is published.
    pub fn ensure(
        &self,
        mut resource: Resource,
        mode: Mode,
        asker: &Asker,
        permit: &Permit,
    ) -> Result<(TransactionEvent, String), String> {
        let mut env = self.env(Path::new("/"));
        env.data = self.external_data(&env, DataKeeper::recent)?;
        let noop = mode.noop || self.noop;
        let asked = Asked {
            verb: Verb::Ensure.as_str(),
            noop,
            type_name: Some(resource.type_name()),
            name: Some(&resource.common.name),
            ..Asked::default()
        };
        let env = asker.limit(env, &asked, None);
        let mode = Mode {
            noop,
            // A diff shows what a file holds.
            diff: mode.diff && asker.may_look_up(&asked, Lookup::Files),
            ..mode
        };
        let mut scope = Scope::new(env, mode);
        let is_hidden = scope.env.hide_rendered;
        let tell = |err: FlowError, is_hidden: bool| match is_hidden {
            true => err.hidden().to_string(),
            false => err.to_string(),
        };
        let sent = is_hidden.then(|| resource.clone());
        resolve::resource(
            &mut resource,
            Phase::Early,
            &scope.env,
            &Programs::default(),
        )
        .map_err(|err| tell(err.into(), is_hidden))?;
        // Where nothing is rendered there is nothing to hide.
        let is_rendered = sent.is_some_and(|sent| sent != resource)
            || resolve::is_deferred(&resource)
            || resource.common.control.is_some();
        scope.env.hide_rendered &= is_rendered;
        let is_hidden = scope.env.hide_rendered;
        let completed = resource.complete();
        completed.map_err(|err| tell(err.into(), is_hidden))?;
        if let Some(pretend) = &self.pretend {
            let event = pretend.event(self, &Arc::new(resource), mode.noop);
            self.outbox.event(&event);
            return Ok((event, String::new()));
        }
        let runner = SystemRunner::cancellable(permit.cancel.clone());
        let machine = Machine {
            runner: &runner,
            clock: &*self.clock,
            accounts: Accounts::default(),
        };
        let session = Session::memory(self.clock.now());
        let mut reporter = Reporter::new(self);
        let gate = |resource: &Resource, provider: &str, mode: Mode| {
            asker.may_apply(Verb::Ensure, resource, provider, mode.noop)
        };
        let mut engine = Engine::new(machine, session, &mut reporter)
            .with_packages(self.packages())
            .guarded(&gate);
        let event = engine
            .apply(&scope, &Arc::new(resource))
            .map_err(|err| err.to_string())?;
        engine
            .record(&scope, event.clone())
            .map_err(|err| err.to_string())?;
        // A power cut may take the news that nothing had to be done; nobody waits for a disk for
        // that.
        if event.outcome() != Outcome::Stable {
            self.outbox.sync();
        }
        drop(engine);
        Ok((event, reporter.diff))
    }

    /// Returns the state of a resource, changing nothing.
    pub fn state_of(&self, resource: &Resource, asker: &Asker) -> Result<State, String> {
        let env = asker.limit(self.env(Path::new("/")), &looking_at(resource), None);
        let scope = Scope::new(env, Mode::default());
        let machine = Machine {
            runner: &SystemRunner::new(),
            clock: &*self.clock,
            accounts: Accounts::default(),
        };
        look(resource, &scope, &machine, &self.packages()).map_err(|err| err.to_string())
    }
}

/// Passes what the engine says on to the log, the spool and the counters.
struct Reporter<'a> {
    node: &'a Node,
    diff: String,
}

impl<'a> Reporter<'a> {
    fn new(node: &'a Node) -> Self {
        Self {
            node,
            diff: String::new(),
        }
    }
}

impl Sink for Reporter<'_> {
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>) {
        self.node.outbox.event(event);
        self.node.metrics.resource_event(event);
        let mut line = status_line(event);
        if let Some(manifest) = manifest {
            line.fields.insert(0, ("manifest", manifest.into()));
        }
        self.node.log.line(&line);
    }

    fn line(&mut self, line: &Line) {
        self.node.log.line(line);
    }

    fn checked(&mut self, checked: &Checked<'_>) {
        self.node.herald.checked(checked);
    }

    fn services(&mut self, entries: &[Entry], standing: Standing) {
        if let Some(registrar) = &self.node.registrar {
            registrar.take(entries, standing);
        }
    }

    /// Keeps a diff for the answer. Nobody watches one in a log, and it may show more than an
    /// event does.
    fn diff(&mut self, text: &str) {
        let left = MAX_DIFF.saturating_sub(self.diff.len());
        if text.len() <= left {
            self.diff.push_str(text);
        } else if !self.diff.ends_with(CUT) {
            self.diff.push_str(CUT);
        }
    }
}

fn closing(run: &RunSummary) -> Line {
    let level = match run.outcome {
        RunOutcome::Failed => Level::Error,
        RunOutcome::Changed | RunOutcome::Noop => Level::Warn,
        RunOutcome::Stable | RunOutcome::Skipped => Level::Info,
    };
    let line = Line::new(level, run.summary.to_string())
        .with("manifest", &run.source)
        .with("run", &run.run_id);
    match run.error.as_str() {
        "" => line,
        error => line.with("error", error),
    }
}
