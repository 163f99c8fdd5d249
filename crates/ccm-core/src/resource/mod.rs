//! Resource types. Each type has three steps: `inspect` reads the state, `plan` decides on actions,
//! `change` performs exactly those actions.
//!
//! Types are independent of noop mode, callers and other resources; the engine handles those. The set of
//! types is closed, so this is a `match` and not a registry. [`ManagedResource`] combines properties with
//! their provider, and [`PlannedChange`] adds the actions, so that types can't be mixed up.

pub mod archive;
pub mod exec;
pub mod file;
pub mod package;
pub mod scaffold;
pub mod service;

use std::fmt;
use std::path::Path;

use crate::model::TypeName;
use crate::model::output::{self, CommandOutput};
use crate::model::resource::{
    Apply, Archive, Exec, File, InvalidProperty, Package, Properties, Resource, Scaffold, Service,
};
use crate::model::state::{Detail, State};
use crate::model::text::SplitError;
use crate::system::files::{self, FileError, FileKind};
use crate::system::{AccountError, Accounts, Clock, LockError, RunError, Runner, UnpackError};
use ccm_template::{CallError, Env};

/// Access of resource types to the machine.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: &'a Accounts,
    /// The directory of the manifest; relative sources start here.
    pub working_dir: &'a Path,
    /// The directory for records that outlive a run.
    pub state_dir: Option<&'a Path>,
    /// Writes managed files.
    pub files: files::Writer<'a>,
    /// The template environment.
    pub env: &'a Env,
    /// The package cache of this run.
    pub packages: &'a package::PackageCache,
    /// The service cache of this run.
    pub services: &'a service::ServiceCache,
    /// The unpacked scaffold sources of this run.
    pub scaffolds: &'a scaffold::SourceCache,
}

/// A resource without a usable provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    #[error("no suitable provider found")]
    NoneSuitable,
    #[error("invalid resource: provider not found")]
    NotFound,
    #[error("invalid resource: provider is not manageable: not applicable to instance")]
    NotManageable,
}

