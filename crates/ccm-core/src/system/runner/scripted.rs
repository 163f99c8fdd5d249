//! `ScriptedRunner`: expected commands and their output, for tests.
//!
//! Starts no process. A command that is not in the script is an error, so a provider that runs an
//! unexpected command fails its test; `ScriptedRunner::unused` finds commands that were not run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::capture::Lines;
use super::{Command, Output, RunError, Runner};

/// A runner for tests.
#[derive(Debug, Default)]
pub struct ScriptedRunner(Mutex<Script>);

#[derive(Debug, Default)]
struct Script {
    steps: Vec<Step>,
    calls: Vec<Call>,
    programs: BTreeSet<String>,
}

#[derive(Debug)]
struct Step {
    argv: Vec<String>,
    result: Result<Output, RunError>,
}

/// A command as it was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The program and its arguments.
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<PathBuf>,
    pub path: Option<String>,
    pub timeout: Option<Duration>,
    pub input: Vec<u8>,
}

impl ScriptedRunner {
    /// Returns a runner with an empty script, which refuses every command.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command with its exit code and standard output. Each entry is used once; equal
    /// commands are used in the order they were added. The program can be located.
    pub fn reply(&self, argv: &[&str], code: i32, stdout: &str) -> &Self {
        self.expect(
            argv,
            Ok(Output {
                code,
                stdout: stdout.into(),
                ..Output::default()
            }),
        )
    }

    /// Adds a command with its complete result; see [`ScriptedRunner::reply`].
    pub fn expect(&self, argv: &[&str], result: Result<Output, RunError>) -> &Self {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let mut script = self.script();
        script.programs.extend(argv.first().cloned());
        script.steps.push(Step { argv, result });
        drop(script);
        self
    }

    /// Adds a program that can be located.
    pub fn install(&self, program: &str) -> &Self {
        self.script().programs.insert(program.to_owned());
        self
    }

    /// Returns every command run so far, in order, including refused ones.
    pub fn calls(&self) -> Vec<Call> {
        self.script().calls.clone()
    }

    /// Returns the commands of the script that were not run.
    #[cfg(test)]
    fn unused(&self) -> Vec<Vec<String>> {
        let script = self.script();
        script.steps.iter().map(|step| step.argv.clone()).collect()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock()
    }

    fn next_result(&self, command: &Command<'_>) -> Result<Output, RunError> {
        let argv: Vec<String> = [&command.program]
            .into_iter()
            .chain(&command.args)
            .cloned()
            .collect();
        let mut script = self.script();
        let step = script.steps.iter().position(|step| step.argv == argv);
        script.calls.push(Call {
            argv: argv.clone(),
            env: command.env.clone(),
            cwd: command.cwd.clone(),
            path: command.path.clone(),
            timeout: command.timeout,
            input: command.input.clone(),
        });
        match step {
            Some(at) => script.steps.remove(at).result,
            None => Err(RunError::NotScripted(argv.join(" "))),
        }
    }
}

impl Runner for ScriptedRunner {
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError> {
        let output = self.next_result(command)?;
        let mut lines = Lines::new(command.on_line);
        lines.push(&output.stdout);
        lines.finish();
        Ok(output)
    }

    fn locate(&self, program: &str) -> Option<PathBuf> {
        let is_known = self.script().programs.contains(program);
        is_known.then(|| Path::new("/usr/bin").join(program))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn equal_commands_are_used_in_order_and_recorded() {
        let runner = ScriptedRunner::new();
        runner.reply(&["id", "-u"], 0, "0\n");
        runner.reply(&["id", "-u"], 1, "");
        let command = Command::new("id", ["-u"]);
        assert_eq!(runner.run(&command).unwrap().stdout_text(), "0\n");
        assert_eq!(runner.run(&command).unwrap().code, 1);
        let argvs: Vec<_> = runner.calls().into_iter().map(|call| call.argv).collect();
        assert_eq!(argvs, [["id", "-u"], ["id", "-u"]]);
        assert!(runner.unused().is_empty());
    }

    #[test]
    fn a_command_outside_the_script_is_refused_by_name() {
        let runner = ScriptedRunner::new();
        runner.reply(&["true"], 0, "");
        let refused = runner.run(&Command::new("rm", ["-r", "/"])).unwrap_err();
        assert_eq!(refused.to_string(), "command was not scripted: rm -r /");
        assert_eq!(runner.unused(), [["true"]]);
    }

    #[test]
    fn an_error_can_be_scripted() {
        let runner = ScriptedRunner::new();
        runner.expect(&["x"], Err(RunError::NotFound("x".into())));
        let error = runner.run(&Command::new("x", [""; 0])).unwrap_err();
        assert!(matches!(error, RunError::NotFound(_)));
    }

    #[test]
    fn output_lines_are_passed_on() {
        let runner = ScriptedRunner::new();
        runner.reply(&["x"], 0, "a\nb\n");
        let lines = RefCell::new(Vec::new());
        let on_line = |line: &str| lines.borrow_mut().push(line.to_owned());
        let command = Command {
            on_line: Some(&on_line),
            ..Command::new("x", [""; 0])
        };
        runner.run(&command).unwrap();
        assert_eq!(lines.into_inner(), ["a", "b"]);
    }

    #[test]
    fn only_programs_of_the_script_or_installed_are_located() {
        let runner = ScriptedRunner::new();
        runner
            .reply(&["dpkg-query", "-W"], 0, "")
            .install("apt-get");
        assert!(runner.locate("dpkg-query").is_some());
        assert!(runner.locate("apt-get").is_some());
        assert_eq!(runner.locate("dnf"), None);
    }
}
