//! Measuring whole processes: time and peak memory, each below a fresh process of its own.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What one run cost.
#[derive(Clone, Copy)]
pub struct Cost {
    pub time: Duration,
    pub peak_kib: i64,
}

/// Runs commands in turn, so that they share whatever else the machine does, and returns the best
/// of each.
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
    best.map(|cost| cost.expect("there was a round"))
}

/// Runs a command below a fresh process that reports time and peak memory of just that command.
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

/// The fresh process: runs the command and prints what it cost.
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
