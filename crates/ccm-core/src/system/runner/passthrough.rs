//! Programs that a user runs through `ccm`, with its terminal, environment and working directory.
//!
//! Unlike a [`super::Command`], the program has no clean environment, no process group of its own
//! and no timeout, and it receives the signals of the terminal. Its exit code becomes that of
//! `ccm`.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};

use super::{RunError, lookup};

/// The exit code of a program killed by a signal is this plus the signal, as in shells.
const BY_SIGNAL: i32 = 128;

/// A program run on behalf of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// A path, or a name to look up in `PATH`.
    pub program: String,
    pub args: Vec<String>,
    /// Variables in addition to the environment; the last of equal names wins.
    pub env: Vec<(String, String)>,
    /// Working directory, if not the current one.
    pub cwd: Option<PathBuf>,
}

impl Passthrough {
    /// Replaces this process by the program (`execve`). Returns only on failure.
    pub fn exec(&self) -> RunError {
        match self.prepare() {
            Ok(mut prepared) => self.start_error(prepared.exec()),
            Err(err) => err,
        }
    }

    /// Runs the program and returns its exit code, as a shell would.
    pub fn run(&self) -> Result<i32, RunError> {
        let status = self.prepare()?.status();
        let status = status.map_err(|err| self.start_error(err))?;
        let by_signal = || status.signal().map(|signal| BY_SIGNAL + signal);
        Ok(status.code().or_else(by_signal).unwrap_or(1))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is where processes are started"
    )]
    fn prepare(&self) -> Result<std::process::Command, RunError> {
        if self.program.is_empty() {
            return Err(RunError::NotSpecified);
        }
        let file = if self.program.contains('/') {
            PathBuf::from(&self.program)
        } else {
            let path = std::env::var("PATH").unwrap_or_default();
            lookup::find(&self.program, &path)
                .ok_or_else(|| RunError::NotFound(self.program.clone()))?
        };
        let mut prepared = std::process::Command::new(file);
        prepared
            .arg0(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &self.cwd {
            prepared.current_dir(cwd);
        }
        Ok(prepared)
    }

    /// Returns the error of a failed start. The system's error does not distinguish a missing
    /// program from a missing working directory.
    fn start_error(&self, cause: std::io::Error) -> RunError {
        match self.cwd.as_deref().map(|cwd| (cwd, check_directory(cwd))) {
            Some((cwd, Err(errno))) => RunError::Directory {
                cwd: cwd.to_owned(),
                cause: errno.into(),
            },
            _ => RunError::Start {
                program: self.program.clone(),
                cause: cause.into(),
            },
        }
    }
}

fn check_directory(cwd: &Path) -> Result<(), rustix::io::Errno> {
    rustix::fs::stat(cwd.join(".")).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(program: &str, args: &[&str]) -> Passthrough {
        Passthrough {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
            env: vec![("CCM_TEST".into(), "3".into())],
            cwd: None,
        }
    }

    #[test]
    fn exit_codes_are_passed_on_and_signals_mapped_as_in_shells() {
        let shell = |script: &str| program("/bin/sh", &["-c", script]).run().unwrap();
        assert_eq!(shell("exit $CCM_TEST"), 3);
        assert_eq!(shell("kill -9 $$"), 137);
    }

    #[test]
    fn a_failed_start_names_program_or_directory() {
        let error = program("no-such-program", &[]).run().unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
        let mut misplaced = program("/bin/true", &[]);
        misplaced.cwd = Some("/no/such/place".into());
        let error = misplaced.exec().to_string();
        assert!(error.contains("/no/such/place"), "{error}");
        let error = program("", &[]).run().unwrap_err();
        assert!(matches!(error, RunError::NotSpecified));
    }
}
