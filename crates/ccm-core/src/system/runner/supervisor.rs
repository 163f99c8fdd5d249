//! Supervisor of a command: a process between `ccm` and the command that keeps all its descendants.
//!
//! A daemon that forks twice leaves the process tree of its command, and a command goes on if `ccm` is
//! killed. The supervisor prevents both: it is the subreaper of its descendants, so that orphans
//! become its children instead of init's and are found by a timeout, and it kills all of them when
//! its parent dies. When the command exits, the supervisor exits, too, and leaves daemons to init.
//!
//! It is this program again, started as [`NAME`] with the process id of its parent and the number of
//! a memory file there, which contains the command and takes the result.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, geteuid, getpid, getppid, pidfd_open, set_child_subreaper, wait,
};
use serde::{Deserialize, Serialize};

use super::super::Cause;
use super::process::{cwd, program_file, start};
use super::{Command, RunError, process_tree};

/// Program name of a supervisor.
const NAME: &str = "ccm-supervisor";

/// This program, even if its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Interval of checks for the parent where pidfds are not available, and for other supervisors.
const TICK: Duration = Duration::from_millis(20);

/// Longest time to wait for supervisors of killed processes.
const MAX_ORPHAN_WAIT: Duration = Duration::from_secs(15);

/// Exit code of a supervisor that could not start.
const FAILED: u8 = 125;

/// A command as its supervisor receives it.
#[derive(Debug, Serialize, Deserialize)]
struct Spec {
    file: PathBuf,
    name: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    cwd: PathBuf,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Outcome {
    /// Wait status of the command.
    Ended(i32),
    /// Error number of the failed start.
    NotStarted(i32),
}

/// A memory file shared with a supervisor: first the command, then its outcome.
#[derive(Debug)]
pub(super) struct Exchange(File);

impl Exchange {
    /// Returns the exchange of a command, and the process builder of its supervisor.
    pub(super) fn prepare(
        command: &Command<'_>,
    ) -> Result<(Self, std::process::Command), RunError> {
        let spec = Spec {
            file: program_file(command)?,
            name: command.program.clone(),
            args: command.args.clone(),
            env: super::process::environment(command),
            cwd: cwd(command).to_owned(),
        };
        let watch = |error: io::Error| RunError::Watch {
            program: command.program.clone(),
            cause: error.into(),
        };
        let file = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC);
        let exchange = Self(file.map_err(|errno| watch(errno.into()))?.into());
        let text = serde_json::to_vec(&spec).map_err(|error| watch(error.into()))?;
        (&exchange.0).write_all(&text).map_err(watch)?;
        #[expect(
            clippy::disallowed_methods,
            reason = "this is where processes are started"
        )]
        let mut prepared = std::process::Command::new(OWN_PROGRAM);
        prepared
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .arg(exchange.0.as_raw_fd().to_string())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok((exchange, prepared))
    }

    /// Returns the wait status of the command after its supervisor has exited.
    pub(super) fn outcome(&mut self, command: &Command<'_>) -> Result<ExitStatus, RunError> {
        match self.read_outcome() {
            // Killed, or unable to read the command.
            Err(_) => Err(RunError::Watch {
                program: command.program.clone(),
                cause: io::Error::other("its supervisor ended without a result").into(),
            }),
            Ok(Outcome::Ended(status)) => Ok(ExitStatus::from_raw(status)),
            Ok(Outcome::NotStarted(code)) => {
                let cause = Cause::from(Errno::from_raw_os_error(code));
                Err(super::process::start_error(command, cwd(command), cause))
            }
        }
    }

    fn read_outcome(&mut self) -> io::Result<Outcome> {
        let mut text = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Opens the exchange of the parent.
    fn open(parent: Pid, number: &str) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{number}", parent.as_raw_pid());
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?.into()))
    }

    fn read_spec(&mut self) -> io::Result<Spec> {
        let mut text = Vec::new();
        self.0.read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn write_outcome(&mut self, outcome: Outcome) -> io::Result<()> {
        let text = serde_json::to_vec(&outcome)?;
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(&text)
    }
}

/// Reports whether supervisors can be started: not in a root directory without `/proc`.
pub(super) fn is_available() -> bool {
    rustix::fs::stat(OWN_PROGRAM).is_ok()
}

