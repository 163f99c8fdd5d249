//! package type: a package that is present, absent, latest or of a given version.
//!
//! The type plans (see the table at `plan`) and verifies; a [`PackageProvider`] lists, changes and compares
//! packages on a platform. `run_cache` keeps the list of installed packages during a run. `batch` is for
//! callers that change several packages at once and plan themselves.
//!
//! The exit code of a package manager is not trusted: after every change the state is read again.

mod apt;
mod batch;
mod cfengine;
mod dnf;
mod error;
mod run_cache;
#[cfg(test)]
pub(in crate::resource) mod scripted_host;
mod select;
#[cfg(test)]
mod tests;
pub mod versions;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

pub use batch::{Batch, BatchError, PackageSpec};
pub use cfengine::ModuleError;
pub use error::PackageError;
pub use run_cache::PackageCache;
pub use select::Provider;

use super::{ChangeReport, ErrorOutput, Host, Plan, ResourceError};
use crate::model::resource::{Package, Resource, UpdateIndex};
use crate::model::state::{Detail, PackageMetadata, State};
use crate::model::{TypeName, Value};
use crate::system::{Command, FileLock, Output};
use versions::VersionError;

/// A package manager. Methods that change packages return its error output if it succeeded nevertheless.
pub trait PackageProvider {
    /// Returns the instances of one package, with a query for that package.
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError>;

    /// Returns all instances of all packages, with one command.
    fn list(&self) -> Result<Vec<Instance>, PackageError>;

    /// Reports whether [`PackageProvider::find`] with this name returns the instance.
    fn matches_name(&self, instance: &Instance, package: &str) -> bool {
        instance.name == package
    }

    /// Returns the provider-specific metadata of an instance.
    fn extended(&self, instance: &Instance) -> BTreeMap<String, Value>;

    /// Returns the provider-specific metadata of a package that is not installed; `status` is its status
    /// in the package manager, if it has one.
    fn extended_absent(&self, _status: Option<&str>) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    /// Compares an installed version with a wanted version.
    fn compare(&self, installed: &PackageMetadata, wanted: &str) -> Result<Ordering, VersionError>;

    /// Returns the full version of an instance, in the form that [`PackageProvider::compare`] expects.
    fn full_version(&self, installed: &PackageMetadata) -> String {
        installed.version.clone()
    }

    /// Returns the package in a package file.
    fn open_file(&self, path: &str) -> Result<Instance, PackageError>;

    /// Returns the available updates of installed packages, according to the index.
    fn updates(&self) -> Result<Vec<Instance>, PackageError>;

    /// Updates the index of available packages; with `max_age`, only if it is older than that.
    fn update_index(&self, max_age: Option<Duration>) -> Result<(), PackageError>;

    /// Installs packages, or changes them to the given version, in one transaction.
    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError>;

    /// Upgrades an installed package.
    fn upgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        self.install(std::slice::from_ref(target))
    }

    /// Downgrades an installed package.
    fn downgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        self.install(std::slice::from_ref(target))
    }

    /// Removes packages in one transaction.
    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError>;
}

/// A package of one version and architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub name: String,
    /// Empty if the version includes it or the platform has no epochs.
    pub epoch: String,
    pub version: String,
    pub arch: String,
    /// The package manager's status of a package that is not completely installed.
    pub partial_status: Option<String>,
}

impl Instance {
    /// Returns the version with its epoch, unless that is empty or zero.
    pub fn whole_version(&self) -> String {
        match self.epoch.as_str() {
            "" | "0" => self.version.clone(),
            epoch => format!("{epoch}:{}", self.version),
        }
    }
}

/// A package to install or remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    pub package: &'a str,
    /// The package file, if the package does not come from a repository.
    pub file: Option<&'a str>,
    /// Empty for the default of the package manager.
    pub arch: &'a str,
    pub version: VersionSpec,
}

/// Returns the names of packages for error texts.
fn names_of(targets: &[Target<'_>]) -> String {
    let names: Vec<&str> = targets.iter().map(|target| target.package).collect();
    names.join(", ")
}

/// The wanted version of a package.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VersionSpec {
    Any,
    Latest,
    Exactly(String),
}

impl VersionSpec {
    /// Returns the exact version, or an empty text if the package manager chooses.
    fn text(&self) -> &str {
        match self {
            Self::Any | Self::Latest => "",
            Self::Exactly(version) => version,
        }
    }
}

/// A package action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Install(VersionSpec),
    Upgrade(VersionSpec),
    Downgrade(String),
    Uninstall,
}

/// The parsed `ensure` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ensure<'a> {
    Present,
    Absent,
    Latest,
    Version(&'a str),
}

impl<'a> Ensure<'a> {
    fn of(resource: &'a Resource) -> Self {
        match resource.common.ensure.as_str() {
            "present" => Self::Present,
            "absent" => Self::Absent,
            "latest" => Self::Latest,
            version => Self::Version(version),
        }
    }
}

const ABSENT: &str = "absent";

