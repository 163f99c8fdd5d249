//! Batch operations on packages, for callers that plan themselves, such as the CFEngine package module.
//!
//! There are no resources, states or events here, but the rules of the package type apply: invalid names
//! are rejected before any command runs, changes hold the package lock, and no version means the latest.
//! A request is one transaction of the package manager, so that dependent packages change together.

use std::collections::HashSet;

use super::super::{Host, ProviderError};
use super::{
    Instance, PackageError, PackageProvider, Provider, Target, VersionSpec, describe, names_of,
};
use crate::model::resource::{InvalidProperty, Package, Properties, Resource};
use crate::model::text::quote;
use crate::system::FileLock;

const LATEST: &str = "latest";

/// A package in a request. Empty fields match anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageSpec {
    /// A name, or the path of a package file.
    pub name: String,
    pub version: String,
    pub arch: String,
}

/// A failed batch.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BatchError {
    /// The index of the failed package in the request, if the error concerns one.
    pub index: Option<usize>,
    #[source]
    pub error: PackageError,
}

/// Batch access to a package manager.
pub struct Batch<'a> {
    provider: Provider,
    package: Package,
    host: Host<'a>,
}

impl<'a> Batch<'a> {
    /// Selects a package manager as for a package resource; options are passed on unchanged.
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

