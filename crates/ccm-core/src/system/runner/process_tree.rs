//! Killing a process with all its descendants.
//!
//! A signal to the process group misses descendants with a group of their own, so the tree is
//! walked through `/proc`. A tree can grow meanwhile, so every process is stopped (`SIGSTOP`)
//! before its children are listed, and killing starts only when all are stopped. It goes from the
//! leaves to the root, because the kernel wakes the stopped children of a parent that dies.
//! Descendants whose parent has exited are found by process group, or by the output pipe they
//! share. A daemon with neither is found only below a `supervisor`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

/// Limit for the whole operation. It is reached only if the tree grows faster than it is stopped or
/// a process is stuck in the kernel; then the processes found so far are killed.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Number of checks whether a process has stopped, and the interval between them.
const MAX_CHECKS: usize = 20;
const INTERVAL: Duration = Duration::from_millis(1);

/// Kills the process, its group, the processes that write to its output (the inodes of the pipes),
/// and all their descendants; waits until they have exited. The process must be an unreaped child
/// that leads its own group, so that neither id can have been reused.
pub(super) fn kill(root: Pid, output: &[u64]) {
    kill_tree(Some(root), output, HashSet::new());
}

/// Kills all descendants of a process, but not itself; waits until they have exited.
pub(super) fn kill_descendants(parent: Pid) {
    let parent = Process::read(parent.as_raw_pid());
    kill_tree(
        None,
        &[],
        parent.map(|parent| parent.id).into_iter().collect(),
    );
}

