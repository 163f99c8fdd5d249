//! Several packages in one go, for a caller that plans by itself: a face of another configuration
//! manager that says what to install and remove, and looks at the lists to see what came of it.
//!
//! There are no resources, states or events here, but the rules are those of the type: hostile
//! names are refused before any command runs, changes hold our lock, and what stands for "the
//! version at hand" is the latest. One request is one transaction of the package manager, so that
//! packages that must change together do. The first user is the face in `cfengine`.

use std::collections::HashSet;

use super::super::{Host, ProviderError};
use super::{
    Instance, PackageError, PackageProvider, Provider, Target, VersionSpec, describe, names_of,
};
use crate::model::resource::{InvalidProperty, Package, Properties, Resource};
use crate::model::text::quote;
use crate::system::FileLock;

const LATEST: &str = "latest";

/// A package somebody names. Empty parts may be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageSpec {
    /// A name, or the path of a package file.
    pub name: String,
    pub version: String,
    pub arch: String,
}

/// Why a batch was not carried out.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BatchError {
    /// Which of the wishes it is about, if it is about one.
    pub about: Option<usize>,
    #[source]
    pub error: PackageError,
}

/// A package manager that takes several packages at once.
pub struct Batch<'a> {
    provider: Provider,
    package: Package,
    host: Host<'a>,
}

impl<'a> Batch<'a> {
    /// Chooses a package manager as a package resource does; it is given the options as they are.
    pub fn new(
        provider: &str,
        options: Vec<String>,
        host: Host<'a>,
    ) -> Result<Self, ProviderError> {
        let package = Package {
            options,
            ..Package::default()
        };
        Ok(Self {
            provider: Provider::select(provider, host)?,
            package,
            host,
        })
    }

