//! The environment of every test: an empty directory, cleared variables, the real program.

pub mod agent;
pub mod browser;
pub mod clock;
pub mod deb;
pub mod demo;
pub mod disk;
pub mod fleet;
pub mod http;
pub mod namespace;
pub mod nats;
pub mod pack;
pub mod packages;
pub mod poll;
pub mod proxy;
pub mod root;
pub mod rpm;
pub mod setup;
pub mod simulation;
pub mod systemd;
pub mod web;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A scratch directory and a way to run the program in it.
pub struct TestEnv {
    directory: tempfile::TempDir,
    variables: Vec<(String, String)>,
    /// Network namespace of the programs, as a path below /proc.
    network: Option<String>,
}

impl TestEnv {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
            network: None,
        }
    }

    /// Returns an environment whose programs run in another network.
    pub fn in_network(network: String) -> Self {
        Self {
            network: Some(network),
            ..Self::new()
        }
    }

    /// Sets a variable for every later run.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Returns a path as text, for manifests and arguments.
    pub fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        self.at(name)
    }

    /// Writes a file that no other user can read.
    pub fn write_secret(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.write(name, text);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    /// Returns the program, ready to be started in this world.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_ccm"));
        command.args(args);
        command
    }

    /// Returns another program with the same directory and environment.
    pub fn program(&self, program: &str) -> Command {
        let mut command = match &self.network {
            Some(network) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={network}")).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .current_dir(self.root())
            .env_clear()
            .env("HOME", self.root())
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
            .env("TMPDIR", self.root())
            .env("CCM_STATE_DIR", self.root().join(".state"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts the program and returns it with the first line it prints.
    pub fn start(&self, args: &[&str]) -> (Child, String) {
        self.start_command(&mut self.command(args))
    }

    /// Starts the program as [`Self::start`] does, with its standard error in a file.
    pub fn start_logging(&self, args: &[&str], log: &str) -> (Child, String) {
        let log = std::fs::File::create(self.path(log)).unwrap();
        self.start_command(self.command(args).stderr(log))
    }

    fn start_command(&self, command: &mut Command) -> (Child, String) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        (child, line)
    }

    pub fn ccm(&self, args: &[&str]) -> Outcome {
        self.ccm_with_input(args, "")
    }

    pub fn ccm_with_input(&self, args: &[&str], input: &str) -> Outcome {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not read may have closed the pipe already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes)
                .unwrap()
                .replace(self.root().to_str().unwrap(), "$DIR")
        };
        Outcome {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code(),
        }
    }

    /// Writes a manifest of these resources, applies it and returns what came of it.
    pub fn apply(&self, resources: &str, flags: &[&str]) -> Applied {
        self.write("manifest.yaml", manifest(resources));
        let mut args = vec!["apply", "manifest.yaml", "--json"];
        args.extend(flags);
        let outcome = self.ccm(&args);
        Applied::read(&outcome)
    }

    /// Applies one resource in noop, for real and again, and returns the noop message.
    pub fn converge(&self, resource: &str) -> String {
        let noop = self.apply(resource, &["--noop"]);
        let event = noop.event(0);
        assert_eq!(event["noop"], true, "{event:#}");
        assert_eq!(event["changed"], true, "{event:#}");
        assert_eq!(event["status"]["stable"], false, "{event:#}");
        let real = self.apply(resource, &[]);
        assert_eq!(real.outcomes(), ["changed"], "{:#}", real.document);
        assert_eq!(real.event(0)["status"]["stable"], true);
        assert_eq!(real.event(0)["noop"], false);
        self.assert_stable(resource);
        event["noop_message"].as_str().unwrap().to_owned()
    }

    /// Applies one resource, which must be as it should.
    pub fn assert_stable(&self, resource: &str) {
        let again = self.apply(resource, &[]);
        assert_eq!(again.outcomes(), ["stable"], "{:#}", again.document);
    }
}

/// Returns the paths of all files below a directory, relative to it and sorted.
pub fn files_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap();
                found.push(name.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Returns a manifest of these resources.
pub fn manifest(resources: &str) -> String {
    let indented: String = resources
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    format!("ccm:\n  resources:\n{indented}")
}

/// What a run of the program left behind; the scratch directory reads `$DIR`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Outcome {
    /// Returns standard output of a run that must have succeeded.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Returns standard error of a run that must have ended with this code.
    pub fn error(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stderr
    }

    pub fn json(self) -> Value {
        let text = self.clone().ok();
        serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {self:?}"))
    }
}

/// The events and summary of a manifest run.
#[derive(Clone, Debug)]
#[must_use]
pub struct Applied {
    pub document: Value,
}

impl Applied {
    /// Reads what `ccm apply --json` printed.
    fn read(outcome: &Outcome) -> Self {
        let document = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|err| panic!("{err}: {outcome:?}"));
        Self { document }
    }

    pub fn event(&self, index: usize) -> &Value {
        &self.document["events"][index]
    }

    /// Returns the single word for how each resource came out.
    pub fn outcomes(&self) -> Vec<&'static str> {
        self.document["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(outcome)
            .collect()
    }

    /// Returns the first error of an event, which must have failed.
    pub fn failure(&self, index: usize) -> String {
        let event = self.event(index);
        assert_eq!(event["failed"], true, "{event:#}");
        event["error"][0].as_str().unwrap().to_owned()
    }
}

fn outcome(event: &Value) -> &'static str {
    let is = |key: &str| event[key].as_bool().unwrap();
    if is("failed") {
        "failed"
    } else if is("skipped") {
        "skipped"
    } else if is("refreshed") {
        "refreshed"
    } else if is("changed") {
        "changed"
    } else {
        "stable"
    }
}

/// Returns the processes whose command line holds a text, apart from ourselves.
pub fn processes_with(text: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if pid != std::process::id() && line.contains(text) {
            found.push(pid);
        }
    }
    found
}

/// Runs a tool of the host that only writes to the given paths.
pub fn tool(program: &str, args: &[&Path]) {
    let output = Command::new(program)
        .args(args)
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap_or_else(|err| panic!("{program} (scripts/test installs it): {err}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}
