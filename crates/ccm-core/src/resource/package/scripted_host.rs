//! For tests: a machine whose commands are scripted, and cases as data that say what is run on it.
//!
//! The tests of the `ccm` package's `cfengine` include this file, too; so it names this crate as they do.

use std::path::{Path, PathBuf};

use ccm_core::resource::Host;
use ccm_core::resource::package::Shared;
use ccm_core::resource::scaffold::Sources;
use ccm_core::resource::service::Memory;
use ccm_core::system::{Accounts, FixedClock, Output, ScriptedRunner};
use ccm_template::Env;
use serde::Deserialize;

/// A command that is to be run, and what it answers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answered {
    run: Vec<String>,
    #[serde(default)]
    input: String,
    #[serde(default)]
    code: i32,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    stderr: String,
}

/// Tries every case in a folder of `tests/data/provider` and returns how many there are; fails
/// with the names and reasons of all that do not hold.
pub(crate) fn try_all<C: serde::de::DeserializeOwned>(
    folder: &str,
    run: impl Fn(&C) -> (String, Result<(), String>),
) -> usize {
    let mut count = 0;
    let mut failures = Vec::new();
    for file in files(folder) {
        let text = std::fs::read_to_string(&file).unwrap();
        let cases: Vec<C> =
            serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        for case in cases {
            count += 1;
            if let (name, Err(reason)) = run(&case) {
                failures.push(format!("{}: {name}: {reason}", file.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    count
}

fn files(folder: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|above| above.join("tests/data/provider"))
        .find(|path| path.is_dir())
        .unwrap();
    let mut files: Vec<PathBuf> = std::fs::read_dir(data.join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// A machine whose commands are scripted.
pub(crate) struct ScriptedHost {
    pub runner: ScriptedRunner,
    pub(super) clock: FixedClock,
    accounts: Accounts,
    env: Env,
    services: Memory,
    scaffolds: Sources,
    pub(super) shared: Shared,
    _directory: tempfile::TempDir,
}

impl ScriptedHost {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            runner: ScriptedRunner::new(),
            clock: FixedClock::new(chrono::DateTime::UNIX_EPOCH),
            accounts: Accounts::default(),
            env: Env::default(),
            services: Memory::default(),
            scaffolds: Sources::default(),
            shared: Shared::new(directory.path().join("lock")),
            _directory: directory,
        }
    }

    pub(crate) fn install_apt(&self) {
        for program in ["apt-get", "apt-cache", "apt-mark", "dpkg-query"] {
            self.runner.install(program);
        }
    }

    pub(crate) fn host(&self) -> Host<'_> {
        Host {
            runner: &self.runner,
            clock: &self.clock,
            accounts: &self.accounts,
            working_dir: Path::new("/"),
            env: &self.env,
            packages: &self.shared,
            services: &self.services,
            scaffolds: &self.scaffolds,
        }
    }

    pub(crate) fn answer(&self, answered: &Answered) {
        let argv: Vec<&str> = answered.run.iter().map(String::as_str).collect();
        let output = Output {
            code: answered.code,
            stdout: answered.stdout.clone().into(),
            stderr: answered.stderr.clone().into(),
            ..Output::default()
        };
        self.runner.expect(&argv, Ok(output));
    }

    /// Says what was run instead of these commands, if anything, or what input they got.
    pub(crate) fn check_calls(&self, commands: &[Answered]) -> Result<(), String> {
        let calls = self.runner.calls();
        let argvs: Vec<&Vec<String>> = calls.iter().map(|call| &call.argv).collect();
        let wanted: Vec<&Vec<String>> = commands.iter().map(|command| &command.run).collect();
        if argvs != wanted {
            return Err(format!("ran {argvs:#?}"));
        }
        for (call, command) in calls.iter().zip(commands) {
            let input = String::from_utf8_lossy(&call.input);
            if input != command.input {
                return Err(format!("{:?} got the input {input:?}", call.argv));
            }
        }
        Ok(())
    }
}
