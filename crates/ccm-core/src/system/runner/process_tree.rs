//! Ending a process with everything it started.
//!
//! Signals to a process group miss a descendant that made a group of its own, so the tree is
//! walked from parent to child through `/proc`. A tree can grow while it is felled, so nothing is
//! killed before all is still: each process is stopped first, and only then asked for its
//! children, because a stopped process starts no more. What is killed is killed leaf first: the
//! kernel wakes the stopped children of a parent that dies. A descendant that lost its parent
//! before we looked is known by its group, or by the output it still shares. A daemon that cut
//! those ties too is not ours to end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

/// How long all of it may take. Only a tree that outgrows us, or a process stuck in the kernel,
/// ever takes that long; then what was found is killed and the rest is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a process is asked whether it has stopped, a pause apart, before we go on without.
const MOST_ASKS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Kills the process, its group, who writes to its output (the inodes of these pipes), and all
/// descendants of these; waits until they are gone. The process must be a child that was not
/// reaped yet and that leads its own group, so that neither number can have passed to a stranger.
pub(super) fn kill(root: Pid, output: &[u64]) {
    let deadline = Instant::now().checked_add(PATIENCE);
    let is_late = || deadline.is_none_or(|deadline| Instant::now() >= deadline);
    let mut known = HashSet::new();
    loop {
        let found = freeze(root, output, &mut known, is_late);
        for id in found.iter().rev() {
            id.signal(Signal::KILL);
        }
        // Works even where /proc is not to be had. An error can only say that no one is left.
        let _ = kill_process_group(root, Signal::KILL);
        if found.is_empty() || is_late() {
            return;
        }
        while found.iter().any(|id| id.is_living()) && !is_late() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Stops the whole tree and returns those not known before, parents before their children.
fn freeze(
    root: Pid,
    output: &[u64],
    known: &mut HashSet<Id>,
    is_late: impl Fn() -> bool,
) -> Vec<Id> {
    let mut found = Vec::new();
    loop {
        // Everyone is looked at, for those without a parent and for those whose birth we missed.
        let mut open = rooted(root.as_raw_pid(), output, known, &all());
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
                id.wait_until_still();
                open.extend(id.children());
            }
        }
    }
}

/// Returns the living that belong to the tree by what they say themselves and are not yet known.
fn rooted(root: i32, output: &[u64], known: &HashSet<Id>, all: &[Process]) -> Vec<Id> {
    let is_known: HashMap<i32, bool> = all
        .iter()
        .map(|process| (process.id.pid, known.contains(&process.id)))
        .collect();
    let is_rooted = |process: &Process| {
        process.id.pid == root
            || process.group == root
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
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// A process for its whole life: the number alone may be used again, never with the same start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    pid: i32,
    /// In clock ticks since boot.
    started: u64,
}

impl Id {
    /// Sends a signal to this very process, or to no one.
    fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        // Hold the process, look whether it is still the same, then signal what we hold. Failure
        // means that it is gone, or not ours to signal: the looks that follow will tell.
        let held = pidfd_open(pid, PidfdFlags::empty());
        if self.look().is_none() {
            return;
        }
        let _ = match held {
            Ok(held) => pidfd_send_signal(held, signal),
            Err(Errno::SRCH) => Ok(()),
            // Before Linux 5.3, or forbidden by a sandbox.
            Err(_) => kill_process(pid, signal),
        };
    }

    /// Returns how this very process is now, if it still is.
    fn look(self) -> Option<Process> {
        Process::read(self.pid).filter(|process| process.id == self)
    }

    fn is_living(self) -> bool {
        self.look().is_some_and(|process| !process.is_dead())
    }

    /// Waits until a stop has come through, so that no start of a child is under way any more.
    fn wait_until_still(self) {
        for _ in 0..MOST_ASKS {
            match self.look() {
                Some(process) if !process.is_still() => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
    }

    /// Returns the children of all its threads. Kernels without that list give none; there the
    /// look at everyone finds them one generation at a time.
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
        // The name of a program need not be text.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// Reads a line of `/proc/PID/stat`. The program's name comes second, in parentheses, and may
    /// itself hold blanks and parentheses: everything else comes after the last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // Field 22 of the line; the three above were 3 to 5.
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

    /// Whether it is stopped, by a signal or by who traces it, or dead.
    fn is_still(&self) -> bool {
        self.is_dead() || matches!(self.state, 'T' | 't')
    }

    /// Whether standard output or error of the process is one of these pipes. We hold their other
    /// ends ourselves, so no one else's pipe can have their numbers.
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
        let found = rooted(10, &[], &known, all);
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
    fn a_short_stat_line_is_no_process() {
        assert_eq!(Process::parse(1, ""), None);
        assert_eq!(Process::parse(1, "1 (x) S 2 3"), None);
    }

    #[test]
    fn our_own_process_is_found_with_its_start() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = Process::read(pid).unwrap();
        assert!(all().iter().any(|process| process.id == own.id));
        assert!(own.id.started > 0 && own.id.is_living());
    }

    #[test]
    fn a_number_that_was_used_again_is_another_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let stranger = Id { pid, started: 1 };
        assert!(!stranger.is_living());
        // Were it not told apart, this would end the test.
        stranger.signal(Signal::KILL);
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
    fn the_dead_and_strangers_are_left_alone() {
        let dead = Process {
            state: 'Z',
            ..process(10, 1, 10)
        };
        assert_eq!(rooted_at_10(&[], &[dead, process(40, 1, 40)]), [0; 0]);
    }
}
