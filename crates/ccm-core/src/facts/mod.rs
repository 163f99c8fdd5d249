//! What the node is: facts, gathered by section and only when someone asks.
//!
//! A [`Gatherer`] belongs to one run. It reads a section the first time it is named, keeps it for
//! as long as it lives, and says how old the answer is. The administrator's own facts are deep
//! merged over the sections; their files are read once. Gathering never fails as a whole: what
//! cannot be read is null or empty, and what deserves a word is kept as a warning for the caller
//! to log.
//!
//! One file per section: `host` (with `platform` and `virtualization`), `network` (with
//! `netlink`), `partition` (with `usage`), `cpu`, `memory`; then `custom` for the administrator's
//! files and `places` for where everything is read. Nothing here starts a process, writes a file
//! or knows what a template is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

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

pub use files::Places;

/// Returns the facts about the network that one datagram of the kernel's amounts to. Only the
/// fuzzer has datagrams: everybody else asks the kernel.
#[cfg(fuzzing)]
pub fn network_of(datagram: &[u8]) -> Value {
    network::of_datagram(datagram)
}

/// How long a source that may never answer is waited for.
const LIMIT: Duration = Duration::from_secs(2);

/// Hands out facts: one section of them as `{name: section}`, or all for `None`.
pub type Source = Arc<dyn Fn(Option<&str>) -> Value + Send + Sync>;

/// Why some facts are missing.
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
    #[error("no usage of {}: its file system did not answer within {limit:?}", path.display())]
    Silent { path: PathBuf, limit: Duration },
    #[error("could not measure the partitions: {0}")]
    Usage(#[source] Cause),
}

/// Why a text holds no facts.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Yaml(#[from] DocumentError),
    #[error("expected a mapping, found a {0}")]
    NoMap(&'static str),
}

/// The sections every node has.
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

/// Facts, and when they were gathered.
#[derive(Debug)]
struct Gathered {
    facts: Value,
    at: Duration,
}

/// Gathers the facts of this node, each section once.
pub struct Gatherer {
    places: Places,
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
    /// Returns a gatherer that has read nothing yet.
    pub fn new(places: Places, clock: Arc<dyn Clock>) -> Self {
        Self {
            places,
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

    /// Returns one section, a built-in one or one that only the administrator's files have.
    /// Gathers no other.
    pub fn section(&self, name: &str) -> Option<Value> {
        match Section::named(name) {
            Some(section) => Some(self.gathered(section).facts.clone()),
            None => self.custom().facts.get(name).cloned(),
        }
    }

    /// Returns all facts.
    pub fn all(&self) -> Value {
        // The sections already have the administrator's part merged in.
        let custom = self.custom().facts.as_map().into_iter().flatten();
        let mut all: Map = custom
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for section in Section::ALL {
            all.insert(section.name().into(), self.gathered(section).facts.clone());
        }
        all.into()
    }

    /// Returns the administrator's facts alone.
    pub fn custom_facts(&self) -> Value {
        self.custom().facts.clone()
    }

    /// Returns how long ago a section was gathered, or nothing if it was not.
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

    /// Returns what went wrong so far, for the caller to log.
    pub fn warnings(&self) -> Vec<String> {
        self.errors().iter().map(ToString::to_string).collect()
    }

    /// Returns the facts as the function that templates ask.
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
            let own = self.gather(section);
            let facts = match self.custom().facts.get(section.name()) {
                Some(custom) => own.merge_deep(custom),
                None => own,
            };
            Gathered { facts, at }
        })
    }

    fn gather(&self, section: Section) -> Value {
        let places = &self.places;
        match section {
            Section::Host => host::gather(places, self.clock.now()),
            Section::Network => {
                let (facts, error) = network::gather();
                self.errors().extend(error);
                facts
            }
            Section::Partition => {
                let (facts, error) = partition::gather(places, LIMIT);
                self.errors().extend(error);
                facts
            }
            Section::Cpu => cpu::gather(places),
            Section::Memory => memory::gather(places),
        }
    }

    fn custom(&self) -> &Gathered {
        self.custom.get_or_init(|| {
            let at = self.clock.monotonic();
            let (facts, errors) = custom::read(&self.places.config);
            self.errors().extend(errors);
            Gathered { facts, at }
        })
    }

    fn errors(&self) -> MutexGuard<'_, Vec<FactError>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how much of a whole is used, in percent; of nothing, nothing is.
fn percent(used: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    used as f64 / whole as f64 * 100.0
}

/// Returns a number of the kernel as a fact. How wide its numbers are depends on the machine.
fn wide(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or_default()
}
