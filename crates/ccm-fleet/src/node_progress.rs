//! Node progress: the effect of a node's report on a rollout. Pure functions.
//!
//! A report counts if its generation is that of the assignment. A node that was unreachable and
//! reports later counts with that report. A finished node may become unhealthy and recover, which
//! is what the health gate checks; a failure remains until it is retried. In a rollback a node is
//! restored once it has reported its previous assignment as converged.

use std::cmp::Ordering;

use super::records::Unreadable;
use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{NodeName, NodeReport};
use ccm_core::model::rollout::{Progress, Rollout, RolloutState};
use ccm_core::model::run::{RunOutcome, RunSummary};

/// The parts of a report that a rollout needs; thousands are held in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportSummary {
    pub(super) generation: u64,
    /// The report is about an assignment from before the storage of the fleet was lost.
    is_of_other_incarnation: bool,
    /// The report is about the bundle of the rollout.
    is_about_rollout: bool,
    progress: Progress,
    /// The generation that the node refuses, and why.
    refused: Option<(u64, String)>,
}

impl ReportSummary {
    /// Returns the parts of a report that a rollout needs.
    pub(super) fn new(
        report: &NodeReport,
        rollout: &Rollout,
        incarnation: Option<&Incarnation>,
    ) -> Self {
        let is_other = |it: &Option<Incarnation>| Incarnation::differs(it.as_ref(), incarnation);
        let is_of_other_incarnation = is_other(&report.incarnation);
        let refusal = report.refusal.as_ref();
        Self {
            generation: report.generation,
            is_of_other_incarnation,
            is_about_rollout: !is_of_other_incarnation
                && report.manifests == [rollout.bundle.clone()],
            progress: progress(report, rollout.settings.health_gate),
            refused: refusal
                .filter(|it| !is_other(&it.incarnation))
                .and_then(|it| Some((it.generation?, it.to_string()))),
        }
    }

    /// Returns the progress of a node that was assigned this generation, or none if the report is
    /// about an earlier one.
    pub(super) fn progress_of(&self, generation: u64, is_rollback: bool) -> Option<Progress> {
        if let Some((refused, reason)) = &self.refused
            && *refused == generation
        {
            return Some(Progress::failed(reason));
        }
        match self.generation.cmp(&generation) {
            _ if self.is_of_other_incarnation => None,
            Ordering::Less => None,
            Ordering::Greater => Some(assigned_elsewhere()),
            Ordering::Equal if is_rollback => Some(match &self.progress {
                // The health gate is for the waves of the rollout itself.
                Progress::Failed { reason } | Progress::Unhealthy { reason } => {
                    Progress::failed(reason)
                }
                _ => Progress::Restored,
            }),
            Ordering::Equal => Some(self.progress.clone()),
        }
    }
}

/// Returns the progress of a node that got an assignment from elsewhere.
pub(super) fn assigned_elsewhere() -> Progress {
    Progress::Skipped {
        reason: "another assignment was written in the meantime".into(),
    }
}

/// Records a report of a node. Returns whether the progress changed.
pub(super) fn record_report(
    rollout: &mut Rollout,
    node: &NodeName,
    report: &ReportSummary,
) -> bool {
    let new_progress = match rollout.progress(node) {
        Progress::Assigned { generation, .. }
        | Progress::Restoring { generation, .. }
        | Progress::Unreachable { generation, .. } => {
            let is_rollback = rollout.state.is_rollback();
            match report.progress_of(*generation, is_rollback) {
                Some(progress) => progress,
                None => return false,
            }
        }
        now @ (Progress::Ok
        | Progress::Changed
        | Progress::WouldChange
        | Progress::Unhealthy { .. }) => {
            if !report.is_about_rollout || rollout.state.is_rollback() {
                return false;
            }
            match (now, &report.progress) {
                (_, Progress::Failed { reason } | Progress::Unhealthy { reason }) => {
                    Progress::unhealthy(reason)
                }
                (Progress::Unhealthy { .. }, healthy) => healthy.clone(),
                // Stays changed, even if the next run changes nothing.
                (now, _) => now.clone(),
            }
        }
        Progress::Pending
        | Progress::Failed { .. }
        | Progress::Skipped { .. }
        | Progress::Restored => return false,
    };
    let is_new = *rollout.progress(node) != new_progress;
    if is_new {
        rollout.nodes.insert(node.clone(), new_progress);
    }
    is_new
}

