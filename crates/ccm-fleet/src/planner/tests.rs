//! Tests of the planner: tables of single steps, and whole rollouts with failing and unreachable
//! nodes.

mod rollback;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::controls;
use ccm_core::model::rollout::{Plan, ROLLOUT, Settings};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

fn node(number: usize) -> NodeName {
    format!("n{number:03}").parse().unwrap()
}

/// Returns a running rollout with waves of these sizes.
fn rollout(has_canary: bool, sizes: &[usize], settings: Settings) -> Rollout {
    let mut numbers = 0..;
    let waves = sizes.iter().enumerate().map(|(index, size)| Wave {
        name: format!("wave {index}"),
        canary: has_canary && index == 0,
        nodes: numbers.by_ref().take(*size).map(node).collect(),
    });
    Rollout {
        protocol: ROLLOUT.into(),
        id: "r1".parse().unwrap(),
        collective: ccm_core::model::node::Token::default_collective(),
        bundle: serde_json::from_value(serde_json::json!({
            "name": "app", "digest": "ab".repeat(32)
        }))
        .unwrap(),
        data: ccm_value::Value::Null,
        noop: false,
        selection: Vec::new(),
        created: at(0),
        caller: String::new(),
        settings,
        plan: Plan {
            waves: waves.collect(),
            left_out: Vec::new(),
        },
        state: RolloutState::Running,
        wave: 0,
        nodes: Default::default(),
        previous: Default::default(),
        previous_digests: BTreeMap::new(),
        decision: None,
        rollback: None,
        forgiven: None,
        lease: None,
        controls: Vec::new(),
    }
}

fn budget(edit: impl FnOnce(&mut Budget)) -> Settings {
    let mut settings = Settings::default();
    edit(&mut settings.budget);
    settings
}

fn set(rollout: &mut Rollout, numbers: impl IntoIterator<Item = usize>, progress: &Progress) {
    for number in numbers {
        rollout.nodes.insert(node(number), progress.clone());
    }
}

fn assigned(seconds: i64) -> Progress {
    Progress::Assigned {
        generation: 1,
        at: at(seconds),
    }
}

fn halt(decision: Decision) -> String {
    match decision {
        Decision::Halt(reason) => reason,
        other => panic!("not halted: {other:?}"),
    }
}

const UNREACHABLE: Progress = Progress::Unreachable {
    generation: 1,
    reason: String::new(),
};

#[test]
fn a_wave_is_assigned_and_waited_for() {
    let mut rollout = rollout(false, &[2, 3], Settings::default());
    assert_eq!(
        decide(&rollout, at(0)),
        Decision::Assign(vec![node(0), node(1)])
    );
    set(&mut rollout, [0], &assigned(0));
    set(&mut rollout, [1], &assigned(5));
    assert_eq!(decide(&rollout, at(9)), Decision::Wait(Some(at(600))));
    set(&mut rollout, [0, 1], &Progress::Changed);
    assert_eq!(decide(&rollout, at(9)), Decision::NextWave(1));
}

#[test]
fn the_number_of_assigned_nodes_is_limited() {
    let settings = Settings {
        parallel: Some(2),
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[4], settings);
    assert_eq!(
        decide(&rollout, at(0)),
        Decision::Assign(vec![node(0), node(1)])
    );
    set(&mut rollout, [0], &Progress::Ok);
    set(&mut rollout, [1], &assigned(0));
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(2)]));
    set(&mut rollout, [2], &assigned(0));
    assert_eq!(decide(&rollout, at(0)), Decision::Wait(Some(at(600))));
}

#[test]
fn a_failed_canary_halts_the_rollout_even_within_the_budget() {
    let settings = Settings {
        budget: Budget {
            max_failures: Some(50),
            ..Budget::default()
        },
        ..Settings::default()
    };
    let mut rollout = rollout(true, &[1, 9], settings);
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(0)]));
    set(&mut rollout, [0], &Progress::failed("no space"));
    let decision = decide(&rollout, at(1));
    record(&mut rollout, &decision);
    assert_eq!(halt(decision), "the canary failed: n000 (no space)");
    assert_eq!(decide(&rollout, at(2)), Decision::Rest);
    assert_eq!(rollout.tally().pending, 9);
}

#[test]
fn an_unreachable_canary_halts_the_rollout() {
    let mut rollout = rollout(true, &[2, 2], Settings::default());
    set(&mut rollout, [0, 1], &UNREACHABLE);
    assert_eq!(
        halt(decide(&rollout, at(0))),
        "no canary node could be reached"
    );
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::NextWave(1));
}

