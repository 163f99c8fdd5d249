//! What a node's report means to a rollout. Pure: a report and the rollout in, progress out.
//!
//! A report counts once its generation is the one that the node was told. A node that stayed
//! silent and is heard later counts with what it then says. One that has finished may still fall
//! ill and recover, which is what the health gate looks at; a failure stays a failure until
//! somebody retries it.

use ccm_core::model::node::{NodeName, Report};
use ccm_core::model::rollout::{Progress, Rollout, State};
use ccm_core::model::run::{RunOutcome, RunSummary};

/// What is kept of a report: thousands of them are held at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub generation: u64,
    /// It is about the bundle of the rollout.
    is_ours: bool,
    progress: Progress,
    /// The generation that the node does not follow, and why.
    refused: Option<(u64, String)>,
}

impl Heard {
    /// Returns what a report says to a rollout.
    pub fn of(report: &Report, rollout: &Rollout) -> Self {
        Self {
            generation: report.generation,
            is_ours: report.manifests == [rollout.bundle.clone()],
            progress: progress(report, rollout.settings.health_gate),
            refused: report
                .refusal
                .as_ref()
                .and_then(|it| Some((it.generation?, it.to_string()))),
        }
    }
}

/// Notes what was heard of a node. Returns whether that changed anything.
pub fn note(rollout: &mut Rollout, node: &NodeName, heard: &Heard) -> bool {
    let news = match rollout.progress(node) {
        Progress::Assigned { generation, .. } | Progress::Unreachable { generation }
            if heard
                .refused
                .as_ref()
                .is_some_and(|(it, _)| it == generation) =>
        {
            let reason = heard.refused.as_ref().map_or("", |(_, reason)| reason);
            Progress::failed(reason)
        }
        Progress::Assigned { generation, .. } | Progress::Unreachable { generation } => {
            if heard.generation < *generation {
                return false;
            }
            if heard.generation == *generation {
                heard.progress.clone()
            } else {
                Progress::Skipped {
                    reason: "it was assigned something else meanwhile".into(),
                }
            }
        }
        now @ (Progress::Ok | Progress::Changed | Progress::Unhealthy { .. }) => {
            if !heard.is_ours {
                return false;
            }
            match (now, &heard.progress) {
                (_, Progress::Failed { reason } | Progress::Unhealthy { reason }) => {
                    Progress::unhealthy(reason)
                }
                (Progress::Unhealthy { .. }, healthy) => healthy.clone(),
                // That it changed something stays true when the next run has nothing to do.
                (now, _) => now.clone(),
            }
        }
        Progress::Pending
        | Progress::Failed { .. }
        | Progress::Skipped { .. }
        | Progress::Restored => return false,
    };
    let is_new = *rollout.progress(node) != news;
    if is_new {
        rollout.nodes.insert(node.clone(), news);
    }
    is_new
}

/// Returns the exit code that tells a script how a rollout stands: 3 when it was stopped, 1 when
/// nodes failed, 2 when only some could not be reached, else 0.
pub fn exit_code(rollout: &Rollout) -> u8 {
    let tally = rollout.tally();
    match rollout.state {
        State::Halted { .. } | State::Aborted { .. } => 3,
        State::RolledBack => 0,
        _ if tally.failed + tally.unhealthy > 0 => 1,
        _ if tally.unreachable > 0 => 2,
        _ => 0,
    }
}

/// Returns what became of a node. With the health gate a check that fails is no failure yet: the
/// node has until the next wave to recover.
fn progress(report: &Report, health_gate: bool) -> Progress {
    if !report.error.is_empty() {
        return Progress::failed(&report.error);
    }
    let Some(run) = &report.run else {
        return Progress::Ok;
    };
    match run.outcome {
        RunOutcome::Failed if health_gate && is_only_ill(run) => {
            Progress::unhealthy(&reason(report, run))
        }
        RunOutcome::Failed => Progress::failed(&reason(report, run)),
        RunOutcome::Changed | RunOutcome::Noop => Progress::Changed,
        RunOutcome::Stable | RunOutcome::Skipped => Progress::Ok,
    }
}

/// Reports whether every failure of a run can be that of a health check.
fn is_only_ill(run: &RunSummary) -> bool {
    let summary = &run.summary;
    let checks = summary.health_check_critical_count + summary.health_check_unknown_count;
    run.error.is_empty() && checks > 0 && summary.failed_resources <= checks
}

