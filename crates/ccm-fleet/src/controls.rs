//! Operator controls of a rollout: pause, resume, abort, retry and rollback, with the states that
//! allow them.
//!
//! Only the rollout object changes; the next step is decided by [`super::planner`].

use chrono::{DateTime, Utc};

use super::decision::attach_rollback_signature;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{Progress, Rollout, RolloutState};
use ccm_nats::request_signature::{KeyError, Signer};

/// Why a control is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("can't {verb} rollout {id}: it is {state}")]
    State {
        verb: &'static str,
        id: Token,
        state: &'static str,
    },
    #[error("rollout {0} has no failed, unhealthy or unreachable node")]
    NothingToRetry(Token),
    #[error("rollout {0} has not assigned any node")]
    NothingAssigned(Token),
    #[error("rollout {0} is signed: its rollback must be signed too")]
    Unsigned(Token),
    #[error("the rollback of rollout {id} can't be signed")]
    Signing {
        id: Token,
        #[source]
        cause: KeyError,
    },
}

/// Pauses before the next node, until resumed.
pub fn pause(rollout: &mut Rollout, reason: &str, by: &str) -> Result<(), ControlError> {
    allow(rollout, "pause", |state| {
        matches!(state, RolloutState::Running | RolloutState::Baking { .. })
    })?;
    rollout.state = RolloutState::Paused {
        reason: reason.into(),
        by: by.into(),
        auto: false,
    };
    Ok(())
}

/// Resumes. Failures before a halt are forgiven: they are no longer counted, later ones are. A
/// deadline in the past is removed. A rollback that was halted continues.
pub fn resume(rollout: &mut Rollout, now: DateTime<Utc>) -> Result<(), ControlError> {
    allow(rollout, "resume", |state| {
        matches!(
            state,
            RolloutState::Paused { .. } | RolloutState::Halted { .. }
        )
    })?;
    if matches!(rollout.state, RolloutState::Halted { .. }) {
        rollout.forgiven = Some(rollout.tally());
    }
    let is_ahead = |deadline: &DateTime<Utc>| *deadline > now;
    rollout.settings.deadline = rollout.settings.deadline.filter(is_ahead);
    rollout.state = if is_rollback_under_way(rollout) {
        RolloutState::RollingBack
    } else {
        RolloutState::Running
    };
    Ok(())
}

/// Reports whether a rollback was decided and not finished. A halted one without the signature that
/// it needs was not decided by an operator.
fn is_rollback_under_way(rollout: &Rollout) -> bool {
    let is_decided = rollout.decision.is_none() || rollout.rollback.is_some();
    rollout.state.is_rollback() && is_decided
}

/// Ends the rollout. Assigned nodes keep the assignment. A rollback can't be aborted.
pub fn abort(rollout: &mut Rollout, by: &str) -> Result<(), ControlError> {
    allow(rollout, "abort", |state| {
        matches!(
            state,
            RolloutState::Running
                | RolloutState::Baking { .. }
                | RolloutState::Paused { .. }
                | RolloutState::Halted {
                    rolling_back: false,
                    ..
                }
        )
    })?;
    rollout.state = RolloutState::Aborted { by: by.into() };
    Ok(())
}

