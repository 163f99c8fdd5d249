//! What people may do to a rollout, and when. Changes the object and nothing else: what follows
//! from it is up to [`super::planner`].

use chrono::{DateTime, Utc};

use super::decision::order_rollback;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{Progress, Rollout, State};
use ccm_nats::request_signature::{KeyError, Signer};

/// Why a rollout can't be steered that way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    #[error("can't {verb} rollout {id}: it is {state}")]
    State {
        verb: &'static str,
        id: Token,
        state: &'static str,
    },
    #[error("rollout {0} has no node that failed or could not be reached")]
    NothingToRetry(Token),
    #[error("rollout {0} touched no node")]
    NothingTouched(Token),
    #[error("rollout {0} is signed, so its rollback must be signed, too")]
    Unsigned(Token),
    #[error("the rollback of rollout {id} can't be signed")]
    Signing {
        id: Token,
        #[source]
        cause: KeyError,
    },
}

/// Stops before the next node, until somebody resumes.
pub fn pause(rollout: &mut Rollout, reason: &str, by: &str) -> Result<(), SteerError> {
    allow(rollout, "pause", |state| {
        matches!(state, State::Running | State::Baking { .. })
    })?;
    rollout.state = State::Paused {
        reason: reason.into(),
        by: by.into(),
        auto: false,
    };
    Ok(())
}

/// Goes on. What halted it is forgiven: it no longer counts, but whatever comes after does. A
/// deadline that has passed is dropped.
pub fn resume(rollout: &mut Rollout, now: DateTime<Utc>) -> Result<(), SteerError> {
    allow(rollout, "resume", |state| {
        matches!(state, State::Paused { .. } | State::Halted { .. })
    })?;
    if matches!(rollout.state, State::Halted { .. }) {
        rollout.forgiven = Some(rollout.tally());
    }
    let is_ahead = |deadline: &DateTime<Utc>| *deadline > now;
    rollout.settings.deadline = rollout.settings.deadline.filter(is_ahead);
    rollout.state = State::Running;
    Ok(())
}

/// Ends it where it is. Nodes that have the assignment keep it.
pub fn abort(rollout: &mut Rollout, by: &str) -> Result<(), SteerError> {
    allow(rollout, "abort", |state| {
        matches!(
            state,
            State::Running | State::Baking { .. } | State::Paused { .. } | State::Halted { .. }
        )
    })?;
    rollout.state = State::Aborted { by: by.into() };
    Ok(())
}

/// Tries again those that failed, fell ill or could not be reached, and only those; then goes on
/// with the rest. Returns whom.
pub fn retry(rollout: &mut Rollout) -> Result<Vec<NodeName>, SteerError> {
    allow(rollout, "retry", |state| {
        matches!(
            state,
            State::Paused { .. } | State::Halted { .. } | State::Aborted { .. } | State::Done
        )
    })?;
    let is_bad = |progress: &Progress| {
        matches!(
            progress,
            Progress::Failed { .. } | Progress::Unhealthy { .. } | Progress::Unreachable { .. }
        )
    };
    let bad = rollout.nodes.iter().filter(|(_, it)| is_bad(it));
    let bad: Vec<NodeName> = bad.map(|(node, _)| node.clone()).collect();
    if bad.is_empty() {
        return Err(SteerError::NothingToRetry(rollout.id.clone()));
    }
    for node in &bad {
        rollout.nodes.remove(node);
    }
    let is_open = |node: &NodeName| {
        let progress = rollout.progress(node);
        matches!(progress, Progress::Pending | Progress::Assigned { .. })
    };
    let waves = &rollout.plan.waves;
    let first = waves.iter().position(|wave| wave.nodes.iter().any(is_open));
    rollout.wave = first.unwrap_or(rollout.wave);
    rollout.forgiven = None;
    rollout.state = State::Running;
    Ok(bad)
}

