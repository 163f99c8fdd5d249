//! A runner that plays a part: the commands a test expects, and what each answers.
//!
//! Starts nothing. A command that is not in the script is an error, so a provider that runs one
//! command more than it says fails its test; `ScriptedRunner::unused` finds one command less.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    answer: Result<Output, RunError>,
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
    /// Returns a runner without a script: it refuses every command.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a command that ends with this code and standard output. Each is used once; commands
    /// that are equal are answered in the order they were added. The program can be located.
    pub fn answer(&self, argv: &[&str], code: i32, stdout: &str) -> &Self {
        self.expect(
            argv,
            Ok(Output {
                code,
                stdout: stdout.into(),
                ..Output::default()
            }),
        )
    }

    /// Adds a command with its whole answer, as [`ScriptedRunner::answer`] does.
    pub fn expect(&self, argv: &[&str], answer: Result<Output, RunError>) -> &Self {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let mut script = self.script();
        script.programs.extend(argv.first().cloned());
        script.steps.push(Step { argv, answer });
        drop(script);
        self
    }

    /// Adds a program that can be located.
    pub fn install(&self, program: &str) -> &Self {
        self.script().programs.insert(program.to_owned());
        self
    }

    /// Returns every command run so far, in order, those refused included.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_answer(&self, command: &Command<'_>) -> Result<Output, RunError> {
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
            Some(at) => script.steps.remove(at).answer,
            None => Err(RunError::NotScripted(argv.join(" "))),
        }
    }
}

impl Runner for ScriptedRunner {
    fn run(&self, command: &Command<'_>) -> Result<Output, RunError> {
        let output = self.next_answer(command)?;
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
    fn equal_commands_are_answered_in_order_and_recorded() {
        let runner = ScriptedRunner::new();
        runner.answer(&["id", "-u"], 0, "0\n");
        runner.answer(&["id", "-u"], 1, "");
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
        runner.answer(&["true"], 0, "");
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
    fn lines_of_the_answer_are_told() {
        let runner = ScriptedRunner::new();
        runner.answer(&["x"], 0, "a\nb\n");
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        let command = Command {
            on_line: Some(&tell),
            ..Command::new("x", [""; 0])
        };
        runner.run(&command).unwrap();
        assert_eq!(told.into_inner(), ["a", "b"]);
    }

    #[test]
    fn only_programs_of_the_script_or_installed_are_located() {
        let runner = ScriptedRunner::new();
        runner
            .answer(&["dpkg-query", "-W"], 0, "")
            .install("apt-get");
        assert!(runner.locate("dpkg-query").is_some());
        assert!(runner.locate("apt-get").is_some());
        assert_eq!(runner.locate("dnf"), None);
    }
}
