//! Progress of the nodes of a rollout, and their numbers by progress.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::model::text::timestamp;

/// Maximum length of a failed node's reason.
const MAX_REASON: usize = 200;

/// Progress of one node in a rollout, or in its rollback: see `RolloutState::is_rollback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    #[default]
    Pending,
    /// Assigned; no report yet.
    Assigned {
        generation: u64,
        #[serde(with = "timestamp")]
        at: DateTime<Utc>,
    },
    /// Converged without changes.
    Ok,
    Changed,
    /// A noop run reported changes that it would make.
    WouldChange,
    Failed {
        reason: String,
    },
    /// Converged, but a health check is critical.
    Unhealthy {
        reason: String,
    },
    /// No report in time. The assignment stays: the node converges when it reconnects.
    Unreachable {
        generation: u64,
        /// Why no report is expected; empty if none arrived in time.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// Skipped, for instance because it was paused after the plan was created.
    Skipped {
        reason: String,
    },
    /// Assigned its previous assignment; no report yet.
    Restoring {
        generation: u64,
        #[serde(with = "timestamp")]
        at: DateTime<Utc>,
    },
    /// Its previous assignment was restored, and the node reported it as converged.
    Restored,
}

impl Progress {
    /// Returns a failure with a shortened reason, so that thousands fit into one message.
    pub fn failed(reason: &str) -> Self {
        Self::Failed {
            reason: shortened(reason),
        }
    }

    /// Returns an unhealthy progress with a shortened reason, as in [`Self::failed`].
    pub fn unhealthy(reason: &str) -> Self {
        Self::Unhealthy {
            reason: shortened(reason),
        }
    }

    /// Returns an unreachable progress with a shortened reason, as in [`Self::failed`].
    pub fn unreachable(generation: u64, reason: &str) -> Self {
        Self::Unreachable {
            generation,
            reason: shortened(reason),
        }
    }

    /// Returns the reason of the progress; empty if there is none.
    pub fn reason(&self) -> &str {
        match self {
            Self::Failed { reason }
            | Self::Unhealthy { reason }
            | Self::Skipped { reason }
            | Self::Unreachable { reason, .. } => reason,
            Self::Pending
            | Self::Assigned { .. }
            | Self::Ok
            | Self::Changed
            | Self::WouldChange
            | Self::Restoring { .. }
            | Self::Restored => "",
        }
    }

    /// Returns the name of the progress, for display.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Assigned { .. } => "assigned",
            Self::Ok => "ok",
            Self::Changed => "changed",
            Self::WouldChange => "would change",
            Self::Failed { .. } => "failed",
            Self::Unhealthy { .. } => "unhealthy",
            Self::Unreachable { .. } => "unreachable",
            Self::Skipped { .. } => "skipped",
            Self::Restoring { .. } => "restoring",
            Self::Restored => "restored",
        }
    }
}

/// Returns the first line of a text, cut to the maximum length.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.into(),
    }
}

/// Number of nodes by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    pub pending: usize,
    pub assigned: usize,
    pub ok: usize,
    pub changed: usize,
    pub would_change: usize,
    pub failed: usize,
    pub unhealthy: usize,
    pub unreachable: usize,
    pub skipped: usize,
    pub restoring: usize,
    pub restored: usize,
}

impl Tally {
    /// Counts nodes by progress.
    pub fn of<'p>(nodes: impl IntoIterator<Item = &'p Progress>) -> Self {
        let mut tally = Self::default();
        for progress in nodes {
            *tally.count_of(progress) += 1;
        }
        tally
    }

    /// Returns the count to which a progress belongs.
    pub(super) fn count_of(&mut self, progress: &Progress) -> &mut usize {
        match progress {
            Progress::Pending => &mut self.pending,
            Progress::Assigned { .. } => &mut self.assigned,
            Progress::Ok => &mut self.ok,
            Progress::Changed => &mut self.changed,
            Progress::WouldChange => &mut self.would_change,
            Progress::Failed { .. } => &mut self.failed,
            Progress::Unhealthy { .. } => &mut self.unhealthy,
            Progress::Unreachable { .. } => &mut self.unreachable,
            Progress::Skipped { .. } => &mut self.skipped,
            Progress::Restoring { .. } => &mut self.restoring,
            Progress::Restored => &mut self.restored,
        }
    }

    /// Returns the number of nodes that finished, with or without failure.
    pub fn finished(&self) -> usize {
        self.ok + self.changed + self.would_change + self.failed + self.unhealthy
    }

    /// Returns the number of nodes that wait or are under way.
    pub fn unfinished(&self) -> usize {
        self.pending + self.assigned + self.restoring
    }

    /// Reports whether a node failed, is unhealthy or could not be reached.
    pub fn has_failures(&self) -> bool {
        self.failed + self.unhealthy + self.unreachable > 0
    }

    /// Returns the counts minus those of an earlier tally.
    pub fn saturating_sub(&self, earlier: &Self) -> Self {
        Self {
            pending: self.pending.saturating_sub(earlier.pending),
            assigned: self.assigned.saturating_sub(earlier.assigned),
            ok: self.ok.saturating_sub(earlier.ok),
            changed: self.changed.saturating_sub(earlier.changed),
            would_change: self.would_change.saturating_sub(earlier.would_change),
            failed: self.failed.saturating_sub(earlier.failed),
            unhealthy: self.unhealthy.saturating_sub(earlier.unhealthy),
            unreachable: self.unreachable.saturating_sub(earlier.unreachable),
            skipped: self.skipped.saturating_sub(earlier.skipped),
            restoring: self.restoring.saturating_sub(earlier.restoring),
            restored: self.restored.saturating_sub(earlier.restored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_without_fields_is_stored_as_text() {
        for (progress, text) in [
            (Progress::Ok, r#""ok""#),
            (
                Progress::failed("no\nsuch"),
                r#"{"failed":{"reason":"no"}}"#,
            ),
            (
                Progress::unreachable(4, ""),
                r#"{"unreachable":{"generation":4}}"#,
            ),
            (Progress::WouldChange, r#""would_change""#),
        ] {
            assert_eq!(serde_json::to_string(&progress).unwrap(), text);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let Progress::Failed { reason } = Progress::failed(&"é".repeat(500)) else {
            panic!("not a failure");
        };
        assert_eq!(reason.chars().count(), MAX_REASON + 1);
    }

    #[test]
    fn an_unreachable_node_of_an_earlier_version_is_read() {
        let stored = r#"{"unreachable": {"generation": 4}}"#;
        let progress: Progress = serde_json::from_str(stored).unwrap();
        assert_eq!(progress, Progress::unreachable(4, ""));
    }
}
