//! Rollbacks: which nodes are restored, and when a rollback is over.

use super::*;

#[test]
fn a_rollback_restores_exactly_the_assigned_nodes() {
    let mut rollout = rollout(false, &[2, 2], Settings::default());
    set(&mut rollout, [0], &Progress::failed("x"));
    set(&mut rollout, [1], &UNREACHABLE);
    for number in [0, 1] {
        rollout.previous.record(node(number), None);
    }
    controls::rollback(&mut rollout, None, DateTime::UNIX_EPOCH).unwrap();
    assert_eq!(
        decide(&rollout, at(0)),
        Decision::Restore(vec![node(0), node(1)])
    );
    set(&mut rollout, [0, 1], &Progress::Restored);
    let decision = decide(&rollout, at(0));
    assert_eq!(decision, Decision::Done);
    record(&mut rollout, &decision);
    assert_eq!(rollout.state, RolloutState::RolledBack);
}

/// Returns a rollout whose first nodes were assigned and are rolled back.
fn rolling_back(count: usize, settings: Settings) -> Rollout {
    let mut rollout = rollout(false, &[count, 1], settings);
    set(&mut rollout, 0..count, &Progress::Changed);
    for number in 0..count {
        rollout.previous.record(node(number), None);
    }
    controls::rollback(&mut rollout, None, DateTime::UNIX_EPOCH).unwrap();
    rollout
}

fn restoring(seconds: i64) -> Progress {
    Progress::Restoring {
        generation: 2,
        at: at(seconds),
    }
}

#[test]
fn a_rollback_waits_for_the_reports_of_its_nodes() {
    let mut rollout = rolling_back(2, Settings::default());
    set(&mut rollout, [0], &restoring(0));
    set(&mut rollout, [1], &restoring(5));
    assert_eq!(decide(&rollout, at(9)), Decision::Wait(Some(at(600))));
    set(&mut rollout, [0], &Progress::Restored);
    let decision = decide(&rollout, at(605));
    assert_eq!(decision, Decision::Unreachable(vec![node(1)]));
    record(&mut rollout, &decision);
    assert_eq!(rollout.progress(&node(1)), &Progress::unreachable(2, ""));
    let decision = decide(&rollout, at(605));
    assert_eq!(decision, Decision::Done);
    record(&mut rollout, &decision);
    assert_eq!(rollout.state, RolloutState::RolledBackWithFailures);
}

#[test]
fn a_failed_restore_does_not_halt_the_rollback() {
    let mut rollout = rolling_back(2, Settings::default());
    set(&mut rollout, [0], &Progress::failed("x"));
    assert_eq!(decide(&rollout, at(0)), Decision::Restore(vec![node(1)]));
    set(&mut rollout, [1], &Progress::Restored);
    let decision = decide(&rollout, at(0));
    record(&mut rollout, &decision);
    assert_eq!(rollout.state, RolloutState::RolledBackWithFailures);
}

#[test]
fn a_rollback_keeps_to_the_limit_of_concurrent_nodes() {
    let settings = Settings {
        parallel: Some(1),
        ..Settings::default()
    };
    let mut rollout = rolling_back(2, settings);
    assert_eq!(decide(&rollout, at(0)), Decision::Restore(vec![node(0)]));
    set(&mut rollout, [0], &restoring(0));
    assert_eq!(decide(&rollout, at(0)), Decision::Wait(Some(at(600))));
    set(&mut rollout, [0], &Progress::Restored);
    assert_eq!(decide(&rollout, at(0)), Decision::Restore(vec![node(1)]));
}

#[test]
fn only_nodes_that_were_not_restored_are_retried() {
    let mut rollout = rolling_back(3, Settings::default());
    set(&mut rollout, [0], &Progress::Restored);
    set(&mut rollout, [1], &Progress::failed("x"));
    set(&mut rollout, [2], &UNREACHABLE);
    rollout.state = RolloutState::RolledBackWithFailures;
    controls::retry(&mut rollout).unwrap();
    assert_eq!(rollout.state, RolloutState::RollingBack);
    assert_eq!(
        decide(&rollout, at(0)),
        Decision::Restore(vec![node(1), node(2)])
    );
}

#[test]
fn a_halted_rollback_is_resumed_as_a_rollback() {
    let mut rollout = rolling_back(1, Settings::default());
    record(&mut rollout, &Decision::Halt("not trusted".into()));
    controls::resume(&mut rollout, at(0)).unwrap();
    assert_eq!(rollout.state, RolloutState::RollingBack);
}