/// Resets the failed, unhealthy and unreachable nodes to pending, and continues the rollout, or its
/// rollback. Returns these nodes.
pub fn retry(rollout: &mut Rollout) -> Result<Vec<NodeName>, ControlError> {
    allow(rollout, "retry", |state| {
        matches!(
            state,
            RolloutState::Paused { .. }
                | RolloutState::Halted { .. }
                | RolloutState::Aborted { .. }
                | RolloutState::Done
                | RolloutState::DoneWithFailures
                | RolloutState::RolledBackWithFailures
        )
    })?;
    let needs_retry = |progress: &Progress| {
        matches!(
            progress,
            Progress::Failed { .. } | Progress::Unhealthy { .. } | Progress::Unreachable { .. }
        )
    };
    let nodes = rollout.nodes.iter().filter(|(_, it)| needs_retry(it));
    let nodes: Vec<NodeName> = nodes.map(|(node, _)| node.clone()).collect();
    // A halted rollout goes on if all its nodes have reported since.
    if nodes.is_empty() && !matches!(rollout.state, RolloutState::Halted { .. }) {
        return Err(ControlError::NothingToRetry(rollout.id.clone()));
    }
    for node in &nodes {
        rollout.nodes.remove(node);
    }
    if is_rollback_under_way(rollout) {
        rollout.state = RolloutState::RollingBack;
        return Ok(nodes);
    }
    let is_open = |node: &NodeName| {
        let progress = rollout.progress(node);
        matches!(progress, Progress::Pending | Progress::Assigned { .. })
    };
    let waves = &rollout.plan.waves;
    let first = waves.iter().position(|wave| wave.nodes.iter().any(is_open));
    rollout.wave = first.unwrap_or(rollout.wave);
    rollout.forgiven = None;
    rollout.state = RolloutState::Running;
    Ok(nodes)
}

/// Starts to restore the previous assignment of every assigned node. A signed rollout needs a
/// signed rollback. From now on, progress is that of the rollback; nodes that got another assignment
/// stay skipped.
pub fn rollback(
    rollout: &mut Rollout,
    signer: Option<&Signer>,
    now: DateTime<Utc>,
) -> Result<(), ControlError> {
    allow(rollout, "roll back", |state| {
        !matches!(
            state,
            RolloutState::RollingBack
                | RolloutState::RolledBack
                | RolloutState::RolledBackWithFailures
        )
    })?;
    if rollout.previous.is_empty() {
        return Err(ControlError::NothingAssigned(rollout.id.clone()));
    }
    match signer {
        Some(signer) => {
            attach_rollback_signature(rollout, signer, now).map_err(|cause| {
                ControlError::Signing {
                    id: rollout.id.clone(),
                    cause,
                }
            })?;
        }
        None if rollout.decision.is_some() => {
            return Err(ControlError::Unsigned(rollout.id.clone()));
        }
        None => {}
    }
    let is_kept = |progress: &Progress| matches!(progress, Progress::Skipped { .. });
    rollout.nodes.retain(is_kept);
    rollout.state = RolloutState::RollingBack;
    Ok(())
}

