//! The types of resource, each as three questions: `inspect` reads what is, `plan` decides what
//! to do, `change` does exactly that.
//!
//! No type knows whether a run is noop, who asked, or what other resources did; the engine does.
//! The set of types is closed, so there is a `match` here and no registry. Properties stay together
//! with their provider ([`ManagedResource`]) and actions with both ([`PlannedChange`]), so that no type is ever
//! asked about, or changed by, another.

pub mod archive;
pub mod exec;
pub mod file;
pub mod package;
pub mod scaffold;
pub mod service;

use std::path::Path;

use crate::model::TypeName;
use crate::model::resource::{
    Apply, Archive, Exec, File, InvalidProperty, Package, Properties, Resource, Scaffold, Service,
};
use crate::model::state::State;
use crate::model::text::SplitError;
use crate::system::files::FileError;
use crate::system::{AccountError, Accounts, Clock, RunError, Runner, UnpackError};
use ccm_template::{CallError, Env};

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
    pub packages: &'a package::PackageCache,
    /// What the services of this run share.
    pub services: &'a service::ServiceCache,
    /// What the scaffolds of this run share.
    pub scaffolds: &'a scaffold::SourceCache,
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
    Guard(#[source] SplitError),
    #[error("empty guard command")]
    EmptyGuard,
    #[error("no command specified")]
    NoCommand,
    #[error(transparent)]
    Package(#[from] package::PackageError),
    /// Whoever asks may not read the source; the text says what is missing.
    #[error("source: {0}")]
    MayNotRead(#[source] CallError),
    #[error("{0} exists as a directory; cannot manage it as a file")]
    IsDirectory(String),
    #[error("download failed: {0}")]
    Download(#[source] archive::DownloadError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("archive type not supported")]
    ArchiveType,
    #[error("failed to reach desired state: {ensure}: {reason}")]
    NotReached { ensure: String, reason: String },
    #[error(transparent)]
    Scaffold(#[from] scaffold::ScaffoldError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error("the state of a resource of type {found} was given for one of type {wanted}")]
    OtherState { wanted: TypeName, found: TypeName },
}

impl ResourceError {
    /// Returns why a type can't take the state of another.
    fn other_state(wanted: TypeName, state: &State) -> Self {
        let found = state.detail.type_name();
        Self::OtherState { wanted, found }
    }
}

/// What has to be done: actions in order, and the words people read instead in a noop run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    pub actions: Vec<A>,
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

impl<A> Plan<A> {
    /// Returns the plan of a resource that is as wanted.
    fn stable() -> Self {
        Self {
            actions: Vec::new(),
            message: String::new(),
            refreshed: false,
            satisfied: true,
            settles: true,
            tentative: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns the same plan with every action made into another.
    fn map<B>(self, convert: impl FnMut(A) -> B) -> Plan<B> {
        Plan {
            actions: self.actions.into_iter().map(convert).collect(),
            message: self.message,
            refreshed: self.refreshed,
            satisfied: self.satisfied,
            settles: self.settles,
            tentative: self.tentative,
        }
    }
}

/// One thing to do, with the properties and the provider it was planned for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    Archive(&'a Archive, archive::Action),
    Exec(&'a Exec, exec::Provider, exec::Action),
    File(&'a File, file::Action),
    Package(&'a Package, &'a package::Provider, package::Action),
    Scaffold(&'a Scaffold, scaffold::Action),
    Service(service::Provider, service::Action),
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
pub struct ChangeReport {
    pub exit_code: Option<i32>,
    /// What people should know although nothing failed.
    pub warning: Option<String>,
    /// The last lines a failed command complained with.
    pub error_output: Vec<String>,
}

/// The provider of nested manifests.
const MANIFEST_PROVIDER: &str = "ccmmanifest";

/// Who brings a resource to its wanted state.
#[derive(Clone, Debug)]
pub enum SelectedProvider<'a> {
    /// The engine itself runs manifests.
    Manifest(&'a Apply),
    /// A provider of its type does.
    Managed(ManagedResource<'a>),
}

impl SelectedProvider<'_> {
    /// Returns the name of the provider, as events show it.
    pub fn provider_name(&self) -> &str {
        match self {
            Self::Manifest(_) => MANIFEST_PROVIDER,
            Self::Managed(managed) => managed.provider_name(),
        }
    }
}

/// A resource with the provider that takes it; only [`select_provider`] brings the two together.
#[derive(Clone, Debug)]
pub struct ManagedResource<'a> {
    resource: &'a Resource,
    provider: Provider<'a>,
}

/// The properties of a resource, and how its type is done on this platform where there are several
/// ways.
#[derive(Clone, Debug)]
enum Provider<'a> {
    Archive(&'a Archive),
    Exec(&'a Exec, exec::Provider),
    File(&'a File),
    Package(&'a Package, package::Provider),
    Scaffold(&'a Scaffold),
    Service(&'a Service, service::Provider),
}

/// What is to be done to a resource, decided from a state of it.
#[derive(Clone, Debug)]
pub struct PlannedChange<'a> {
    resource: &'a Resource,
    state: &'a State,
    plan: Plan<Action<'a>>,
}

/// Chooses the provider of a resource: the one it names, else the best that is usable here.
pub fn select_provider<'a>(
    resource: &'a Resource,
    host: Host<'_>,
) -> Result<SelectedProvider<'a>, ProviderError> {
    let wanted = resource.common.provider.as_str();
    let only = |name: &str| {
        if wanted.is_empty() || wanted == name {
            Ok(())
        } else {
            Err(ProviderError::NotFound)
        }
    };
    let provider = match &resource.properties {
        Properties::Apply(apply) => {
            only(MANIFEST_PROVIDER)?;
            return Ok(SelectedProvider::Manifest(apply));
        }
        Properties::Archive(archive) => {
            archive::check_provider(wanted, archive)?;
            Provider::Archive(archive)
        }
        Properties::Exec(exec) => Provider::Exec(exec, exec::Provider::select(wanted, host)?),
        Properties::File(file) => {
            only(file::PROVIDER)?;
            Provider::File(file)
        }
        Properties::Package(package) => {
            Provider::Package(package, package::Provider::select(wanted, host)?)
        }
        Properties::Scaffold(scaffold) => {
            only(scaffold::PROVIDER)?;
            Provider::Scaffold(scaffold)
        }
        Properties::Service(service) => {
            Provider::Service(service, service::Provider::select(wanted, host)?)
        }
    };
    Ok(SelectedProvider::Managed(ManagedResource { resource, provider }))
}

impl ManagedResource<'_> {
    /// Returns the name of the provider, as events show it.
    pub fn provider_name(&self) -> &str {
        match &self.provider {
            Provider::Archive(_) => archive::PROVIDER,
            Provider::Exec(_, provider) => provider.name(),
            Provider::File(_) => file::PROVIDER,
            Provider::Package(_, provider) => provider.name(),
            Provider::Scaffold(_) => scaffold::PROVIDER,
            Provider::Service(_, provider) => provider.name(),
        }
    }

    /// Reads the state of the resource. Changes nothing; an exec's guards do run.
    pub fn inspect(&self, host: Host<'_>) -> Result<State, ResourceError> {
        let resource = self.resource;
        match &self.provider {
            Provider::Archive(archive) => archive::inspect(resource, archive, host),
            Provider::Exec(exec, provider) => exec::inspect(resource, exec, *provider, host),
            Provider::File(_) => file::inspect(resource, host),
            Provider::Package(package, provider) => {
                package::inspect(resource, package, provider, host)
            }
            Provider::Scaffold(scaffold) => scaffold::inspect(resource, scaffold, host),
            Provider::Service(_, provider) => Ok(service::inspect(resource, provider.get(), host)?),
        }
    }

    /// Decides what to do about a state; `refresh` says that a subscription fired.
    pub fn plan<'p>(
        &'p self,
        state: &'p State,
        refresh: bool,
        host: Host<'_>,
    ) -> Result<PlannedChange<'p>, ResourceError> {
        let resource = self.resource;
        let plan = match &self.provider {
            Provider::Archive(archive) => archive::plan(resource, archive, state, host)?
                .map(|action| Action::Archive(archive, action)),
            Provider::Exec(exec, provider) => exec::plan(exec, state, refresh)?
                .map(|action| Action::Exec(exec, *provider, action)),
            Provider::File(file) => {
                file::plan(resource, file, state, host)?.map(|action| Action::File(file, action))
            }
            Provider::Package(package, provider) => {
                package::plan(resource, package, provider, state, host)?
                    .map(|action| Action::Package(package, provider, action))
            }
            Provider::Scaffold(scaffold) => scaffold::plan(resource, scaffold, state)?
                .map(|action| Action::Scaffold(scaffold, action)),
            Provider::Service(service, provider) => {
                service::plan(resource, service, provider.get(), state, refresh, host)?
                    .map(|action| Action::Service(*provider, action))
            }
        };
        Ok(PlannedChange {
            resource,
            state,
            plan,
        })
    }

    /// Reads the state again after a change and checks that it is the wanted one.
    pub fn verify(&self, done: &mut ChangeReport, host: Host<'_>) -> Result<State, ResourceError> {
        let resource = self.resource;
        match &self.provider {
            Provider::Archive(archive) => archive::verify(resource, archive, host),
            Provider::Exec(exec, _) => exec::verify(resource, exec, done, host),
            Provider::File(file) => file::verify(resource, file, host),
            Provider::Package(package, provider) => {
                package::verify(resource, package, provider, done, host)
            }
            Provider::Scaffold(scaffold) => scaffold::verify(resource, scaffold, host),
            Provider::Service(service, provider) => {
                service::verify(resource, service, provider.get(), host)
            }
        }
    }
}

impl<'a> PlannedChange<'a> {
    pub fn plan(&self) -> &Plan<Action<'a>> {
        &self.plan
    }

    /// Returns what the plan would change as a person reads it, where a type can show that.
    pub fn diff(&self, host: Host<'_>) -> Result<Option<String>, ResourceError> {
        let Self {
            resource, state, ..
        } = self;
        let mut text = String::new();
        for action in &self.plan.actions {
            match action {
                Action::File(file, action) => {
                    file::diff(&mut text, resource, file, state, action, host)?;
                }
                Action::Scaffold(scaffold, action) => {
                    scaffold::diff(&mut text, resource, scaffold, *action, host)?;
                }
                Action::Archive(..)
                | Action::Exec(..)
                | Action::Package(..)
                | Action::Service(..) => {}
            }
        }
        Ok((!text.is_empty()).then_some(text))
    }

    /// Carries the plan out and tells how it goes.
    pub fn change(
        &self,
        host: Host<'_>,
        tell: &dyn Fn(Progress<'_>),
    ) -> Result<ChangeReport, ResourceError> {
        let Self {
            resource, state, ..
        } = self;
        let mut done = ChangeReport::default();
        for action in &self.plan.actions {
            // Whatever runs commands may install packages.
            if !matches!(action, Action::File(..)) {
                host.packages.forget();
            }
            match action {
                Action::Archive(archive, action) => {
                    archive::change(resource, archive, *action, host, tell)?;
                }
                Action::Exec(exec, provider, exec::Action::Run) => {
                    let output = |line: &str| tell(Progress::Line(line));
                    done = exec::run(resource, exec, *provider, host, &output)?;
                }
                Action::File(file, action) => file::change(resource, file, state, action, host)?,
                Action::Package(package, provider, action) => {
                    done = package::change(resource, package, provider, state, action, host)?;
                }
                Action::Scaffold(scaffold, action) => {
                    done = scaffold::change(resource, scaffold, *action, host)?;
                }
                Action::Service(provider, action) => {
                    service::change(resource, provider.get(), *action, host)?;
                }
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
