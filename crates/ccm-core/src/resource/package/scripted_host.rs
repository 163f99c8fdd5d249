//! Test support: a machine with scripted commands, and a loader for data-driven cases.
//!
//! The `cfengine` tests of the `ccm` package include this file too, so it refers to this crate by name.

use std::path::{Path, PathBuf};

use ccm_core::resource::Host;
use ccm_core::resource::package::PackageCache;
use ccm_core::resource::scaffold::SourceCache;
use ccm_core::resource::service::ServiceCache;
use ccm_core::system::files::Writer;
use ccm_core::system::{Accounts, FixedClock, Output, ScriptedRunner};
use ccm_template::Env;
use serde::Deserialize;

/// An expected command with its output.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptedCommand {
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

/// Runs every case in a directory below `tests/data/provider` and returns their number. Panics with the
/// names and errors of all failed cases.
pub(crate) fn run_cases<C: serde::de::DeserializeOwned>(
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

/// A machine with scripted commands.
pub(crate) struct ScriptedHost {
    pub runner: ScriptedRunner,
    pub(crate) clock: FixedClock,
    pub(crate) accounts: Accounts,
    env: Env,
    pub(crate) services: ServiceCache,
    scaffolds: SourceCache,
    pub(crate) packages: PackageCache,
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
            services: ServiceCache::new(directory.path().join("service.lock")),
            scaffolds: SourceCache::default(),
            packages: PackageCache::new(directory.path().join("package.lock")),
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
            state_dir: None,
            files: Writer::default(),
            env: &self.env,
            packages: &self.packages,
            services: &self.services,
            scaffolds: &self.scaffolds,
        }
    }

    pub(crate) fn expect(&self, command: &ScriptedCommand) {
        let argv: Vec<&str> = command.run.iter().map(String::as_str).collect();
        let output = Output {
            code: command.code,
            stdout: command.stdout.clone().into(),
            stderr: command.stderr.clone().into(),
            ..Output::default()
        };
        self.runner.expect(&argv, Ok(output));
    }

    /// Checks that exactly these commands were run, with their input.
    pub(crate) fn check_calls(&self, commands: &[ScriptedCommand]) -> Result<(), String> {
        let calls = self.runner.calls();
        let argvs: Vec<&Vec<String>> = calls.iter().map(|call| &call.argv).collect();
        let wanted: Vec<&Vec<String>> = commands.iter().map(|command| &command.run).collect();
        if argvs != wanted {
            return Err(format!("ran {argvs:#?}"));
        }
        for (call, command) in calls.iter().zip(commands) {
            let input = String::from_utf8_lossy(&call.input);
            if input != command.input {
                return Err(format!("{:?} got input {input:?}", call.argv));
            }
        }
        Ok(())
    }
}
