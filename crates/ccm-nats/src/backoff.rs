//! How long to wait before the next try: longer each time, and never the same for two nodes.
//!
//! The steps are those of Choria: from half a second to twenty seconds in 44 steps, each spread
//! over half to one and a half of itself, so that a fleet that lost its server does not come back
//! as one.

use std::time::Duration;

use ccm_core::system;

/// One round of steps in milliseconds; the next round adds the last of them.
const ROUND: [u64; 11] = [
    500, 750, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000,
];

/// The rounds until the steps stay at twenty seconds.
const ROUNDS: usize = 4;

/// Returns a wait before another try, after this many that failed.
pub fn delay(failed: usize) -> Duration {
    spread_by_chance(step(failed))
}

/// Returns the step after this many failures, before chance is added.
fn step(failed: usize) -> Duration {
    let index = failed.min(ROUND.len() * ROUNDS - 1);
    let within = ROUND.get(index % ROUND.len()).copied().unwrap_or_default();
    let before = u64::try_from(index / ROUND.len()).unwrap_or_default() * 5000;
    Duration::from_millis(before + within)
}

/// Spreads a step by chance. Where the system has none to give, the step itself is waited:
/// whoever tries again must not fail for that.
pub(super) fn spread_by_chance(step: Duration) -> Duration {
    match system::random() {
        Ok(chance) => spread(step, chance),
        Err(_) => step,
    }
}

/// Spreads a step evenly over half to one and a half of itself.
fn spread(step: Duration, chance: u128) -> Duration {
    // One in 2^32 parts of the step is fine enough.
    let part = u64::try_from(chance & 0xffff_ffff).unwrap_or_default();
    let nanos = (u128::from(part) * step.as_nanos()) >> 32;
    step / 2 + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_those_of_choria() {
        let steps: Vec<u128> = (0..46).map(|n| step(n).as_millis()).collect();
        assert_eq!(steps[..4], [500, 750, 1000, 1500]);
        assert_eq!(steps[10..14], [5000, 5500, 5750, 6000]);
        assert_eq!(steps[42..], [19500, 20000, 20000, 20000]);
        assert_eq!(step(usize::MAX).as_millis(), 20000);
    }

    #[test]
    fn chance_spreads_a_step_from_half_to_one_and_a_half() {
        let second = Duration::from_secs(1);
        assert_eq!(spread(second, 0), second / 2);
        assert_eq!(spread(second, 1 << 31), second);
        let most = spread(second, u128::MAX);
        assert!(
            most < second * 3 / 2 && most > second * 149 / 100,
            "{most:?}"
        );
    }
}