    fn open(&self) -> Box<dyn PackageProvider + '_> {
        self.provider.open(&self.package, self.host)
    }

    /// Returns everything that is wholly installed.
    pub fn installed(&self) -> Result<Vec<Instance>, PackageError> {
        let mut list = self.open().list()?;
        list.retain(|instance| instance.leftover.is_none());
        Ok(list)
    }

    /// Returns the newer versions of what is installed; the index is updated first if it may be.
    pub fn updates(&self, online: bool) -> Result<Vec<Instance>, PackageError> {
        let open = self.open();
        if online {
            open.update_index(None)?;
        }
        open.updates()
    }

    /// Returns what is in a package file.
    pub fn open_file(&self, wish: &PackageSpec) -> Result<Instance, PackageError> {
        if !wish.name.starts_with('/') {
            let name = quote(&wish.name);
            let message = format!("package file must be named by its whole path: {name}");
            return Err(InvalidProperty::new("name", message).into());
        }
        self.check(wish)?;
        self.open().open_file(&wish.name)
    }

    /// Refuses what is no name, or could be more than a package to a package manager.
    pub fn check_name(&self, wish: &PackageSpec) -> Result<(), PackageError> {
        if wish.name.starts_with('/') {
            let name = quote(&wish.name);
            let message = format!("package name must not be a path: {name}");
            return Err(InvalidProperty::new("name", message).into());
        }
        self.check(wish)
    }

    fn check(&self, wish: &PackageSpec) -> Result<(), PackageError> {
        let version = match wish.version.as_str() {
            "" => LATEST,
            version => version,
        };
        let package = Properties::Package(Package::default());
        let mut resource = Resource::new(&wish.name, version, package);
        resource.common.provider = self.provider.name().into();
        resource.complete()?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if !wish.arch.chars().all(allowed) {
            let arch = quote(&wish.arch);
            let message = format!("package architecture contains invalid characters: {arch}");
            return Err(InvalidProperty::new("architecture", message).into());
        }
        Ok(())
    }

    /// Installs packages by name: the version named, else the latest. A package that is installed
    /// for several architectures gets it for all of them, unless the wish names one.
    pub fn install(&self, wishes: &[PackageSpec]) -> Result<(), BatchError> {
        let open = self.open();
        let found = self.find_each(wishes, &*open)?;
        let mut targets = Vec::new();
        for (wish, installed) in wishes.iter().zip(&found) {
            let wanted = |is_installed: bool| match (wish.version.as_str(), is_installed) {
                ("" | LATEST, true) => VersionSpec::Latest,
                ("" | LATEST, false) => VersionSpec::Any,
                (version, _) => VersionSpec::Exactly(version.into()),
            };
            if wish.arch.is_empty() && !installed.is_empty() {
                targets.extend(installed.iter().map(|one| by_name(one, wanted(true))));
                continue;
            }
            targets.push(Target {
                package: &wish.name,
                file: None,
                arch: &wish.arch,
                version: wanted(installed.iter().any(|one| one.arch == wish.arch)),
            });
        }
        self.change(wishes, &without_repeats(targets), |targets| {
            open.install(targets)
        })
    }

    /// Installs package files, which must hold what the wish says.
    pub fn install_files(&self, wishes: &[PackageSpec]) -> Result<(), BatchError> {
        let open = self.open();
        let files = for_each(wishes, |wish| {
            let found = self.open_file(wish)?;
            let lacks = |what, wanted: &str| PackageError::NotInFile {
                path: wish.name.clone(),
                what,
                wanted: wanted.into(),
            };
            let held = describe(&found, &self.provider, &*open);
            if !wish.version.is_empty() && open.compare(&held, &wish.version)?.is_ne() {
                return Err(lacks("version", &wish.version));
            }
            if !wish.arch.is_empty() && found.arch != wish.arch {
                return Err(lacks("architecture", &wish.arch));
            }
            Ok(found)
        })?;
        let mut targets = Vec::with_capacity(files.len());
        for (wish, file) in wishes.iter().zip(&files) {
            targets.push(Target {
                file: Some(&wish.name),
                ..by_name(file, VersionSpec::Exactly(file.whole_version()))
            });
        }
        self.change(wishes, &targets, |targets| open.install(targets))
    }

    /// Removes all that is installed of the packages named, as far as version and architecture
    /// match. What is not there needs no removal.
    pub fn remove(&self, wishes: &[PackageSpec]) -> Result<(), BatchError> {
        let open = self.open();
        let mut found = self.find_each(wishes, &*open)?;
        for (index, (wish, installed)) in wishes.iter().zip(&mut found).enumerate() {
            let mut matching = Vec::new();
            for one in installed.drain(..) {
                let held = describe(&one, &self.provider, &*open);
                let is_version = wish.version.is_empty()
                    || open
                        .compare(&held, &wish.version)
                        .map_err(|err| about(index, err.into()))?
                        .is_eq();
                if is_version && (wish.arch.is_empty() || wish.arch == one.arch) {
                    matching.push(one);
                }
            }
            *installed = matching;
        }
        let target = |one| by_name(one, VersionSpec::Exactly(Instance::whole_version(one)));
        let targets = without_repeats(found.iter().flatten().map(target).collect());
        self.change(wishes, &targets, |targets| open.uninstall(targets))
    }

    /// Returns what is installed of each package, after all of them were checked.
    fn find_each(
        &self,
        wishes: &[PackageSpec],
        open: &dyn PackageProvider,
    ) -> Result<Vec<Vec<Instance>>, BatchError> {
        for_each(wishes, |wish| self.check_name(wish))?;
        if wishes.len() > 1 {
            self.host.packages.expect_many();
        }
        for_each(wishes, |wish| {
            let shared = self.host.packages;
            let mut found = shared.find(self.provider.name(), &wish.name, open)?;
            found.retain(|instance| instance.leftover.is_none());
            Ok(found)
        })
    }

    /// Carries a change out, alone among all of us on this machine.
    fn change(
        &self,
        wishes: &[PackageSpec],
        targets: &[Target<'_>],
        run: impl FnOnce(&[Target<'_>]) -> Result<Vec<String>, PackageError>,
    ) -> Result<(), BatchError> {
        if targets.is_empty() {
            return Ok(());
        }
        let alone = || -> Result<Vec<String>, PackageError> {
            let patience = self.package.lock_timeout()?;
            let purpose = format!("packages {}", names_of(targets));
            let lock_file = self.host.packages.lock_file();
            let _alone = FileLock::acquire(lock_file, &purpose, patience, self.host.clock)?;
            run(targets)
        };
        let done = alone();
        self.host.packages.forget();
        match done {
            // What a module complains about is seen in its lists.
            Ok(_complaint) => Ok(()),
            Err(error) => Err(BatchError {
                about: (wishes.len() == 1).then_some(0),
                error,
            }),
        }
    }
}

fn by_name(instance: &Instance, version: VersionSpec) -> Target<'_> {
    Target {
        package: &instance.name,
        file: None,
        arch: &instance.arch,
        version,
    }
}

/// Several versions of one package, as of a kernel, are one thing to install a newer one beside.
fn without_repeats(mut targets: Vec<Target<'_>>) -> Vec<Target<'_>> {
    let mut seen = HashSet::with_capacity(targets.len());
    targets.retain(|target| seen.insert(target.clone()));
    targets
}

fn about(index: usize, error: PackageError) -> BatchError {
    BatchError {
        about: Some(index),
        error,
    }
}

/// Asks something of every wish, up to the first that fails.
fn for_each<T>(
    wishes: &[PackageSpec],
    ask: impl Fn(&PackageSpec) -> Result<T, PackageError>,
) -> Result<Vec<T>, BatchError> {
    let ask = |(index, wish)| ask(wish).map_err(|error| about(index, error));
    wishes.iter().enumerate().map(ask).collect()
}
