//! What the agent's file says: upstream's keys with upstream's rules, and ours.
//!
//! A [`Config`] is complete and valid from the moment it exists; nobody downstream asks for a
//! default or looks at a text again. All problems of a file are reported at once, each with its
//! place, its key and what to do. Nothing here connects, fetches or listens.
//!
//! Read next: `keys` reads one mapping key by key, `source` and `trust` hold values with rules of
//! their own, `identity` finds out what this node is called.

mod choria;
mod keys;
mod source;
#[cfg(test)]
mod tests;
mod trust;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use choria::Choria;
pub use trust::{Signer, Trust};

use ccm_core::engine::Level;
use ccm_core::hiera;
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::run::{ManifestLocation, local_identity};
use ccm_core::system::digest::Digest;
use ccm_core::system::{FileError, files};
use ccm_nats::registration::{self, Destination};
use ccm_value::document::{self, DocumentError};
use ccm_value::secret::Secret;
use keys::{Keys, wrong};

/// The shortest time between two scheduled runs: upstream's.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest beat: presence is told in whole seconds.
const MIN_BEAT: Duration = Duration::from_secs(1);

/// Fewer bytes than this hold no run.
const MIN_SPOOL: u64 = 1 << 20;

const MAX_QUEUE: u64 = 4096;

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// How many problems are worth reading.
const MAX_PROBLEMS: usize = 20;

/// Why there is no configuration. No text holds a password.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}", Lines(.file, .problems))]
    Invalid {
        file: Option<PathBuf>,
        problems: Vec<DocumentError>,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Prints problems, one per line, each with the file it is in.
struct Lines<'e>(&'e Option<PathBuf>, &'e [DocumentError]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.1.iter().enumerate() {
            out.write_str(if index > 0 { "\n" } else { "" })?;
            if let Some(file) = self.0 {
                write!(out, "{}: ", file.display())?;
            }
            write!(out, "{problem}")?;
        }
        Ok(())
    }
}

/// Where registration entries go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    Nats,
    JetStream,
}

/// Where metrics and health are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub address: IpAddr,
    pub port: u16,
}

/// Where events wait for the bus, and how many bytes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolConfig {
    pub max_size: u64,
    pub directory: PathBuf,
}

/// All that the agent is told by its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub identity: NodeName,
    pub collective: Token,
    pub groups: Vec<Token>,
    /// One or more words with dots between them.
    pub subject_prefix: String,

    pub manifests: Vec<ManifestLocation>,
    pub external_data_url: Option<hiera::Source>,
    /// Time between two scheduled runs.
    pub interval: Duration,
    /// Time between two health check runs, if there are any.
    pub health_check_interval: Option<Duration>,
    /// Whether nodes spread their runs over the interval.
    pub splay: bool,
    /// The least time between two gatherings of facts.
    pub facts_interval: Duration,
    /// How many runs may wait behind the current one.
    pub queue: usize,
    /// How long one run may take.
    pub run_timeout: Duration,
    /// Whether runs only say what they would do.
    pub noop: bool,
    /// Which slot a run needs, unless it says so itself.
    pub governor: Option<GovernorClaim>,
    /// The package module of a plain `provider: cfengine`.
    pub cfengine_module: Option<String>,

    pub cache_dir: PathBuf,
    pub state_dir: PathBuf,
    pub spool: SpoolConfig,

    /// The context the file names; flags and environment go before it.
    pub nats_context: Option<String>,
    /// Servers to connect to, which may carry credentials.
    pub servers: Vec<Secret>,
    /// Time between two signs of life.
    pub beat: Duration,
    pub registration: Option<Registration>,
    pub registration_stream: String,
    /// Whether a manifest is applied again when the services change that it looked up.
    pub registration_watch: bool,
    /// Whose requests count; nothing leaves that to the bus.
    pub trust: Option<Trust>,
    pub choria: Choria,

    pub monitor: Option<Listen>,
    pub log_level: Level,
}