#[test]
fn without_a_budget_the_first_failure_halts() {
    let mut rollout = rollout(false, &[3], Settings::default());
    set(&mut rollout, [1], &Progress::failed("x"));
    assert_eq!(
        halt(decide(&rollout, at(0))),
        "1 failed, 0 allowed: n001 (x)"
    );
}

#[test]
fn failures_count_over_all_waves() {
    let settings = budget(|budget| budget.max_failures = Some(2));
    let mut rollout = rollout(false, &[10, 10], settings);
    set(&mut rollout, 0..8, &Progress::Ok);
    set(&mut rollout, 8..10, &Progress::failed("x"));
    assert_eq!(decide(&rollout, at(0)), Decision::NextWave(1));
    rollout.wave = 1;
    set(&mut rollout, [12], &Progress::failed("y"));
    assert_eq!(
        halt(decide(&rollout, at(0))),
        "3 failed, 2 allowed: n008 (x), n009 (x), n012 (y)"
    );
}

#[test]
fn a_percentage_applies_once_enough_nodes_finished() {
    let settings = budget(|budget| {
        budget.max_failures_percent = Some("10%".parse().unwrap());
        budget.min_sample = 10;
    });
    let mut rollout = rollout(false, &[40], settings);
    set(&mut rollout, 0..2, &Progress::failed("x"));
    set(&mut rollout, 2..9, &Progress::Ok);
    set(&mut rollout, 9..40, &assigned(0));
    assert_eq!(decide(&rollout, at(0)), Decision::Wait(Some(at(600))));
    set(&mut rollout, [9], &Progress::Ok);
    assert_eq!(
        halt(decide(&rollout, at(0))),
        "2 of 10 failed, 10% allowed: n000 (x), n001 (x)"
    );
    set(&mut rollout, 10..20, &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::Wait(Some(at(600))));
}

#[test]
fn a_small_fleet_is_sampled_once_all_nodes_finished() {
    let settings = budget(|budget| budget.max_failures_percent = Some("10%".parse().unwrap()));
    let mut rollout = rollout(false, &[3], settings);
    set(&mut rollout, [0], &Progress::failed("x"));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(2)]));
    set(&mut rollout, [2], &Progress::Ok);
    assert!(halt(decide(&rollout, at(0))).starts_with("1 of 3 failed, 10% allowed"));
}

#[test]
fn a_node_that_does_not_report_is_unreachable_and_not_failed() {
    let mut rollout = rollout(false, &[2], Settings::default());
    set(&mut rollout, [0], &assigned(0));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(599)), Decision::Wait(Some(at(600))));
    let decision = decide(&rollout, at(600));
    assert_eq!(decision, Decision::Unreachable(vec![node(0)]));
    record(&mut rollout, &decision);
    assert_eq!(rollout.progress(&node(0)), &UNREACHABLE);
    assert_eq!(decide(&rollout, at(600)), Decision::Done);
}

#[test]
fn unreachable_nodes_have_their_own_limit() {
    for (limit, unreachable, others, expected) in [
        ("2", 2, 1, None),
        (
            "2",
            3,
            1,
            Some("3 of 4 unreachable, 2 allowed: n000, n001, n002"),
        ),
        ("10%", 3, 16, None),
        (
            "10%",
            3,
            20,
            Some("3 of 23 unreachable, 10% allowed: n000, n001, n002"),
        ),
        ("10%", 3, 27, None),
    ] {
        let settings = budget(|budget| budget.max_unreachable = Some(limit.parse().unwrap()));
        let mut rollout = rollout(false, &[30], settings);
        set(&mut rollout, 0..unreachable, &UNREACHABLE);
        set(
            &mut rollout,
            unreachable..unreachable + others,
            &Progress::Ok,
        );
        let decision = decide(&rollout, at(0));
        match expected {
            Some(reason) => assert_eq!(halt(decision), reason),
            None => assert!(
                !matches!(decision, Decision::Halt(_)),
                "{limit} {unreachable}"
            ),
        }
    }
}

#[test]
fn a_wave_bakes_before_the_next_and_the_last_does_not() {
    let settings = Settings {
        bake: Duration::from_secs(120),
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[1, 1], settings);
    set(&mut rollout, [0], &Progress::Ok);
    let decision = decide(&rollout, at(0));
    assert_eq!(decision, Decision::Bake(at(120)));
    record(&mut rollout, &decision);
    assert_eq!(decide(&rollout, at(119)), Decision::Wait(Some(at(120))));
    let decision = decide(&rollout, at(120));
    assert_eq!(decision, Decision::NextWave(1));
    record(&mut rollout, &decision);
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(121)), Decision::Done);
}

