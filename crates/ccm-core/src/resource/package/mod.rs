//! package: a name that is present, absent, latest or of one version.
//!
//! The type decides (the table is at `plan`) and checks the result; a [`PackageProvider`] knows
//! how packages are listed, changed and ordered on a platform, and decides nothing. `shared`
//! keeps what the packages of one run have in common: the list of what is installed, read once.
//! `batch` is the way in for a caller that speaks of several packages at once and plans by itself.
//!
//! What a package manager says about itself is never trusted: after every change the state is
//! read again.

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

pub use batch::{Batch, BatchError, Wish};
pub use cfengine::ModuleError;
pub use error::{Complaint, PackageError};
pub use run_cache::Shared;
pub use select::Provider;

use super::{Done, Host, Plan, ResourceError};
use crate::model::resource::{Package, Resource, UpdateIndex};
use crate::model::state::{Detail, PackageMetadata, State};
use crate::model::{TypeName, Value};
use crate::system::FileLock;
use versions::VersionError;

/// How packages are done on a platform. Methods that change something return what the package
/// manager complained about although it did not fail.
pub trait PackageProvider {
    /// Returns the instances of one package, asking for that one alone.
    fn find(&self, package: &str) -> Result<Vec<Instance>, PackageError>;

    /// Returns all instances of all packages, with one process.
    fn list(&self) -> Result<Vec<Instance>, PackageError>;

    /// Reports whether [`PackageProvider::find`] would find this instance by that name.
    fn answers_to(&self, instance: &Instance, package: &str) -> bool {
        instance.name == package
    }

    /// Returns what a state says about an instance beyond the common.
    fn extended(&self, instance: &Instance) -> BTreeMap<String, Value>;

    /// Returns what a state says about a package that is not installed; `status` is what the
    /// package manager still remembers of it.
    fn extended_absent(&self, _status: Option<&str>) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    /// Returns how an installed version is ordered to one that was asked for.
    fn compare(&self, installed: &PackageMetadata, wanted: &str) -> Result<Ordering, VersionError>;

    /// Returns the whole version of an instance, as [`PackageProvider::compare`] takes it.
    fn full_version(&self, installed: &PackageMetadata) -> String {
        installed.version.clone()
    }

    /// Returns what is in a package file.
    fn open_file(&self, path: &str) -> Result<Instance, PackageError>;

    /// Returns the newer versions of what is installed, as far as the index knows them.
    fn updates(&self) -> Result<Vec<Instance>, PackageError>;

    /// Updates the index of available packages, if it is older than `max_age` where that is given.
    fn update_index(&self, max_age: Option<Duration>) -> Result<(), PackageError>;

    /// Installs packages that are absent, or of another version than the one named, in one go.
    fn install(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError>;

    /// Brings an installed package to a newer version.
    fn upgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        self.install(std::slice::from_ref(target))
    }

    /// Brings an installed package to an older version.
    fn downgrade(&self, target: &Target<'_>) -> Result<Vec<String>, PackageError> {
        self.install(std::slice::from_ref(target))
    }

    /// Removes packages in one go.
    fn uninstall(&self, targets: &[Target<'_>]) -> Result<Vec<String>, PackageError>;
}

/// A package of one version and architecture that a package manager knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub name: String,
    /// Empty where the version holds it or there is no such thing.
    pub epoch: String,
    pub version: String,
    pub arch: String,
    /// What is left of a package that is not, or not wholly, installed.
    pub leftover: Option<String>,
}

impl Instance {
    /// Returns the version with its epoch, where it has one that says anything.
    pub fn whole_version(&self) -> String {
        match self.epoch.as_str() {
            "" | "0" => self.version.clone(),
            epoch => format!("{epoch}:{}", self.version),
        }
    }
}

/// What to install or remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    pub package: &'a str,
    /// The file that holds the package, where it does not come from a repository.
    pub file: Option<&'a str>,
    /// Empty where the package manager may choose.
    pub arch: &'a str,
    pub version: Wanted,
}

/// Returns the names of packages as an error tells them.
fn names_of(targets: &[Target<'_>]) -> String {
    let names: Vec<&str> = targets.iter().map(|target| target.package).collect();
    names.join(", ")
}

/// Which version of a package.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    Any,
    Latest,
    Exactly(String),
}