/// Returns why a run failed, in one line.
fn reason(report: &Report, run: &RunSummary) -> String {
    if !run.error.is_empty() {
        return run.error.clone();
    }
    match report.drift.first() {
        Some(drift) => format!("{}#{}: {}", drift.type_name, drift.name, drift.message),
        None => format!("{} resources failed", run.summary.failed_resources),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ccm_core::model::node::REPORT;
    use ccm_core::model::rollout::ROLLOUT;

    fn node() -> NodeName {
        "a".parse().unwrap()
    }

    fn rollout(progress: Progress) -> Rollout {
        let mut rollout: Rollout = serde_json::from_value(json!({
            "protocol": ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "wave 1", "nodes": ["a"]}]},
            "state": {"name": "running"}
        }))
        .unwrap();
        rollout.nodes.insert(node(), progress);
        rollout
    }

    fn assigned() -> Progress {
        Progress::Assigned {
            generation: 5,
            at: chrono::DateTime::UNIX_EPOCH,
        }
    }

    fn report(generation: u64, outcome: &str, failed: usize, critical: usize) -> Report {
        let mut summary =
            serde_json::to_value(ccm_core::model::event::Summary::of(None, [])).unwrap();
        summary["failed_resources"] = failed.into();
        summary["health_check_critical_count"] = critical.into();
        let id = ccm_core::model::id::EventId::new(chrono::DateTime::UNIX_EPOCH, 1);
        serde_json::from_value(json!({
            "protocol": REPORT,
            "identity": "a",
            "generation": generation,
            "manifests": [{"name": "app", "digest": "ab".repeat(32)}],
            "run": {
                "protocol": ccm_core::model::run::RUN_SUMMARY, "event_id": id, "run_id": id,
                "identity": "a", "collective": "default", "source": "x", "trigger": "assignment",
                "outcome": outcome, "timestamp": "2027-01-15T08:00:00Z", "summary": summary
            },
            "timestamp": "2027-01-15T08:00:00Z"
        }))
        .unwrap()
    }

    fn after(mut rollout: Rollout, report: &Report) -> Progress {
        let heard = Heard::of(report, &rollout);
        note(&mut rollout, &node(), &heard);
        rollout.progress(&node()).clone()
    }

    #[test]
    fn a_script_is_told_how_a_rollout_stands() {
        let failed = || Progress::failed("no");
        let silent = Progress::Unreachable { generation: 1 };
        let halted = State::Halted { reason: "".into() };
        for (state, progress, code) in [
            (State::Done, Progress::Changed, 0),
            (State::Done, failed(), 1),
            (State::Done, silent, 2),
            (halted, failed(), 3),
            (State::Aborted { by: "".into() }, Progress::Ok, 3),
            (State::RolledBack, failed(), 0),
        ] {
            let mut rollout = rollout(progress);
            rollout.state = state;
            assert_eq!(exit_code(&rollout), code, "{rollout:?}");
        }
    }

    #[test]
    fn a_node_that_refuses_what_it_was_told_has_failed_at_once() {
        let mut report = report(4, "changed", 0, 0);
        let mut refuse = |generation: u64| {
            report.refusal = serde_json::from_value(json!({
                "time": "2027-01-15T08:00:00Z", "what": "assignment", "generation": generation,
                "who": "UX", "reason": "signer of the assignment is not trusted here"
            }))
            .unwrap();
            after(rollout(assigned()), &report)
        };
        let reason = "refused assignment of generation 5 by UX: signer of the assignment is not \
                      trusted here";
        assert_eq!(refuse(5), Progress::failed(reason));
        // What it refused before was something else.
        assert_eq!(refuse(4), assigned());
    }

    #[test]
    fn a_report_counts_once_it_has_the_generation_that_was_told() {
        for (generation, progress) in [
            (4, assigned()),
            (5, Progress::Changed),
            (
                6,
                Progress::Skipped {
                    reason: "it was assigned something else meanwhile".into(),
                },
            ),
        ] {
            let report = report(generation, "changed", 0, 0);
            assert_eq!(after(rollout(assigned()), &report), progress);
        }
    }

    #[test]
    fn a_node_that_stayed_silent_counts_when_it_is_heard() {
        let silent = Progress::Unreachable { generation: 5 };
        let report = report(5, "stable", 0, 0);
        assert_eq!(after(rollout(silent), &report), Progress::Ok);
    }

    #[test]
    fn an_ill_node_may_recover_only_where_a_gate_waits_for_it() {
        let ill = report(5, "failed", 1, 1);
        let failed = after(rollout(assigned()), &ill);
        assert_eq!(failed, Progress::failed("1 resources failed"));
        let mut gated = rollout(assigned());
        gated.settings.health_gate = true;
        let found = after(gated.clone(), &ill);
        assert_eq!(found, Progress::unhealthy("1 resources failed"));
        gated.nodes.insert(node(), found);
        let well = report(5, "stable", 0, 0);
        assert_eq!(after(gated, &well), Progress::Ok);
    }

    #[test]
    fn a_failure_beside_a_bad_check_is_a_failure() {
        let mut gated = rollout(assigned());
        gated.settings.health_gate = true;
        let both = report(5, "failed", 2, 1);
        assert_eq!(after(gated, &both), Progress::failed("2 resources failed"));
    }

    #[test]
    fn a_finished_node_can_fall_ill_and_stays_changed_when_nothing_is_left_to_do() {
        let changed = rollout(Progress::Changed);
        let stable = report(5, "stable", 0, 0);
        assert_eq!(after(changed.clone(), &stable), Progress::Changed);
        let broken = report(5, "failed", 1, 0);
        let ill = Progress::unhealthy("1 resources failed");
        assert_eq!(after(changed.clone(), &broken), ill);
        let mut other = broken;
        other.manifests.clear();
        assert_eq!(after(changed, &other), Progress::Changed);
    }

    #[test]
    fn what_could_not_even_be_tried_has_failed() {
        let mut refused = report(5, "stable", 0, 0);
        refused.error = "app: no such object".into();
        let failed = Progress::failed("app: no such object");
        assert_eq!(after(rollout(assigned()), &refused), failed);
        // It stays so until somebody retries.
        let well = report(5, "stable", 0, 0);
        assert_eq!(after(rollout(failed.clone()), &well), failed);
    }
}