fn allow(
    rollout: &Rollout,
    verb: &'static str,
    is_allowed: impl Fn(&RolloutState) -> bool,
) -> Result<(), ControlError> {
    if is_allowed(&rollout.state) {
        return Ok(());
    }
    Err(ControlError::State {
        verb,
        id: rollout.id.clone(),
        state: rollout.state.as_str(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::rollout::ROLLOUT;

    fn rollout(state: RolloutState) -> Rollout {
        let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
            "protocol": ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [
                {"name": "wave 1", "nodes": ["a", "b"]}, {"name": "wave 2", "nodes": ["c"]}
            ]},
            "state": {"name": "running"},
            "wave": 1
        }))
        .unwrap();
        rollout.state = state;
        let progress = [
            ("a", Progress::Ok),
            ("b", Progress::failed("no")),
            ("c", Progress::unreachable(1, "")),
        ];
        for (name, progress) in progress {
            rollout.nodes.insert(name.parse().unwrap(), progress);
        }
        rollout
    }

    fn halted() -> RolloutState {
        RolloutState::Halted {
            reason: "too much".into(),
            rolling_back: false,
        }
    }

    #[test]
    fn a_halted_rollout_continues_if_all_its_nodes_have_reported_since() {
        let mut halted = rollout(RolloutState::Halted {
            reason: "1 unreachable".into(),
            rolling_back: false,
        });
        halted.nodes.retain(|_| false);
        assert_eq!(retry(&mut halted), Ok(Vec::new()));
        assert_eq!(halted.state, RolloutState::Running);
    }

    #[test]
    fn resuming_a_halted_rollout_forgives_its_failures() {
        let mut rollout = rollout(halted());
        rollout.settings.deadline = Some(DateTime::UNIX_EPOCH);
        resume(&mut rollout, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(rollout.state, RolloutState::Running);
        assert_eq!(
            rollout.forgiven.map(|it| (it.failed, it.unreachable)),
            Some((1, 1))
        );
        assert_eq!(rollout.settings.deadline, None);
    }

    #[test]
    fn resuming_a_paused_rollout_keeps_its_failures_counted() {
        let mut rollout = rollout(RolloutState::Running);
        pause(&mut rollout, "lunch", "ann").unwrap();
        resume(&mut rollout, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(rollout.forgiven, None);
    }

    #[test]
    fn only_failed_and_unreachable_nodes_are_retried() {
        let mut rollout = rollout(RolloutState::Done);
        let again = retry(&mut rollout).unwrap();
        let names: Vec<&str> = again.iter().map(NodeName::as_str).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!((rollout.wave, rollout.tally().ok), (0, 1));
        rollout.nodes.retain(|progress| *progress == Progress::Ok);
        rollout.state = RolloutState::Done;
        let error = retry(&mut rollout).unwrap_err();
        assert!(error.to_string().starts_with("rollout r1 has no failed, "));
    }

    #[test]
    fn a_rollback_needs_an_assigned_node() {
        let mut rollout = rollout(halted());
        let now = DateTime::UNIX_EPOCH;
        let error = rollback(&mut rollout, None, now).unwrap_err().to_string();
        assert_eq!(error, "rollout r1 has not assigned any node");
        rollout.previous.record("a".parse().unwrap(), None);
        rollback(&mut rollout, None, now).unwrap();
        assert_eq!(rollout.state, RolloutState::RollingBack);
    }

    #[test]
    fn a_rollback_starts_with_the_progress_of_skipped_nodes_only() {
        let mut rollout = rollout(halted());
        rollout.previous.record("a".parse().unwrap(), None);
        let skipped = Progress::Skipped {
            reason: "paused".into(),
        };
        rollout.nodes.insert("d".parse().unwrap(), skipped.clone());
        rollback(&mut rollout, None, DateTime::UNIX_EPOCH).unwrap();
        let progress: Vec<&Progress> = rollout.nodes.values().collect();
        assert_eq!(progress, [&skipped]);
    }

    #[test]
    fn a_rollback_without_its_signature_is_not_continued() {
        let mut rollout = rollout(RolloutState::Halted {
            reason: "rollback not signed".into(),
            rolling_back: true,
        });
        crate::decision::sign(&mut rollout, &Signer::generate()).unwrap();
        resume(&mut rollout, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(rollout.state, RolloutState::Running);
    }

    #[test]
    fn a_signed_rollout_needs_a_signed_rollback() {
        let (now, signer) = (DateTime::UNIX_EPOCH, Signer::generate());
        let mut rollout = rollout(halted());
        rollout.previous.record("a".parse().unwrap(), None);
        crate::decision::sign(&mut rollout, &signer).unwrap();
        let error = rollback(&mut rollout, None, now).unwrap_err();
        assert!(matches!(error, ControlError::Unsigned(_)), "{error}");
        rollback(&mut rollout, Some(&signer), now).unwrap();
        assert!(rollout.rollback.is_some());
    }

    #[test]
    fn a_control_that_the_state_does_not_allow_is_refused() {
        let error = pause(&mut rollout(halted()), "", "").unwrap_err();
        assert_eq!(error.to_string(), "can't pause rollout r1: it is halted");
        assert!(resume(&mut rollout(RolloutState::Done), DateTime::UNIX_EPOCH).is_err());
        assert!(abort(&mut rollout(RolloutState::Done), "ann").is_err());
        let halted_rollback = RolloutState::Halted {
            reason: "not trusted".into(),
            rolling_back: true,
        };
        assert!(abort(&mut rollout(halted_rollback), "ann").is_err());
        assert!(retry(&mut rollout(RolloutState::Running)).is_err());
        let rolled_back = &mut rollout(RolloutState::RolledBack);
        assert!(rollback(rolled_back, None, DateTime::UNIX_EPOCH).is_err());
    }
}