#[test]
fn a_failure_while_a_wave_bakes_counts() {
    let settings = Settings {
        bake: Duration::from_secs(120),
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[1, 1], settings);
    rollout.state = RolloutState::Baking { until: at(120) };
    set(&mut rollout, [0], &Progress::failed("late"));
    assert!(halt(decide(&rollout, at(1))).contains("n000 (late)"));
}

#[test]
fn the_health_gate_halts_while_a_node_is_unhealthy() {
    let settings = Settings {
        bake: Duration::from_secs(60),
        health_gate: true,
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[2, 1], settings);
    set(&mut rollout, [0], &Progress::Ok);
    set(&mut rollout, [1], &Progress::unhealthy("503"));
    rollout.state = RolloutState::Baking { until: at(60) };
    assert_eq!(decide(&rollout, at(1)), Decision::Wait(Some(at(60))));
    assert_eq!(halt(decide(&rollout, at(60))), "1 unhealthy: n001 (503)");
    let mut recovered = rollout.clone();
    set(&mut recovered, [1], &Progress::Ok);
    assert_eq!(decide(&recovered, at(60)), Decision::NextWave(1));
    rollout.settings.health_gate = false;
    assert_eq!(decide(&rollout, at(60)), Decision::NextWave(1));
}

#[test]
fn the_last_wave_bakes_with_a_health_gate() {
    let settings = Settings {
        bake: Duration::from_secs(60),
        health_gate: true,
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[1], settings);
    set(&mut rollout, [0], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::Bake(at(60)));
}

#[test]
fn the_deadline_halts_the_rollout() {
    let settings = Settings {
        deadline: Some(at(50)),
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[1, 1], settings);
    set(&mut rollout, [0], &assigned(0));
    assert_eq!(decide(&rollout, at(10)), Decision::Wait(Some(at(50))));
    assert_eq!(halt(decide(&rollout, at(50))), "the deadline has passed");
}

#[test]
fn only_failures_after_a_resume_halt_again() {
    let mut rollout = rollout(true, &[1, 3], Settings::default());
    set(&mut rollout, [0], &Progress::failed("x"));
    let decision = decide(&rollout, at(0));
    record(&mut rollout, &decision);
    controls::resume(&mut rollout, at(1)).unwrap();
    let decision = decide(&rollout, at(1));
    assert_eq!(decision, Decision::NextWave(1));
    record(&mut rollout, &decision);
    assert!(matches!(decide(&rollout, at(1)), Decision::Assign(nodes) if nodes.len() == 3));
    set(&mut rollout, [2], &Progress::failed("y"));
    assert!(halt(decide(&rollout, at(1))).starts_with("1 failed, 0 allowed"));
}

#[test]
fn a_retry_runs_only_the_waves_with_pending_nodes() {
    let settings = budget(|budget| budget.max_failures = Some(9));
    let mut rollout = rollout(false, &[2, 2, 2], settings);
    set(&mut rollout, 0..6, &Progress::Ok);
    set(&mut rollout, [1, 5], &Progress::failed("x"));
    rollout.state = RolloutState::Done;
    controls::retry(&mut rollout).unwrap();
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(1)]));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::NextWave(2));
}

#[test]
fn an_inactive_rollout_has_no_next_step() {
    for state in [
        RolloutState::Done,
        RolloutState::DoneWithFailures,
        RolloutState::RolledBack,
        RolloutState::RolledBackWithFailures,
        RolloutState::Aborted { by: "ann".into() },
        RolloutState::Paused {
            reason: "lunch".into(),
            by: "ann".into(),
            auto: false,
        },
    ] {
        let mut rollout = rollout(false, &[1], Settings::default());
        rollout.state = state;
        assert_eq!(decide(&rollout, at(0)), Decision::Rest);
    }
}

/// Behaviour of a simulated node.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    Succeeds,
    Fails,
    DoesNotReport,
}

/// Number of nodes that are assigned at once.
const MAX_ASSIGNED: usize = 3;