/// Waits for supervisors whose parent is dead, until they have killed their commands: otherwise a
/// command could run twice at the same time. Returns those that are left after the longest time.
pub(super) fn wait_for_orphans() -> Vec<i32> {
    let deadline = Instant::now().checked_add(MAX_ORPHAN_WAIT);
    let is_late = || deadline.is_none_or(|deadline| Instant::now() >= deadline);
    let mut orphans: Vec<i32> = process_tree::pids().filter(|pid| is_orphan(*pid)).collect();
    while !orphans.is_empty() && !is_late() {
        std::thread::sleep(TICK);
        orphans.retain(|pid| is_orphan(*pid));
    }
    orphans
}

/// Reports whether a process is a supervisor that has another parent than when it was started. Other
/// users may choose the names of their processes, so theirs don't count.
fn is_orphan(pid: i32) -> bool {
    let owner = rustix::fs::stat(format!("/proc/{pid}")).map(|it| it.st_uid);
    if owner != Ok(geteuid().as_raw()) {
        return false;
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    if words.next() != Some(NAME.as_bytes()) {
        return false;
    }
    let started_by = words.next().and_then(|word| str::from_utf8(word).ok());
    let parent = process_tree::parent_of(pid).map(|parent| parent.to_string());
    // In a container, process ids have another meaning.
    parent.is_some() && parent.as_deref() != started_by && is_in_own_namespace(pid)
}

fn is_in_own_namespace(pid: i32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace("self");
    own.is_some() && namespace(&pid.to_string()) == own
}

/// Supervises a command if this process was started as a supervisor; returns `None` if it was not. To
/// be called first in the main function of a program whose runner uses supervisors.
pub fn supervise() -> Option<ExitCode> {
    let mut args = std::env::args();
    if args.next()? != NAME {
        return None;
    }
    let parent = args.next()?.parse().ok().and_then(Pid::from_raw)?;
    Some(match run(parent, &args.next()?) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent finds no outcome; there is no other way to report it.
        Err(_) => ExitCode::from(FAILED),
    })
}

fn run(parent: Pid, number: &str) -> io::Result<()> {
    // The kernel would name it after the link in /proc.
    let _ = rustix::thread::set_name(c"ccm-supervisor");
    set_child_subreaper(Some(getpid()))?;
    let mut exchange = Exchange::open(parent, number)?;
    let spec = exchange.read_spec()?;
    // Held while the command starts, and while everything is killed: nothing starts after that.
    let alive = Arc::new(Mutex::new(()));
    let starting = alive.lock();
    watch_parent(parent, Arc::clone(&alive))?;
    let started = start(&mut prepare(&spec));
    drop(starting);
    let outcome = match started {
        Ok(child) => Outcome::Ended(wait_for(Pid::from_child(&child))?),
        Err(error) => Outcome::NotStarted(error.raw_os_error().unwrap_or_default()),
    };
    // If the parent is dead, this process must not exit before all others are killed.
    let _ending = alive.lock();
    exchange.write_outcome(outcome)
}

fn prepare(spec: &Spec) -> std::process::Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where processes are started"
    )]
    let mut prepared = std::process::Command::new(&spec.file);
    prepared
        .arg0(&spec.name)
        .args(&spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&spec.cwd)
        .process_group(0);
    prepared
}

/// Reaps all children until this one has exited; returns its wait status.
fn wait_for(child: Pid) -> io::Result<i32> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(status.as_raw()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Starts a thread that kills all descendants and this process when the parent dies.
fn watch_parent(parent: Pid, alive: Arc<Mutex<()>>) -> io::Result<()> {
    let handle = pidfd_open(parent, PidfdFlags::empty()).ok();
    let watch = move || {
        // A parent that died before it was opened has been replaced as the parent.
        while getppid() == Some(parent) {
            match &handle {
                Some(handle) => {
                    let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], None);
                }
                None => std::thread::sleep(TICK),
            }
        }
        let _killing = alive.lock();
        process_tree::kill_descendants(getpid());
        std::process::exit(FAILED.into());
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a process that looks like the supervisor of a dead parent.
    #[expect(clippy::disallowed_methods, reason = "a test starts a process")]
    fn lookalike(user: u32) -> std::process::Child {
        std::process::Command::new("/bin/sleep")
            .arg0(NAME)
            .args(["30", "30"])
            .uid(user)
            .spawn()
            .unwrap()
    }

    #[test]
    fn processes_of_other_users_are_no_orphans() {
        const NOBODY: u32 = 65534;
        for (user, expected) in [(geteuid().as_raw(), true), (NOBODY, false)] {
            let mut process = lookalike(user);
            let found = is_orphan(process.id().try_into().unwrap());
            process.kill().unwrap();
            process.wait().unwrap();
            assert_eq!(found, expected, "user {user}");
        }
    }
}