/// Keys of the extended metadata for the package file.
const FILE: &str = "file";
const FILE_VERSION: &str = "file_version";

/// Reads the state of a package, from the cached list if the run expects many packages.
pub(super) fn inspect(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let manager = provider.manager(package, host);
    let state = read_state(resource, provider, &*manager, host, |name| {
        host.packages.find(provider.name(), name, &*manager)
    })?;
    Ok(state)
}

fn read_state(
    resource: &Resource,
    provider: &Provider,
    manager: &dyn PackageProvider,
    host: Host<'_>,
    find: impl Fn(&str) -> Result<Vec<Instance>, PackageError>,
) -> Result<State, PackageError> {
    let name = resource.common.name.as_str();
    let file = if name.starts_with('/') {
        Some(manager.open_file(name)?)
    } else {
        None
    };
    let package = file.as_ref().map_or(name, |file| &file.name);
    let found = find(package)?;
    let describe = |instance: &Instance| describe(instance, provider, manager);
    let installed = found.iter().filter(|one| one.partial_status.is_none());
    let chosen = choose(
        installed.map(describe).collect(),
        Ensure::of(resource),
        manager,
    )?;
    let mut metadata = chosen.unwrap_or_else(|| PackageMetadata {
        name: package.into(),
        version: ABSENT.into(),
        provider: provider.name().into(),
        extended: manager
            .extended_absent(found.iter().find_map(|one| one.partial_status.as_deref())),
        ..PackageMetadata::default()
    });
    if let Some(file) = &file {
        metadata.extended.insert(FILE.into(), name.into());
        // Includes an epoch of 0, so that the comparison does not ignore the epoch.
        let version = match file.epoch.as_str() {
            "" => file.version.clone(),
            epoch => format!("{epoch}:{}", file.version),
        };
        metadata
            .extended
            .insert(FILE_VERSION.into(), version.into());
    }
    let ensure = metadata.version.clone();
    let detail = Detail::Package { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

fn describe(
    instance: &Instance,
    provider: &Provider,
    manager: &dyn PackageProvider,
) -> PackageMetadata {
    PackageMetadata {
        name: instance.name.clone(),
        version: instance.version.clone(),
        arch: instance.arch.clone(),
        provider: provider.name().into(),
        extended: manager.extended(instance),
        ..PackageMetadata::default()
    }
}

/// Selects one of several installed instances of a package, such as kernels: the wanted version, else the
/// newest.
fn choose(
    installed: Vec<PackageMetadata>,
    ensure: Ensure<'_>,
    manager: &dyn PackageProvider,
) -> Result<Option<PackageMetadata>, VersionError> {
    let mut newest: Option<PackageMetadata> = None;
    for one in installed {
        if let Ensure::Version(wanted) = ensure
            && manager.compare(&one, wanted)?.is_eq()
        {
            return Ok(Some(one));
        }
        let is_newer = match &newest {
            Some(best) => manager.compare(&one, &manager.full_version(best))?.is_gt(),
            None => true,
        };
        if is_newer {
            newest = Some(one);
        }
    }
    Ok(newest)
}

fn seen(state: &State) -> Result<&PackageMetadata, ResourceError> {
    match &state.detail {
        Detail::Package { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::Package, state)),
    }
}

/// Plans the actions for a package.
///
/// | wanted | absent | installed |
/// |---|---|---|
/// | present | install | – |
/// | absent | – | uninstall |
/// | latest | install latest | upgrade to latest, every time |
/// | version | install it | –, upgrade or downgrade, by comparison |
///
/// A package file has one version, so `latest` is planned like that version.
pub(super) fn plan(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    state: &State,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let metadata = seen(state)?;
    let manager = provider.manager(package, host);
    let is_absent = state.common.ensure == ABSENT;
    let file_version = extended(metadata, FILE_VERSION).filter(|version| !version.is_empty());
    if let (Ensure::Version(wanted), Some(held)) = (Ensure::of(resource), file_version) {
        let file = PackageMetadata {
            version: held.into(),
            ..PackageMetadata::default()
        };
        if manager
            .compare(&file, wanted)
            .map_err(PackageError::from)?
            .is_ne()
        {
            let path = resource.common.name.clone();
            return Err(PackageError::VersionMismatch {
                path,
                held: held.into(),
                wanted: wanted.into(),
            }
            .into());
        }
    }
    let order = |wanted: &str| {
        manager
            .compare(metadata, wanted)
            .map_err(PackageError::from)
    };
    let (action, message) = match (Ensure::of(resource), is_absent) {
        (Ensure::Present, false) | (Ensure::Absent, true) => return Ok(Plan::stable()),
        (Ensure::Absent, false) => (Action::Uninstall, "Would have uninstalled".into()),
        (Ensure::Present, true) => (
            Action::Install(VersionSpec::Any),
            "Would have installed version present".into(),
        ),
        (Ensure::Latest, true) => (
            Action::Install(VersionSpec::Latest),
            "Would have installed latest".into(),
        ),
        (Ensure::Latest, false) => match file_version {
            Some(held) if order(held)?.is_ge() => return Ok(Plan::stable()),
            _ => (
                Action::Upgrade(VersionSpec::Latest),
                "Would have upgraded to latest".into(),
            ),
        },
        (Ensure::Version(wanted), true) => (
            Action::Install(VersionSpec::Exactly(wanted.into())),
            format!("Would have installed version {wanted}"),
        ),
        (Ensure::Version(wanted), false) => match order(wanted)? {
            Ordering::Equal => return Ok(Plan::stable()),
            Ordering::Less => (
                Action::Upgrade(VersionSpec::Exactly(wanted.into())),
                format!("Would have upgraded to {wanted}"),
            ),
            Ordering::Greater => (
                Action::Downgrade(wanted.into()),
                format!("Would have downgraded to {wanted}"),
            ),
        },
    };
    Ok(Plan {
        settles: false,
        tentative: true,
        ..Plan::with_actions(vec![action], message)
    })
}

fn extended<'a>(metadata: &'a PackageMetadata, key: &str) -> Option<&'a str> {
    metadata.extended.get(key).and_then(Value::as_str)
}

