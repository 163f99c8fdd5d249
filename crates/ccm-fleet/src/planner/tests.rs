//! Tests of decisions: tables of single steps, and whole rollouts with nodes that misbehave.

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
        state: State::Running,
        wave: 0,
        nodes: BTreeMap::new(),
        previous: Default::default(),
        previous_digests: BTreeMap::new(),
        decision: None,
        rollback: None,
        forgiven: None,
        lease: None,
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

const SILENT: Progress = Progress::Unreachable { generation: 1 };

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
fn only_so_many_nodes_are_under_way_at_once() {
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
fn a_canary_that_fails_halts_after_exactly_the_canary_whatever_the_budget() {
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
    note(&mut rollout, &decision);
    assert_eq!(halt(decision), "the canary failed: n000 (no space)");
    assert_eq!(decide(&rollout, at(2)), Decision::Rest);
    assert_eq!(rollout.tally().pending, 9);
}

#[test]
fn a_canary_that_nobody_reached_proves_nothing() {
    let mut rollout = rollout(true, &[2, 2], Settings::default());
    set(&mut rollout, [0, 1], &SILENT);
    assert_eq!(
        halt(decide(&rollout, at(0))),
        "no node of the canary could be reached"
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
fn a_percentage_means_something_once_enough_nodes_finished() {
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
fn the_sample_of_a_small_fleet_is_the_whole_of_it() {
    let settings = budget(|budget| budget.max_failures_percent = Some("10%".parse().unwrap()));
    let mut rollout = rollout(false, &[3], settings);
    set(&mut rollout, [0], &Progress::failed("x"));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(2)]));
    set(&mut rollout, [2], &Progress::Ok);
    assert!(halt(decide(&rollout, at(0))).starts_with("1 of 3 failed, 10% allowed"));
}

#[test]
fn a_silent_node_is_unreachable_and_not_failed() {
    let mut rollout = rollout(false, &[2], Settings::default());
    set(&mut rollout, [0], &assigned(0));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(599)), Decision::Wait(Some(at(600))));
    let decision = decide(&rollout, at(600));
    assert_eq!(decision, Decision::Unreachable(vec![node(0)]));
    note(&mut rollout, &decision);
    assert_eq!(rollout.progress(&node(0)), &SILENT);
    assert_eq!(decide(&rollout, at(600)), Decision::Done);
}

