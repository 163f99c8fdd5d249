//! A run: from a request to events and a summary, the same for every entry point.
//!
//! [`apply`] runs a manifest, [`ensure`] one resource, [`inspect`] only looks. Each reads as the
//! list of its steps; what a step does is in the file of its name. An entry point says who it is in
//! a [`Host`], translates what it was asked into a [`Request`], and takes what happens with a
//! `Sink`. It decides nothing else.
//!
//! When to run is not decided here, nor who may ask. NATS is reached through [`bus`] alone.

pub mod bus;
pub mod data;
pub mod environment;
pub mod executor;
mod governor_slot;
pub mod handover;
mod identity;
pub mod log;
mod manifest_location;
pub mod manifest_source;
pub mod pause;
mod run_lock;

use std::path::Path;
use std::sync::Arc;

use crate::engine::apply_manifest::RunError as EngineError;
use crate::engine::{
    FlowError, Gate, Level, Line, LookError, Machine, Mode, PendingRefreshes, Scope, Session,
    SessionError, Sink, look,
};
use crate::hiera::{HieraError, Layers};
use crate::manifest::resolve::{self, ResolveError};
use crate::manifest::{self, Input, Manifest, ManifestError};
use crate::model::Value;
use crate::model::document::DocumentError;
use crate::model::event::{Summary, TransactionEvent};
use crate::model::governor::Claim;
use crate::model::id::EventId;
use crate::model::node::{NodeName, Token};
use crate::model::request::RequestError;
use crate::model::resource::{Invalid, Phase, Resource};
use crate::model::run::{RUN_SUMMARY, RunId, RunSummary, Trigger};
use crate::model::state::State;
use crate::resource::{ProviderError, package};
use crate::system::{Accounts, Cancel, Clock, FileError, SystemRunner, files};
use bus::{Bus, BusError, BusErrorKind, StopReason};
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_template::expr::Cache;
use executor::{EnsureError, Executor, Work};
use manifest_source::{Fetched, ManifestSource, Opened, SourceError};

pub use governor_slot::{Evicted, Governors};
pub use identity::{NoIdentity, local_identity};
pub use manifest_location::{LocationError, ManifestLocation};
pub use run_lock::{RunLock, run_of};

/// The folder of the state directory that holds pending refreshes, a file for each manifest.
const PENDING_REFRESHES: &str = "owed";

/// A manifest to apply, and how.
#[derive(Clone, Debug)]
pub struct Request {
    pub run_id: RunId,
    pub manifest: ManifestSource,
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
}

impl Request {
    /// Returns a request for a manifest that nobody but the caller asks for.
    pub fn new(run_id: RunId, manifest: ManifestSource, mode: Mode) -> Self {
        Self {
            run_id,
            manifest,
            mode,
            data: Value::Null,
            governor: None,
            trigger: Trigger::Request,
            generation: None,
            request_id: String::new(),
            caller: String::new(),
        }
    }

    /// Returns the summary of a run that did not even begin.
    pub fn refused(&self, host: &Host<'_>, reason: String) -> RunSummary {
        self.summary(host, Summary::of(Some(host.clock.now()), []), reason)
    }

    fn summary(&self, host: &Host<'_>, summary: Summary, error: String) -> RunSummary {
        RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: (host.next_id)(),
            run_id: self.run_id.clone(),
            identity: host.identity.clone(),
            collective: host.collective.clone(),
            source: self.manifest.shown(),
            trigger: self.trigger,
            outcome: RunSummary::outcome_of(&summary, self.mode.noop, &error),
            noop: self.mode.noop,
            health_check_only: self.mode.health_check_only,
            generation: self.generation,
            request_id: self.request_id.clone(),
            caller: self.caller.clone(),
            error,
            timestamp: host.clock.now(),
            summary,
        }
    }
}

