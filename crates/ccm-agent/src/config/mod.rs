//! Configuration file of the agent: upstream's keys with upstream's rules, and our own.
//!
//! A [`Config`] is complete and valid: defaults are filled in and values are parsed. All problems
//! of a file are reported at once, each with its position, key and remedy. Nothing here connects,
//! fetches or listens.
//!
//! `keys` reads one mapping; `source`, `trust` and `choria` read values with rules of their own.

mod choria;
mod keys;
mod source;
mod suggestion;
#[cfg(test)]
mod tests;
mod trust;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use choria::{Choria, ChoriaServerConfig, Issuer};
pub use trust::{Signer, Trust};

use ccm_core::engine::Level;
use ccm_core::hiera;
use ccm_core::model::governor::GovernorClaim;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::run::{ManifestLocation, STATE_DIR, local_identity};
use ccm_core::system::digest::Digest;
use ccm_core::system::{FileError, files};
use ccm_nats::registration::{self, Destination};
use ccm_value::diagnostic::Diagnostic;
use ccm_value::document::{self, DocumentError};
use ccm_value::secret::Secret;
use keys::{Keys, problem};

/// Shortest interval between scheduled runs, as upstream.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Shortest heartbeat interval: presence has whole seconds.
const MIN_BEAT: Duration = Duration::from_secs(1);

/// Smallest spool in bytes; less does not hold the events of a run.
const MIN_SPOOL: u64 = 1 << 20;

const MAX_QUEUE: u64 = 4096;

/// Longest configuration file.
const MAX_FILE: u64 = 1 << 20;

/// Most reported problems.
const MAX_PROBLEMS: usize = 20;

/// Why a configuration could not be loaded. No text contains a password.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}", Problems(.file, .problems))]
    Invalid {
        file: Option<PathBuf>,
        problems: Vec<DocumentError>,
        /// The same problems, with their source lines.
        diagnostics: Vec<Diagnostic>,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

impl ConfigError {
    /// Returns the problems with their source lines; none if the file could not be read.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::Invalid { diagnostics, .. } => diagnostics,
            Self::File(_) => &[],
        }
    }
}

/// Prints problems, one per line, each with its file.
struct Problems<'e>(&'e Option<PathBuf>, &'e [DocumentError]);

impl fmt::Display for Problems<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.1.iter().enumerate() {
            out.write_str(if index > 0 { "\n" } else { "" })?;
            if let Some(file) = self.0 {
                write!(out, "{}: ", file.display())?;
            }
            write!(out, "{item}")?;
        }
        Ok(())
    }
}

/// Transport of registration entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    Nats,
    JetStream,
}

/// Address and port of the metrics and health server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub address: IpAddr,
    pub port: u16,
}

/// Directory and size limit of the event spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolConfig {
    pub max_size: u64,
    pub directory: PathBuf,
}

/// Configuration of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub identity: NodeName,
    pub collective: Token,
    pub groups: Vec<Token>,
    /// One or more subject tokens.
    pub subject_prefix: String,

    pub manifests: Vec<ManifestLocation>,
    pub external_data_url: Option<hiera::Source>,
    /// Interval between scheduled runs.
    pub interval: Duration,
    /// Interval between health check runs, if enabled.
    pub health_check_interval: Option<Duration>,
    /// Spread the runs of nodes over the interval.
    pub splay: bool,
    /// Time for which facts are reused.
    pub facts_interval: Duration,
    /// Most runs waiting behind the current one.
    pub queue: usize,
    /// Time limit of a run.
    pub run_timeout: Duration,
    /// Report changes without making them.
    pub noop: bool,
    /// Governor slot of a run that does not name its own.
    pub governor: Option<GovernorClaim>,
    /// Package module for `provider: cfengine` without a module name.
    pub cfengine_module: Option<String>,

    pub cache_dir: PathBuf,
    pub state_dir: PathBuf,
    pub spool: SpoolConfig,

    /// NATS context; flags and environment take precedence.
    pub nats_context: Option<String>,
    /// NATS servers, possibly with credentials.
    pub servers: Vec<Secret>,
    /// Heartbeat interval of the presence record.
    pub beat: Duration,
    pub registration: Option<Registration>,
    pub registration_stream: String,
    /// Apply a manifest again when the services it looked up change.
    pub registration_watch: bool,
    /// Trusted signers; `None` accepts requests only from servers on this machine.
    pub trust: Option<Trust>,
    pub choria: Choria,

    pub monitor: Option<Listen>,
    pub log_level: Level,
}