    fn manager(&self) -> Box<dyn PackageProvider + '_> {
        self.provider.manager(&self.package, self.host)
    }

    /// Returns all completely installed packages.
    pub fn installed(&self) -> Result<Vec<Instance>, PackageError> {
        let mut list = self.manager().list()?;
        list.retain(|instance| instance.partial_status.is_none());
        Ok(list)
    }

    /// Returns the available updates; with `online`, updates the index first.
    pub fn updates(&self, online: bool) -> Result<Vec<Instance>, PackageError> {
        let manager = self.manager();
        if online {
            manager.update_index(None)?;
        }
        manager.updates()
    }

    /// Returns the package in a package file.
    pub fn open_file(&self, spec: &PackageSpec) -> Result<Instance, PackageError> {
        if !spec.name.starts_with('/') {
            let name = quote(&spec.name);
            let message = format!("package file must be an absolute path: {name}");
            return Err(InvalidProperty::new("name", message).into());
        }
        self.check(spec)?;
        self.manager().open_file(&spec.name)
    }

    /// Rejects paths, and names that a package manager could interpret as something else.
    pub fn check_name(&self, spec: &PackageSpec) -> Result<(), PackageError> {
        if spec.name.starts_with('/') {
            let name = quote(&spec.name);
            let message = format!("package name must not be a path: {name}");
            return Err(InvalidProperty::new("name", message).into());
        }
        self.check(spec)
    }

    fn check(&self, spec: &PackageSpec) -> Result<(), PackageError> {
        let version = match spec.version.as_str() {
            "" => LATEST,
            version => version,
        };
        let package = Properties::Package(Package::default());
        let mut resource = Resource::new(&spec.name, version, package);
        resource.common.provider = self.provider.name().into();
        resource.complete()?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if !spec.arch.chars().all(allowed) {
            let arch = quote(&spec.arch);
            let message = format!("package architecture contains invalid characters: {arch}");
            return Err(InvalidProperty::new("architecture", message).into());
        }
        Ok(())
    }

    /// Installs packages by name: the given version, else the latest. A package installed for several
    /// architectures is changed for all of them, unless the request names one.
    pub fn install(&self, specs: &[PackageSpec]) -> Result<(), BatchError> {
        let manager = self.manager();
        let found = self.find_each(specs, &*manager)?;
        let mut targets = Vec::new();
        for (spec, installed) in specs.iter().zip(&found) {
            let wanted = |is_installed: bool| match (spec.version.as_str(), is_installed) {
                ("" | LATEST, true) => VersionSpec::Latest,
                ("" | LATEST, false) => VersionSpec::Any,
                (version, _) => VersionSpec::Exactly(version.into()),
            };
            if spec.arch.is_empty() && !installed.is_empty() {
                targets.extend(installed.iter().map(|one| by_name(one, wanted(true))));
                continue;
            }
            targets.push(Target {
                package: &spec.name,
                file: None,
                arch: &spec.arch,
                version: wanted(installed.iter().any(|one| one.arch == spec.arch)),
            });
        }
        self.change(specs, &without_repeats(targets), |targets| {
            manager.install(targets)
        })
    }

    /// Installs package files, which must have the requested version and architecture.
    pub fn install_files(&self, specs: &[PackageSpec]) -> Result<(), BatchError> {
        let manager = self.manager();
        let files = for_each(specs, |spec| {
            let found = self.open_file(spec)?;
            let mismatch = |what, wanted: &str| PackageError::NotInFile {
                path: spec.name.clone(),
                what,
                wanted: wanted.into(),
            };
            let held = describe(&found, &self.provider, &*manager);
            if !spec.version.is_empty() && manager.compare(&held, &spec.version)?.is_ne() {
                return Err(mismatch("version", &spec.version));
            }
            if !spec.arch.is_empty() && found.arch != spec.arch {
                return Err(mismatch("architecture", &spec.arch));
            }
            Ok(found)
        })?;
        let mut targets = Vec::with_capacity(files.len());
        for (spec, file) in specs.iter().zip(&files) {
            targets.push(Target {
                file: Some(&spec.name),
                ..by_name(file, VersionSpec::Exactly(file.whole_version()))
            });
        }
        self.change(specs, &targets, |targets| manager.install(targets))
    }

    /// Removes the installed instances that match name, version and architecture. Packages that are not
    /// installed are ignored.
    pub fn remove(&self, specs: &[PackageSpec]) -> Result<(), BatchError> {
        let manager = self.manager();
        let mut found = self.find_each(specs, &*manager)?;
        for (index, (spec, installed)) in specs.iter().zip(&mut found).enumerate() {
            let mut matching = Vec::new();
            for one in installed.drain(..) {
                let held = describe(&one, &self.provider, &*manager);
                let is_version = spec.version.is_empty()
                    || manager
                        .compare(&held, &spec.version)
                        .map_err(|err| at_index(index, err.into()))?
                        .is_eq();
                if is_version && (spec.arch.is_empty() || spec.arch == one.arch) {
                    matching.push(one);
                }
            }
            *installed = matching;
        }
        let target = |one| by_name(one, VersionSpec::Exactly(Instance::whole_version(one)));
        let targets = without_repeats(found.iter().flatten().map(target).collect());
        self.change(specs, &targets, |targets| manager.uninstall(targets))
    }

    /// Validates all names, then returns the installed instances of each package.
    fn find_each(
        &self,
        specs: &[PackageSpec],
        manager: &dyn PackageProvider,
    ) -> Result<Vec<Vec<Instance>>, BatchError> {
        for_each(specs, |spec| self.check_name(spec))?;
        if specs.len() > 1 {
            self.host.packages.expect_many();
        }
        for_each(specs, |spec| {
            let cache = self.host.packages;
            let mut found = cache.find(self.provider.name(), &spec.name, manager)?;
            found.retain(|instance| instance.partial_status.is_none());
            Ok(found)
        })
    }

    /// Performs a change, holding the package lock.
    fn change(
        &self,
        specs: &[PackageSpec],
        targets: &[Target<'_>],
        run: impl FnOnce(&[Target<'_>]) -> Result<Vec<String>, PackageError>,
    ) -> Result<(), BatchError> {
        if targets.is_empty() {
            return Ok(());
        }
        let locked = || -> Result<Vec<String>, PackageError> {
            let timeout = self.package.lock_timeout()?;
            let purpose = format!("packages {}", names_of(targets));
            let lock_file = self.host.packages.lock_file();
            let _lock = FileLock::acquire(lock_file, &purpose, timeout, self.host.clock)?;
            run(targets)
        };
        let result = locked();
        self.host.packages.invalidate();
        match result {
            // A successful change ignores error output: callers compare the package lists.
            Ok(_error_output) => Ok(()),
            Err(error) => Err(BatchError {
                index: (specs.len() == 1).then_some(0),
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

/// Removes duplicate targets: several installed versions of a package, such as kernels, give one target.
fn without_repeats(mut targets: Vec<Target<'_>>) -> Vec<Target<'_>> {
    let mut seen = HashSet::with_capacity(targets.len());
    targets.retain(|target| seen.insert(target.clone()));
    targets
}

fn at_index(index: usize, error: PackageError) -> BatchError {
    BatchError {
        index: Some(index),
        error,
    }
}

/// Calls a function for each package, up to the first failure.
fn for_each<T>(
    specs: &[PackageSpec],
    call: impl Fn(&PackageSpec) -> Result<T, PackageError>,
) -> Result<Vec<T>, BatchError> {
    let call = |(index, spec)| call(spec).map_err(|error| at_index(index, error));
    specs.iter().enumerate().map(call).collect()
}
