//! Stored rollouts. Properties: a rollout round-trips, and the planner's next decision and every
//! control operation yield a rollout that can be stored.

#![no_main]

use ccm_core::model::rollout::Rollout;
use ccm_fleet::controls::ControlError;
use ccm_fleet::planner::{decide, record};
use ccm_fleet::rollout_encoding::{decode, encode};
use ccm_fleet::{controls, decision, node_progress};
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

/// Control operation on a rollout.
type Operation = fn(&mut Rollout) -> Result<(), ControlError>;

fuzz_target!(|bytes: &[u8]| {
    let Ok(rollout) = decode(bytes) else {
        return;
    };
    let stored = encode(&rollout).expect("encode a rollout");
    assert_eq!(decode(&stored).expect("decode a rollout"), rollout);
    let now = DateTime::from_timestamp(1_800_000_000, 0).expect("a valid time");
    let _ = decision::signer(&rollout);
    let mut next = rollout.clone();
    let decision = decide(&next, now);
    record(&mut next, &decision);
    let _ = (next.tally(), node_progress::exit_code(&next));
    let operations: [Operation; 4] = [
        |it| controls::pause(it, "reason", "ann"),
        |it| controls::abort(it, "ann"),
        |it| controls::retry(it).map(drop),
        |it| controls::rollback(it, None, DateTime::UNIX_EPOCH),
    ];
    for operation in operations {
        let mut next = rollout.clone();
        let _ = operation(&mut next);
        let stored = encode(&next).expect("encode a rollout");
        assert_eq!(decode(&stored).expect("decode a rollout"), next);
    }
    let _ = controls::resume(&mut next, now);
});