/// Begins to give every touched node back what it was assigned before. What somebody signed is
/// taken back only by somebody who signs.
pub fn rollback(
    rollout: &mut Rollout,
    signer: Option<&Signer>,
    now: DateTime<Utc>,
) -> Result<(), SteerError> {
    allow(rollout, "roll back", |state| {
        !matches!(state, State::RollingBack | State::RolledBack)
    })?;
    if rollout.previous.is_empty() {
        return Err(SteerError::NothingTouched(rollout.id.clone()));
    }
    match signer {
        Some(signer) => {
            order_rollback(rollout, signer, now).map_err(|cause| SteerError::Signing {
                id: rollout.id.clone(),
                cause,
            })?;
        }
        None if rollout.decision.is_some() => {
            return Err(SteerError::Unsigned(rollout.id.clone()));
        }
        None => {}
    }
    rollout.state = State::RollingBack;
    Ok(())
}

fn allow(
    rollout: &Rollout,
    verb: &'static str,
    is_allowed: impl Fn(&State) -> bool,
) -> Result<(), SteerError> {
    if is_allowed(&rollout.state) {
        return Ok(());
    }
    Err(SteerError::State {
        verb,
        id: rollout.id.clone(),
        state: rollout.state.as_str(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::rollout::ROLLOUT;

    fn rollout(state: State) -> Rollout {
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
            ("c", Progress::Unreachable { generation: 1 }),
        ];
        for (name, progress) in progress {
            rollout.nodes.insert(name.parse().unwrap(), progress);
        }
        rollout
    }

    fn halted() -> State {
        State::Halted {
            reason: "too much".into(),
        }
    }

    #[test]
    fn a_halted_rollout_is_forgiven_when_it_goes_on() {
        let mut rollout = rollout(halted());
        rollout.settings.deadline = Some(DateTime::UNIX_EPOCH);
        resume(&mut rollout, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(rollout.state, State::Running);
        assert_eq!(
            rollout.forgiven.map(|it| (it.failed, it.unreachable)),
            Some((1, 1))
        );
        assert_eq!(rollout.settings.deadline, None);
    }

    #[test]
    fn a_paused_rollout_goes_on_with_its_budget_as_it_was() {
        let mut rollout = rollout(State::Running);
        pause(&mut rollout, "lunch", "ann").unwrap();
        resume(&mut rollout, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(rollout.forgiven, None);
    }

    #[test]
    fn only_what_went_wrong_is_tried_again() {
        let mut rollout = rollout(State::Done);
        let again = retry(&mut rollout).unwrap();
        let names: Vec<&str> = again.iter().map(NodeName::as_str).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!((rollout.wave, rollout.tally().ok), (0, 1));
        rollout.nodes = rollout.nodes.into_iter().take(1).collect();
        rollout.state = State::Done;
        let error = retry(&mut rollout).unwrap_err();
        assert!(error.to_string().starts_with("rollout r1 has no node"));
    }

    #[test]
    fn there_is_no_way_back_from_nothing() {
        let mut rollout = rollout(halted());
        let now = DateTime::UNIX_EPOCH;
        let error = rollback(&mut rollout, None, now).unwrap_err().to_string();
        assert_eq!(error, "rollout r1 touched no node");
        rollout.previous.note("a".parse().unwrap(), None);
        rollback(&mut rollout, None, now).unwrap();
        assert_eq!(rollout.state, State::RollingBack);
    }

    #[test]
    fn what_was_signed_is_rolled_back_by_somebody_who_signs() {
        let (now, signer) = (DateTime::UNIX_EPOCH, Signer::generate());
        let mut rollout = rollout(halted());
        rollout.previous.note("a".parse().unwrap(), None);
        crate::decision::sign(&mut rollout, &signer).unwrap();
        let error = rollback(&mut rollout, None, now).unwrap_err();
        assert!(matches!(error, SteerError::Unsigned(_)), "{error}");
        rollback(&mut rollout, Some(&signer), now).unwrap();
        assert!(rollout.rollback.is_some());
    }

    #[test]
    fn what_a_state_does_not_allow_is_refused_by_name() {
        let error = pause(&mut rollout(halted()), "", "").unwrap_err();
        assert_eq!(error.to_string(), "can't pause rollout r1: it is halted");
        assert!(resume(&mut rollout(State::Done), DateTime::UNIX_EPOCH).is_err());
        assert!(abort(&mut rollout(State::Done), "ann").is_err());
        assert!(retry(&mut rollout(State::Running)).is_err());
        let over = &mut rollout(State::RolledBack);
        assert!(rollback(over, None, DateTime::UNIX_EPOCH).is_err());
    }
}
