//! Run pipeline: from a request to events and a summary, the same for every entry point.
//!
//! [`apply`] runs a manifest, [`ensure`] one resource, [`inspect`] reads the state of a resource. An
//! entry point builds a [`RunContext`] and a [`Request`] and receives events in a `Sink`.
//!
//! Scheduling and authorization are decided by the caller. NATS is used through [`nats_client`] only.

pub mod data;
pub mod environment;
pub mod executor;
mod governor_slot;
pub mod handover;
mod identity;
pub mod log;
mod manifest_location;
pub mod manifest_source;
pub mod nats_client;
pub mod pause;
mod run_lock;
pub mod secret_key;

use std::path::Path;
use std::sync::Arc;

use crate::engine::apply_manifest::RunError as EngineError;
use crate::engine::{
    self, FlowError, Gate, Level, Line, Machine, Mode, PendingRefreshes, Scope, Session,
    SessionError, Sink, StatusError,
};
use crate::hiera::{DataFile, HieraError, Layers};
use crate::manifest::resolve::{self, ResolveError};
use crate::manifest::{self, Checks, Manifest, ManifestError, ManifestInput};
use crate::model::Value;
use crate::model::diagnostic::Diagnostic;
use crate::model::document::DocumentError;
use crate::model::event::{Summary, TransactionEvent};
use crate::model::governor::GovernorClaim;
use crate::model::id::EventId;
use crate::model::node::{NodeName, Token};
use crate::model::request::{RequestError, property_diagnostic};
use crate::model::resource::{InvalidProperty, Phase, Resource};
use crate::model::run::{RUN_SUMMARY, RunId, RunSummary, Trigger};
use crate::model::state::State;
use crate::resource::{ProviderError, package};
use crate::secrets::{self, UnopenedValues, WithoutKey};
use crate::system::{Accounts, Cancel, Clock, FileError, SystemRunner};
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_template::expr::Cache;
use executor::{EngineSetup, EnsureError, Executor};
use manifest_source::{FetchedManifest, ManifestSource, OpenedManifest, SourceError};
use nats_client::{NatsClient, NatsClientError, NatsClientErrorKind, StopCheck};

pub use governor_slot::{Governors, SlotLossCallback};
pub use identity::{IdentityError, local_identity};
pub use manifest_location::{LocationError, ManifestLocation};
pub use run_lock::{RunLock, run_id_of};

/// The default state directory of a node.
pub const STATE_DIR: &str = "/var/lib/choria/ccm";

/// The subdirectory of the state directory that holds pending refreshes, one file per manifest. The name
/// on disk stays `owed` for compatibility with existing state directories.
const PENDING_REFRESHES: &str = "owed";

/// A request to apply a manifest.
#[derive(Clone, Debug)]
pub struct Request {
    pub run_id: RunId,
    pub manifest: ManifestSource,
    pub mode: Mode,
    /// Data of the request, which overrides all other data.
    pub data: Value,
    /// The governor slot of the request, used if the manifest names none.
    pub governor: Option<GovernorClaim>,
    pub trigger: Trigger,
    /// The generation of the assignment, for runs of an assignment.
    pub generation: Option<u64>,
    pub request_id: String,
    pub caller: String,
}

impl Request {
    /// Returns a local request, without a caller, data or governor.
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

    /// Returns the summary of a run that was refused before it began.
    pub fn refused(&self, context: &RunContext<'_>, reason: String) -> RunSummary {
        self.summary(context, Summary::of(Some(context.clock.now()), []), reason)
    }

    fn summary(&self, context: &RunContext<'_>, summary: Summary, error: String) -> RunSummary {
        RunSummary {
            protocol: RUN_SUMMARY.into(),
            event_id: (context.next_id)(),
            run_id: self.run_id.clone(),
            identity: (context.identity)(),
            collective: context.collective.clone(),
            source: self.manifest.display_name(),
            trigger: self.trigger,
            outcome: RunSummary::outcome_of(&summary, self.mode.noop, &error),
            noop: self.mode.noop,
            health_check_only: self.mode.health_check_only,
            generation: self.generation,
            request_id: self.request_id.clone(),
            caller: self.caller.clone(),
            error,
            timestamp: context.clock.now(),
            summary,
        }
    }
}

