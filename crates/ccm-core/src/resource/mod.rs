//! Resource types. Each type has three steps: `inspect` reads the state, `plan` decides on actions,
//! `change` performs exactly those actions.
//!
//! Types are independent of noop mode, callers and other resources; the engine handles those. The set of
//! types is closed, so this is a `match` and not a registry. [`ManagedResource`] combines properties with
//! their provider, and [`PlannedChange`] adds the actions, so that types can't be mixed up.

pub mod account;
pub mod archive;
mod error;
pub mod exec;
pub mod file;
pub mod group;
pub mod line;
pub mod link;
pub mod package;
mod plan;
mod rendered_secret;
pub mod scaffold;
pub mod service;
pub mod user;
mod walk;

use std::path::Path;

use crate::model::output::CommandOutput;
use crate::model::resource::{
    Apply, Archive, Exec, File, Group, Line, Link, Package, Properties, Resource, Scaffold,
    Service, User,
};
use crate::model::state::{Detail, State};
use crate::system::files::{self, FileError, FileKind};
use crate::system::{Accounts, Clock, Runner};
use ccm_template::Env;

use error::MAX_ERROR_LINES;
pub use error::{ErrorOutput, ProviderError, ResourceError};
pub use plan::Plan;
pub use rendered_secret::{has_templates, renders_secret};

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

/// An action, with the properties and the provider it was planned for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    Archive(&'a Archive, archive::Action),
    Exec(&'a Exec, exec::Provider, exec::Action),
    File(&'a File, &'a file::Rendered, file::Action),
    Group(&'a Group, group::Action),
    Line(&'a Line, line::Action),
    Link(&'a Link, link::Action),
    Package(&'a Package, &'a package::Provider, package::Action),
    Scaffold(&'a Scaffold, scaffold::Action),
    Service(service::Provider, service::Action),
    User(&'a User, user::Action),
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
    File(&'a File, file::Rendered),
    Group(&'a Group),
    Line(&'a Line),
    Link(&'a Link),
    Package(&'a Package, package::Provider),
    Scaffold(&'a Scaffold),
    Service(&'a Service, service::Provider),
    User(&'a User),
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
            Provider::File(file, file::Rendered::default())
        }
        Properties::Group(group) => {
            account::check_provider(wanted, host)?;
            Provider::Group(group)
        }
        Properties::Line(line) => {
            only(line::PROVIDER)?;
            Provider::Line(line)
        }
        Properties::Link(link) => {
            only(link::PROVIDER)?;
            Provider::Link(link)
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
        Properties::User(user) => {
            account::check_provider(wanted, host)?;
            Provider::User(user)
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
            Provider::File(..) => file::PROVIDER,
            Provider::Group(_) | Provider::User(_) => account::PROVIDER,
            Provider::Line(_) => line::PROVIDER,
            Provider::Link(_) => link::PROVIDER,
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
            Provider::File(..) => file::inspect(resource, host),
            Provider::Group(_) => group::inspect(resource, host),
            Provider::Line(line) => line::inspect(resource, line, host),
            Provider::Link(_) => link::inspect(resource, host),
            Provider::Package(package, provider) => {
                package::inspect(resource, package, provider, host)
            }
            Provider::Scaffold(scaffold) => scaffold::inspect(resource, scaffold, host),
            Provider::Service(_, provider) => Ok(service::inspect(resource, provider.get(), host)?),
            Provider::User(_) => user::inspect(resource, host),
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
            Provider::File(file, rendered) => file::plan(resource, file, rendered, state, host)?
                .map(|action| Action::File(file, rendered, action)),
            Provider::Group(group) => {
                group::plan(resource, group, state)?.map(|action| Action::Group(group, action))
            }
            Provider::Line(line) => {
                line::plan(resource, line, state)?.map(|action| Action::Line(line, action))
            }
            Provider::Link(link) => {
                link::plan(resource, link, state)?.map(|action| Action::Link(link, action))
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
            Provider::User(user) => {
                user::plan(resource, user, state, host)?.map(|action| Action::User(user, action))
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
            Provider::File(file, rendered) => file::verify(resource, file, rendered, host),
            Provider::Group(group) => group::verify(resource, group, host),
            Provider::Line(line) => line::verify(resource, line, host),
            Provider::Link(link) => link::verify(resource, link, host),
            Provider::Package(package, provider) => {
                package::verify(resource, package, provider, report, host)
            }
            Provider::Scaffold(scaffold) => scaffold::verify(resource, scaffold, host),
            Provider::Service(service, provider) => {
                service::verify(resource, service, provider.get(), host)
            }
            Provider::User(user) => user::verify(resource, user, host),
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
                Action::File(file, rendered, action) => {
                    file::diff(&mut text, resource, file, rendered, state, action, host)?;
                }
                Action::Group(group, _) => group::diff(&mut text, resource, group, state)?,
                Action::Line(line, action) => {
                    line::diff(&mut text, resource, line, state, action)?;
                }
                Action::Link(link, _) => link::diff(&mut text, resource, link, state)?,
                Action::Scaffold(scaffold, action) => {
                    scaffold::diff(&mut text, resource, scaffold, *action, host)?;
                }
                Action::User(user, _) => {
                    user::diff(&mut text, resource, user, state, host)?;
                    // One of several actions shows all differences.
                    break;
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
                // What is written may be a program of a package provider.
                Action::File(..) | Action::Line(..) | Action::Link(..) => {
                    host.packages.invalidate_providers();
                }
                // Any command may install packages or create accounts.
                _ => {
                    host.packages.invalidate();
                    host.accounts.forget();
                }
            }
            match action {
                Action::Archive(archive, action) => {
                    archive::change(resource, archive, *action, host, on_progress)?;
                }
                Action::Exec(exec, provider, exec::Action::Run) => {
                    let output = |line: &str| on_progress(Progress::Line(line));
                    report = exec::run(resource, exec, *provider, host, &output)?;
                }
                Action::File(file, rendered, action) => {
                    file::change(resource, file, rendered, state, action, host)?;
                }
                Action::Group(group, action) => group::change(resource, group, *action, host)?,
                Action::Line(line, action) => line::change(resource, line, state, action, host)?,
                Action::Link(link, action) => link::change(resource, link, *action, host)?,
                Action::Package(package, provider, action) => {
                    report = package::change(resource, package, provider, state, action, host)?;
                }
                Action::Scaffold(scaffold, action) => {
                    report = scaffold::change(resource, scaffold, *action, host)?;
                }
                Action::Service(provider, action) => {
                    service::change(resource, provider.get(), *action, host)?;
                }
                Action::User(_, action) => user::change(resource, action, host)?,
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
