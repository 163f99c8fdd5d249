//! Time and peak memory of processes, each measured in a separate parent process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time and memory of one run.
#[derive(Clone, Copy)]
pub struct Cost {
    pub time: Duration,
    pub peak_kib: i64,
}

/// Runs commands in turn, so that other load affects all of them, and returns the best of each.
pub fn best_of<const N: usize>(rounds: usize, commands: [&[&str]; N]) -> [Cost; N] {
    let mut best: [Option<Cost>; N] = [None; N];
    for _ in 0..rounds {
        for (slot, command) in best.iter_mut().zip(commands) {
            let cost = run(command);
            if slot.is_none_or(|old| cost.time < old.time) {
                *slot = Some(cost);
            }
        }
    }
    best.map(|cost| cost.expect("at least one round"))
}

/// Runs a command in a new process that reports time and peak memory of that command only.
pub fn run(command: &[&str]) -> Cost {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("measure")
        .args(command)
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (nanos, peak) = text.trim().split_once(' ').unwrap();
    Cost {
        time: Duration::from_nanos(nanos.parse().unwrap()),
        peak_kib: peak.parse().unwrap(),
    }
}

/// Runs in the new process: runs the command and prints time and memory.
pub fn measure(command: &[String]) {
    let began = Instant::now();
    let status = Command::new(&command[0])
        .args(&command[1..])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let time = began.elapsed();
    assert!(status.success());
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN);
    println!("{} {}", time.as_nanos(), usage.unwrap().max_rss());
}
