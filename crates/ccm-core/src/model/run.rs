//! Runs: requests to apply a manifest on one node, their responses and summaries.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Value;
use super::document::{Node, from_entries, parse, parse_message};
use super::event::{Summary, TransactionEvent};
use super::governor::{GovernorClaim, GovernorName};
use super::id::EventId;
use super::node::{NodeName, NodeReport, Token};
use super::request::RequestError;
use super::secret::serialize_text;
use super::text::timestamp;

pub const APPLY_REQUEST: &str = "io.choria.ccm.v1.manifest.apply.request";
const APPLY_RESPONSE: &str = "io.choria.ccm.v1.manifest.apply.response";
pub const RUN_SUMMARY: &str = "io.choria.ccm.v1.run.summary";

/// Id of a run: an event id, so unique and sortable by time.
pub type RunId = EventId;

/// Trigger of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The agent started.
    Start,
    Interval,
    /// The source of the manifest changed.
    Source,
    /// A new assignment, or its periodic run.
    Assignment,
    HealthCheck,
    /// A health check was critical.
    Remediation,
    /// A service registration that the manifest looked up changed.
    Registration,
    Request,
}

/// Run in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentRun {
    pub run_id: RunId,
    /// Source of the manifest, without secrets.
    pub source: String,
    pub trigger: Trigger,
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
    #[serde(default)]
    pub noop: bool,
    /// What the run waits for before it starts, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
}

/// Prefix of what a run waits for, if it is a governor.
const GOVERNOR: &str = "governor ";

impl CurrentRun {
    /// Returns the text of `waiting_for` for a governor slot.
    pub fn governor_wait(governor: &GovernorName) -> String {
        format!("{GOVERNOR}{governor}")
    }

    /// Returns the governor that the run waits for a slot of.
    pub fn awaited_governor(&self) -> Option<GovernorName> {
        let waiting_for = self.waiting_for.as_deref()?;
        waiting_for.strip_prefix(GOVERNOR)?.parse().ok()
    }
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    Failed,
    Changed,
    /// Noop run that would have changed something.
    Noop,
    Stable,
    Skipped,
}

impl RunOutcome {
    pub const ALL: [Self; 5] = [
        Self::Failed,
        Self::Changed,
        Self::Noop,
        Self::Stable,
        Self::Skipped,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Changed => "changed",
            Self::Noop => "noop",
            Self::Stable => "stable",
            Self::Skipped => "skipped",
        }
    }
}

/// Summary of a run, published after its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub protocol: String,
    pub event_id: EventId,
    pub run_id: RunId,
    pub identity: NodeName,
    pub collective: Token,
    pub source: String,
    pub trigger: Trigger,
    pub outcome: RunOutcome,
    #[serde(default)]
    pub noop: bool,
    #[serde(default)]
    pub health_check_only: bool,
    /// Generation of the assignment, if one was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Id of the request that started the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caller: String,
    /// Error that ended the run early or kept it from starting.
    #[serde(
        default,
        skip_serializing_if = "String::is_empty",
        serialize_with = "serialize_text"
    )]
    pub error: String,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    pub summary: Summary,
}

impl RunSummary {
    /// Returns the outcome of a run from its summary and error.
    pub fn outcome_of(summary: &Summary, noop: bool, error: &str) -> RunOutcome {
        if !error.is_empty() || summary.failed_resources > 0 {
            RunOutcome::Failed
        } else if summary.changed_resources > 0 {
            if noop {
                RunOutcome::Noop
            } else {
                RunOutcome::Changed
            }
        } else if summary.total_resources > 0
            && summary.skipped_resources == summary.total_resources
        {
            RunOutcome::Skipped
        } else {
            RunOutcome::Stable
        }
    }
}

/// Request to apply a manifest; exactly one of `manifest` and `source` is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApplyRequest {
    pub protocol: String,
    /// Text of the manifest. A request may also contain it as a document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// Location of the manifest: `obj://bucket/name`, `http(s)://…` or a path on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    pub noop: bool,
    pub health_check_only: bool,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub data: Value,
    /// Governor slot of the run; a claim in the manifest takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorClaim>,
    /// Whether the response is sent when the run has finished instead of when it is accepted.
    pub wait: bool,
    /// Checks the node's own assignment in noop mode instead of a manifest, and updates its report.
    #[serde(skip_serializing_if = "is_false")]
    pub check: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Parses an apply request, in JSON or YAML.
