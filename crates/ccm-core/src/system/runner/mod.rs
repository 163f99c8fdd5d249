//! Commands: what to run, what came of it, and the seam between asking and running.
//!
//! A command is a value; a [`Runner`] runs it. [`SystemRunner`] starts real processes,
//! [`ScriptedRunner`] plays a part in tests. Neither knows what a command means: an exit code
//! above zero is data, and only what kept the command from ending by itself is an error.
//!
//! A [`Passthrough`] is another matter: a program that a person asked for, in our place.
//!
//! Read next: `process` for the life of one process, `tree` for how a timeout ends it, `detach` for
//! the one sort of process that outlives us.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use super::Cause;
use crate::model::secret::REDACTED;

mod capture;
mod detach;
mod lookup;
mod passthrough;
mod process;
mod process_tree;
mod scripted;
#[cfg(test)]
mod tests;

pub use detach::{Detached, detach, lead_session};
pub use passthrough::Passthrough;
pub use process::{Cancel, SystemRunner};
pub use scripted::{Call, ScriptedRunner};

/// The search path that every command sees that asks for no other.
pub const DEFAULT_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin";

/// How much of each stream is kept unless a command says otherwise.
pub const DEFAULT_MAX_OUTPUT: usize = 1024 * 1024;

/// Runs commands.
pub trait Runner: Send + Sync {
    /// Runs a command to its end and returns what it said, whatever its exit code.
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError>;

    /// Returns where a program would be found that is run without a search path of its own, if
    /// anywhere. An absolute path is its own answer, if it can be run.
    fn locate(&self, program: &str) -> Option<PathBuf>;
}

/// A command to run. Make one with [`Command::new`] and struct update:
/// `Command { timeout: Some(limit), ..Command::new("true", [""; 0]) }`.
#[derive(Clone)]
pub struct Command<'a> {
    /// A path, or a name to be searched for.
    pub program: String,
    pub args: Vec<String>,
    /// What the process finds beside `PATH`, `LANG` and `LC_ALL`; the last of equal names wins.
    pub env: Vec<(String, String)>,
    /// Where the process starts: `/` unless given.
    pub cwd: Option<PathBuf>,
    /// Directories joined by `:` that replace the search path, for finding the program and for
    /// the process itself. Wins over a `PATH` in `env`.
    pub path: Option<String>,
    /// How long the process and everything it started may take. Nothing or zero: for ever.
    pub timeout: Option<Duration>,
    /// What the process finds on standard input: nothing unless given.
    pub input: Vec<u8>,
    /// How many bytes of each stream are kept, from its beginning.
    pub max_output: usize,
    /// Told every line of standard output as it comes, also those that are no longer kept.
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
            on_line: None,
        }
    }

    /// Returns the search path that the process sees: its own, one among its variables, or the
    /// default.
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

/// What a command that ended by itself left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The exit code.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Standard output was longer than what is kept.
    pub stdout_truncated: bool,
    /// Standard error was longer than what is kept.
    pub stderr_truncated: bool,
}

impl Output {
    /// Whether the exit code is zero.
    pub fn is_success(&self) -> bool {
        self.code == 0
    }

    /// Returns standard output as text, with a mark in place of what is not.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Returns standard error as text, with a mark in place of what is not.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// Why a command did not end by itself.
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
    },
    #[error("command {program:?} timed out after {after:?}")]
    TimedOut { program: String, after: Duration },
    #[error("command {program:?} was cancelled")]
    Cancelled { program: String },
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
    /// Returns the error without the program's name, for commands that are secret.
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
            },
            Self::TimedOut { after, .. } => Self::TimedOut {
                program: program(),
                after,
            },
            Self::Cancelled { .. } => Self::Cancelled { program: program() },
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
