//! What scenarios count.

use std::fmt;

/// Counts of one round, or of all rounds of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    rounds: u64,
    pub(crate) faults: u64,
    /// What was checked: replied events, written files, refreshes, nodes of rollouts.
    pub(crate) checks: u64,
    /// Events that were not stored after a reply.
    pub(crate) lost: u64,
    /// Events that were stored twice, and actions that were executed twice.
    pub(crate) duplicate: u64,
    /// Events stored in another order than they happened.
    pub(crate) reordered: u64,
    /// Files or trees that are neither old nor new.
    pub(crate) partial: u64,
    /// Nodes of rollouts that did not run exactly once, and leases that were taken too early.
    pub(crate) not_once: u64,
    /// Refreshes that were not made.
    pub(crate) missed: u64,
    /// Actions without an event: killed between the two. Not promised.
    pub(crate) unrecorded: u64,
    /// Rounds that ended with an error.
    stopped: u64,
}

impl Tally {
    /// Returns the tally of a round that ended with an error.
    pub(crate) fn stopped() -> Self {
        Self {
            stopped: 1,
            ..Self::default()
        }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, round: Self) {
        self.rounds += 1;
        self.faults += round.faults;
        self.checks += round.checks;
        self.lost += round.lost;
        self.duplicate += round.duplicate;
        self.reordered += round.reordered;
        self.partial += round.partial;
        self.not_once += round.not_once;
        self.missed += round.missed;
        self.unrecorded += round.unrecorded;
        self.stopped += round.stopped;
    }

    /// Returns the names and counts of what was promised and did not hold.
    fn broken(&self) -> [(&'static str, u64); 7] {
        [
            ("lost", self.lost),
            ("duplicate", self.duplicate),
            ("reordered", self.reordered),
            ("partial", self.partial),
            ("not once", self.not_once),
            ("missed", self.missed),
            ("stopped", self.stopped),
        ]
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken().iter().any(|(_, count)| *count > 0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} faults, {} checks", self.faults, self.checks)?;
        for (name, count) in self.broken() {
            if count > 0 {
                write!(out, ", {count} {name}")?;
            }
        }
        Ok(())
    }
}

/// Returns a table with a row per scenario.
pub(crate) fn table<'t>(rows: impl Iterator<Item = (&'static str, &'t Tally)>) -> String {
    let names = Tally::default().broken().map(|(name, _)| name);
    let mut text = format!("{:<10}{:>7}{:>8}{:>8}", "", "rounds", "faults", "checks");
    for name in names {
        text.push_str(&format!("{name:>11}"));
    }
    text.push_str("  unrecorded\n");
    for (name, tally) in rows {
        let Tally {
            rounds,
            faults,
            checks,
            unrecorded,
            ..
        } = tally;
        text.push_str(&format!("{name:<10}{rounds:>7}{faults:>8}{checks:>8}"));
        for (_, count) in tally.broken() {
            text.push_str(&format!("{count:>11}"));
        }
        text.push_str(&format!("{unrecorded:>12}\n"));
    }
    text
}