pub fn parse_apply(text: &str) -> Result<ApplyRequest, RequestError> {
    // A body that can't be parsed is reported as an invalid protocol.
    let body = parse_message(text).ok();
    let protocol = body.as_ref().and_then(|body| body.get("protocol"));
    let protocol = protocol.and_then(Node::text).map_or("", |text| &**text);
    let body = body
        .as_ref()
        .filter(|_| protocol == APPLY_REQUEST)
        .ok_or_else(|| RequestError::Protocol(protocol.into()))?;
    let entries = body.entries().unwrap_or_default();
    let separate = ["manifest", "governor"];
    let is_separate = |key: &Node| key.text().is_some_and(|text| separate.contains(&&**text));
    let rest = entries.iter().filter(|(key, _)| !is_separate(key));
    let mut request: ApplyRequest = from_entries(rest).map_err(RequestError::Json)?;
    if let Some(claim) = body.get("governor") {
        request.governor = GovernorClaim::read(claim).map_err(RequestError::Json)?;
    }
    request.manifest = match body.get("manifest") {
        None => String::new(),
        Some(node) if node.is_null() => String::new(),
        Some(node) => node
            .text()
            .map_or_else(|| node.to_flow(), ToString::to_string),
    };
    let exclusive = |a, b| RequestError::Message(format!("{a} and {b} are mutually exclusive"));
    match (request.manifest.is_empty(), request.source.is_empty()) {
        (true, true) if request.check => {}
        (false, _) | (_, false) if request.check => {
            return Err(exclusive("check", "manifest or source"));
        }
        (true, true) => return Err(RequestError::Missing("manifest or source")),
        (false, false) => return Err(exclusive("manifest", "source")),
        _ => {}
    }
    if request.noop && request.health_check_only {
        return Err(exclusive("noop", "health_check_only"));
    }
    if !request.manifest.is_empty() {
        check_manifest(&request.manifest)?;
    }
    Ok(request)
}

/// Rejects a text that can't be a manifest in the response, before a run is started.
fn check_manifest(text: &str) -> Result<(), RequestError> {
    let manifest = parse(text).map_err(RequestError::Manifest)?;
    manifest
        .entries()
        .map(|_| ())
        .ok_or(RequestError::ManifestNotMapping)
}

/// State of an apply request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    Accepted,
    Finished,
}

/// Response to an apply request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApplyResponse {
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunSummary>,
    /// Events of the run with a change or a failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TransactionEvent>,
    /// Diff of changed files, if requested.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// Report of the node after a check of its assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Box<NodeReport>>,
}

impl ApplyResponse {
    fn empty() -> Self {
        Self {
            protocol: APPLY_RESPONSE.into(),
            error: None,
            run_id: None,
            state: None,
            run: None,
            events: Vec::new(),
            diff: String::new(),
            report: None,
        }
    }

    pub fn refused(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::empty()
        }
    }

    /// Returns the response to a check, with the report that the node has stored.
    pub fn checked(report: NodeReport) -> Self {
        Self {
            state: Some(RunState::Finished),
            report: Some(report.into()),
            ..Self::empty()
        }
    }

    pub fn accepted(run_id: RunId) -> Self {
        Self {
            run_id: Some(run_id),
            state: Some(RunState::Accepted),
            ..Self::empty()
        }
    }

    pub fn finished(run: RunSummary, events: Vec<TransactionEvent>) -> Self {
        Self {
            error: (!run.error.is_empty()).then(|| run.error.clone()),
            run_id: Some(run.run_id.clone()),
            state: Some(RunState::Finished),
            run: Some(run),
            events,
            ..Self::empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(rest: &str) -> Result<ApplyRequest, String> {
        parse_apply(&format!(r#"{{"protocol":"{APPLY_REQUEST}"{rest}}}"#))
            .map_err(|err| err.to_string())
    }

    #[test]
    fn a_manifest_is_a_document_or_a_text() {
        let document = request(r#","manifest":{"resources":[{"package":5}]}"#).unwrap();
        assert_eq!(document.manifest, r#"{"resources": [{"package": 5}]}"#);
        let text = request(r#","manifest":"resources: []\n""#).unwrap();
        assert_eq!(text.manifest, "resources: []\n");
        assert_eq!(request(r#","source":"obj://b/k""#).unwrap().manifest, "");
    }

    #[test]
    fn a_request_in_yaml_is_parsed() {
        let text = format!("protocol: {APPLY_REQUEST}\nsource: /srv/site\nnoop: true\n");
        let request = parse_apply(&text).unwrap();
        assert_eq!((request.source.as_str(), request.noop), ("/srv/site", true));
    }

    #[test]
    fn a_request_may_claim_a_governor_slot() {
        let rest = r#","source":"/a","governor":{"name":"deploys","timeout":"1m"}"#;
        let claim = request(rest).unwrap().governor.unwrap();
        assert_eq!(claim.name.as_str(), "deploys");
        let error = request(r#","source":"/a","governor":{"nam":"deploys"}"#).unwrap_err();
        assert!(error.contains("did you mean \"name\"?"), "{error}");
    }

    #[test]
    fn each_invalid_request_has_its_message() {
        for (rest, error) in [
            ("", "missing manifest or source in request"),
            (
                r#","manifest":"just words""#,
                "invalid manifest: expected a mapping",
            ),
            (
                r#","source":"/a","manifest":"x""#,
                "manifest and source are mutually exclusive",
            ),
            (
                r#","source":"/a","noop":true,"health_check_only":true"#,
                "noop and health_check_only are mutually exclusive",
            ),
            (
                r#","source":"/a","check":true"#,
                "check and manifest or source are mutually exclusive",
            ),
            (
                r#","sourc":"/a""#,
                "unknown property \"sourc\", did you mean \"source\"?",
            ),
        ] {
            assert_eq!(request(rest).unwrap_err(), error);
        }
        assert_eq!(
            parse_apply("hello").unwrap_err().to_string(),
            "invalid protocol \"\""
        );
    }
}
