//! Ending a process with everything it started.
//!
//! Signals to a process group miss a descendant that made a group of its own, so the tree is
//! found through the parents in `/proc`. A tree can grow while it is felled: every process found
//! is first stopped, since a stopped process starts no other, until a look finds none that is
//! new. Only then are all killed. A descendant that lost its parent before we looked is known by
//! the output it still shares. A daemon that cut that tie too is not ours to end.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

/// Looks at a growing tree before we kill what we have. A fork bomb loses the race long before.
const MOST_LOOKS: usize = 64;

/// Looks for survivors, with a pause between: about 5 s. Only a process stuck in the kernel
/// lives that long after its kill.
const MOST_WAITS: usize = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Kills the process, its group, who writes to its output (the inodes of these pipes), and all
/// descendants of these; waits until they are gone. The process must be a child that was not
/// reaped yet and that leads its own group, so that neither number can have passed to a stranger.
pub(super) fn kill(root: Pid, output: &[u64]) {
    let mut found: HashSet<Id> = all()
        .iter()
        .filter(|process| process.shares(output))
        .map(|process| process.id)
        .collect();
    for id in &found {
        id.signal(Signal::STOP);
    }
    for _ in 0..MOST_LOOKS {
        let before = found.len();
        for process in living_tree(root, &found) {
            if found.insert(process.id) {
                process.id.signal(Signal::STOP);
            }
        }
        if found.len() == before {
            break;
        }
    }
    for _ in 0..MOST_WAITS {
        // The group first and in one call: it works even where /proc is not to be had. Errors
        // can only say that no one is left.
        let _ = kill_process_group(root, Signal::KILL);
        let living = living_tree(root, &found);
        if living.is_empty() {
            break;
        }
        for process in living {
            process.id.signal(Signal::KILL);
            found.insert(process.id);
        }
        std::thread::sleep(PAUSE);
    }
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
        if !Process::read(self.pid).is_some_and(|process| process.id == self) {
            return;
        }
        let _ = match held {
            Ok(held) => pidfd_send_signal(held, signal),
            Err(Errno::SRCH) => Ok(()),
            // Before Linux 5.3, or forbidden by a sandbox.
            Err(_) => kill_process(pid, signal),
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: Id,
    parent: i32,
    group: i32,
    is_dead: bool,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        // The name of a program need not be text.
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
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

    /// Reads a line of `/proc/PID/stat`. The program's name comes second, in parentheses, and may
    /// itself hold blanks and parentheses: everything else comes after the last one.
    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // Field 22 of the line; the three above were 3 to 5.
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self {
            id: Id { pid, started },
            parent,
            group,
            is_dead,
        })
    }
}

/// Returns the living among: the root, its group, what we knew before, and all descendants of
/// these.
fn living_tree(root: Pid, known: &HashSet<Id>) -> Vec<Process> {
    tree_of(root.as_raw_pid(), known, &all())
        .into_iter()
        .filter(|process| !process.is_dead)
        .collect()
}

fn tree_of(root: i32, known: &HashSet<Id>, all: &[Process]) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(*process);
    }
    let is_seed = |process: &&Process| {
        process.id.pid == root || process.group == root || known.contains(&process.id)
    };
    let mut open: Vec<Process> = all.iter().filter(is_seed).copied().collect();
    let mut seen = HashSet::new();
    let mut tree = Vec::new();
    while let Some(process) = open.pop() {
        if seen.insert(process.id) {
            tree.push(process);
            open.extend(children.get(&process.id.pid).into_iter().flatten());
        }
    }
    tree
}

fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32) -> Process {
        Process {
            id: Id { pid, started: 1 },
            parent,
            group,
            is_dead: false,
        }
    }

    fn pids(tree: &[Process]) -> Vec<i32> {
        let mut pids: Vec<i32> = tree.iter().map(|process| process.id.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn a_stat_line_is_read_after_the_last_parenthesis_of_the_name() {
        let line = "42 (a) (b) S 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3";
        assert_eq!(
            Process::parse(42, line),
            Some(Process {
                id: Id {
                    pid: 42,
                    started: 9876
                },
                parent: 7,
                group: 40,
                is_dead: false
            })
        );
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
        assert!(all().contains(&own));
        assert!(own.id.started > 0);
    }

    #[test]
    fn the_tree_holds_descendants_group_members_and_orphans_known_before() {
        let orphan = process(30, 1, 30);
        let all = [
            process(1, 0, 1),
            process(10, 1, 10),
            process(11, 10, 11),
            process(12, 11, 12),
            process(20, 1, 10),
            process(21, 20, 21),
            orphan,
            process(31, 30, 31),
            process(40, 1, 40),
        ];
        let known = HashSet::from([orphan.id]);
        assert_eq!(
            pids(&tree_of(10, &known, &all)),
            [10, 11, 12, 20, 21, 30, 31]
        );
    }

    #[test]
    fn parents_in_a_circle_do_not_hold_us() {
        let all = [process(10, 11, 9), process(11, 10, 9)];
        assert_eq!(pids(&tree_of(10, &HashSet::new(), &all)), [10, 11]);
    }
}