/// Executes decisions until there is none. Returns the nodes in the order of their assignment.
fn drive(rollout: &mut Rollout, behaviours: &[Behaviour]) -> Vec<NodeName> {
    let mut assigned_nodes = Vec::new();
    let mut now = at(0);
    let mut position = WavePosition::default();
    // Each step changes a node or a wave, so the loop ends.
    for _ in 0..behaviours.len() * 4 + rollout.plan.waves.len() * 4 + 10 {
        let decision = decide_from(&mut position, rollout, now, MAX_ASSIGNED);
        let mut whole = decide(rollout, now);
        if let Decision::Assign(nodes) = &mut whole {
            nodes.truncate(MAX_ASSIGNED);
        }
        assert_eq!(decision, whole);
        record(rollout, &decision);
        match decision {
            Decision::Assign(nodes) => {
                assert!(!nodes.is_empty());
                let wave = &rollout.plan.waves[rollout.wave];
                assert!(nodes.iter().all(|node| wave.nodes.contains(node)));
                for node in nodes {
                    let number: usize = node.as_str()[1..].parse().unwrap();
                    let progress = match behaviours[number] {
                        Behaviour::Succeeds => Progress::Changed,
                        Behaviour::Fails => Progress::failed("x"),
                        Behaviour::DoesNotReport => Progress::Assigned {
                            generation: 1,
                            at: now,
                        },
                    };
                    rollout.nodes.insert(node.clone(), progress);
                    assigned_nodes.push(node);
                }
            }
            Decision::Wait(until) => now = until.expect("something to wait for"),
            Decision::Rest => return assigned_nodes,
            _ => {}
        }
    }
    panic!("the rollout did not end");
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        6 => Just(Behaviour::Succeeds),
        1 => Just(Behaviour::Fails),
        1 => Just(Behaviour::DoesNotReport),
    ]
}

proptest! {
    #[test]
    fn a_rollout_ends_assigns_no_node_twice_and_halts_when_the_budget_is_exceeded(
        sizes in prop::collection::vec(1_usize..6, 1..6),
        behaviours in prop::collection::vec(behaviour(), 30),
        has_canary: bool,
        limit in 0_usize..4,
        parallel in prop::option::of(1_usize..4),
        bake in 0_u64..2,
    ) {
        let total: usize = sizes.iter().sum();
        let settings = Settings {
            bake: Duration::from_secs(bake * 60),
            parallel,
            ..budget(|budget| budget.max_failures = Some(limit))
        };
        let mut rollout = rollout(has_canary, &sizes, settings);
        let assigned_nodes = drive(&mut rollout, &behaviours);

        let distinct: BTreeSet<&NodeName> = assigned_nodes.iter().collect();
        prop_assert_eq!(distinct.len(), assigned_nodes.len());
        prop_assert!(assigned_nodes.is_sorted());
        let tally = rollout.tally();
        prop_assert_eq!(tally.pending, total - assigned_nodes.len());
        match &rollout.state {
            RolloutState::Done | RolloutState::DoneWithFailures => {
                prop_assert_eq!(assigned_nodes.len(), total);
                prop_assert!(tally.failed <= limit);
                let has_failures = rollout.state == RolloutState::DoneWithFailures;
                prop_assert_eq!(tally.has_failures(), has_failures);
            }
            RolloutState::Halted { .. } => {
                let is_canary = has_canary && rollout.wave == 0;
                prop_assert!(is_canary || tally.failed > limit);
                // At most the concurrently assigned nodes in addition.
                let concurrent = parallel.unwrap_or(usize::MAX).min(sizes[rollout.wave]);
                prop_assert!(tally.failed <= limit + concurrent);
            }
            other => prop_assert!(false, "ended {other:?}"),
        }
    }

    #[test]
    fn another_controller_continues_where_the_first_stopped(
        sizes in prop::collection::vec(1_usize..4, 1..4),
        behaviours in prop::collection::vec(behaviour(), 12),
    ) {
        let settings = || budget(|budget| budget.max_failures = Some(12));
        let mut uninterrupted = rollout(false, &sizes, settings());
        drive(&mut uninterrupted, &behaviours);
        // The stored object, read by another controller after every step.
        let mut resumed = rollout(false, &sizes, settings());
        let mut now = at(0);
        loop {
            let text = serde_json::to_string(&resumed).unwrap();
            resumed = serde_json::from_str(&text).unwrap();
            let decision = decide(&resumed, now);
            record(&mut resumed, &decision);
            match decision {
                Decision::Assign(nodes) => {
                    // The controller dies after the first node.
                    let number: usize = nodes[0].as_str()[1..].parse().unwrap();
                    let progress = match behaviours[number] {
                        Behaviour::Succeeds => Progress::Changed,
                        Behaviour::Fails => Progress::failed("x"),
                        Behaviour::DoesNotReport => Progress::Assigned { generation: 1, at: now },
                    };
                    resumed.nodes.insert(nodes[0].clone(), progress);
                }
                Decision::Wait(until) => now = until.unwrap(),
                Decision::Rest => break,
                _ => {}
            }
        }
        prop_assert_eq!(resumed.tally(), uninterrupted.tally());
        prop_assert_eq!(resumed.state, uninterrupted.state);
    }
}