/// The dependencies and settings that an entry point passes to a run.
pub struct RunContext<'a> {
    /// Returns the node name, used as slot holder and in the summary.
    pub identity: &'a dyn Fn() -> NodeName,
    pub collective: &'a Token,
    pub clock: &'a dyn Clock,
    /// User and group lookups of this run.
    pub accounts: Accounts,
    pub nats: &'a dyn NatsClient,
    pub executor: &'a dyn Executor,
    /// The directory that relative manifest sources start from.
    pub base: &'a Path,
    /// The directory for pending refreshes and records of unpacked archives; without it nothing is
    /// kept after the run.
    pub state_dir: Option<&'a Path>,
    /// The default package module for `provider: cfengine`.
    pub cfengine_module: Option<&'a str>,
    pub governors: Governors,
    /// Returns the template environment of a manifest in this directory.
    pub env: &'a dyn Fn(ManifestDir<'_>) -> Result<Env, EnvironmentError>,
    /// Returns external data for these facts.
    pub data: &'a dyn Fn(&Facts) -> Result<ExternalData, DataError>,
    /// Authorizes each resource before it is applied.
    pub gate: &'a Gate<'a>,
    /// Called before each resource; a returned reason stops the run there.
    pub stop: StopCheck,
    /// Cancels the running command.
    pub cancel: Option<Cancel>,
    /// Returns an id that is greater than all previous ids.
    pub next_id: &'a dyn Fn() -> EventId,
}

impl RunContext<'_> {
    fn packages(&self) -> package::PackageCache {
        package::PackageCache::default()
            .with_default_module(self.cfengine_module.map(str::to_owned))
    }
}

/// The directory of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct ManifestDir<'a> {
    /// The directory that relative paths start from.
    pub directory: &'a Path,
    /// The directory is an unpacked bundle: it holds nothing but the files sent with the manifest.
    pub is_bundle: bool,
}

/// Data from outside the manifest.
#[derive(Clone, Debug, Default)]
pub struct ExternalData {
    /// Merged over the manifest's own data.
    pub source: Value,
    /// Merged over all other data, also in nested manifests.
    pub external: Value,
    /// Warnings to log before the run.
    pub warnings: Vec<Line>,
    /// Where the data came from, for sinks that receive details.
    pub details: Vec<Line>,
}

/// A failure to build the template environment.
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

/// A failure to get external data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(transparent)]
    Hiera(#[from] HieraError),
    #[error(transparent)]
    Unopened(UnopenedValues),
    /// Neither fresh nor usable cached data.
    #[error(transparent)]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
}

/// The reason a run ended early or never began.
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
    Invalid {
        label: String,
        source: InvalidProperty,
    },
    /// Invalid, with a text that already names the resource.
    #[error(transparent)]
    Unusable(InvalidProperty),
    #[error("could not read pending refreshes: {0}")]
    Pending(#[source] FileError),
    #[error(transparent)]
    Slot(NatsClientError),
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
    /// Reports whether the request itself is invalid: nothing was changed, and a retry would fail again.
    pub fn is_invalid(&self) -> bool {
        match self {
            Self::Source(error) => error.is_invalid(),
            Self::Data(DataError::Hiera(error)) => !error.is_unreachable(),
            Self::Data(DataError::Unopened(_))
            | Self::Request(_)
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
            Self::Slot(error) => error.kind == NatsClientErrorKind::Settings,
            Self::Data(DataError::Unavailable(_))
            | Self::Pending(_)
            | Self::Engine(_)
            | Self::Session(_) => false,
        }
    }

    /// Returns the problems of the manifest or its data with their source lines; none if the error
    /// has no position.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        match self {
            Self::Manifest(error) => error.diagnostics(),
            Self::Data(DataError::Hiera(error)) => error.diagnostics(),
            Self::Engine(error) => error.diagnostics(),
            _ => Vec::new(),
        }
    }

    /// Returns the error with its position in the text of a request for one resource.
    pub fn request_diagnostic(&self, text: &str) -> Option<Diagnostic> {
        match self {
            Self::Request(error) => Some(error.diagnostic(text)),
            Self::Template(ResolveError { cause, .. }) => Some(cause.diagnostic("request", text)),
            Self::Invalid { source, .. } | Self::Unusable(source) => {
                let help = Some(manifest::help::property_help(source));
                Some(Diagnostic {
                    help,
                    ..property_diagnostic(text, source)
                })
            }
            _ => None,
        }
    }

    /// Reports whether the run was stopped.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Stopped { .. }))
    }
}

