//! Delays between retries: increasing, with jitter.
//!
//! The steps are those of Choria: half a second to twenty seconds in 44 steps. Each delay is between
//! half and one and a half times its step, so that the nodes of a fleet do not reconnect at once.

use std::time::Duration;

use ccm_core::system;

/// The steps of the first round in milliseconds; each further round adds five seconds.
const ROUND: [u64; 11] = [
    500, 750, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000,
];

/// Number of rounds until the maximum of twenty seconds.
const ROUNDS: usize = 4;

/// Returns the delay before the next try, after `failed` tries.
pub fn delay(failed: usize) -> Duration {
    with_jitter(step(failed))
}

/// Returns the step after `failed` tries, without jitter.
fn step(failed: usize) -> Duration {
    let index = failed.min(ROUND.len() * ROUNDS - 1);
    let within = ROUND.get(index % ROUND.len()).copied().unwrap_or_default();
    let before = u64::try_from(index / ROUND.len()).unwrap_or_default() * 5000;
    Duration::from_millis(before + within)
}

/// Adds jitter to a step. Without a source of random numbers, returns the step itself.
pub(super) fn with_jitter(step: Duration) -> Duration {
    match system::random() {
        Ok(random) => spread(step, random),
        Err(_) => step,
    }
}

/// Returns a delay between half and one and a half times a step.
fn spread(step: Duration, random: u128) -> Duration {
    let part = u64::try_from(random & 0xffff_ffff).unwrap_or_default();
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
    fn jitter_is_half_to_one_and_a_half_steps() {
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
