//! Commands, their output, and the `Runner` trait that executes them.
//!
//! A [`Command`] is a value; a [`Runner`] runs it. [`SystemRunner`] starts processes,
//! [`ScriptedRunner`] replays prepared output in tests, [`RecordingRunner`] keeps a record for a log. An exit code above zero is not an error;
//! errors are failed starts, timeouts, signals and cancellation.
//!
//! A [`Passthrough`] is different: a program that a user runs interactively through `ccm`.
//!
//! Read next: `process` for one process, `process_tree` for killing it with its descendants,
//! `supervisor` for those that leave its tree, `detach` for background processes.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use super::Cause;
use crate::model::output::CommandOutput;
use crate::model::secret::REDACTED;

mod capture;
mod detach;
mod lookup;
mod passthrough;
mod process;
mod process_tree;
mod recording;
mod scripted;
mod supervisor;
#[cfg(test)]
mod tests;

pub use detach::{Detached, detach, lead_session};
pub use passthrough::Passthrough;
pub use process::{Cancel, SystemRunner};
pub use recording::{CommandRecord, RecordingRunner};
pub use scripted::{Call, ScriptedRunner};
pub use supervisor::supervise;

/// The `PATH` of commands that do not set another.
pub const DEFAULT_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin";

/// Default limit of captured output, per stream.
pub const DEFAULT_MAX_OUTPUT: usize = 1024 * 1024;

/// Runs commands.
pub trait Runner: Send + Sync {
    /// Runs a command to completion and returns its output and exit code.
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError>;

    /// Returns the file of a program that is run without a search path of its own. An absolute path
    /// is returned unchanged if it is executable.
    fn locate(&self, program: &str) -> Option<PathBuf>;
}

/// A command to run. Build it with [`Command::new`] and struct update syntax:
/// `Command { timeout: Some(limit), ..Command::new("true", [""; 0]) }`.
#[derive(Clone)]
pub struct Command<'a> {
    /// A path, or a name to look up in the search path.
    pub program: String,
    pub args: Vec<String>,
    /// Environment variables besides `PATH`, `LANG` and `LC_ALL`; the last of equal names wins.
    pub env: Vec<(String, String)>,
    /// Working directory, `/` by default.
    pub cwd: Option<PathBuf>,
    /// Search path, both for finding the program and for the process. Overrides a `PATH` in `env`.
    pub path: Option<String>,
    /// Time limit for the process and its descendants. `None` and zero mean no limit.
    pub timeout: Option<Duration>,
    /// Standard input, empty by default.
    pub input: Vec<u8>,
    /// Number of bytes captured of each stream, from its beginning unless `keeps_end`.
    pub max_output: usize,
    /// Captures the end of each stream.
    pub keeps_end: bool,
    /// Runs below a supervisor, if the runner has one: a timeout, a cancellation and the end of this
    /// process kill all processes of the command, also daemons. The supervisor ends with the command.
    pub supervised: bool,
    /// Changes nothing and ends by itself, so that this program may be ended meanwhile: it is started
    /// without [`Cancel::prepare`].
    pub is_query: bool,
    /// Called with every line of standard output as it arrives, also beyond `max_output`.
    pub on_line: Option<&'a dyn Fn(&str)>,
}

impl Command<'_> {
    /// Returns a command without a timeout, in the default environment.
    pub fn new<A: Into<String>>(
        program: impl Into<String>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            path: None,
            timeout: None,
            input: Vec::new(),
            max_output: DEFAULT_MAX_OUTPUT,
            keeps_end: false,
            supervised: false,
            is_query: false,
            on_line: None,
        }
    }

    /// Returns the `PATH` of the process: `path`, a variable of `env`, or the default.
    fn search_path(&self) -> &str {
        self.path
            .as_deref()
            .or_else(|| self.path_variable())
            .unwrap_or(DEFAULT_PATH)
    }

    fn path_variable(&self) -> Option<&str> {
        let variable = self.env.iter().rfind(|(name, _)| name == "PATH");
        variable.map(|(_, path)| path.as_str())
    }
}

