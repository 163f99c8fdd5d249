//! The types of resource, each as three questions: `inspect` reads what is, `plan` decides what
//! to do, `change` does exactly that.
//!
//! No type knows whether a run is noop, who asked, or what other resources did; the engine does.
//! The set of types is closed, so there is a `match` here and no registry.

pub mod archive;
pub mod exec;
pub mod file;
pub mod package;
pub mod scaffold;
pub mod service;

use std::path::Path;

use crate::model::resource::{FileEnsure, Properties, Resource};
use crate::model::state::State;
use crate::model::text::SplitError;
use crate::system::files::FileError;
use crate::system::{AccountError, Accounts, Clock, RunError, Runner, UnpackError};
use crate::template::Env;

/// What a type may reach: the machine, through its seams.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: &'a Accounts,
    /// Where relative sources start: the directory of the manifest.
    pub working_dir: &'a Path,
    /// What templates see and may call.
    pub env: &'a Env,
    /// What the packages of this run share.
    pub packages: &'a package::Shared,
    /// What the services of this run share.
    pub services: &'a service::Memory,
    /// What the scaffolds of this run share.
    pub scaffolds: &'a scaffold::Sources,
}

/// How a type is done on this platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provider {
    ArchiveHttp,
    FilePosix,
    Exec(exec::Provider),
    Choria,
    Package(package::Provider),
    Service(service::Provider),
    /// The engine itself runs manifests.
    Manifest,
}

impl Provider {
    /// Returns the name events show.
    pub fn name(&self) -> &str {
        match self {
            Self::ArchiveHttp => archive::PROVIDER,
            Self::FilePosix => "posix",
            Self::Exec(provider) => provider.name(),
            Self::Choria => scaffold::PROVIDER,
            Self::Package(provider) => provider.name(),
            Self::Service(provider) => provider.name(),
            Self::Manifest => "ccmmanifest",
        }
    }
}

/// Why no provider can take a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    #[error("no suitable provider found")]
    NoneSuitable,
    #[error("invalid resource: provider not found")]
    NotFound,
    #[error("invalid resource: provider is not manageable: not applicable to instance")]
    NotManageable,
}