fn kill_tree(root: Option<Pid>, output: &[u64], mut known: HashSet<Id>) {
    let deadline = Instant::now().checked_add(TIME_LIMIT);
    let is_late = || deadline.is_none_or(|deadline| Instant::now() >= deadline);
    loop {
        let found = freeze(root, output, &mut known, is_late);
        for id in found.iter().rev() {
            id.signal(Signal::KILL);
        }
        // Works without /proc, too. The only possible error is an empty group.
        if let Some(root) = root {
            let _ = kill_process_group(root, Signal::KILL);
        }
        if found.is_empty() || is_late() {
            return;
        }
        while found.iter().any(|id| id.is_alive()) && !is_late() {
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Stops the whole tree and returns the processes not in `known`, parents before children.
fn freeze(
    root: Option<Pid>,
    output: &[u64],
    known: &mut HashSet<Id>,
    is_late: impl Fn() -> bool,
) -> Vec<Id> {
    let mut found = Vec::new();
    loop {
        // Scans all processes, for orphans and for children started meanwhile.
        let mut open = rooted(root.map(Pid::as_raw_pid), output, known, &all());
        if open.is_empty() {
            return found;
        }
        while let Some(id) = open.pop() {
            if is_late() {
                return found;
            }
            if known.insert(id) {
                found.push(id);
                id.signal(Signal::STOP);
                id.wait_until_stopped();
                open.extend(id.children());
            }
        }
    }
}

/// Returns the live processes of the tree that are not in `known`.
fn rooted(root: Option<i32>, output: &[u64], known: &HashSet<Id>, all: &[Process]) -> Vec<Id> {
    let is_known: HashMap<i32, bool> = all
        .iter()
        .map(|process| (process.id.pid, known.contains(&process.id)))
        .collect();
    let is_rooted = |process: &Process| {
        root.is_some_and(|root| process.id.pid == root || process.group == root)
            || is_known.get(&process.parent) == Some(&true)
            || process.shares(output)
    };
    all.iter()
        .filter(|process| !process.is_dead() && !known.contains(&process.id))
        .filter(|process| is_rooted(process))
        .map(|process| process.id)
        .collect()
}

fn all() -> Vec<Process> {
    pids().filter_map(Process::read).collect()
}

/// Returns the ids of all processes.
pub(super) fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the parent of a process that is alive.
pub(super) fn parent_of(pid: i32) -> Option<i32> {
    let process = Process::read(pid).filter(|process| !process.is_dead())?;
    Some(process.parent)
}

/// A process id with its start time: a pid may be reused, but not with the same start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    pid: i32,
    /// In clock ticks since boot.
    started: u64,
}

impl Id {
    /// Sends a signal to this process, never to a later one with the same pid.
    fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        // Open a pidfd, check that it is the same process, then signal through the pidfd. On
        // failure the process is gone or may not be signalled; the caller checks again.
        let handle = pidfd_open(pid, PidfdFlags::empty());
        if self.inspect().is_none() {
            return;
        }
        let _ = match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            Err(Errno::SRCH) => Ok(()),
            // Before Linux 5.3, or forbidden by a sandbox.
            Err(_) => kill_process(pid, signal),
        };
    }

    /// Returns the current state of this process, or `None` if it is gone.
    fn inspect(self) -> Option<Process> {
        Process::read(self.pid).filter(|process| process.id == self)
    }

    fn is_alive(self) -> bool {
        self.inspect().is_some_and(|process| !process.is_dead())
    }

    /// Waits until the process has stopped and can start no more children.
    fn wait_until_stopped(self) {
        for _ in 0..MAX_CHECKS {
            match self.inspect() {
                Some(process) if !process.is_stopped() => std::thread::sleep(INTERVAL),
                _ => return,
            }
        }
    }

    /// Returns the children of all threads. Kernels without `/proc/PID/task/TID/children` return
    /// none; there the scan of all processes finds one generation at a time.
    fn children(self) -> Vec<Id> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let lists = threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists
            .flat_map(|list| {
                let pids = list.split_ascii_whitespace().map(str::parse);
                pids.flatten().collect::<Vec<i32>>()
            })
            .filter_map(|pid| Some(Process::read(pid)?.id))
            .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: Id,
    state: char,
    parent: i32,
    group: i32,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        // Program names may be invalid UTF-8.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// Parses `/proc/PID/stat`. The second field is the program's name in parentheses and may
    /// itself contain blanks and parentheses, so parsing starts after the last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // Field 22 of the line; the three above are fields 3 to 5.
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self {
            id: Id { pid, started },
            state,
            parent,
            group,
        })
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether it is stopped by a signal or a tracer, or dead.
    fn is_stopped(&self) -> bool {
        self.is_dead() || matches!(self.state, 'T' | 't')
    }

    /// Whether standard output or error of the process is one of these pipes. Their read ends are
    /// open in this process, so the inode numbers cannot be reused.
    fn shares(&self, pipes: &[u64]) -> bool {
        let is_shared = |stream| {
            std::fs::read_link(format!("/proc/{}/fd/{stream}", self.id.pid)).is_ok_and(|end| {
                pipes
                    .iter()
                    .any(|pipe| end.as_os_str() == format!("pipe:[{pipe}]").as_str())
            })
        };
        (1..=2).any(is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32) -> Process {
        Process {
            id: Id { pid, started: 1 },
            state: 'S',
            parent,
            group,
        }
    }

    fn rooted_at_10(known: &[Process], all: &[Process]) -> Vec<i32> {
        let known = known.iter().map(|process| process.id).collect();
        let found = rooted(Some(10), &[], &known, all);
        found.iter().map(|id| id.pid).collect()
    }

    #[test]
    fn a_stat_line_is_read_after_the_last_parenthesis_of_the_name() {
        let line = "42 (a) (b) S 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3";
        let read = Process::parse(42, line).unwrap();
        assert_eq!((read.id.pid, read.id.started), (42, 9876));
        assert_eq!((read.state, read.parent, read.group), ('S', 7, 40));
    }

    #[test]
    fn a_short_stat_line_is_invalid() {
        assert_eq!(Process::parse(1, ""), None);
        assert_eq!(Process::parse(1, "1 (x) S 2 3"), None);
    }

    #[test]
    fn our_own_process_is_found_with_its_start() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = Process::read(pid).unwrap();
        assert!(all().iter().any(|process| process.id == own.id));
        assert!(own.id.started > 0 && own.id.is_alive());
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let other = Id { pid, started: 1 };
        assert!(!other.is_alive());
        // Would kill the test process if the start time were not compared.
        other.signal(Signal::KILL);
    }

    #[test]
    fn the_root_and_its_group_belong_to_the_tree() {
        let all = [process(1, 0, 1), process(10, 1, 10), process(20, 1, 10)];
        assert_eq!(rooted_at_10(&[], &all), [10, 20]);
    }

    #[test]
    fn children_of_the_known_belong_to_the_tree_and_the_known_are_not_found_again() {
        let all = [process(10, 1, 10), process(11, 10, 11), process(12, 11, 12)];
        assert_eq!(rooted_at_10(&all[..1], &all), [11]);
        assert_eq!(rooted_at_10(&all[..2], &all), [12]);
    }

    #[test]
    fn dead_and_unrelated_processes_are_left_alone() {
        let dead = Process {
            state: 'Z',
            ..process(10, 1, 10)
        };
        assert_eq!(rooted_at_10(&[], &[dead, process(40, 1, 40)]), [0; 0]);
    }
}