impl Config {
    /// Parses the text of a configuration file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_on(text, || local_identity().map_err(problem))
    }

    /// Reads a file that only root and the current user may change.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_trusted(path, MAX_FILE, files::AllowedWriters::RootGroup)?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Invalid { problems, .. } => {
                let name = path.to_string_lossy();
                let diagnostics = problems
                    .iter()
                    .map(|problem| suggestion::diagnostic(&name, &text, problem))
                    .collect();
                ConfigError::Invalid {
                    file: Some(path.to_owned()),
                    problems,
                    diagnostics,
                }
            }
            error => error,
        })
    }

    /// Returns the defaults for a node of this name.
    pub fn for_node(identity: NodeName) -> Self {
        let state_dir = PathBuf::from(STATE_DIR);
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

    /// Returns the delay of the runs of this node within each interval: constant for a node and
    /// spread evenly over a fleet.
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

    /// Returns the destination of registrations, if enabled.
    pub fn destination(&self) -> Option<Destination> {
        Some(match self.registration? {
            Registration::Nats => Destination::Nats,
            Registration::JetStream => Destination::Jetstream(self.registration_stream.clone()),
        })
    }

    /// Returns the servers as one comma-separated text, as for the command-line flag.
    pub fn server_list(&self) -> Option<Secret> {
        let servers: Vec<&str> = self.servers.iter().map(Secret::reveal).collect();
        (!servers.is_empty()).then(|| Secret::new(servers.join(",")))
    }

    /// Returns the keys of the file that environment variables override, each with its variable.
    pub fn overridden_keys(
        &self,
        environ: &BTreeMap<String, String>,
    ) -> Vec<(&'static str, &'static str)> {
        let servers = self.server_list();
        let servers = servers.as_ref().map(Secret::reveal);
        let pairs = [
            ("nats_context", "NATS_CONTEXT", self.nats_context.as_deref()),
            ("servers", "NATS_URL", servers),
        ];
        let is_overridden = |variable: &str, configured: Option<&str>| {
            let given = environ.get(variable).filter(|value| !value.is_empty());
            configured.is_some_and(|own| given.is_some_and(|given| given != own))
        };
        pairs
            .into_iter()
            .filter(|(_, variable, configured)| is_overridden(variable, *configured))
            .map(|(key, variable, _)| (key, variable))
            .collect()
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
        // With an invalid identity the other problems are still reported.
        let identity = match identity.map_or_else(local, Ok) {
            Ok(identity) => identity,
            Err(_) if keys.contains("identity") => return Err(invalid(keys.into_problems())),
            Err(error) => return Err(invalid(vec![error])),
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
        self.read_directories(keys);
        self.read_nats(keys);
        self.read_monitor(keys);
        keys.read("log_level", &mut self.log_level, |node| {
            keys::keyword(node, &LEVELS)
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
            let is_subject = text.split('.').all(|token| token.parse::<Token>().is_ok());
            if is_subject {
                Ok(text.into())
            } else {
                Err(problem(
                    "use tokens of letters, digits, '_' and '-', separated by dots",
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
            usize::try_from(queue).map_err(problem)
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
            keys::non_empty(node).map(Some)
        });
    }

    fn read_directories(&mut self, keys: &mut Keys<'_>) {
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

    fn read_nats(&mut self, keys: &mut Keys<'_>) {
        keys.read_unless_empty("nats_context", &mut self.nats_context, |node| {
            keys::non_empty(node).map(Some)
        });
        // Upstream's name of the same key.
        keys.read("nats_servers", &mut self.servers, source::servers);
        keys.read("servers", &mut self.servers, source::servers);
        keys.read("beat", &mut self.beat, |node| {
            keys::at_least(node, MIN_BEAT)
        });
        keys.read_unless_empty("registration", &mut self.registration, |node| {
            keys::keyword(node, &DESTINATIONS).map(Some)
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
        let has_remote_data = match &self.external_data_url {
            Some(
                hiera::Source::Http(_) | hiera::Source::Kv { .. } | hiera::Source::Object { .. },
            ) => true,
            Some(hiera::Source::File(_)) | None => false,
        };
        keys.section("trust", |keys| {
            trust = Some(Trust::read(keys, has_remote_data));
        });
        self.trust = trust;
        keys.section("choria", |keys| self.choria.read(keys));
    }

    fn read_monitor(&mut self, keys: &mut Keys<'_>) {
        let mut port = 0;
        keys.read("monitor_port", &mut port, |node| {
            let port = keys::number(node, 0..=u64::from(u16::MAX))?;
            u16::try_from(port).map_err(problem)
        });
        // Metrics contain names of resources and sources, so they are served to other machines only
        // if configured.
        let mut address = IpAddr::from(Ipv4Addr::LOCALHOST);
        keys.read("monitor_address", &mut address, |node| {
            let text = keys::text(node)?;
            text.parse()
                .map_err(|_| problem("expected the IP address of an interface, such as 127.0.0.1"))
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
        problems.push(problem(format_args!("and {more} more problems")));
    }
    ConfigError::Invalid {
        file: None,
        problems,
        diagnostics: Vec::new(),
    }
}
