//! Package cache of one run: selected providers, installed packages, updated indexes, and the package
//! lock file.
//!
//! A list is read once and used until something may have changed it. Outside of runs of many packages, a
//! package is queried by itself, which is faster than listing all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::{Instance, PackageError, PackageProvider, Provider};
use crate::resource::ProviderError;

/// The default lock file, in a directory that only root can write.
const LOCK_FILE: &str = "/run/ccm-package.lock";

/// Data that the packages of one run share.
#[derive(Debug)]
pub struct PackageCache {
    lock_file: PathBuf,
    /// The configured module for `provider: cfengine`.
    default_module: Option<String>,
    expects_many: Cell<bool>,
    /// Selected providers, by the name in the manifest. To select one, its programs are looked up in the
    /// search path, which costs dozens of system calls.
    providers: RefCell<BTreeMap<String, Provider>>,
    /// Installed packages, by provider.
    lists: RefCell<BTreeMap<String, Inventory>>,
    /// The providers whose index was updated.
    updated: RefCell<BTreeSet<String>>,
    /// The CFEngine modules whose API version was checked.
    modules: RefCell<BTreeSet<String>>,
}

/// Instances by the name of their package.
type Inventory = HashMap<String, Vec<Instance>>;

impl Default for PackageCache {
    fn default() -> Self {
        Self::new(LOCK_FILE)
    }
}

impl PackageCache {
    /// Returns an empty cache with this lock file.
    pub fn new(lock_file: impl Into<PathBuf>) -> Self {
        Self {
            lock_file: lock_file.into(),
            default_module: None,
            expects_many: Cell::default(),
            providers: RefCell::default(),
            lists: RefCell::default(),
            updated: RefCell::default(),
            modules: RefCell::default(),
        }
    }

    /// Returns the cache with a module for `provider: cfengine`, by name or path. The default is the
    /// module that CFEngine's own policies use on the distribution.
    #[must_use]
    pub(crate) fn with_default_module(mut self, module: Option<String>) -> Self {
        self.default_module = module.filter(|module| !module.is_empty());
        self
    }

    /// Makes `find` list all packages once instead of querying each one.
    pub(crate) fn expect_many(&self) {
        self.expects_many.set(true);
    }

    /// Drops the cached lists and providers, after a command that may have changed packages.
    pub(crate) fn invalidate(&self) {
        self.lists.borrow_mut().clear();
        self.invalidate_providers();
    }

    /// Drops the selected providers, after a change that may have affected their programs.
    pub(crate) fn invalidate_providers(&self) {
        self.providers.borrow_mut().clear();
    }

    /// Returns the provider that was selected for a name in the manifest, or the result of `select`.
    pub(super) fn provider(
        &self,
        wanted: &str,
        select: impl FnOnce() -> Result<Provider, ProviderError>,
    ) -> Result<Provider, ProviderError> {
        if let Some(provider) = self.providers.borrow().get(wanted) {
            return Ok(provider.clone());
        }
        let provider = select()?;
        self.providers
            .borrow_mut()
            .insert(wanted.into(), provider.clone());
        Ok(provider)
    }

    pub(super) fn lock_file(&self) -> &Path {
        &self.lock_file
    }

    pub(super) fn default_module(&self) -> Option<&str> {
        self.default_module.as_deref()
    }

    /// Reports whether the index still needs an update in this run, and marks it as updated.
    pub(super) fn start_index_update(&self, provider: &str) -> bool {
        self.updated.borrow_mut().insert(provider.into())
    }

    /// Reports whether the API version of a module was checked.
    pub(super) fn is_module_checked(&self, program: &str) -> bool {
        self.modules.borrow().contains(program)
    }

    pub(super) fn set_module_checked(&self, program: &str) {
        self.modules.borrow_mut().insert(program.into());
    }

    /// Returns the instances of one package.
    pub(super) fn find(
        &self,
        provider: &str,
        package: &str,
        manager: &dyn PackageProvider,
    ) -> Result<Vec<Instance>, PackageError> {
        if !self.expects_many.get() {
            return manager.find(package);
        }
        let mut lists = self.lists.borrow_mut();
        let all = match lists.get(provider) {
            Some(all) => all,
            None => {
                let list = by_name(manager.list()?);
                lists.entry(provider.into()).or_insert(list)
            }
        };
        Ok(find_in(all, package, manager))
    }
}

fn by_name(list: Vec<Instance>) -> Inventory {
    let mut all = Inventory::with_capacity(list.len());
    for instance in list {
        all.entry(instance.name.clone()).or_default().push(instance);
    }
    all
}

/// Finds a package by plain name, else by name with architecture or version.
fn find_in(all: &Inventory, package: &str, manager: &dyn PackageProvider) -> Vec<Instance> {
    if let Some(found) = all.get(package) {
        return found.clone();
    }
    let mut found: Vec<Instance> = all
        .iter()
        .filter(|(name, _)| package.starts_with(name.as_str()))
        .flat_map(|(_, instances)| instances)
        .filter(|instance| manager.matches_name(instance, package))
        .cloned()
        .collect();
    found.sort_by(|a, b| (&a.name, &a.version, &a.arch).cmp(&(&b.name, &b.version, &b.arch)));
    found
}