/// What an entry point gives a run to work with.
pub struct Host<'a> {
    /// Who makes the run: the holder of its slot, the node of its summary.
    pub identity: &'a NodeName,
    pub collective: &'a Token,
    pub clock: &'a dyn Clock,
    pub bus: &'a dyn Bus,
    pub executor: &'a dyn Executor,
    /// Where relative sources of manifests start.
    pub base: &'a Path,
    /// Where pending refreshes outlive a run; without it they don't.
    pub state_dir: Option<&'a Path>,
    /// The package module of a plain `provider: cfengine`.
    pub cfengine_module: Option<&'a str>,
    pub governors: Governors,
    /// Returns what the templates of a manifest at this place see.
    pub env: &'a dyn Fn(Place<'_>) -> Result<Env, EnvironmentError>,
    /// Returns data from outside the manifest.
    pub data: &'a dyn Fn(&Facts) -> Result<OutsideData, DataError>,
    /// Asked before each resource whether it may be applied.
    pub gate: &'a Gate<'a>,
    /// Asked before each resource whether to stop there.
    pub stop: StopReason,
    /// Ends the command at work.
    pub cancel: Option<Cancel>,
    /// Returns an id that is greater than all before it.
    pub next_id: &'a dyn Fn() -> EventId,
}

impl Host<'_> {
    fn packages(&self) -> package::Shared {
        package::Shared::default().with_default_module(self.cfengine_module.map(str::to_owned))
    }
}

/// Where a manifest is.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Where relative paths start.
    pub directory: &'a Path,
    /// The directory holds what whoever sent the manifest sent along, and nothing else.
    pub is_bundle: bool,
}

/// Data from outside a manifest.
#[derive(Clone, Debug, Default)]
pub struct OutsideData {
    /// Laid over the manifest's own data.
    pub source: Value,
    /// Laid over everything, also in nested manifests.
    pub external: Value,
    /// What there is to say about it.
    pub warnings: Vec<Line>,
}

/// Why templates have no environment.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{file}: {source}")]
    Document { file: String, source: DocumentError },
    #[error("{file}: expected a mapping, found a {found}")]
    NoMapping { file: String, found: &'static str },
    #[error("expected KEY=VALUE, got '{0}'")]
    Pair(String),
}

/// Why a run has no data from outside.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(transparent)]
    Hiera(#[from] HieraError),
    /// Neither fresh data nor a copy of it that may be used.
    #[error(transparent)]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
}

