//! Configuration file of the agent, `plugin.d/ccm` next to the server's configuration.
//!
//! `key = value` lines, as in Choria's other files; `#` starts a comment. A missing file means the
//! defaults, an invalid line is an error. The server's action policy decides who may call which
//! action.

use std::path::{Path, PathBuf};

use ccm_agent::choria_rpc::ddl::{Action, UnknownAction};
use ccm_core::model::node::{NameError, NodeName, Token};
use ccm_core::run::STATE_DIR;
use ccm_core::system::{FileError, files};
use ccm_nats::{BlockingClient, ContextOptions, context};
use ccm_value::document::unknown_name;

/// Size limit of the file.
const MAX_BYTES: u64 = 64 * 1024;

/// Name of the run directory in the state directory.
const RUNS: &str = "choria-runs";

const KEYS: [&str; 10] = [
    "activate",
    "actions",
    "cfengine_module",
    "choria_collective",
    "identity",
    "nats_context",
    "nats_server",
    "noop",
    "run_dir",
    "state_dir",
];

/// Error while loading the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("{} line {line}: {reason}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        #[source]
        reason: LineError,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Error in a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("expected key = value")]
    NoValue,
    #[error("{}", unknown_name("key", .0, &KEYS))]
    Key(String),
    #[error("{key}: {reason}")]
    Value {
        key: String,
        #[source]
        reason: ValueError,
    },
}

/// Invalid value of a key.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    #[error("expected true or false")]
    Flag,
    #[error("expected an absolute path")]
    Path,
    #[error(transparent)]
    Action(#[from] UnknownAction),
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Parsed configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// Whether the server activates the agent.
    pub activate: bool,
    pub actions: Vec<Action>,
    /// Run everything in noop mode.
    pub noop: bool,
    /// State directory of the agent daemon, whose pause also applies here.
    pub state_dir: PathBuf,
    run_dir: Option<PathBuf>,
    pub nats_server: Option<String>,
    pub nats_context: Option<String>,
    /// CFEngine package module for `provider: cfengine`.
    pub cfengine_module: Option<String>,
    /// Collective of the governors that limit runs.
    pub choria_collective: Token,
    /// Identity of the server, if it differs from that in the server's configuration.
    pub identity: Option<NodeName>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            activate: true,
            actions: Action::ALL.into(),
            noop: false,
            state_dir: STATE_DIR.into(),
            run_dir: None,
            nats_server: None,
            nats_context: None,
            cfengine_module: None,
            choria_collective: Token::choria_collective(),
            identity: None,
        }
    }
}

impl Config {
    /// Loads the file, if there is one. With an error, all requests are refused; the configuration
    /// has the valid lines then, so that refusals are recorded in the right directory.
    pub(super) fn load(path: Option<&Path>) -> (Self, Option<ConfigError>) {
        let Some(path) = path else {
            return (Self::default(), None);
        };
        match files::read_to_string(path, MAX_BYTES) {
            Ok(text) => {
                let (config, invalid) = Self::parse(&text);
                let error = invalid.map(|(line, reason)| ConfigError::Line {
                    path: path.to_owned(),
                    line,
                    reason,
                });
                (config, error)
            }
            Err(error) if error.is_not_found() => (Self::default(), None),
            Err(error) => (Self::default(), Some(error.into())),
        }
    }

    /// Parses the file; also returns the first error, with its line number.
    fn parse(text: &str) -> (Self, Option<(usize, LineError)>) {
        let (mut config, mut invalid) = (Self::default(), None);
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty()
                && !line.starts_with('#')
                && let Err(reason) = config.read(line)
            {
                invalid.get_or_insert((index + 1, reason));
            }
        }
        (config, invalid)
    }

    fn read(&mut self, line: &str) -> Result<(), LineError> {
        let (key, value) = line.split_once('=').ok_or(LineError::NoValue)?;
        let (key, value) = (key.trim_end(), value.trim_start());
        let invalid = |reason: ValueError| LineError::Value {
            key: key.into(),
            reason,
        };
        match key {
            "activate" => self.activate = flag(value).map_err(invalid)?,
            "noop" => self.noop = flag(value).map_err(invalid)?,
            "actions" => self.actions = actions(value).map_err(invalid)?,
            "run_dir" => self.run_dir = Some(directory(value).map_err(invalid)?),
            "state_dir" => self.state_dir = directory(value).map_err(invalid)?,
            "nats_context" => self.nats_context = Some(value.into()),
            "nats_server" => self.nats_server = Some(value.into()),
            "cfengine_module" => self.cfengine_module = Some(value.into()),
            "choria_collective" => {
                let name = value.parse();
                self.choria_collective = name.map_err(|err: NameError| invalid(err.into()))?;
            }
            "identity" => {
                let name = value.parse();
                self.identity = Some(name.map_err(|err: NameError| invalid(err.into()))?);
            }
            _ => return Err(LineError::Key(key.into())),
        }
        Ok(())
    }

    /// Returns the run directory.
    pub(super) fn run_dir(&self) -> PathBuf {
        let default = || self.state_dir.join(RUNS);
        self.run_dir.clone().unwrap_or_else(default)
    }
}

