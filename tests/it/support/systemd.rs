//! A host that systemd has booted: a Debian tree in a container, booted once for all tests and
//! handed to one of them at a time, because there is only one service manager to count in.
//!
//! `systemd-host.sh` makes the tree, boots it and ends it when this process is gone. A part that is
//! missing fails every test that needs it, with the reason.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::deb::{self, Deb};
use super::{Applied, Outcome, manifest, rpm, tool};

/// Where the program runs inside.
const HOME: &str = "/root";

/// How often a booting system is queried whether it is up, a tenth of a second apart.
const BOOT_TRIES: usize = 1200;

/// A booted host.
pub struct SystemdHost {
    /// Its first process, as this side sees it.
    init: u32,
    /// Holds the pipe that keeps the container alive.
    _watch: Child,
}

/// Returns the host, booted if this is the first test that needs it, once no other test has it.
pub fn systemd_host() -> MutexGuard<'static, SystemdHost> {
    static HOST: OnceLock<Result<Mutex<SystemdHost>, String>> = OnceLock::new();
    match HOST.get_or_init(|| SystemdHost::boot("", "", "--private-network").map(Mutex::new)) {
        Ok(host) => host.lock().unwrap_or_else(PoisonError::into_inner),
        Err(reason) => panic!("no systemd host: {reason}"),
    }
}

/// Returns a second host with dnf and rpm, in the network of the first one.
pub fn rpm_host(first: &SystemdHost) -> MutexGuard<'static, SystemdHost> {
    static HOST: OnceLock<Result<Mutex<SystemdHost>, String>> = OnceLock::new();
    let boot = || {
        let network = format!("--network-namespace-path={}", first.network());
        SystemdHost::boot("-rpm", ",dnf,rpm", &network).map(Mutex::new)
    };
    match HOST.get_or_init(boot) {
        Ok(host) => host.lock().unwrap_or_else(PoisonError::into_inner),
        Err(reason) => panic!("no second systemd host: {reason}"),
    }
}

/// Returns the suite of this machine, because the program is linked with its libraries.
fn suite() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap();
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let found = pairs.find(|(key, _)| *key == "VERSION_CODENAME");
    found.unwrap().1.trim_matches('"').into()
}