/// Why a run ended early or never began.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Template(#[from] ResolveError),
    #[error("{label}: invalid resource: {source}")]
    Invalid { label: String, source: Invalid },
    /// Its text says which resource it is about.
    #[error(transparent)]
    Unusable(Invalid),
    #[error("could not read pending refreshes: {0}")]
    Pending(#[source] FileError),
    #[error(transparent)]
    Slot(BusError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Flow(FlowError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<EnsureError> for RunError {
    fn from(error: EnsureError) -> Self {
        match error {
            EnsureError::Flow(error) => Self::Flow(error),
            EnsureError::Session(error) => Self::Session(error),
        }
    }
}

impl RunError {
    /// Reports whether what was asked for can't be: nothing was touched, and asking again is no use.
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::Source(error) => error.is_invalid(),
            Self::Data(DataError::Hiera(error)) => !error.is_unreachable(),
            Self::Request(_)
            | Self::Environment(_)
            | Self::Manifest(_)
            | Self::Template(_)
            | Self::Invalid { .. }
            | Self::Unusable(_) => true,
            Self::Flow(error) => matches!(
                error,
                FlowError::Expression(_)
                    | FlowError::Template(_)
                    | FlowError::Invalid(_)
                    | FlowError::Hidden(_)
                    | FlowError::Provider(ProviderError::NotFound)
            ),
            Self::Slot(error) => error.kind == BusErrorKind::Settings,
            Self::Data(DataError::Unavailable(_))
            | Self::Pending(_)
            | Self::Engine(_)
            | Self::Session(_) => false,
        }
    }

    /// Reports whether somebody stopped the run.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Stopped { .. }))
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Completed {
    pub run: RunSummary,
    pub session: Session,
    /// Why it ended early or never began.
    pub error: Option<RunError>,
    /// What the manifest wants said after a run without errors.
    pub post_message: String,
}

/// Applies a manifest.
pub fn apply(request: &Request, host: &Host<'_>, sink: &mut dyn Sink) -> Completed {
    let mut post_message = String::new();
    let (session, error) = match attempt(request, host, sink, &mut post_message) {
        Ok((session, error)) => (session, error),
        Err(error) => (Session::memory(host.clock.now()), Some(error)),
    };
    let reason = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let run = request.summary(host, session.summary(), reason);
    sink.finished(&run);
    Completed {
        run,
        session,
        error,
        post_message,
    }
}

/// Applies a manifest as far as possible; an early end comes back beside what was done until then.
fn attempt(
    request: &Request,
    host: &Host<'_>,
    sink: &mut dyn Sink,
    post_message: &mut String,
) -> Result<(Session, Option<RunError>), RunError> {
    let loaded = load(&request.manifest, &request.data, host, sink)?;
    let manifest = &loaded.manifest;
    post_message.clone_from(&manifest.post_message);
    let pending = pending_refreshes(&request.manifest, host)?;
    sink.starting(Some(manifest));
    let (own, requested) = (manifest.governor.as_ref(), request.governor.as_ref());
    let slot =
        governor_slot::enter(request.mode, own, requested, host, sink).map_err(RunError::Slot)?;
    let mut scope = Scope::new(loaded.env, request.mode);
    scope.external = loaded.external;
    let session = Session::memory(host.clock.now());
    let work = work(&scope, session, pending, host);
    let (session, result) = host.executor.apply(work, manifest, sink);
    if let Some(slot) = slot {
        slot.leave(host, sink);
    }
    Ok((session, result.err().map(RunError::from)))
}

/// A manifest, and what its templates see.
pub struct Loaded {
    pub env: Env,
    pub manifest: Manifest,
    /// What was brought here for it, which goes with it.
    pub fetched: Option<Fetched>,
    external: Value,
}

/// Brings a manifest here and reads it with the data that belongs to it. Nothing is touched.
pub fn load(
    manifest: &ManifestSource,
    data: &Value,
    host: &Host<'_>,
    sink: &mut dyn Sink,
) -> Result<Loaded, RunError> {
    let Opened {
        text,
        directory,
        shown,
        fetched,
    } = manifest.open(host.base, host.clock, host.bus)?;
    if let Some(line) = fetched.as_ref().and_then(Fetched::line) {
        sink.line(&line);
    }
    let is_bundle = match manifest {
        ManifestSource::Text(_) => false,
        ManifestSource::Copy { .. } => true,
        ManifestSource::Source(_) => fetched.as_ref().is_some_and(|it| it.temp.is_some()),
    };
    let mut env = (host.env)(Place {
        directory: &directory,
        is_bundle,
    })?;
    let OutsideData {
        source,
        external,
        warnings,
    } = (host.data)(&env.facts)?;
    let external = match data.as_map() {
        Some(_) => external.merge_deep(data),
        None => external,
    };
    let input = Input {
        text: &text,
        source: &shown,
        layers: Layers {
            source,
            external: external.clone(),
            ..Layers::default()
        },
    };
    let loaded = manifest::load(input, &mut env, &Cache::default());
    let manifest = loaded.map_err(|err| {
        if env.hide_rendered && !renders_nothing(manifest, &text, &external) {
            err.hidden()
        } else {
            err
        }
    })?;
    let odd = manifest.warnings.iter();
    for line in warnings
        .into_iter()
        .chain(odd.map(|text| Line::new(Level::Warn, text)))
    {
        sink.warning(&line);
    }
    Ok(Loaded {
        env,
        manifest,
        fetched,
        external,
    })
}

/// Reports whether a manifest holds nothing but what its author wrote there: then an error may repeat
/// it to the author.
fn renders_nothing(manifest: &ManifestSource, text: &str, external: &Value) -> bool {
    let signs = ["{{", "${", "jet", "template"];
    matches!(manifest, ManifestSource::Text(_))
        && !signs.iter().any(|sign| text.contains(sign))
        && external.as_map().is_none_or(|data| data.is_empty())
}

/// Brings one resource to its state and returns its event, which is recorded in the session.
pub fn ensure(
    resource: Resource,
    mode: Mode,
    session: Session,
    host: &Host<'_>,
    sink: &mut dyn Sink,
) -> (Session, Result<TransactionEvent, RunError>) {
    let (scope, resource) = match prepare(resource, mode, host, sink) {
        Ok(prepared) => prepared,
        Err(error) => return (session, Err(error)),
    };
    sink.starting(None);
    let work = work(&scope, session, PendingRefreshes::default(), host);
    let (session, result) = host.executor.ensure(work, &resource, sink);
    (session, result.map_err(RunError::from))
}

/// Resolves templates and validates, before anything is touched.
fn prepare(
    mut resource: Resource,
    mode: Mode,
    host: &Host<'_>,
    sink: &mut dyn Sink,
) -> Result<(Scope, Arc<Resource>), RunError> {
    let mut env = (host.env)(Place {
        directory: host.base,
        is_bundle: false,
    })?;
    let data = (host.data)(&env.facts)?;
    data.warnings.iter().for_each(|line| sink.warning(line));
    if data.external.as_map().is_some() {
        env.data = data.external;
    }
    let sent = env.hide_rendered.then(|| resource.clone());
    let resolved = resolve::resource(&mut resource, Phase::Early, &env, &Cache::default());
    resolved.map_err(|err| {
        if env.hide_rendered {
            RunError::Flow(FlowError::from(err).hidden())
        } else {
            err.into()
        }
    })?;
    // Where nothing is rendered there is nothing to hide.
    env.hide_rendered &= sent.is_some_and(|sent| sent != resource)
        || resolve::is_deferred(&resource)
        || resource.common.control.is_some();
    resource.complete().map_err(|source| {
        if env.hide_rendered {
            RunError::Flow(FlowError::from(source).hidden())
        } else if source.names_resource {
            let label = resource.label();
            RunError::Invalid { label, source }
        } else {
            RunError::Unusable(source)
        }
    })?;
    Ok((Scope::new(env, mode), Arc::new(resource)))
}

/// Returns the state of a resource, changing nothing.
pub fn inspect(
    resource: &Resource,
    env: Env,
    cfengine_module: Option<&str>,
    clock: &dyn Clock,
) -> Result<State, LookError> {
    let machine = Machine {
        runner: &SystemRunner::new(),
        clock,
        accounts: Accounts::default(),
    };
    let packages =
        package::Shared::default().with_default_module(cfengine_module.map(str::to_owned));
    let scope = Scope::new(env, Mode::default());
    look(resource, &scope, &machine, &packages)
}

/// Returns the refreshes that earlier runs of a manifest still have to make.
fn pending_refreshes(
    manifest: &ManifestSource,
    host: &Host<'_>,
) -> Result<PendingRefreshes, RunError> {
    let Some(state_dir) = host.state_dir else {
        return Ok(PendingRefreshes::default());
    };
    let directory = state_dir.join(PENDING_REFRESHES);
    files::create_private_dir(&directory)
        .and_then(|()| PendingRefreshes::open(&directory.join(manifest.key().to_string())))
        .map_err(RunError::Pending)
}

fn work<'w>(
    scope: &'w Scope,
    session: Session,
    pending: PendingRefreshes,
    host: &'w Host<'_>,
) -> Work<'w> {
    Work {
        scope,
        clock: host.clock,
        session,
        packages: host.packages(),
        pending,
        gate: host.gate,
        stop: &*host.stop,
        cancel: host.cancel.clone(),
    }
}
