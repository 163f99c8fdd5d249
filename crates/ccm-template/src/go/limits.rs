//! Limit on the cost of one rendering.
//!
//! Every step and every output byte is charged to one budget, so that a loop, a recursive template
//! or `repeat 1000000000` ends with an error.

use std::cell::Cell;

/// Budget in bytes; each step counts as [`STEP`] bytes.
const BUDGET: usize = 64 << 20;

/// Cost of one evaluated operand, loop iteration or visited value.
const STEP: usize = 16;

/// The rendering exceeded its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("template exceeds the limit of output and run time")]
pub(crate) struct BudgetExceeded;

/// The remaining budget.
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
    /// Returns a meter with a budget in bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            left: Cell::new(budget),
        }
    }

    /// Charges `bytes` about to be produced.
    pub(super) fn spend(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(BudgetExceeded),
        }
    }

    /// Charges one step.
    pub(super) fn step(&self) -> Result<(), BudgetExceeded> {
        self.spend(STEP)
    }

    /// Charges `count` steps.
    pub(super) fn steps(&self, count: usize) -> Result<(), BudgetExceeded> {
        self.spend(count.saturating_mul(STEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_charge_fails_every_time() {
        let meter = Meter::default();
        assert!(meter.spend(BUDGET).is_ok());
        assert!(meter.step().is_err());
        assert!(meter.steps(usize::MAX).is_err());
    }
}
