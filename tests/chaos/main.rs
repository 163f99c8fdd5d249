//! Faults at random, with counts: kills of agents, servers, controllers and applies, outages, full
//! disks and jumping clocks, for a given time and with a given seed.
//!
//! Every scenario is a module with a `round`: it starts what it needs on this machine, makes faults,
//! repairs them, and counts what was promised and did not hold (`docs/reliability.md`). Rounds of all
//! scenarios alternate until the time is up. What a round starts or mounts ends with it, also if it
//! fails. `scripts/chaos` runs this program.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "faults are made directly, and a round stops at its first problem"
)]

mod applies;
mod archives;
mod clocks;
mod disks;
mod events;
mod random;
mod rollouts;
mod tally;

#[expect(dead_code, reason = "shared with the tests, which use all of it")]
#[path = "../it/support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use self::random::Random;
use self::tally::{Tally, table};

/// Make faults at random and count the promises that did not hold
#[derive(Debug, Parser)]
struct Args {
    /// Time after which no further round begins. Each scenario has at least one round; another one
    /// begins if one that takes as long as the longest would end in time
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,

    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Scenario to run; repeatable [default: all]
    #[arg(long = "only", value_name = "SCENARIO")]
    only: Vec<String>,
}

/// The name of a scenario, and one round of it.
type Scenario = (&'static str, fn(&mut Random) -> Tally);

/// In the order of their rounds.
const SCENARIOS: [Scenario; 6] = [
    ("applies", applies::round),
    ("disks", disks::round),
    ("clocks", clocks::round),
    ("archives", archives::round),
    ("events", events::round),
    ("rollouts", rollouts::round),
];

fn main() -> ExitCode {
    let args = Args::parse();
    let is_known = |name: &String| SCENARIOS.iter().any(|(known, _)| known == name);
    if let Some(unknown) = args.only.iter().find(|name| !is_known(name)) {
        let names = SCENARIOS.map(|(name, _)| name).join(", ");
        eprintln!("chaos: unknown scenario {unknown}: use {names}");
        return ExitCode::from(2);
    }
    let is_chosen = |name: &str| args.only.is_empty() || args.only.iter().any(|it| it == name);
    let chosen = SCENARIOS.iter().filter(|(name, _)| is_chosen(name));
    let mut results: Vec<(&Scenario, Tally)> = chosen.map(|it| (it, Tally::default())).collect();
    let mut longest: Vec<Option<Duration>> = vec![None; results.len()];
    println!("seed {}, {} s", args.seed, args.seconds);
    let (start, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut random = Random::new(args.seed);
    loop {
        let mut is_over = true;
        for (((name, round), total), longest) in results.iter_mut().zip(&mut longest) {
            let began = start.elapsed();
            if longest.is_some_and(|longest| began + longest >= limit) {
                continue;
            }
            is_over = false;
            let mut own = random.split();
            let tally = catch_unwind(AssertUnwindSafe(|| round(&mut own)));
            let tally = tally.unwrap_or_else(|_| Tally::stopped());
            let took = start.elapsed() - began;
            *longest = (*longest).max(Some(took));
            println!("{name}: {took:.0?}: {tally}");
            total.add(tally);
        }
        if is_over {
            break;
        }
    }
    println!(
        "\n{}",
        table(results.iter().map(|((name, _), it)| (*name, it)))
    );
    match results.iter().any(|(_, tally)| tally.is_broken()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