impl Config {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_on(text, || local_identity().map_err(wrong))
    }

    /// Reads a file that nobody but root, and whoever runs us, can change.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_guarded(path, MAX_FILE, files::Writers::RootsGroup)?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Invalid { problems, .. } => ConfigError::Invalid {
                file: Some(path.to_owned()),
                problems,
            },
            error => error,
        })
    }

    /// Returns what an empty file means on a node of this name.
    pub fn for_node(identity: NodeName) -> Self {
        let state_dir = PathBuf::from("/var/lib/choria/ccm");
        Self {
            identity,
            collective: Token::default_collective(),
            groups: Vec::new(),
            subject_prefix: "ccm.v1".into(),
            manifests: Vec::new(),
            external_data_url: None,
            interval: Duration::from_secs(5 * 60),
            health_check_interval: None,
            splay: true,
            facts_interval: Duration::from_secs(2 * 60),
            queue: 16,
            run_timeout: Duration::from_secs(60 * 60),
            noop: false,
            governor: None,
            cfengine_module: None,
            cache_dir: "/etc/choria/ccm/source".into(),
            spool: SpoolConfig {
                max_size: 256 << 20,
                directory: state_dir.join("spool"),
            },
            state_dir,
            nats_context: None,
            servers: Vec::new(),
            beat: Duration::from_secs(30),
            registration: None,
            registration_stream: registration::STREAM.into(),
            registration_watch: false,
            trust: None,
            choria: Choria::default(),
            monitor: None,
            log_level: Level::Info,
        }
    }

    /// Returns how long after the start of each interval this node's runs begin: always the same
    /// for a node, and spread evenly over a fleet.
    pub fn splay_offset(&self) -> Duration {
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        if !self.splay || interval == 0 {
            return Duration::ZERO;
        }
        let digest = Digest::of(self.identity.as_str().as_bytes());
        let (first, _) = digest
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 8], &[]));
        Duration::from_nanos(u64::from_be_bytes(*first) % interval)
    }

    /// Returns where services are registered, if they are.
    pub fn destination(&self) -> Option<Destination> {
        Some(match self.registration? {
            Registration::Nats => Destination::Nats,
            Registration::JetStream => Destination::Jetstream(self.registration_stream.clone()),
        })
    }

    /// Returns the servers as one text, in the form of the command line's flag.
    pub fn server_list(&self) -> Option<Secret> {
        let servers: Vec<&str> = self.servers.iter().map(Secret::reveal).collect();
        (!servers.is_empty()).then(|| Secret::new(servers.join(",")))
    }

    fn parse_on(
        text: &str,
        local: impl FnOnce() -> Result<NodeName, DocumentError>,
    ) -> Result<Self, ConfigError> {
        let root = document::parse(text).map_err(|err| invalid(vec![err]))?;
        let mut keys = Keys::of("", &root);
        let mut identity = None;
        keys.read("identity", &mut identity, |node| {
            keys::parsed(node).map(Some)
        });
        // With a bad one the rest of the file is still worth reading.
        let identity = match identity.map_or_else(local, Ok) {
            Ok(identity) => identity,
            Err(_) if keys.holds("identity") => return Err(invalid(keys.into_problems())),
            Err(nameless) => return Err(invalid(vec![nameless])),
        };
        let mut config = Self::for_node(identity);
        config.read(&mut keys);
        match keys.finish() {
            problems if problems.is_empty() => Ok(config),
            problems => Err(invalid(problems)),
        }
    }

    fn read(&mut self, keys: &mut Keys<'_>) {
        self.read_node(keys);
        self.read_schedule(keys);
        self.read_places(keys);
        self.read_bus(keys);
        self.read_monitor(keys);
        keys.read("log_level", &mut self.log_level, |node| {
            keys::word(node, &LEVELS)
        });
    }

    fn read_node(&mut self, keys: &mut Keys<'_>) {
        keys.read("collective", &mut self.collective, keys::parsed);
        keys.read("groups", &mut self.groups, |node| {
            let mut groups: Vec<Token> = keys::list(node, keys::parsed)?;
            let mut seen = std::collections::HashSet::new();
            groups.retain(|group| seen.insert(group.clone()));
            Ok(groups)
        });
        keys.read("subject_prefix", &mut self.subject_prefix, |node| {
            let text = keys::text(node)?;
            let is_subject = text.split('.').all(|word| word.parse::<Token>().is_ok());
            if is_subject {
                Ok(text.into())
            } else {
                Err(wrong(
                    "use letters, digits, '_' and '-' with dots between words",
                ))
            }
        });
    }

    fn read_schedule(&mut self, keys: &mut Keys<'_>) {
        keys.read_unless_empty("interval", &mut self.interval, |node| {
            keys::at_least(node, MIN_INTERVAL)
        });
        keys.read_unless_empty(
            "health_check_interval",
            &mut self.health_check_interval,
            |node| Ok(Some(keys::duration(node)?).filter(|every| !every.is_zero())),
        );
        keys.read("splay", &mut self.splay, keys::flag);
        keys.read("facts_interval", &mut self.facts_interval, keys::duration);
        keys.read("queue", &mut self.queue, |node| {
            let queue = keys::number(node, 0..=MAX_QUEUE)?;
            usize::try_from(queue).map_err(wrong)
        });
        keys.read("run_timeout", &mut self.run_timeout, |node| {
            keys::at_least(node, Duration::from_secs(1))
        });
        keys.read("noop", &mut self.noop, keys::flag);
        keys.read("governor", &mut self.governor, GovernorClaim::read);
        keys.read("manifests", &mut self.manifests, |node| {
            keys::list(node, keys::parsed)
        });
        keys.read_unless_empty("external_data_url", &mut self.external_data_url, |node| {
            source::data(keys::text(node)?).map(Some)
        });
        keys.read("cfengine_module", &mut self.cfengine_module, |node| {
            keys::filled(node).map(Some)
        });
    }

    fn read_places(&mut self, keys: &mut Keys<'_>) {
        keys.read("cache_dir", &mut self.cache_dir, keys::directory);
        keys.read("state_dir", &mut self.state_dir, keys::directory);
        self.spool.directory = self.state_dir.join("spool");
        keys.section("spool", |keys| {
            keys.read("max_size", &mut self.spool.max_size, |node| {
                keys::size(node, MIN_SPOOL)
            });
            keys.read("directory", &mut self.spool.directory, keys::directory);
        });
    }

    fn read_bus(&mut self, keys: &mut Keys<'_>) {
        keys.read_unless_empty("nats_context", &mut self.nats_context, |node| {
            keys::filled(node).map(Some)
        });
        keys.read("servers", &mut self.servers, source::servers);
        keys.read("beat", &mut self.beat, |node| {
            keys::at_least(node, MIN_BEAT)
        });
        keys.read_unless_empty("registration", &mut self.registration, |node| {
            keys::word(node, &DESTINATIONS).map(Some)
        });
        keys.read(
            "registration_stream",
            &mut self.registration_stream,
            |node| {
                let name: Token = keys::parsed(node)?;
                Ok(name.into())
            },
        );
        keys.read(
            "registration_watch",
            &mut self.registration_watch,
            keys::flag,
        );
        let mut trust = None;
        let has_far_data = match &self.external_data_url {
            Some(hiera::Source::Http(_) | hiera::Source::Kv { .. }) => true,
            Some(hiera::Source::File(_)) | None => false,
        };
        keys.section("trust", |keys| {
            trust = Some(Trust::read(keys, has_far_data));
        });
        self.trust = trust;
        keys.section("choria", |keys| self.choria.read(keys));
    }

    fn read_monitor(&mut self, keys: &mut Keys<'_>) {
        let mut port = 0;
        keys.read("monitor_port", &mut port, |node| {
            let port = keys::number(node, 0..=u64::from(u16::MAX))?;
            u16::try_from(port).map_err(wrong)
        });
        // Metrics name resources and sources: other machines see them when the file says so.
        let mut address = IpAddr::from(Ipv4Addr::LOCALHOST);
        keys.read("monitor_address", &mut address, |node| {
            let text = keys::text(node)?;
            text.parse()
                .map_err(|_| wrong("expected the IP address of an interface, such as 127.0.0.1"))
        });
        self.monitor = (port != 0).then_some(Listen { address, port });
    }
}

const LEVELS: [(&str, Level); 4] = [
    ("debug", Level::Debug),
    ("info", Level::Info),
    ("warn", Level::Warn),
    ("error", Level::Error),
];

const DESTINATIONS: [(&str, Registration); 2] = [
    ("nats", Registration::Nats),
    ("jetstream", Registration::JetStream),
];

fn invalid(mut problems: Vec<DocumentError>) -> ConfigError {
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        problems.truncate(MAX_PROBLEMS);
        problems.push(wrong(format_args!("and {more} more problems")));
    }
    ConfigError::Invalid {
        file: None,
        problems,
    }
}