/// Returns the NATS client for manifests and templates; it connects on first use.
pub(super) fn nats_client(server: Option<String>, context: Option<String>) -> BlockingClient {
    let given = ContextOptions {
        configured_server: server,
        configured_context: context,
        ..ContextOptions::default()
    };
    // The server sets no NATS variables.
    BlockingClient::lazy("ccm choria", move || {
        context::resolve(&given, &Default::default(), Some("CCM"))
    })
}

fn flag(value: &str) -> Result<bool, ValueError> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "1" => Ok(true),
        "false" | "no" | "n" | "0" => Ok(false),
        _ => Err(ValueError::Flag),
    }
}

fn actions(value: &str) -> Result<Vec<Action>, ValueError> {
    let names = value.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(|name| Ok(Action::named(name)?))
        .collect()
}

fn directory(value: &str) -> Result<PathBuf, ValueError> {
    let is_absolute = value.starts_with('/');
    is_absolute.then(|| value.into()).ok_or(ValueError::Path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_means_the_defaults() {
        let (config, error) = Config::load(Some(Path::new("/no/such/file")));
        assert!(error.is_none());
        assert_eq!(config, Config::default());
        assert_eq!(
            config.run_dir(),
            Path::new("/var/lib/choria/ccm/choria-runs")
        );
    }

    fn valid(text: &str) -> Config {
        let (config, invalid) = Config::parse(text);
        assert!(invalid.is_none(), "{invalid:?}");
        config
    }

    #[test]
    fn the_directory_of_records_is_that_of_an_invalid_file() {
        let (config, invalid) = Config::parse("nop = true\nrun_dir = /srv/runs\nx\n");
        assert_eq!(config.run_dir(), Path::new("/srv/runs"));
        assert_eq!(invalid.unwrap().0, 1);
    }

    #[test]
    fn every_key_is_parsed() {
        let text = "# ours\n\nactivate = no\nactions = ping, status\nnoop=true\n\
                    run_dir = /srv/runs\nstate_dir = /srv/state\nnats_context = ops\n\
                    nats_server = nats://a,nats://b\ncfengine_module = apt_get\n\
                    choria_collective = ops\nidentity = web1.example.net\n";
        let config = valid(text);
        assert_eq!(
            config,
            Config {
                activate: false,
                actions: vec![Action::Ping, Action::Status],
                noop: true,
                state_dir: "/srv/state".into(),
                run_dir: Some("/srv/runs".into()),
                nats_server: Some("nats://a,nats://b".into()),
                nats_context: Some("ops".into()),
                cfengine_module: Some("apt_get".into()),
                choria_collective: "ops".parse().unwrap(),
                identity: Some("web1.example.net".parse().unwrap()),
            }
        );
    }

    #[test]
    fn the_example_in_the_guide_is_valid_and_complete() {
        let guide = include_str!("../../docs/choria.md");
        let (_, rest) = guide.split_once("optional:\n\n").unwrap();
        let (_, rest) = rest.split_once("```text\n").unwrap();
        let (file, _) = rest.split_once("```").unwrap();
        valid(file);
        for key in KEYS {
            assert!(file.contains(&format!("\n{key} = ")), "{key}");
        }
    }

    #[test]
    fn the_run_directory_defaults_to_the_state_directory() {
        let config = valid("state_dir = /srv/state");
        assert_eq!(config.run_dir(), Path::new("/srv/state/choria-runs"));
    }

    #[test]
    fn errors_include_the_line_and_the_reason() {
        for (text, line, reason) in [
            ("\nnoop", 2, "expected key = value"),
            ("noop = maybe", 1, "noop: expected true or false"),
            ("run_dir = runs", 1, "run_dir: expected an absolute path"),
            (
                "rundir = /x",
                1,
                "unknown key \"rundir\", did you mean \"run_dir\"?",
            ),
            (
                "actions = ping, aply",
                1,
                "actions: unknown action \"aply\", did you mean \"apply\"?",
            ),
        ] {
            let (found, error) = Config::parse(text).1.unwrap();
            assert_eq!((found, error.to_string()), (line, reason.into()));
        }
    }
}