/// Records that the report of an awaited node can't be read. Returns whether the progress changed.
pub(super) fn record_unreadable(
    rollout: &mut Rollout,
    node: &NodeName,
    unreadable: &Unreadable,
) -> bool {
    let (Progress::Assigned { generation, .. }
    | Progress::Restoring { generation, .. }
    | Progress::Unreachable { generation, .. }) = rollout.progress(node)
    else {
        return false;
    };
    let new_progress = Progress::unreachable(*generation, &unreadable.to_string());
    let is_new = *rollout.progress(node) != new_progress;
    rollout.nodes.insert(node.clone(), new_progress);
    is_new
}

/// Returns the exit code for a rollout or its rollback: 3 if it was halted or aborted, 1 if nodes
/// failed, 2 if nodes were only unreachable, else 0.
pub fn exit_code(rollout: &Rollout) -> u8 {
    let tally = rollout.tally();
    match rollout.state {
        RolloutState::Halted { .. } | RolloutState::Aborted { .. } => 3,
        RolloutState::Done | RolloutState::RolledBack => 0,
        _ if tally.failed + tally.unhealthy > 0 => 1,
        _ if tally.unreachable > 0 => 2,
        _ => 0,
    }
}

/// Returns the progress that a report means. With the health gate a failed health check is no
/// failure yet: the node may recover until the next wave.
fn progress(report: &NodeReport, health_gate: bool) -> Progress {
    if !report.error.is_empty() {
        return Progress::failed(&report.error);
    }
    let Some(run) = &report.run else {
        return Progress::Ok;
    };
    match run.outcome {
        RunOutcome::Failed if health_gate && has_only_failed_checks(run) => {
            Progress::unhealthy(&reason(report, run))
        }
        RunOutcome::Failed => Progress::failed(&reason(report, run)),
        RunOutcome::Changed => Progress::Changed,
        RunOutcome::Noop => Progress::WouldChange,
        RunOutcome::Stable | RunOutcome::Skipped => Progress::Ok,
    }
}

/// Reports whether all failures of a run can be failed health checks.
fn has_only_failed_checks(run: &RunSummary) -> bool {
    let summary = &run.summary;
    let checks = summary.health_check_critical_count + summary.health_check_unknown_count;
    run.error.is_empty() && checks > 0 && summary.failed_resources <= checks
}

