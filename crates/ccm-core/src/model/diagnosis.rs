//! Diagnoses of `ccm doctor` and `ccm fleet doctor`: named checks, each with its state, what was
//! found and what to do.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::node::NodeName;
use super::text::timestamp;

pub const NODE_DIAGNOSIS: &str = "io.choria.ccm.v1.node.diagnosis";
pub const FLEET_DIAGNOSIS: &str = "io.choria.ccm.v1.fleet.diagnosis";

/// Result of a check, the most harmless first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Ok,
    /// The check does not apply, or a check that it depends on failed.
    NotChecked,
    /// Works, and needs attention.
    Warning,
    /// Does not work.
    Failed,
}

impl CheckState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub state: CheckState,
    /// What was found, or why nothing was checked.
    pub found: String,
    /// What to do; empty if nothing is to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Check {
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, CheckState::Ok, found.into(), String::new())
    }

    pub fn not_checked(name: &str, reason: impl Into<String>) -> Self {
        Self::new(name, CheckState::NotChecked, reason.into(), String::new())
    }

    pub fn warning(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, CheckState::Warning, found.into(), remedy.into())
    }

    pub fn failed(name: &str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, CheckState::Failed, found.into(), remedy.into())
    }

    fn new(name: &str, state: CheckState, found: String, remedy: String) -> Self {
        Self {
            name: name.into(),
            state,
            found,
            remedy,
        }
    }
}

/// All checks of a node or of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    pub protocol: String,
    /// The checked node; missing for a fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Version of the program that checked.
    pub version: String,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// The worst state of all checks.
    pub state: CheckState,
    pub checks: Vec<Check>,
}

impl Diagnosis {
    pub fn new(
        protocol: &str,
        node: Option<NodeName>,
        version: &str,
        timestamp: DateTime<Utc>,
        checks: Vec<Check>,
    ) -> Self {
        // A check that does not apply is no finding.
        let states = checks.iter().map(|check| check.state);
        let findings = states.filter(|state| *state != CheckState::NotChecked);
        Self {
            protocol: protocol.into(),
            node,
            version: version.into(),
            timestamp,
            state: findings.max().unwrap_or(CheckState::Ok),
            checks,
        }
    }

    /// Reports whether a check failed.
    pub fn has_failed(&self) -> bool {
        self.state == CheckState::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(checks: Vec<Check>) -> Diagnosis {
        Diagnosis::new(NODE_DIAGNOSIS, None, "1", DateTime::UNIX_EPOCH, checks)
    }

    #[test]
    fn the_worst_check_is_the_state() {
        let (ok, skipped) = (Check::ok("a", "x"), Check::not_checked("b", "x"));
        let (warning, failed) = (Check::warning("c", "x", "y"), Check::failed("d", "x", "y"));
        for (checks, state) in [
            (vec![], CheckState::Ok),
            (vec![ok.clone(), skipped.clone()], CheckState::Ok),
            (vec![skipped], CheckState::Ok),
            (vec![warning.clone(), ok], CheckState::Warning),
            (vec![failed, warning], CheckState::Failed),
        ] {
            assert_eq!(diagnosis(checks).state, state);
        }
    }

    #[test]
    fn states_are_words_on_the_wire() {
        let text = serde_json::to_string(&Check::not_checked("a", "no agent")).unwrap();
        let wanted = r#"{"name":"a","state":"not_checked","found":"no agent"}"#;
        assert_eq!(text, wanted);
    }
}
