//! Facts of the node, gathered by section on first use.
//!
//! A [`Gatherer`] belongs to one run. It reads a section on first access, caches it and reports its
//! age. Custom facts of the administrator are deep-merged over the sections. Gathering never fails
//! as a whole: what cannot be read is null or empty, with a warning for the caller to log.
//!
//! One file per section: `host` (with `platform` and `virtualization`), `network` (with
//! `netlink`), `partition` (with `disk_usage`), `cpu` and `memory`; `custom` reads the facts files
//! and `files` has the paths. Starts no process and writes no file.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::model::Value;
use crate::model::document::DocumentError;
use crate::model::value::Map;
use crate::system::{Cause, Clock};

mod cpu;
mod custom;
mod disk_usage;
mod files;
mod host;
mod memory;
mod netlink;
mod network;
mod partition;
mod platform;
#[cfg(test)]
mod tests;
mod virtualization;

pub use files::FactPaths;

/// Returns the network facts in one netlink datagram, for fuzzing.
#[cfg(fuzzing)]
pub fn network_of(datagram: &[u8]) -> Value {
    network::of_datagram(datagram)
}

/// Time limit for netlink and for file systems, which may never reply.
const LIMIT: Duration = Duration::from_secs(2);

/// A function that returns one section as `{name: section}`, or all facts for `None`.
pub type Source = Arc<dyn Fn(Option<&str>) -> Value + Send + Sync>;

/// A warning about missing facts.
#[derive(Debug, thiserror::Error)]
enum FactError {
    #[error("skipping facts directory {} with a relative path", .0.display())]
    RelativeDirectory(PathBuf),
    #[error("skipping facts directory {} that is a symlink", .0.display())]
    SymlinkedDirectory(PathBuf),
    #[error("skipping facts file {} that is a symlink", .0.display())]
    SymlinkedFile(PathBuf),
    #[error("skipping facts file {} that is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("skipping facts file {}: all facts files together exceed {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("could not read facts from {}: {cause}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error("could not parse facts file {}: {cause}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        cause: ParseError,
    },
    #[error("could not list the network interfaces: {0}")]
    Interfaces(#[source] Cause),
    #[error("no usage of {}: its file system did not reply within {limit:?}", path.display())]
    UsageTimeout { path: PathBuf, limit: Duration },
    #[error("could not measure the partitions: {0}")]
    Usage(#[source] Cause),
}

/// A facts file that cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Yaml(#[from] DocumentError),
    #[error("expected a mapping, found a {0}")]
    NotAMap(&'static str),
}

/// The built-in sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Host,
    Network,
    Partition,
    Cpu,
    Memory,
}

impl Section {
    const ALL: [Self; 5] = [
        Self::Host,
        Self::Network,
        Self::Partition,
        Self::Cpu,
        Self::Memory,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Network => "network",
            Self::Partition => "partition",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }
}

/// Returns the names of the built-in sections, which every node has.
pub fn built_in_sections() -> [&'static str; 5] {
    Section::ALL.map(Section::name)
}

/// Facts and the time when they were gathered.
#[derive(Debug)]
struct Gathered {
    facts: Value,
    at: Duration,
}

/// Gathers the facts of this node, each section once.
pub struct Gatherer {
    paths: FactPaths,
    clock: Arc<dyn Clock>,
    host: OnceLock<Gathered>,
    network: OnceLock<Gathered>,
    partition: OnceLock<Gathered>,
    cpu: OnceLock<Gathered>,
    memory: OnceLock<Gathered>,
    custom: OnceLock<Gathered>,
    errors: Mutex<Vec<FactError>>,
}

impl Gatherer {
    /// Returns a gatherer without cached facts.
    pub fn new(paths: FactPaths, clock: Arc<dyn Clock>) -> Self {
        Self {
            paths,
            clock,
            host: OnceLock::new(),
            network: OnceLock::new(),
            partition: OnceLock::new(),
            cpu: OnceLock::new(),
            memory: OnceLock::new(),
            custom: OnceLock::new(),
            errors: Mutex::default(),
        }
    }

    /// Returns one section, built-in or custom. Gathers no other.
    pub fn section(&self, name: &str) -> Option<Value> {
        match Section::named(name) {
            Some(section) => Some(self.gathered(section).facts.clone()),
            None => self.custom().facts.get(name).cloned(),
        }
    }

    /// Returns all facts.
    pub fn all(&self) -> Value {
        // Custom facts are already merged into the built-in sections.
        let custom = self.custom().facts.as_map().into_iter().flatten();
        let mut all: Map = custom
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for section in Section::ALL {
            all.insert(section.name().into(), self.gathered(section).facts.clone());
        }
        all.into()
    }

    /// Returns the custom facts.
    pub fn custom_facts(&self) -> Value {
        self.custom().facts.clone()
    }

    /// Returns the age of a section, or `None` if it was not gathered.
    pub fn age(&self, name: &str) -> Option<Duration> {
        let gathered = match Section::named(name) {
            Some(section) => self.cell(section).get(),
            None => self
                .custom
                .get()
                .filter(|custom| custom.facts.get(name).is_some()),
        };
        gathered.map(|gathered| self.clock.monotonic().saturating_sub(gathered.at))
    }

    /// Returns the warnings so far, for the caller to log.
    pub fn warnings(&self) -> Vec<String> {
        self.errors().iter().map(ToString::to_string).collect()
    }

    /// Returns the facts as a function for templates.
    pub fn into_source(self: Arc<Self>) -> Source {
        Arc::new(move |name| match name {
            None => self.all(),
            Some(name) => self
                .section(name)
                .map(|section| (name, section))
                .into_iter()
                .collect(),
        })
    }

    fn cell(&self, section: Section) -> &OnceLock<Gathered> {
        match section {
            Section::Host => &self.host,
            Section::Network => &self.network,
            Section::Partition => &self.partition,
            Section::Cpu => &self.cpu,
            Section::Memory => &self.memory,
        }
    }

    fn gathered(&self, section: Section) -> &Gathered {
        self.cell(section).get_or_init(|| {
            let at = self.clock.monotonic();
            let builtin = self.gather(section);
            let facts = match self.custom().facts.get(section.name()) {
                Some(custom) => builtin.merge_deep(custom),
                None => builtin,
            };
            Gathered { facts, at }
        })
    }

    fn gather(&self, section: Section) -> Value {
        let paths = &self.paths;
        match section {
            Section::Host => host::gather(paths, self.clock.now()),
            Section::Network => {
                let (facts, error) = network::gather();
                self.errors().extend(error);
                facts
            }
            Section::Partition => {
                let (facts, error) = partition::gather(paths, LIMIT);
                self.errors().extend(error);
                facts
            }
            Section::Cpu => cpu::gather(paths),
            Section::Memory => memory::gather(paths),
        }
    }

    fn custom(&self) -> &Gathered {
        self.custom.get_or_init(|| {
            let at = self.clock.monotonic();
            let (facts, errors) = custom::read(&self.paths.config);
            self.errors().extend(errors);
            Gathered { facts, at }
        })
    }

    fn errors(&self) -> MutexGuard<'_, Vec<FactError>> {
        self.errors.lock()
    }
}

/// Returns the percentage of `used` in `total`; zero if `total` is zero.
fn percent(used: u64, total: u64) -> f64 {
    if total == 0 {
        return 0.0;
    }
    used as f64 / total as f64 * 100.0
}

/// Converts a kernel integer, whose width depends on the architecture.
fn to_u64(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or_default()
}
