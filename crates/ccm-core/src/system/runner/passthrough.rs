//! A program in our place: it has our terminal, our environment and our working directory, and its
//! exit code is ours.
//!
//! The opposite of a [`super::Command`] of the engine, which is clean, watched and bounded: here a
//! person asked for exactly this program and sits before it. So there is no process group of its
//! own and no timeout; what the keyboard sends reaches it.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};

use super::{RunError, lookup};

/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;

/// A program that a person asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// A path, or a name to be searched for in our `PATH`.
    pub program: String,
    pub args: Vec<String>,
    /// What it finds beside our environment; the last of equal names wins.
    pub env: Vec<(String, String)>,
    /// Where it starts, if not where we are.
    pub cwd: Option<PathBuf>,
}

impl Passthrough {
    /// Becomes the program. Returns only if that is not possible.
    pub fn replace(&self) -> RunError {
        match self.prepare() {
            Ok(mut prepared) => self.not_started(prepared.exec()),
            Err(err) => err,
        }
    }

    /// Runs the program and returns its exit code, as a shell would.
    pub fn attend(&self) -> Result<i32, RunError> {
        let status = self.prepare()?.status();
        let status = status.map_err(|err| self.not_started(err))?;
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

    /// Returns the error of a failed start: the system does not say whether it was the program or
    /// the directory.
    fn not_started(&self, cause: std::io::Error) -> RunError {
        match self.cwd.as_deref().map(|cwd| (cwd, entered(cwd))) {
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

fn entered(cwd: &Path) -> Result<(), rustix::io::Errno> {
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
    fn an_exit_code_is_passed_on_and_a_signal_is_told_as_shells_do() {
        let shell = |script: &str| program("/bin/sh", &["-c", script]).attend().unwrap();
        assert_eq!(shell("exit $CCM_TEST"), 3);
        assert_eq!(shell("kill -9 $$"), 137);
    }

    #[test]
    fn what_can_not_be_started_is_named() {
        let error = program("no-such-program", &[]).attend().unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
        let mut lost = program("/bin/true", &[]);
        lost.cwd = Some("/no/such/place".into());
        let error = lost.replace().to_string();
        assert!(error.contains("/no/such/place"), "{error}");
        let error = program("", &[]).attend().unwrap_err();
        assert!(matches!(error, RunError::NotSpecified));
    }
}