/// Performs one action, holding the package lock.
pub(super) fn change(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    state: &State,
    action: &Action,
    host: Host<'_>,
) -> Result<ChangeReport, ResourceError> {
    let metadata = seen(state)?;
    let purpose = resource.label();
    let timeout = package.lock_timeout()?;
    let _lock = FileLock::acquire(host.packages.lock_file(), &purpose, timeout, host.clock)
        .map_err(PackageError::from)?;
    let manager = provider.manager(package, host);
    let file = extended(metadata, FILE);
    let target = |version: &VersionSpec| Target {
        // The name from the manifest, which may include an architecture; for a file, the name in it.
        package: file.map_or(&resource.common.name, |_| &metadata.name),
        file,
        arch: "",
        version: version.clone(),
    };
    if *action != Action::Uninstall && file.is_none() {
        refresh_index(package, provider, &*manager, host)?;
    }
    let error_output = match action {
        Action::Install(version) => manager.install(&[target(version)]),
        Action::Upgrade(version) => manager.upgrade(&target(version)),
        Action::Downgrade(version) => {
            manager.downgrade(&target(&VersionSpec::Exactly(version.clone())))
        }
        Action::Uninstall => manager.uninstall(&[target(&VersionSpec::Any)]),
    }?;
    Ok(ChangeReport {
        error_output,
        ..ChangeReport::default()
    })
}

/// Updates the index if configured, at most once per run.
fn refresh_index(
    package: &Package,
    provider: &Provider,
    manager: &dyn PackageProvider,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let max_age = match package.update_index {
        UpdateIndex::Never => return Ok(()),
        UpdateIndex::Stale => Some(package.index_max_age()?),
        UpdateIndex::Always => None,
    };
    if host.packages.start_index_update(provider.name()) {
        manager.update_index(max_age)?;
    }
    Ok(())
}

/// Reads the state again and checks it. `latest` can't be verified.
pub(super) fn verify(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    report: &mut ChangeReport,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let manager = provider.manager(package, host);
    let state = read_state(resource, provider, &*manager, host, |name| {
        manager.find(name)
    })?;
    let difference = difference(resource, seen(&state)?, &*manager).map_err(PackageError::from)?;
    match difference {
        None => Ok(state),
        Some(reason) => {
            // The error output is part of this error, so it is not reported separately.
            let error_output = ErrorOutput::new(std::mem::take(&mut report.error_output));
            Err(ResourceError::NotReached {
                ensure: resource.common.ensure.clone(),
                reason: format!("{reason}{error_output}"),
                output: error_output.output,
            })
        }
    }
}

/// Runs a command; output beyond its limit is an error.
fn run_complete(command: &Command<'_>, host: Host<'_>) -> Result<Output, PackageError> {
    let output = host.runner.run(command)?;
    if output.stdout_truncated {
        return Err(PackageError::OutputTooLong {
            program: command.program.clone(),
            limit: command.max_output,
        });
    }
    Ok(output)
}

fn difference(
    resource: &Resource,
    metadata: &PackageMetadata,
    manager: &dyn PackageProvider,
) -> Result<Option<String>, VersionError> {
    let found = &metadata.version;
    let is_absent = found == ABSENT;
    Ok(match (Ensure::of(resource), is_absent) {
        (Ensure::Absent, true) | (Ensure::Present | Ensure::Latest, false) => None,
        (Ensure::Present, true) => Some("package is absent, expected present".into()),
        (Ensure::Latest, true) => Some("package is absent, expected latest".into()),
        (Ensure::Absent, false) => Some(format!(
            "package version {found} installed, expected absent"
        )),
        (Ensure::Version(wanted), false) if manager.compare(metadata, wanted)?.is_eq() => None,
        (Ensure::Version(wanted), _) => Some(format!(
            "version mismatch: state={found} requested={wanted}"
        )),
    })
}