/// A completed run, successful or not.
#[derive(Debug)]
pub struct CompletedRun {
    pub run: RunSummary,
    pub session: Session,
    /// The reason it ended early or never began.
    pub error: Option<RunError>,
    /// The manifest's message for a run without errors.
    pub post_message: String,
}

/// Applies a manifest.
pub fn apply(request: &Request, context: &RunContext<'_>, sink: &mut dyn Sink) -> CompletedRun {
    let mut post_message = String::new();
    let (session, error) = match attempt(request, context, sink, &mut post_message) {
        Ok((session, error)) => (session, error),
        Err(error) => (Session::memory(context.clock.now()), Some(error)),
    };
    let reason = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let run = request.summary(context, session.summary(), reason);
    sink.finished(&run);
    CompletedRun {
        run,
        session,
        error,
        post_message,
    }
}

/// Applies a manifest; an error during the run is returned with the session up to that point.
fn attempt(
    request: &Request,
    context: &RunContext<'_>,
    sink: &mut dyn Sink,
    post_message: &mut String,
) -> Result<(Session, Option<RunError>), RunError> {
    let checks = Checks::Run;
    let loaded = load(&request.manifest, &request.data, checks, context, sink)?;
    let manifest = &loaded.manifest;
    post_message.clone_from(&manifest.post_message);
    let pending = pending_refreshes(&request.manifest, context)?;
    sink.starting(Some(manifest));
    let (own, requested) = (manifest.governor.as_ref(), request.governor.as_ref());
    let slot = governor_slot::enter(request.mode, own, requested, context, sink)
        .map_err(RunError::Slot)?;
    let mut scope = Scope::new(loaded.env, request.mode);
    scope.external = loaded.external;
    let session = Session::memory(context.clock.now());
    let setup = engine_setup(&scope, session, pending, context);
    let (session, result) = context.executor.apply(setup, manifest, sink);
    if let Some(slot) = slot {
        slot.leave(context, sink);
    }
    Ok((session, result.err().map(RunError::from)))
}

/// A loaded manifest with its template environment.
pub struct LoadedManifest {
    pub env: Env,
    pub manifest: Manifest,
    /// The fetched source; its temporary directory is removed on drop.
    pub fetched: Option<FetchedManifest>,
    external: Value,
}

/// Fetches a manifest and loads it with its data. Changes nothing on the machine.
pub fn load(
    manifest: &ManifestSource,
    data: &Value,
    checks: Checks,
    context: &RunContext<'_>,
    sink: &mut dyn Sink,
) -> Result<LoadedManifest, RunError> {
    let OpenedManifest {
        text,
        directory,
        display_name,
        fetched,
    } = manifest.open(context.base, context.clock, context.nats)?;
    if let Some(line) = fetched.as_ref().and_then(FetchedManifest::line) {
        sink.line(&line);
    }
    let is_bundle = match manifest {
        ManifestSource::Text(_) => false,
        ManifestSource::Copy { .. } => true,
        ManifestSource::Source(_) => fetched.as_ref().is_some_and(|it| it.temp.is_some()),
    };
    let mut env = (context.env)(ManifestDir {
        directory: &directory,
        is_bundle,
    })?;
    let ExternalData {
        source,
        external,
        warnings,
        mut details,
    } = (context.data)(&env.facts)?;
    let external = match data.as_map() {
        Some(_) => external.merge_deep(data),
        None => external,
    };
    // An inline manifest has no directory of its own.
    let has_directory = !matches!(manifest, ManifestSource::Text(_));
    let data_env = env.clone();
    let read_data_file = |file: &DataFile| engine::read_data_file(&directory, &data_env, file);
    let input = ManifestInput {
        text: &text,
        source: &display_name,
        layers: Layers {
            source,
            external: external.clone(),
            ..Layers::default()
        },
        read_data_file: has_directory.then_some(&read_data_file),
        applied_before: None,
        checks,
    };
    let loaded = manifest::load(input, &mut env, &Cache::default());
    let manifest = loaded.map_err(|err| {
        let is_hidden = env.hide_rendered && !renders_nothing(manifest, &text, &external);
        if is_hidden || err.shows(&env.secrets) {
            err.redacted()
        } else {
            err
        }
    })?;
    details.push(engine::levels_line(&display_name, &manifest.levels));
    send_details(&details, sink);
    let manifest_warnings = manifest.warnings.iter();
    for line in warnings
        .into_iter()
        .chain(manifest_warnings.map(|text| Line::new(Level::Warn, text)))
    {
        sink.warning(&line);
    }
    Ok(LoadedManifest {
        env,
        manifest,
        fetched,
        external,
    })
}