#[test]
fn unreachable_nodes_have_a_bound_of_their_own() {
    for (most, silent, others, expected) in [
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
        let settings = budget(|budget| budget.max_unreachable = Some(most.parse().unwrap()));
        let mut rollout = rollout(false, &[30], settings);
        set(&mut rollout, 0..silent, &SILENT);
        set(&mut rollout, silent..silent + others, &Progress::Ok);
        let decision = decide(&rollout, at(0));
        match expected {
            Some(reason) => assert_eq!(halt(decision), reason),
            None => assert!(!matches!(decision, Decision::Halt(_)), "{most} {silent}"),
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
    note(&mut rollout, &decision);
    assert_eq!(decide(&rollout, at(119)), Decision::Wait(Some(at(120))));
    let decision = decide(&rollout, at(120));
    assert_eq!(decision, Decision::NextWave(1));
    note(&mut rollout, &decision);
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
    rollout.state = State::Baking { until: at(120) };
    set(&mut rollout, [0], &Progress::failed("late"));
    assert!(halt(decide(&rollout, at(1))).contains("n000 (late)"));
}

#[test]
fn the_health_gate_holds_the_next_wave_until_everyone_recovered() {
    let settings = Settings {
        bake: Duration::from_secs(60),
        health_gate: true,
        ..Settings::default()
    };
    let mut rollout = rollout(false, &[2, 1], settings);
    set(&mut rollout, [0], &Progress::Ok);
    set(&mut rollout, [1], &Progress::unhealthy("503"));
    rollout.state = State::Baking { until: at(60) };
    assert_eq!(decide(&rollout, at(1)), Decision::Wait(Some(at(60))));
    assert_eq!(halt(decide(&rollout, at(60))), "1 unhealthy: n001 (503)");
    let mut recovered = rollout.clone();
    set(&mut recovered, [1], &Progress::Ok);
    assert_eq!(decide(&recovered, at(60)), Decision::NextWave(1));
    rollout.settings.health_gate = false;
    assert_eq!(decide(&rollout, at(60)), Decision::NextWave(1));
}

#[test]
fn the_last_wave_bakes_when_health_can_still_say_no() {
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
fn nothing_is_begun_after_the_deadline() {
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
fn what_was_forgiven_does_not_halt_again_and_new_failures_do() {
    let mut rollout = rollout(true, &[1, 3], Settings::default());
    set(&mut rollout, [0], &Progress::failed("x"));
    let decision = decide(&rollout, at(0));
    note(&mut rollout, &decision);
    controls::resume(&mut rollout, at(1)).unwrap();
    let decision = decide(&rollout, at(1));
    assert_eq!(decision, Decision::NextWave(1));
    note(&mut rollout, &decision);
    assert!(matches!(decide(&rollout, at(1)), Decision::Assign(nodes) if nodes.len() == 3));
    set(&mut rollout, [2], &Progress::failed("y"));
    assert!(halt(decide(&rollout, at(1))).starts_with("1 failed, 0 allowed"));
}

#[test]
fn a_retry_goes_through_the_waves_that_have_work_and_no_others() {
    let settings = budget(|budget| budget.max_failures = Some(9));
    let mut rollout = rollout(false, &[2, 2, 2], settings);
    set(&mut rollout, 0..6, &Progress::Ok);
    set(&mut rollout, [1, 5], &Progress::failed("x"));
    rollout.state = State::Done;
    controls::retry(&mut rollout).unwrap();
    assert_eq!(decide(&rollout, at(0)), Decision::Assign(vec![node(1)]));
    set(&mut rollout, [1], &Progress::Ok);
    assert_eq!(decide(&rollout, at(0)), Decision::NextWave(2));
}

#[test]
fn the_way_back_restores_exactly_the_touched_nodes() {
    let mut rollout = rollout(false, &[2, 2], Settings::default());
    set(&mut rollout, [0], &Progress::failed("x"));
    set(&mut rollout, [1], &SILENT);
    for number in [0, 1] {
        rollout.previous.note(node(number), None);
    }
    controls::rollback(&mut rollout, None, DateTime::UNIX_EPOCH).unwrap();
    assert_eq!(
        decide(&rollout, at(0)),
        Decision::Restore(vec![node(0), node(1)])
    );
    set(&mut rollout, [0, 1], &Progress::Restored);
    let decision = decide(&rollout, at(0));
    assert_eq!(decision, Decision::Done);
    note(&mut rollout, &decision);
    assert_eq!(rollout.state, State::RolledBack);
}

#[test]
fn a_rollout_that_nobody_runs_rests() {
    for state in [
        State::Done,
        State::RolledBack,
        State::Aborted { by: "ann".into() },
        State::Paused {
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

/// What a node does when it is told.
#[derive(Clone, Copy, Debug)]
enum Habit {
    Works,
    Fails,
    Sleeps,
}

/// Follows every decision until there is none, and returns the nodes in the order they were told.
fn drive(rollout: &mut Rollout, habits: &[Habit]) -> Vec<NodeName> {
    let mut told = Vec::new();
    let mut now = at(0);
    // Each step does something to a node or a wave, so there is an end.
    for _ in 0..habits.len() * 4 + rollout.plan.waves.len() * 4 + 10 {
        let decision = decide(rollout, now);
        note(rollout, &decision);
        match decision {
            Decision::Assign(nodes) => {
                assert!(!nodes.is_empty());
                let wave = &rollout.plan.waves[rollout.wave];
                assert!(nodes.iter().all(|node| wave.nodes.contains(node)));
                for node in nodes {
                    let number: usize = node.as_str()[1..].parse().unwrap();
                    let progress = match habits[number] {
                        Habit::Works => Progress::Changed,
                        Habit::Fails => Progress::failed("x"),
                        Habit::Sleeps => Progress::Assigned {
                            generation: 1,
                            at: now,
                        },
                    };
                    rollout.nodes.insert(node.clone(), progress);
                    told.push(node);
                }
            }
            Decision::Wait(until) => now = until.expect("something to wait for"),
            Decision::Rest => return told,
            _ => {}
        }
    }
    panic!("a rollout without an end");
}

fn habit() -> impl Strategy<Value = Habit> {
    prop_oneof![
        6 => Just(Habit::Works),
        1 => Just(Habit::Fails),
        1 => Just(Habit::Sleeps),
    ]
}

proptest! {
    #[test]
    fn a_rollout_ends_tells_no_node_twice_and_stops_soon_after_its_budget_is_spent(
        sizes in prop::collection::vec(1_usize..6, 1..6),
        habits in prop::collection::vec(habit(), 30),
        has_canary: bool,
        most in 0_usize..4,
        parallel in prop::option::of(1_usize..4),
        bake in 0_u64..2,
    ) {
        let total: usize = sizes.iter().sum();
        let settings = Settings {
            bake: Duration::from_secs(bake * 60),
            parallel,
            ..budget(|budget| budget.max_failures = Some(most))
        };
        let mut rollout = rollout(has_canary, &sizes, settings);
        let told = drive(&mut rollout, &habits);

        let distinct: BTreeSet<&NodeName> = told.iter().collect();
        prop_assert_eq!(distinct.len(), told.len());
        prop_assert!(told.is_sorted());
        let tally = rollout.tally();
        prop_assert_eq!(tally.pending, total - told.len());
        match &rollout.state {
            State::Done => {
                prop_assert_eq!(told.len(), total);
                prop_assert!(tally.failed <= most);
            }
            State::Halted { .. } => {
                let is_canary = has_canary && rollout.wave == 0;
                prop_assert!(is_canary || tally.failed > most);
                // At most those that were under way with the last straw.
                let together = parallel.unwrap_or(usize::MAX).min(sizes[rollout.wave]);
                prop_assert!(tally.failed <= most + together);
            }
            other => prop_assert!(false, "ended {other:?}"),
        }
    }

    #[test]
    fn another_controller_goes_on_where_the_first_stopped(
        sizes in prop::collection::vec(1_usize..4, 1..4),
        habits in prop::collection::vec(habit(), 12),
    ) {
        let settings = || budget(|budget| budget.max_failures = Some(12));
        let mut whole = rollout(false, &sizes, settings());
        drive(&mut whole, &habits);
        // The object as another reads it after every step of the first.
        let mut handed = rollout(false, &sizes, settings());
        let mut now = at(0);
        loop {
            let text = serde_json::to_string(&handed).unwrap();
            handed = serde_json::from_str(&text).unwrap();
            let decision = decide(&handed, now);
            note(&mut handed, &decision);
            match decision {
                Decision::Assign(nodes) => {
                    // Dies after the first node.
                    let number: usize = nodes[0].as_str()[1..].parse().unwrap();
                    let progress = match habits[number] {
                        Habit::Works => Progress::Changed,
                        Habit::Fails => Progress::failed("x"),
                        Habit::Sleeps => Progress::Assigned { generation: 1, at: now },
                    };
                    handed.nodes.insert(nodes[0].clone(), progress);
                }
                Decision::Wait(until) => now = until.unwrap(),
                Decision::Rest => break,
                _ => {}
            }
        }
        prop_assert_eq!(handed.tally(), whole.tally());
        prop_assert_eq!(handed.state, whole.state);
    }
}