/// Why a resource could not be brought to its wanted state.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Service(#[from] service::ServiceError),
    #[error("invalid guard command: {0}")]
    Guard(SplitError),
    #[error("empty guard command")]
    EmptyGuard,
    #[error("no command specified")]
    NoCommand,
    #[error(transparent)]
    Package(#[from] package::PackageError),
    /// Whoever asks may not read the source; the text says what is missing.
    #[error("source: {0}")]
    MayNotRead(String),
    #[error("{0} exists as a directory; cannot manage it as a file")]
    IsDirectory(String),
    #[error("download failed: {0}")]
    Download(archive::DownloadError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("archive type not supported")]
    ArchiveType,
    #[error("failed to reach desired state: {ensure}: {reason}")]
    NotReached { ensure: String, reason: String },
    #[error(transparent)]
    Scaffold(#[from] scaffold::ScaffoldError),
    #[error(transparent)]
    Invalid(#[from] crate::model::resource::Invalid),
}

/// What has to be done: actions in order, and the words people read instead in a noop run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// What a noop run says; empty when there is nothing to do.
    pub message: String,
    /// A subscription caused it.
    pub refreshed: bool,
    /// The wanted state was found before anything was done.
    pub satisfied: bool,
    /// Carrying the plan out ends in a stable state.
    pub settles: bool,
    /// Carrying the plan out may find nothing to do: only another state is a change then.
    pub tentative: bool,
}

impl Plan {
    /// Returns the plan of a resource that is as wanted.
    fn stable() -> Self {
        Self {
            satisfied: true,
            settles: true,
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Archive(archive::Action),
    File(file::Action),
    Scaffold(scaffold::Action),
    Package(package::Action),
    /// Run the command.
    Run,
    Service(service::Action),
}

/// What a change tells while it is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A command printed a line.
    Line(&'a str),
    /// So many bytes of a download are here, of so many if that is known.
    Received { bytes: u64, of: Option<u64> },
}

/// What a change left behind that a later inspection can't see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    pub exit_code: Option<i32>,
    /// What people should know although nothing failed.
    pub warning: Option<String>,
    /// The last lines a failed command complained with.
    pub complaint: Vec<String>,
}

/// Chooses the provider of a resource: the one it names, else the best that is usable here.
pub fn select_provider(resource: &Resource, host: Host<'_>) -> Result<Provider, ProviderError> {
    let wanted = resource.common.provider.as_str();
    match &resource.properties {
        Properties::File(_) => match wanted {
            "" | "posix" => Ok(Provider::FilePosix),
            _ => Err(ProviderError::NotFound),
        },
        Properties::Exec(_) => exec::Provider::select(wanted, host).map(Provider::Exec),
        Properties::Service(_) => service::Provider::select(wanted, host).map(Provider::Service),
        Properties::Apply(_) => match wanted {
            "" | "ccmmanifest" => Ok(Provider::Manifest),
            _ => Err(ProviderError::NotFound),
        },
        Properties::Scaffold(_) => match wanted {
            "" | scaffold::PROVIDER => Ok(Provider::Choria),
            _ => Err(ProviderError::NotFound),
        },
        Properties::Package(_) => package::Provider::select(wanted, host).map(Provider::Package),
        Properties::Archive(archive) => {
            archive::check_provider(wanted, archive).map(|()| Provider::ArchiveHttp)
        }
    }
}

/// Reads the state of a resource. Changes nothing; an exec's guards do run.
pub fn inspect(
    resource: &Resource,
    provider: &Provider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    match (&resource.properties, provider) {
        (Properties::Exec(exec), Provider::Exec(provider)) => {
            let mut state = exec::inspect(resource, exec, host)?;
            exec::ask_guards(&mut state, exec, *provider, host)?;
            Ok(state)
        }
        (Properties::Scaffold(scaffold), _) => scaffold::inspect(resource, scaffold, host),
        (Properties::Package(package), Provider::Package(provider)) => {
            package::inspect(resource, package, provider, host)
        }
        (Properties::Service(_), Provider::Service(provider)) => {
            Ok(service::inspect(resource, provider.get(), host)?)
        }
        (Properties::Archive(archive), _) => archive::inspect(resource, archive, host),
        _ => {
            let wanted = FileEnsure::parse(&resource.common.ensure);
            file::inspect(&resource.common.name, wanted, host)
        }
    }
}

/// Decides what to do about a state; `refresh` says that a subscription fired.
pub fn plan(
    resource: &Resource,
    provider: &Provider,
    state: &State,
    refresh: bool,
    host: Host<'_>,
) -> Result<Plan, ResourceError> {
    match (&resource.properties, provider) {
        (Properties::Exec(exec), _) => Ok(exec::plan(exec, state, refresh)),
        (Properties::File(file), _) => file::plan(resource, file, state, host),
        (Properties::Package(package), Provider::Package(provider)) => {
            package::plan(resource, package, provider, state, host)
        }
        (Properties::Scaffold(scaffold), _) => scaffold::plan(resource, scaffold, state),
        (Properties::Service(service), Provider::Service(provider)) => {
            let provider = provider.get();
            Ok(service::plan(
                resource, service, provider, state, refresh, host,
            )?)
        }
        (Properties::Archive(archive), _) => archive::plan(resource, archive, state, host),
        _ => Ok(Plan::stable()),
    }
}

/// Carries a plan out and tells how it goes.
pub fn change(
    resource: &Resource,
    provider: &Provider,
    state: &State,
    plan: &Plan,
    host: Host<'_>,
    tell: &dyn Fn(Progress<'_>),
) -> Result<Done, ResourceError> {
    let mut done = Done::default();
    // Whatever runs commands may install packages.
    if !matches!(resource.properties, Properties::File(_)) {
        host.packages.forget();
    }
    for action in &plan.actions {
        match (action, &resource.properties, provider) {
            (Action::Archive(action), Properties::Archive(archive), _) => {
                archive::change(resource, archive, *action, host, tell)?;
            }
            (Action::File(action), Properties::File(file), _) => {
                file::change(resource, file, state, action, host)?;
            }
            (Action::Run, Properties::Exec(exec), Provider::Exec(provider)) => {
                let output = |line: &str| tell(Progress::Line(line));
                done = exec::run(resource, exec, *provider, host, &output)?;
            }
            (
                Action::Package(action),
                Properties::Package(package),
                Provider::Package(provider),
            ) => {
                done = package::change(resource, package, provider, state, action, host)?;
            }
            (Action::Scaffold(action), Properties::Scaffold(scaffold), _) => {
                done = scaffold::change(resource, scaffold, *action, host)?;
            }
            (Action::Service(action), _, Provider::Service(provider)) => {
                service::change(resource, provider.get(), *action, host)?;
            }
            _ => {}
        }
    }
    Ok(done)
}

/// Returns what a plan would change as a person reads it, where a type can show that.
pub fn diff(
    resource: &Resource,
    state: &State,
    plan: &Plan,
    host: Host<'_>,
) -> Result<Option<String>, ResourceError> {
    match &resource.properties {
        Properties::File(file) => file::diff(resource, file, state, plan, host),
        Properties::Scaffold(scaffold) => scaffold::diff(resource, scaffold, plan, host),
        _ => Ok(None),
    }
}

/// Reads the state again after a change and checks that it is the wanted one.
pub fn verify(
    resource: &Resource,
    provider: &Provider,
    done: &mut Done,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    match (&resource.properties, provider) {
        (Properties::Exec(exec), _) => exec::verify(resource, exec, done, host),
        (Properties::File(file), _) => file::verify(resource, file, host),
        (Properties::Package(package), Provider::Package(provider)) => {
            package::verify(resource, package, provider, done, host)
        }
        (Properties::Scaffold(scaffold), _) => scaffold::verify(resource, scaffold, host),
        (Properties::Service(service), Provider::Service(provider)) => {
            service::verify(resource, service, provider.get(), host)
        }
        (Properties::Archive(archive), _) => archive::verify(resource, archive, host),
        _ => Err(ResourceError::NoCommand),
    }
}
