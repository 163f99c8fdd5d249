//! A bound on what one rendering may cost.
//!
//! Every step and every byte that a template makes is paid for from one budget, so that a loop,
//! a self-calling template or `repeat 1000000000` ends in an error and not in a stuck agent. It
//! counts; what is worth counting is decided where the work is done.

use std::cell::Cell;

/// Bytes a rendering may produce, with each step counted as [`STEP`] bytes.
const BUDGET: usize = 64 << 20;

/// What one evaluated operand, loop turn or walked value costs.
const STEP: usize = 16;

/// A rendering has used up its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the template makes too much output or runs too long")]
pub struct Exhausted;

/// The budget that is left.
#[derive(Debug)]
pub(super) struct Meter {
    left: Cell<usize>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(BUDGET)
    }
}

impl Meter {
    /// Returns a meter with that many bytes to spend.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            left: Cell::new(budget),
        }
    }

    /// Pays for `bytes` about to be made, or says that the budget is gone.
    pub(super) fn spend(&self, bytes: usize) -> Result<(), Exhausted> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(Exhausted),
        }
    }

    /// Pays for one step.
    pub(super) fn step(&self) -> Result<(), Exhausted> {
        self.spend(STEP)
    }

    /// Pays for `count` steps about to be taken.
    pub(super) fn steps(&self, count: usize) -> Result<(), Exhausted> {
        self.spend(count.saturating_mul(STEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_refuses_and_keeps_refusing_large_requests() {
        let meter = Meter::default();
        assert!(meter.spend(BUDGET).is_ok());
        assert!(meter.step().is_err());
        assert!(meter.steps(usize::MAX).is_err());
    }
}