impl Wanted {
    /// Returns the version that has to be it; nothing where the package manager may choose.
    fn text(&self) -> &str {
        match self {
            Self::Any | Self::Latest => "",
            Self::Exactly(version) => version,
        }
    }
}

/// One thing to do to a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Install(Wanted),
    Upgrade(Wanted),
    Downgrade(String),
    Uninstall,
}

/// The words of `ensure`.
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

/// Keys of a state's extended part that say which file a package comes from.
const FILE: &str = "file";
const FILE_VERSION: &str = "file_version";

/// Reads the state of a package: from the list of all in a run of many, else by itself.
pub(super) fn inspect(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let open = provider.open(package, host);
    let state = observe(resource, provider, &*open, host, |name| {
        host.packages.find(provider.name(), name, &*open)
    })?;
    Ok(state)
}

fn observe(
    resource: &Resource,
    provider: &Provider,
    open: &dyn PackageProvider,
    host: Host<'_>,
    find: impl Fn(&str) -> Result<Vec<Instance>, PackageError>,
) -> Result<State, PackageError> {
    let name = resource.common.name.as_str();
    let file = if name.starts_with('/') {
        Some(open.open_file(name)?)
    } else {
        None
    };
    let package = file.as_ref().map_or(name, |file| &file.name);
    let found = find(package)?;
    let describe = |instance: &Instance| describe(instance, provider, open);
    let installed = found.iter().filter(|one| one.leftover.is_none());
    let chosen = choose(
        installed.map(describe).collect(),
        Ensure::of(resource),
        open,
    )?;
    let mut metadata = chosen.unwrap_or_else(|| PackageMetadata {
        name: package.into(),
        version: ABSENT.into(),
        provider: provider.name().into(),
        extended: open.extended_absent(found.iter().find_map(|one| one.leftover.as_deref())),
        ..PackageMetadata::default()
    });
    if let Some(file) = &file {
        metadata.extended.insert(FILE.into(), name.into());
        // With an epoch of 0 where there is none: a file is of that epoch and no other.
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
    open: &dyn PackageProvider,
) -> PackageMetadata {
    PackageMetadata {
        name: instance.name.clone(),
        version: instance.version.clone(),
        arch: instance.arch.clone(),
        provider: provider.name().into(),
        extended: open.extended(instance),
        ..PackageMetadata::default()
    }
}

/// Chooses among several installed instances of one package, as of a kernel: the version that was
/// asked for, else the newest.
fn choose(
    installed: Vec<PackageMetadata>,
    ensure: Ensure<'_>,
    open: &dyn PackageProvider,
) -> Result<Option<PackageMetadata>, VersionError> {
    let mut newest: Option<PackageMetadata> = None;
    for one in installed {
        if let Ensure::Version(wanted) = ensure
            && open.compare(&one, wanted)?.is_eq()
        {
            return Ok(Some(one));
        }
        let is_newer = match &newest {
            Some(best) => open.compare(&one, &open.full_version(best))?.is_gt(),
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

/// Decides what to do about a package.
///
/// | wanted | absent | installed |
/// |---|---|---|
/// | present | install | – |
/// | absent | – | uninstall |
/// | latest | install latest | upgrade to latest, every time |
/// | version | install it | –, upgrade or downgrade, by comparison |
///
/// A package file has one version, so that `latest` of it is decided like a version.
pub(super) fn plan(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    state: &State,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let metadata = seen(state)?;
    let open = provider.open(package, host);
    let is_absent = state.common.ensure == ABSENT;
    let file_version = extended(metadata, FILE_VERSION).filter(|version| !version.is_empty());
    if let (Ensure::Version(wanted), Some(held)) = (Ensure::of(resource), file_version) {
        let file = PackageMetadata {
            version: held.into(),
            ..PackageMetadata::default()
        };
        if open
            .compare(&file, wanted)
            .map_err(PackageError::from)?
            .is_ne()
        {
            let path = resource.common.name.clone();
            return Err(PackageError::OtherVersion {
                path,
                held: held.into(),
                wanted: wanted.into(),
            }
            .into());
        }
    }
    let order = |wanted: &str| open.compare(metadata, wanted).map_err(PackageError::from);
    let (action, message) = match (Ensure::of(resource), is_absent) {
        (Ensure::Present, false) | (Ensure::Absent, true) => return Ok(Plan::stable()),
        (Ensure::Absent, false) => (Action::Uninstall, "Would have uninstalled".into()),
        (Ensure::Present, true) => (
            Action::Install(Wanted::Any),
            "Would have installed version present".into(),
        ),
        (Ensure::Latest, true) => (
            Action::Install(Wanted::Latest),
            "Would have installed latest".into(),
        ),
        (Ensure::Latest, false) => match file_version {
            Some(held) if order(held)?.is_ge() => return Ok(Plan::stable()),
            _ => (
                Action::Upgrade(Wanted::Latest),
                "Would have upgraded to latest".into(),
            ),
        },
        (Ensure::Version(wanted), true) => (
            Action::Install(Wanted::Exactly(wanted.into())),
            format!("Would have installed version {wanted}"),
        ),
        (Ensure::Version(wanted), false) => match order(wanted)? {
            Ordering::Equal => return Ok(Plan::stable()),
            Ordering::Less => (
                Action::Upgrade(Wanted::Exactly(wanted.into())),
                format!("Would have upgraded to {wanted}"),
            ),
            Ordering::Greater => (
                Action::Downgrade(wanted.into()),
                format!("Would have downgraded to {wanted}"),
            ),
        },
    };
    Ok(Plan {
        actions: vec![action],
        message,
        refreshed: false,
        satisfied: false,
        settles: false,
        tentative: true,
    })
}

fn extended<'a>(metadata: &'a PackageMetadata, key: &str) -> Option<&'a str> {
    metadata.extended.get(key).and_then(Value::as_str)
}

/// Carries one action out, alone among all of us on this machine.
pub(super) fn change(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    state: &State,
    action: &Action,
    host: Host<'_>,
) -> Result<Done, ResourceError> {
    let metadata = seen(state)?;
    let purpose = resource.label();
    let patience = package.lock_timeout()?;
    let _alone = FileLock::acquire(host.packages.lock_file(), &purpose, patience, host.clock)
        .map_err(PackageError::from)?;
    let open = provider.open(package, host);
    let file = extended(metadata, FILE);
    let target = |version: &Wanted| Target {
        // The name as the author wrote it, with its architecture; a file's is inside.
        package: file.map_or(&resource.common.name, |_| &metadata.name),
        file,
        arch: "",
        version: version.clone(),
    };
    if *action != Action::Uninstall && file.is_none() {
        refresh_index(package, provider, &*open, host)?;
    }
    let complaint = match action {
        Action::Install(version) => open.install(&[target(version)]),
        Action::Upgrade(version) => open.upgrade(&target(version)),
        Action::Downgrade(version) => open.downgrade(&target(&Wanted::Exactly(version.clone()))),
        Action::Uninstall => open.uninstall(&[target(&Wanted::Any)]),
    }?;
    Ok(Done {
        complaint,
        ..Done::default()
    })
}

/// Updates the index if that is wanted and was not done in this run.
fn refresh_index(
    package: &Package,
    provider: &Provider,
    open: &dyn PackageProvider,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let max_age = match package.update_index {
        UpdateIndex::Never => return Ok(()),
        UpdateIndex::Stale => Some(package.index_max_age()?),
        UpdateIndex::Always => None,
    };
    if host.packages.may_update(provider.name()) {
        open.update_index(max_age)?;
    }
    Ok(())
}

/// Reads the state again and checks it. That a version is the latest can't be checked.
pub(super) fn verify(
    resource: &Resource,
    package: &Package,
    provider: &Provider,
    done: &mut Done,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let open = provider.open(package, host);
    let state = observe(resource, provider, &*open, host, |name| open.find(name))?;
    let difference = difference(resource, seen(&state)?, &*open).map_err(PackageError::from)?;
    match difference {
        None => Ok(state),
        Some(reason) => Err(ResourceError::NotReached {
            ensure: resource.common.ensure.clone(),
            // The complaint is the best reason there is: it is told here and not apart.
            reason: format!(
                "{reason}{}",
                Complaint::new(std::mem::take(&mut done.complaint))
            ),
        }),
    }
}

fn difference(
    resource: &Resource,
    metadata: &PackageMetadata,
    open: &dyn PackageProvider,
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
        (Ensure::Version(wanted), false) if open.compare(metadata, wanted)?.is_eq() => None,
        (Ensure::Version(wanted), _) => Some(format!(
            "version mismatch: state={found} requested={wanted}"
        )),
    })
}