impl SystemdHost {
    /// Boots a tree with more packages. `name` distinguishes it from others.
    fn boot(name: &str, packages: &str, network: &str) -> Result<Self, String> {
        let suite = suite();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let tree = target.join("systemd-host").join(format!("{suite}{name}"));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/systemd-host.sh");
        let mut watch = Command::new(script)
            .arg(&tree)
            .args([&suite, env!("CARGO_BIN_EXE_ccm"), packages, network])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt of the tests must not interrupt the process that cleans up.
            .process_group(0)
            .spawn()
            .map_err(|err| err.to_string())?;
        let mut line = String::new();
        BufReader::new(watch.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let nspawn: u32 = line
            .trim()
            .parse()
            .map_err(|_| "could not boot, see above".to_owned())?;
        for _ in 0..BOOT_TRIES {
            if let Some(init) = init_of(nspawn) {
                let host = Self {
                    init,
                    _watch: watch,
                };
                return host.wait_until_up(&tree);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(boot_log(&tree, "no first process"))
    }

    fn wait_until_up(self, tree: &Path) -> Result<Self, String> {
        let mut last = String::new();
        for _ in 0..BOOT_TRIES {
            let outcome = self.run(&["systemctl", "is-system-running", "--wait"]);
            last = format!("{outcome:?}");
            match outcome.stdout.trim() {
                // A unit of the tree that can't run in a container is not our concern.
                "running" | "degraded" => return Ok(self),
                "maintenance" => break,
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        Err(boot_log(tree, &last))
    }

    /// Returns the network of the host, for programs outside of it.
    pub fn network(&self) -> String {
        format!("/proc/{}/ns/net", self.init)
    }

    /// Runs a command on the host.
    pub fn run(&self, argv: &[&str]) -> Outcome {
        let output = self.command(argv).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code(),
        }
    }

    /// Returns a command, ready to be started on the host.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--all", "--target", &self.init.to_string()])
            .args(["/usr/bin/env", "--ignore-environment", "--chdir", HOME])
            .args(["HOME=/root", "LANG=C", "PATH=/usr/local/bin:/usr/bin:/bin"])
            .args(argv)
            .stdin(Stdio::null());
        command
    }

    /// Runs a shell script that must succeed and returns what it printed.
    pub fn sh(&self, script: &str) -> String {
        self.run(&["sh", "-ec", script]).ok()
    }

    pub fn ccm(&self, args: &[&str]) -> Outcome {
        let mut argv = vec!["ccm"];
        argv.extend(args);
        self.run(&argv)
    }

    /// Writes a manifest of these resources, applies it and returns what came of it.
    pub fn apply(&self, resources: &str, flags: &[&str]) -> Applied {
        self.write("/root/manifest.yaml", &manifest(resources));
        let mut args = vec!["apply", "manifest.yaml", "--json"];
        args.extend(flags);
        Applied::read(&self.ccm(&args))
    }

    /// Makes these packages the only ones that the host's apt knows.
    pub fn use_apt_repository(&self, packages: &[Deb<'_>]) {
        // Made on this side and copied: no tool finds its way in another's mount namespace.
        let made = tempfile::tempdir().unwrap();
        for package in packages {
            package.build(made.path());
        }
        self.copy_apt_repository(made.path());
    }

    /// Makes the packages in a directory the only ones that the host's apt knows.
    pub fn copy_apt_repository(&self, directory: &Path) {
        deb::index(directory);
        self.sh("rm -rf /etc/apt/sources.list.d");
        self.copy_directory(directory, "/srv/apt");
        self.write("/etc/apt/sources.list", deb::SOURCES);
        self.sh("apt-get update -q");
    }

    /// Makes the packages in a directory the only ones that the host's dnf knows.
    pub fn copy_rpm_repository(&self, directory: &Path) {
        rpm::index(directory);
        self.copy_directory(directory, "/srv/rpm");
        self.sh("mkdir -p /etc/yum.repos.d");
        self.write("/etc/yum.repos.d/local.repo", rpm::REPOSITORY);
    }

    /// Copies a directory of this side to the host.
    pub fn copy_directory(&self, from: &Path, to: &str) {
        self.sh(&format!("rm -rf {to}"));
        // The host sees no directory of this side, so the tool runs here.
        let to = self.path(to);
        tool("cp", &["-a".as_ref(), from, &to]);
    }

    /// Returns where this side finds a file of the host.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.path(path), text).unwrap();
    }

    /// Copies a program that needs nothing but itself to the host.
    pub fn install(&self, program: &Path, to: &str) {
        std::fs::copy(program, self.path(to)).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Writes a unit file.
    pub fn unit(&self, name: &str, text: &str) {
        self.write(&format!("/etc/systemd/system/{name}"), text);
    }

    /// Returns a property of a unit.
    pub fn property(&self, unit: &str, property: &str) -> String {
        let argv = ["systemctl", "show", "--value", "-p", property, unit];
        self.run(&argv).ok().trim().into()
    }

    /// Returns the word systemd answers a question about a unit with.
    pub fn word(&self, question: &str, unit: &str) -> String {
        self.run(&["systemctl", question, unit])
            .stdout
            .trim()
            .into()
    }

    /// Returns how often systemd has read its unit files again since it booted.
    pub fn daemon_reloads(&self) -> usize {
        let log = self.sh("journalctl --sync; journalctl --boot --no-pager -o cat _PID=1");
        let is_reload = |line: &&str| line.starts_with("Reloading.");
        log.lines().filter(is_reload).count()
    }
}

/// Returns the first process of the container that a systemd-nspawn holds, once there is one.
fn init_of(nspawn: u32) -> Option<u32> {
    let children = format!("/proc/{nspawn}/task/{nspawn}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().find_map(|child| {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let ids = status.lines().find(|line| line.starts_with("NSpid:"))?;
        ids.ends_with("\t1").then(|| child.parse().ok())?
    })
}

fn boot_log(tree: &Path, reason: &str) -> String {
    let log = std::fs::read_to_string(tree.with_extension("log")).unwrap_or_default();
    format!("{reason}\n{log}")
}
