//! Any bytes as a stored rollout: it is stored as it was read, and whatever it claims, deciding
//! what comes next ends and can be stored too.

#![no_main]

use ccm_core::model::rollout::Rollout;
use ccm_fleet::controls::SteerError;
use ccm_fleet::planner::{decide, note};
use ccm_fleet::rollout_encoding::{decode, encode};
use ccm_fleet::{controls, decision, node_progress};
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

/// What somebody does to a rollout.
type Step = fn(&mut Rollout) -> Result<(), SteerError>;

fuzz_target!(|bytes: &[u8]| {
    let Ok(rollout) = decode(bytes) else {
        return;
    };
    let stored = encode(&rollout).expect("a rollout can be stored");
    assert_eq!(decode(&stored).expect("it can be read again"), rollout);
    let now = DateTime::from_timestamp(1_800_000_000, 0).expect("a time");
    let _ = decision::signer(&rollout);
    let mut next = rollout.clone();
    let decision = decide(&next, now);
    note(&mut next, &decision);
    let _ = (next.tally(), outcome::exit_code(&next));
    let steps: [Step; 4] = [
        |it| steer::pause(it, "reason", "ann"),
        |it| steer::abort(it, "ann"),
        |it| steer::retry(it).map(drop),
        |it| steer::rollback(it, None, DateTime::UNIX_EPOCH),
    ];
    for steered in steps {
        let mut next = rollout.clone();
        let _ = steered(&mut next);
        let stored = encode(&next).expect("a rollout can be stored");
        assert_eq!(decode(&stored).expect("it can be read again"), next);
    }
    let _ = steer::resume(&mut next, now);
});
