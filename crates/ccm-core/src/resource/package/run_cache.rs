//! What the packages of one run share: the lists of what is installed, whether an index was
//! updated, and the lock that keeps two of us apart.
//!
//! A list is read once and holds until something may have changed it. A single package that is
//! asked for outside a run of many is looked up by itself: that is quicker than listing all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::{Instance, PackageError, PackageProvider};

/// Where our lock is, out of reach of other users.
const LOCK_FILE: &str = "/run/ccm-package.lock";

/// What the packages of one run share.
#[derive(Debug)]
pub struct Shared {
    lock_file: PathBuf,
    /// The CFEngine module that a plain `cfengine` stands for, if somebody chose one.
    default_module: Option<String>,
    expects_many: Cell<bool>,
    /// What is installed, by provider.
    lists: RefCell<BTreeMap<String, Inventory>>,
    /// The providers whose index was updated.
    updated: RefCell<BTreeSet<String>>,
    /// The CFEngine modules that were found to speak our protocol.
    modules: RefCell<BTreeSet<String>>,
}

/// Instances by the name of their package.
type Inventory = HashMap<String, Vec<Instance>>;

impl Default for Shared {
    fn default() -> Self {
        Self::new(LOCK_FILE)
    }
}

impl Shared {
    /// Returns what packages share that are changed under this lock.
    pub fn new(lock_file: impl Into<PathBuf>) -> Self {
        Self {
            lock_file: lock_file.into(),
            default_module: None,
            expects_many: Cell::default(),
            lists: RefCell::default(),
            updated: RefCell::default(),
            modules: RefCell::default(),
        }
    }

    /// Returns the same with the CFEngine module that a plain `cfengine` stands for, by name or by
    /// path. Without one it is what CFEngine's own policies take on the distribution.
    #[must_use]
    pub fn with_default_module(mut self, module: Option<String>) -> Self {
        self.default_module = module.filter(|module| !module.is_empty());
        self
    }

    /// Says that many packages will be asked for, so that listing all of them at once pays.
    pub fn expect_many(&self) {
        self.expects_many.set(true);
    }

    /// Forgets what is installed: something may have changed it.
    pub fn forget(&self) {
        self.lists.borrow_mut().clear();
    }

    pub(super) fn lock_file(&self) -> &Path {
        &self.lock_file
    }

    pub(super) fn default_module(&self) -> Option<&str> {
        self.default_module.as_deref()
    }

    /// Reports whether the index was not updated yet, and takes it as updated from now on.
    pub(super) fn may_update(&self, provider: &str) -> bool {
        self.updated.borrow_mut().insert(provider.into())
    }

    /// Reports whether a module was found to speak our protocol.
    pub(super) fn knows_module(&self, program: &str) -> bool {
        self.modules.borrow().contains(program)
    }

    pub(super) fn remember_module(&self, program: &str) {
        self.modules.borrow_mut().insert(program.into());
    }

    /// Returns the instances of one package.
    pub(super) fn find(
        &self,
        provider: &str,
        package: &str,
        open: &dyn PackageProvider,
    ) -> Result<Vec<Instance>, PackageError> {
        if !self.expects_many.get() {
            return open.find(package);
        }
        let mut lists = self.lists.borrow_mut();
        let all = match lists.get(provider) {
            Some(all) => all,
            None => {
                let list = by_name(open.list()?);
                lists.entry(provider.into()).or_insert(list)
            }
        };
        Ok(look_up(all, package, open))
    }
}

fn by_name(list: Vec<Instance>) -> Inventory {
    let mut all = Inventory::with_capacity(list.len());
    for instance in list {
        all.entry(instance.name.clone()).or_default().push(instance);
    }
    all
}

/// Looks for a plain name first; every other spelling is looked for among all.
fn look_up(all: &Inventory, package: &str, open: &dyn PackageProvider) -> Vec<Instance> {
    if let Some(found) = all.get(package) {
        return found.clone();
    }
    let mut found: Vec<Instance> = all
        .iter()
        .filter(|(name, _)| package.starts_with(name.as_str()))
        .flat_map(|(_, instances)| instances)
        .filter(|instance| open.answers_to(instance, package))
        .cloned()
        .collect();
    found.sort_by(|a, b| (&a.name, &a.version, &a.arch).cmp(&(&b.name, &b.version, &b.arch)));
    found
}
