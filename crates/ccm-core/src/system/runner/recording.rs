//! Runner that keeps a record of its commands, so that a log can show them.

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::Clock;
use super::{Command, Output, RunError, Runner};
use crate::model::text::shell_word;

/// A command that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRecord {
    /// Program and arguments, quoted as in a shell.
    pub line: String,
    /// The exit code, or why there is none.
    pub result: Result<i32, String>,
    pub took: Duration,
}

/// Runs commands with another runner and records them while enabled.
pub struct RecordingRunner<'a> {
    inner: &'a dyn Runner,
    clock: &'a dyn Clock,
    is_enabled: bool,
    records: Mutex<Vec<CommandRecord>>,
}

impl<'a> RecordingRunner<'a> {
    pub fn new(inner: &'a dyn Runner, clock: &'a dyn Clock, is_enabled: bool) -> Self {
        Self {
            inner,
            clock,
            is_enabled,
            records: Mutex::default(),
        }
    }

    /// Returns the commands since the last call.
    pub fn take(&self) -> Vec<CommandRecord> {
        std::mem::take(&mut *self.records.lock())
    }
}

impl Runner for RecordingRunner<'_> {
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError> {
        if !self.is_enabled {
            return self.inner.run(command);
        }
        let began = self.clock.monotonic();
        let result = self.inner.run(command);
        let words: Vec<_> = std::iter::once(&command.program)
            .chain(&command.args)
            .map(|word| shell_word(word))
            .collect();
        self.records.lock().push(CommandRecord {
            line: words.join(" "),
            result: match &result {
                Ok(output) => Ok(output.code),
                Err(err) => Err(err.to_string()),
            },
            took: self.clock.monotonic().saturating_sub(began),
        });
        result
    }

    fn locate(&self, program: &str) -> Option<PathBuf> {
        self.inner.locate(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{ScriptedRunner, SystemClock, SystemRunner};

    #[test]
    fn commands_are_recorded_with_their_results() {
        let system = SystemRunner::new();
        let runner = RecordingRunner::new(&system, &SystemClock, true);
        let _ = runner.run(&Command::new("/bin/sh", ["-c", "exit 4"]));
        let _ = runner.run(&Command::new("/nonexistent", [""; 0]));
        let [ran, failed] = runner.take().try_into().unwrap();
        assert_eq!(
            (ran.line.as_str(), ran.result),
            ("/bin/sh -c 'exit 4'", Ok(4))
        );
        assert!(failed.result.unwrap_err().contains("/nonexistent"));
        assert_eq!(runner.take(), []);
    }

    #[test]
    fn nothing_is_recorded_unless_enabled() {
        let scripted = ScriptedRunner::default();
        let runner = RecordingRunner::new(&scripted, &SystemClock, false);
        let _ = runner.run(&Command::new("true", [""; 0]));
        assert_eq!(runner.take(), []);
    }
}
