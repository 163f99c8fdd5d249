//! States of a rollout, with the names that command line, API, page and metrics show.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::model::text::timestamp;

/// State of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum RolloutState {
    Running,
    /// The wave has finished; the next one waits for the bake time.
    Baking {
        #[serde(with = "timestamp")]
        until: DateTime<Utc>,
    },
    Paused {
        reason: String,
        #[serde(default)]
        by: String,
        /// Paused by a controller, not by an operator.
        #[serde(default)]
        auto: bool,
    },
    /// The failure budget was exceeded.
    Halted {
        reason: String,
        /// Halted during its rollback.
        #[serde(default, skip_serializing_if = "is_false")]
        rolling_back: bool,
    },
    Aborted {
        #[serde(default)]
        by: String,
    },
    Done,
    /// Ended within the limits, with failed, unhealthy or unreachable nodes.
    DoneWithFailures,
    /// Previous assignments are restored; nodes have to report them as converged.
    RollingBack,
    /// Every changed node has reported its previous assignment as converged.
    RolledBack,
    /// The rollback ended with failed or unreachable nodes.
    RolledBackWithFailures,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl RolloutState {
    /// Names of all states, for display.
    pub const NAMES: [&str; 10] = [
        "running",
        "baking",
        "paused",
        "halted",
        "aborted",
        "done",
        "done with failures",
        "rolling back",
        "rolled back",
        "rolled back with failures",
    ];

    /// Returns the name of the state, for display.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Baking { .. } => "baking",
            Self::Paused { .. } => "paused",
            Self::Halted { .. } => "halted",
            Self::Aborted { .. } => "aborted",
            Self::Done => "done",
            Self::DoneWithFailures => "done with failures",
            Self::RollingBack => "rolling back",
            Self::RolledBack => "rolled back",
            Self::RolledBackWithFailures => "rolled back with failures",
        }
    }

    /// Reports whether a controller has to drive the rollout.
    pub fn is_active(&self) -> bool {
        matches!(
            self,
            Self::Running | Self::Baking { .. } | Self::RollingBack
        )
    }

    /// Reports whether the state stays unless an operator resumes, retries or rolls back the rollout.
    pub fn is_finished(&self) -> bool {
        match self {
            Self::Running | Self::Baking { .. } | Self::Paused { .. } | Self::RollingBack => false,
            Self::Halted { .. }
            | Self::Aborted { .. }
            | Self::Done
            | Self::DoneWithFailures
            | Self::RolledBack
            | Self::RolledBackWithFailures => true,
        }
    }

    /// Reports whether the progress of the nodes is that of a rollback.
    pub fn is_rollback(&self) -> bool {
        match self {
            Self::RollingBack | Self::RolledBack | Self::RolledBackWithFailures => true,
            Self::Halted { rolling_back, .. } => *rolling_back,
            Self::Running
            | Self::Baking { .. }
            | Self::Paused { .. }
            | Self::Aborted { .. }
            | Self::Done
            | Self::DoneWithFailures => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_stored_under_its_name_in_snake_case() {
        let states = [
            RolloutState::Running,
            RolloutState::Baking {
                until: DateTime::UNIX_EPOCH,
            },
            RolloutState::Paused {
                reason: String::new(),
                by: String::new(),
                auto: false,
            },
            RolloutState::Halted {
                reason: String::new(),
                rolling_back: false,
            },
            RolloutState::Aborted { by: String::new() },
            RolloutState::Done,
            RolloutState::DoneWithFailures,
            RolloutState::RollingBack,
            RolloutState::RolledBack,
            RolloutState::RolledBackWithFailures,
        ];
        for (state, name) in states.iter().zip(RolloutState::NAMES) {
            let stored = serde_json::to_value(state).unwrap();
            assert_eq!(stored["name"], name.replace(' ', "_"));
            assert_eq!(state.as_str(), name);
        }
    }

    #[test]
    fn a_halted_rollout_of_an_earlier_version_is_read() {
        let stored = r#"{"name": "halted", "reason": "too much"}"#;
        let state: RolloutState = serde_json::from_str(stored).unwrap();
        assert!(!state.is_rollback());
    }
}