/// Output and exit code of a command that exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The exit code.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Whether standard output exceeded the limit.
    pub stdout_truncated: bool,
    /// Whether standard error exceeded the limit.
    pub stderr_truncated: bool,
}

impl Output {
    /// Whether the exit code is zero.
    pub fn is_success(&self) -> bool {
        self.code == 0
    }

    /// Returns both streams, cleaned and bounded.
    pub fn printed(&self) -> CommandOutput {
        let truncated = self.stdout_truncated || self.stderr_truncated;
        CommandOutput::new(&self.stdout_text(), &self.stderr_text(), truncated)
    }

    /// Returns standard output as text; invalid UTF-8 is replaced.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Returns standard error as text; invalid UTF-8 is replaced.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// A command that could not be started or did not exit normally.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("command not specified")]
    NotSpecified,
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    #[error("fork/exec {program}: {cause}")]
    Start {
        program: String,
        #[source]
        cause: Cause,
    },
    #[error("chdir {}: {cause}", cwd.display())]
    Directory {
        cwd: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error("signal: {}", signal_name(*signal, *core_dumped))]
    Signal {
        program: String,
        signal: i32,
        core_dumped: bool,
        /// What the command had printed; also in the following variants.
        output: Box<CommandOutput>,
    },
    #[error("command {program:?} timed out after {after:?}")]
    TimedOut {
        program: String,
        after: Duration,
        output: Box<CommandOutput>,
    },
    #[error("command {program:?} was cancelled")]
    Cancelled {
        program: String,
        output: Box<CommandOutput>,
    },
    #[error("could not watch command {program:?}: {cause}")]
    Watch {
        program: String,
        #[source]
        cause: Cause,
    },
    #[error("could not make a cancel token: {0}")]
    Token(#[source] Cause),
    #[error("command was not scripted: {0}")]
    NotScripted(String),
}

impl RunError {
    /// Returns what the command had printed before it was killed.
    pub fn output(&self) -> Option<&CommandOutput> {
        match self {
            Self::Signal { output, .. }
            | Self::TimedOut { output, .. }
            | Self::Cancelled { output, .. } => Some(output),
            _ => None,
        }
    }

    /// Returns the error with the output of the killed command.
    fn with_output(mut self, printed: CommandOutput) -> Self {
        if let Self::Signal { output, .. }
        | Self::TimedOut { output, .. }
        | Self::Cancelled { output, .. } = &mut self
        {
            **output = printed;
        }
        self
    }

    /// Returns the error with the program's name redacted and without output, for sensitive commands.
    #[must_use]
    pub fn without_program(self) -> Self {
        let program = || REDACTED.to_owned();
        match self {
            Self::NotFound(_) => Self::NotFound(program()),
            Self::NotScripted(_) => Self::NotScripted(program()),
            Self::Start { cause, .. } => Self::Start {
                program: program(),
                cause,
            },
            Self::Signal {
                signal,
                core_dumped,
                ..
            } => Self::Signal {
                program: program(),
                signal,
                core_dumped,
                output: Box::default(),
            },
            Self::TimedOut { after, .. } => Self::TimedOut {
                program: program(),
                after,
                output: Box::default(),
            },
            Self::Cancelled { .. } => Self::Cancelled {
                program: program(),
                output: Box::default(),
            },
            Self::Watch { cause, .. } => Self::Watch {
                program: program(),
                cause,
            },
            other @ (Self::NotSpecified | Self::Directory { .. } | Self::Token(_)) => other,
        }
    }
}

/// Returns the name of a signal as Go prints it.
fn signal_name(signal: i32, core_dumped: bool) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    let core = if core_dumped { " (core dumped)" } else { "" };
    format!("{name}{core}")
}