/// Returns the reason of a failed run, as one line.
fn reason(report: &NodeReport, run: &RunSummary) -> String {
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

    fn report(generation: u64, outcome: &str, failed: usize, critical: usize) -> NodeReport {
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

    fn after(mut rollout: Rollout, report: &NodeReport) -> Progress {
        let summary = ReportSummary::new(report, &rollout, None);
        record_report(&mut rollout, &node(), &summary);
        rollout.progress(&node()).clone()
    }

    #[test]
    fn the_exit_code_follows_state_and_nodes() {
        let failed = || Progress::failed("no");
        let unreachable = || Progress::unreachable(1, "");
        let halted = RolloutState::Halted {
            reason: "".into(),
            rolling_back: false,
        };
        for (state, progress, code) in [
            (RolloutState::Done, Progress::Changed, 0),
            (RolloutState::DoneWithFailures, failed(), 1),
            (RolloutState::DoneWithFailures, unreachable(), 2),
            (halted, failed(), 3),
            (RolloutState::Aborted { by: "".into() }, Progress::Ok, 3),
            (RolloutState::RolledBack, Progress::Restored, 0),
            (RolloutState::RolledBackWithFailures, failed(), 1),
            (RolloutState::RolledBackWithFailures, unreachable(), 2),
        ] {
            let mut rollout = rollout(progress);
            rollout.state = state;
            assert_eq!(exit_code(&rollout), code, "{rollout:?}");
        }
    }

    #[test]
    fn a_node_that_refuses_its_assignment_has_failed() {
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
        // A refusal of an earlier generation is ignored.
        assert_eq!(refuse(4), assigned());
    }

    #[test]
    fn a_report_counts_if_it_has_the_assigned_generation() {
        for (generation, progress) in [
            (4, assigned()),
            (5, Progress::Changed),
            (
                6,
                Progress::Skipped {
                    reason: "another assignment was written in the meantime".into(),
                },
            ),
        ] {
            let report = report(generation, "changed", 0, 0);
            assert_eq!(after(rollout(assigned()), &report), progress);
        }
    }

    #[test]
    fn a_report_from_before_the_storage_was_lost_does_not_count() {
        let [old, new] = [1, 2].map(|second| {
            let created = chrono::DateTime::from_timestamp(second, 0).unwrap();
            Incarnation::new(created, 1)
        });
        for (generation, reported, is_counted) in [
            (5, None, true),
            (5, Some(&new), true),
            (5, Some(&old), false),
            (9, Some(&old), false),
        ] {
            let mut report = report(generation, "changed", 0, 0);
            report.incarnation = reported.cloned();
            let mut rollout = rollout(assigned());
            let summary = ReportSummary::new(&report, &rollout, Some(&new));
            let is_new = record_report(&mut rollout, &node(), &summary);
            assert_eq!(is_new, is_counted, "{generation} {reported:?}");
        }
    }

    #[test]
    fn a_node_is_restored_once_it_reports_the_restored_generation() {
        let restoring = Progress::Restoring {
            generation: 5,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        let elsewhere = "another assignment was written in the meantime";
        for before in [restoring.clone(), Progress::unreachable(5, "offline")] {
            for (report, progress) in [
                (report(4, "changed", 0, 0), before.clone()),
                (report(5, "changed", 0, 0), Progress::Restored),
                (report(5, "stable", 0, 0), Progress::Restored),
                (
                    report(5, "failed", 1, 0),
                    Progress::failed("1 resources failed"),
                ),
                (
                    report(6, "stable", 0, 0),
                    Progress::Skipped {
                        reason: elsewhere.into(),
                    },
                ),
            ] {
                let mut rollout = rollout(before.clone());
                rollout.state = RolloutState::RollingBack;
                assert_eq!(after(rollout, &report), progress);
            }
        }
    }

    #[test]
    fn a_node_without_previous_assignment_is_restored_by_an_empty_one() {
        let mut rollout = rollout(Progress::Restoring {
            generation: 5,
            at: chrono::DateTime::UNIX_EPOCH,
        });
        rollout.state = RolloutState::RollingBack;
        let mut empty = report(5, "stable", 0, 0);
        empty.manifests.clear();
        empty.run = None;
        assert_eq!(after(rollout, &empty), Progress::Restored);
    }

    #[test]
    fn a_noop_run_would_change() {
        let report = report(5, "noop", 0, 0);
        assert_eq!(after(rollout(assigned()), &report), Progress::WouldChange);
    }

    #[test]
    fn an_unreachable_node_counts_when_it_reports() {
        let unreachable = Progress::unreachable(5, "offline");
        let report = report(5, "stable", 0, 0);
        assert_eq!(after(rollout(unreachable), &report), Progress::Ok);
    }

    #[test]
    fn an_unhealthy_node_may_recover_only_with_a_health_gate() {
        let unhealthy = report(5, "failed", 1, 1);
        let failed = after(rollout(assigned()), &unhealthy);
        assert_eq!(failed, Progress::failed("1 resources failed"));
        let mut gated = rollout(assigned());
        gated.settings.health_gate = true;
        let found = after(gated.clone(), &unhealthy);
        assert_eq!(found, Progress::unhealthy("1 resources failed"));
        gated.nodes.insert(node(), found);
        let healthy = report(5, "stable", 0, 0);
        assert_eq!(after(gated, &healthy), Progress::Ok);
    }

    #[test]
    fn a_failure_in_addition_to_a_failed_check_is_a_failure() {
        let mut gated = rollout(assigned());
        gated.settings.health_gate = true;
        let both = report(5, "failed", 2, 1);
        assert_eq!(after(gated, &both), Progress::failed("2 resources failed"));
    }

    #[test]
    fn a_finished_node_can_become_unhealthy_and_stays_changed() {
        let changed = rollout(Progress::Changed);
        let stable = report(5, "stable", 0, 0);
        assert_eq!(after(changed.clone(), &stable), Progress::Changed);
        let broken = report(5, "failed", 1, 0);
        let unhealthy = Progress::unhealthy("1 resources failed");
        assert_eq!(after(changed.clone(), &broken), unhealthy);
        let mut other = broken;
        other.manifests.clear();
        assert_eq!(after(changed, &other), Progress::Changed);
    }

    #[test]
    fn an_assignment_that_could_not_be_applied_has_failed() {
        let mut refused = report(5, "stable", 0, 0);
        refused.error = "app: no such object".into();
        let failed = Progress::failed("app: no such object");
        assert_eq!(after(rollout(assigned()), &refused), failed);
        // The failure remains until it is retried.
        let healthy = report(5, "stable", 0, 0);
        assert_eq!(after(rollout(failed.clone()), &healthy), failed);
    }
}