/// Sends lines to a sink that receives details of their level.
fn send_details(lines: &[Line], sink: &mut dyn Sink) {
    let least = sink.detail_level();
    for line in lines {
        if least.is_some_and(|least| line.level >= least) {
            sink.detail(line);
        }
    }
}

/// Reports whether a manifest contains only what the requester sent and no templates, so that errors may
/// quote it to the requester.
fn renders_nothing(manifest: &ManifestSource, text: &str, external: &Value) -> bool {
    let markers = ["{{", "${", "jet", "template"];
    matches!(manifest, ManifestSource::Text(_))
        && !markers.iter().any(|marker| text.contains(marker))
        && external.as_map().is_none_or(|data| data.is_empty())
}

/// Applies one resource and returns its event, which is recorded in the session.
pub fn ensure(
    resource: Resource,
    mode: Mode,
    session: Session,
    context: &RunContext<'_>,
    sink: &mut dyn Sink,
) -> (Session, Result<TransactionEvent, RunError>) {
    let (scope, resource) = match prepare(resource, mode, context, sink) {
        Ok(prepared) => prepared,
        Err(error) => return (session, Err(error)),
    };
    sink.starting(None);
    let setup = engine_setup(&scope, session, PendingRefreshes::default(), context);
    let (session, result) = context.executor.ensure(setup, &resource, sink);
    (session, result.map_err(RunError::from))
}

/// Resolves the templates of a resource and validates it.
fn prepare(
    mut resource: Resource,
    mode: Mode,
    context: &RunContext<'_>,
    sink: &mut dyn Sink,
) -> Result<(Scope, Arc<Resource>), RunError> {
    let mut env = (context.env)(ManifestDir {
        directory: context.base,
        is_bundle: false,
    })?;
    let data = (context.data)(&env.facts)?;
    data.warnings.iter().for_each(|line| sink.warning(line));
    send_details(&data.details, sink);
    if data.external.as_map().is_some() {
        secrets::set_data(&mut env, data.external, None, WithoutKey::Refuse)
            .map_err(DataError::Unopened)?;
    }
    let original = env.hide_rendered.then(|| resource.clone());
    let resolved =
        resolve::resolve_properties(&mut resource, Phase::Early, &env, &Cache::default());
    resolved.map_err(|err| {
        if env.hide_rendered {
            RunError::Flow(FlowError::from(err).hidden())
        } else {
            err.into()
        }
    })?;
    // Without rendered values there is nothing to hide.
    env.hide_rendered &= original.is_some_and(|original| original != resource)
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

/// Returns the state of a resource. Changes nothing.
pub fn inspect(
    resource: &Resource,
    env: Env,
    cfengine_module: Option<&str>,
    clock: &dyn Clock,
) -> Result<State, StatusError> {
    let machine = Machine {
        runner: &SystemRunner::new(),
        clock,
        accounts: Accounts::default(),
    };
    let packages =
        package::PackageCache::default().with_default_module(cfengine_module.map(str::to_owned));
    let scope = Scope::new(env, Mode::default());
    engine::inspect(resource, &scope, &machine, &packages)
}

/// Returns the refreshes left pending by earlier runs of a manifest.
fn pending_refreshes(
    manifest: &ManifestSource,
    context: &RunContext<'_>,
) -> Result<PendingRefreshes, RunError> {
    let Some(state_dir) = context.state_dir else {
        return Ok(PendingRefreshes::default());
    };
    let key = manifest.key(context.base).to_string();
    let file = state_dir.join(PENDING_REFRESHES).join(key);
    PendingRefreshes::open(&file).map_err(RunError::Pending)
}

fn engine_setup<'w>(
    scope: &'w Scope,
    session: Session,
    pending: PendingRefreshes,
    context: &'w RunContext<'_>,
) -> EngineSetup<'w> {
    EngineSetup {
        scope,
        clock: context.clock,
        accounts: context.accounts.clone(),
        session,
        packages: context.packages(),
        state_dir: context.state_dir,
        pending,
        gate: context.gate,
        stop: &*context.stop,
        cancel: context.cancel.clone(),
    }
}