/// A failure to inspect or change a resource.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error("{0}{output}", output = ErrorOutput::of_killed(.0))]
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
    /// The requester may not read the source; the text names the missing permission.
    #[error("source: {0}")]
    SourceDenied(#[source] CallError),
    #[error("{0} exists as a directory; cannot manage it as a file")]
    IsDirectory(String),
    #[error("{0} is a device, socket or FIFO; remove it first to replace it by a file")]
    SpecialFile(String),
    #[error("download failed: {0}")]
    Download(#[source] archive::DownloadError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("archive type not supported")]
    ArchiveType,
    #[error("failed to reach desired state: {ensure}: {reason}")]
    NotReached {
        ensure: String,
        reason: String,
        /// What the service or package manager printed.
        output: String,
    },
    /// Upstream repeats the exit code in this text.
    #[error("failed to reach desired state: exit code {code} {reason}{error_output}")]
    ExitCode {
        code: i32,
        reason: String,
        error_output: ErrorOutput,
    },
    #[error(transparent)]
    Scaffold(#[from] scaffold::ScaffoldError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error("expected the state of a resource of type {wanted}, got {found}")]
    OtherState { wanted: TypeName, found: TypeName },
}

impl ResourceError {
    /// Returns the error of a resource that is not in its wanted state after a change.
    fn not_reached(resource: &Resource, reason: impl Into<String>) -> Self {
        Self::NotReached {
            ensure: resource.common.ensure.clone(),
            reason: reason.into(),
            output: String::new(),
        }
    }

    /// Returns the last lines of the failed command's output, for the event.
    pub fn output(&self) -> String {
        let of_killed = |err: &RunError| err.output().map(CommandOutput::tail);
        match self {
            Self::Run(err)
            | Self::Service(service::ServiceError::Run(err))
            | Self::Package(package::PackageError::Run(err)) => of_killed(err).unwrap_or_default(),
            Self::Service(err) => err.output(),
            Self::Package(err) => err.output(),
            Self::Scaffold(scaffold::ScaffoldError::Post { output, .. }) => output.clone(),
            Self::NotReached { output, .. } => output.clone(),
            Self::ExitCode { error_output, .. } => error_output.output.clone(),
            _ => String::new(),
        }
    }

    /// Returns the error for a state of another type.
    fn other_state(wanted: TypeName, state: &State) -> Self {
        let found = state.detail.type_name();
        Self::OtherState { wanted, found }
    }
}

/// The actions that bring a resource to its wanted state, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    pub actions: Vec<A>,
    /// The message of a noop run; empty if there is nothing to do.
    pub message: String,
    /// The plan was caused by a subscription.
    pub refreshed: bool,
    /// The resource was already in its wanted state.
    pub satisfied: bool,
    /// The resource is stable after the change.
    pub settles: bool,
    /// The actions may change nothing: the resource counts as changed only if its state differs afterwards.
    pub tentative: bool,
}

impl<A> Plan<A> {
    /// Returns the empty plan of a resource in its wanted state.
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

    /// Returns the plan of a resource that differs from its wanted state.
    fn with_actions(actions: Vec<A>, message: impl Into<String>) -> Self {
        Self {
            actions,
            message: message.into(),
            refreshed: false,
            satisfied: false,
            settles: true,
            tentative: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns the plan with converted actions.
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

/// An action, with the properties and the provider it was planned for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    Archive(&'a Archive, archive::Action),
    Exec(&'a Exec, exec::Provider, exec::Action),
    File(&'a File, file::Action),
    Package(&'a Package, &'a package::Provider, package::Action),
    Scaffold(&'a Scaffold, scaffold::Action),
    Service(service::Provider, service::Action),
}

/// Progress of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A line printed by a command.
    Line(&'a str),
    /// The number of bytes downloaded, and the total if known.
    Received { bytes: u64, of: Option<u64> },
}

/// Results of a change that a later inspection can't see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeReport {
    pub exit_code: Option<i32>,
    /// A warning for users; not a failure.
    pub warning: Option<String>,
    /// The last lines of a failed command's error output.
    pub error_output: Vec<String>,
    /// The output of a command that failed or whose output was requested.
    pub output: CommandOutput,
}

/// The number of output lines in the error of a command that was started for a user.
const MAX_ERROR_LINES: usize = 3;

/// The last lines of a command's output, as the end of an error. Displayed on one line; empty if there
/// are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorOutput {
    lines: Vec<String>,
    /// More of the output, for the event.
    output: String,
}

impl ErrorOutput {
    /// Returns error output of these lines.
    pub fn new(lines: Vec<String>) -> Self {
        let output = output::tail(&lines.join("\n"));
        Self { lines, output }
    }

    /// Returns the last lines of a command that was killed.
    fn of_killed(error: &RunError) -> Self {
        let lines = error.output().map(|it| it.last_lines(MAX_ERROR_LINES));
        Self::new(lines.unwrap_or_default())
    }
}

impl fmt::Display for ErrorOutput {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return Ok(());
        }
        write!(out, ": {}", self.lines.join("; "))
    }
}

/// The provider name of nested manifests.
const MANIFEST_PROVIDER: &str = "ccmmanifest";

/// The provider selected for a resource.
#[derive(Clone, Debug)]
pub enum SelectedProvider<'a> {
    /// A nested manifest, run by the engine itself.
    Manifest(&'a Apply),
    /// A provider of the resource's type.
    Managed(ManagedResource<'a>),
}

impl SelectedProvider<'_> {
    /// Returns the name of the provider in events.
    pub fn provider_name(&self) -> &str {
        match self {
            Self::Manifest(_) => MANIFEST_PROVIDER,
            Self::Managed(managed) => managed.provider_name(),
        }
    }
}

/// A resource with its provider, as returned by [`select_provider`].
#[derive(Clone, Debug)]
pub struct ManagedResource<'a> {
    resource: &'a Resource,
    provider: Provider<'a>,
}

/// The properties of a resource, and its provider for types with several providers.
#[derive(Clone, Debug)]
enum Provider<'a> {
    Archive(&'a Archive),
    Exec(&'a Exec, exec::Provider),
    File(&'a File),
    Package(&'a Package, package::Provider),
    Scaffold(&'a Scaffold),
    Service(&'a Service, service::Provider),
}

/// The plan for a resource, based on an inspected state.
#[derive(Clone, Debug)]
pub struct PlannedChange<'a> {
    resource: &'a Resource,
    state: &'a State,
    plan: Plan<Action<'a>>,
}

/// Selects the provider of a resource: the one it names, else the best one usable on this machine.
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
    Ok(SelectedProvider::Managed(ManagedResource {
        resource,
        provider,
    }))
}

impl ManagedResource<'_> {
    /// Returns the condition that keeps a command from running in this state, if there is one.
    pub fn condition(&self, state: &State) -> Option<&'static str> {
        match (&self.provider, &state.detail) {
            (Provider::Exec(exec, _), Detail::Exec(detail)) => exec::condition(exec, detail),
            _ => None,
        }
    }

    /// Returns the name of the provider in events.
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

    /// Reads the state of the resource. Changes nothing, but runs the guards of an exec.
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

    /// Plans the actions for a state; `refresh` is true if a subscribed resource changed.
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

    /// Reads the state again after a change and checks that it is the wanted state.
    pub fn verify(
        &self,
        report: &mut ChangeReport,
        host: Host<'_>,
    ) -> Result<State, ResourceError> {
        let resource = self.resource;
        match &self.provider {
            Provider::Archive(archive) => archive::verify(resource, archive, host),
            Provider::Exec(exec, _) => exec::verify(resource, exec, report, host),
            Provider::File(file) => file::verify(resource, file, host),
            Provider::Package(package, provider) => {
                package::verify(resource, package, provider, report, host)
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

    /// Returns the planned changes as a diff, for types that support it.
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

    /// Performs the plan and reports its progress.
    pub fn change(
        &self,
        host: Host<'_>,
        on_progress: &dyn Fn(Progress<'_>),
    ) -> Result<ChangeReport, ResourceError> {
        let Self {
            resource, state, ..
        } = self;
        let mut report = ChangeReport::default();
        for action in &self.plan.actions {
            match action {
                // The file may be a program of a package provider.
                Action::File(..) => host.packages.invalidate_providers(),
                // Any command may install packages.
                _ => host.packages.invalidate(),
            }
            match action {
                Action::Archive(archive, action) => {
                    archive::change(resource, archive, *action, host, on_progress)?;
                }
                Action::Exec(exec, provider, exec::Action::Run) => {
                    let output = |line: &str| on_progress(Progress::Line(line));
                    report = exec::run(resource, exec, *provider, host, &output)?;
                }
                Action::File(file, action) => file::change(resource, file, state, action, host)?,
                Action::Package(package, provider, action) => {
                    report = package::change(resource, package, provider, state, action, host)?;
                }
                Action::Scaffold(scaffold, action) => {
                    report = scaffold::change(resource, scaffold, *action, host)?;
                }
                Action::Service(provider, action) => {
                    service::change(resource, provider.get(), *action, host)?;
                }
            }
        }
        Ok(report)
    }
}

/// Returns the state after a change, or an error if it still differs from the wanted state.
fn check_reached(
    resource: &Resource,
    state: State,
    difference: Option<String>,
) -> Result<State, ResourceError> {
    match difference {
        None => Ok(state),
        Some(reason) => Err(ResourceError::not_reached(resource, reason)),
    }
}

/// Reports whether the path of a `creates` property exists. A dangling link does not count.
fn creates_exists(path: &str) -> Result<bool, FileError> {
    if path.is_empty() {
        return Ok(false);
    }
    let found = files::inspect(Path::new(path), true)?;
    Ok(found.is_some_and(|found| found.kind != FileKind::Symlink))
}

/// Reports whether a URL scheme is `http` or `https`.
fn is_http(scheme: &str) -> bool {
    ["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests;
