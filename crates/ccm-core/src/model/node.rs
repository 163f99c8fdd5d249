//! Nodes: names, status, assignments and reports.

mod name;

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

pub use name::{BundleDigest, NameError, NodeName, Token};

use super::decision::AssignmentSignature;
use super::drift::{Drift, ReportSource, UncheckedResource};
use super::governor::GovernorClaim;
use super::incarnation::Incarnation;
use super::run::{CurrentRun, RunSummary};
use super::text::{maybe_timestamp, timestamp, to_the_second};
use super::{Value, json};

pub const NODE_STATUS: &str = "io.choria.ccm.v1.node.status";
pub const ASSIGNMENT: &str = "io.choria.ccm.v1.node.assignment";
pub const REPORT: &str = "io.choria.ccm.v1.node.report";
pub const NODE_FACTS: &str = "io.choria.ccm.v1.node.facts";

/// Maximum length of a text in a refusal.
const MAX_REFUSAL_TEXT: usize = 1024;

/// Note on a node whose configuration has `trust: {required: false}`.
const OPEN: &str = "accepts unsigned requests";

/// Pause of a node: no assignment or schedule is applied while it lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub reason: String,
    /// Caller as stated in the request; not verified.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
    /// Time at which the pause ends; none if it lasts until it is resumed.
    #[serde(
        default,
        with = "maybe_timestamp",
        skip_serializing_if = "Option::is_none"
    )]
    pub until: Option<DateTime<Utc>>,
}

/// State of a node's event spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolStatus {
    pub pending: u64,
    /// Number of events dropped because the spool was full, since it was created.
    pub dropped: u64,
}

/// Request or assignment that a node refused, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    #[serde(with = "timestamp")]
    pub time: DateTime<Utc>,
    /// Verb of the request, or `assignment`.
    pub what: String,
    /// Generation of the assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Incarnation of the assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// Signer, or the unverified caller of the request; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub reason: String,
}

impl Refusal {
    /// Value of `what` for an assignment.
    pub const ASSIGNMENT: &str = "assignment";

    /// Returns the refusal with control characters removed and long texts cut: the texts come from the
    /// sender of the refused request and are published repeatedly.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        for text in [&mut self.who, &mut self.reason] {
            let kept = text.chars().filter(|c| !c.is_control());
            *text = kept.take(MAX_REFUSAL_TEXT).collect();
        }
        self
    }

    /// Reports whether both refusals are equal but for their time.
    pub fn is_repeated_by(&self, other: &Self) -> bool {
        let time = other.time;
        Self {
            time,
            ..self.clone()
        } == *other
    }

    /// Reports whether it is the refusal of this assignment.
    pub fn is_of(&self, assignment: &Assignment) -> bool {
        let (own, other) = (self.incarnation.as_ref(), assignment.incarnation.as_ref());
        self.generation == Some(assignment.generation) && !Incarnation::differs(own, other)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "refused {}", self.what)?;
        if let Some(generation) = self.generation {
            write!(out, " of generation {generation}")?;
        }
        if !self.who.is_empty() {
            write!(out, " by {}", self.who)?;
        }
        write!(out, ": {}", self.reason)
    }
}

/// Trust settings of a node, and its last refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustStatus {
    /// Requests and assignments without a trusted signature are refused: configured, or by default
    /// if the NATS server is not on the same machine.
    #[serde(default)]
    pub required: bool,
    /// The configuration has `trust: {required: false}`: unsigned requests are accepted.
    #[serde(default)]
    pub open: bool,
    /// Public keys of the signers that the node trusts, sorted; empty from older agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signers: Vec<String>,
    /// Last refusal since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<Refusal>,
}

/// Status of a node: the reply to a ping, also published as its presence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub protocol: String,
    pub identity: NodeName,
    pub collective: Token,
    #[serde(default)]
    pub groups: Vec<Token>,
    /// Version of the agent.
    pub version: String,
    #[serde(with = "timestamp")]
    pub started: DateTime<Utc>,
    /// Time of the status.
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// Seconds between two presence messages.
    pub beat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_run: Option<CurrentRun>,
    /// Number of runs queued behind the current one.
    #[serde(default)]
    pub queued: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunSummary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Trust settings; missing from older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustStatus>,
    #[serde(default)]
    pub spool: SpoolStatus,
    /// Generation of the assignment that the node last applied.
    #[serde(default)]
    pub generation: u64,
    /// Public key that values for this node are encrypted for; missing from older agents.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recipient: String,
    /// What keeps the node from managing its resources, such as an unusable state directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Collectives in which the agent serves Choria's clients; empty if it serves none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choria: Vec<Token>,
    /// Facts for selections, without frequently changing values.
    #[serde(default)]
    pub facts: Value,
}

/// Facts of a node as its agent last stored them, for selections while the node is offline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredFacts {
    pub protocol: String,
    pub identity: NodeName,
    #[serde(default)]
    pub groups: Vec<Token>,
    /// Version of the agent.
    pub version: String,
    /// Time when the agent last confirmed the facts.
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// Facts for selections, as in [`NodeStatus::facts`].
    #[serde(default)]
    pub facts: Value,
}

impl From<&NodeStatus> for StoredFacts {
    fn from(status: &NodeStatus) -> Self {
        Self {
            protocol: NODE_FACTS.into(),
            identity: status.identity.clone(),
            groups: status.groups.clone(),
            version: status.version.clone(),
            timestamp: status.timestamp,
            facts: status.facts.clone(),
        }
    }
}

/// Maximum age of a refusal in [`NodeStatus::recent_refusal`].
const MAX_REFUSAL_AGE: TimeDelta = TimeDelta::hours(1);

impl NodeStatus {
    /// Returns the problems of the node, and whether it accepts unsigned requests or has refused a
    /// request recently; otherwise an empty text.
    pub fn note(&self) -> String {
        let refusal = self.recent_refusal();
        let refusal =
            refusal.map(|refusal| format!("{refusal} ({})", to_the_second(&refusal.time)));
        let open = self.open_note().map(str::to_owned);
        let mut notes = self.problems.clone();
        notes.extend([open, refusal].into_iter().flatten());
        notes.join("; ")
    }

    /// Returns the last refusal, if it is recent.
    pub fn recent_refusal(&self) -> Option<&Refusal> {
        let refusal = self.trust.as_ref()?.last_refusal.as_ref()?;
        let age = self.timestamp.signed_duration_since(refusal.time);
        (age < MAX_REFUSAL_AGE).then_some(refusal)
    }

    /// Returns a note if the node accepts unsigned requests.
    pub fn open_note(&self) -> Option<&'static str> {
        self.trust.as_ref()?.open.then_some(OPEN)
    }
}

/// Reference to a manifest bundle in the object store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleRef {
    pub name: Token,
    pub digest: BundleDigest,
}

impl BundleRef {
    /// Returns the name of the object.
    pub fn object(&self) -> String {
        format!("{}/{}", self.name, self.digest)
    }
}

/// Maximum increase of the generation, over the highest that a node accepted, by a signer with a
/// policy.
pub const MAX_GENERATION_STEP: u64 = 1_000_000;

/// Returns the generation of the next assignment, from the present assignment's and the last one that
/// the node reported. A present generation beyond the maximum step was never accepted and is ignored.
pub fn next_generation(present: u64, reported: u64) -> u64 {
    let is_far = present > reported.saturating_add(MAX_GENERATION_STEP);
    let highest = match is_far {
        true => reported,
        false => present.max(reported),
    };
    highest.saturating_add(1)
}

/// Assignment of a node: its manifests and their data. The highest generation of the newest
/// incarnation wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub protocol: String,
    pub generation: u64,
    /// Incarnation of the fleet; none from older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    pub manifests: Vec<BundleRef>,
    #[serde(default)]
    pub data: Value,
    /// Applied in noop mode: the node reports what it would change.
    #[serde(default)]
    pub noop: bool,
    /// Governor slot needed for the first run of the assignment; later runs need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorClaim>,
    /// Rollout that created the assignment, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Token>,
    #[serde(with = "timestamp")]
    pub assigned: DateTime<Utc>,
    /// Signature; a node with configured signers refuses an unsigned assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<AssignmentSignature>,
}

impl Assignment {
    /// Returns the bytes signed for one node: every field that affects what the node applies. The
    /// serialization is canonical: a list, with sorted maps. Numbers are written as on the wire, where
    /// 5.0 is written as 5.
    pub fn signable(&self, node: &NodeName) -> Result<Vec<u8>, serde_json::Error> {
        let version = "ccm.assignment.v1";
        let parts = (
            version,
            node,
            self.generation,
            &self.manifests,
            &self.data,
            self.noop,
        );
        // Without a governor or an incarnation the bytes are the same as before these existed.
        match (&self.governor, &self.incarnation) {
            (None, None) => json::compact(&parts),
            (Some(claim), None) => json::compact(&(parts, claim)),
            (claim, Some(incarnation)) => json::compact(&(parts, claim, incarnation)),
        }
        .map(String::into_bytes)
    }
}

/// Report of a node on the assignment that it last applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    pub protocol: String,
    pub identity: NodeName,
    pub generation: u64,
    /// Incarnation of the assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    pub manifests: Vec<BundleRef>,
    /// Run that applied the assignment, if it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunSummary>,
    #[serde(default)]
    pub drift: Vec<Drift>,
    /// Resources that the noop check could not compare with the assignment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchecked: Vec<UncheckedResource>,
    /// What found the drift: the last run, or a later noop check.
    #[serde(default)]
    pub source: ReportSource,
    /// Error that kept the node from applying the assignment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Refusal of the current assignment, if the node refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
}

impl NodeReport {
    /// Reports whether it is about an earlier assignment than this one.
    pub fn is_before(&self, assignment: &Assignment) -> bool {
        let (own, other) = (self.incarnation.as_ref(), assignment.incarnation.as_ref());
        self.generation < assignment.generation || Incarnation::differs(own, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_affects_the_node_is_signed() {
        let node: NodeName = "web1.lab".parse().unwrap();
        let digest = "0f".repeat(32).parse().unwrap();
        let name = "app".parse().unwrap();
        let assignment = Assignment {
            protocol: ASSIGNMENT.into(),
            generation: 4,
            incarnation: None,
            manifests: vec![BundleRef { name, digest }],
            data: [("whole", 5.0), ("part", 31.245270191439438)]
                .map(|(name, number)| (name, Value::from(number)))
                .into_iter()
                .collect(),
            noop: false,
            governor: None,
            rollout: None,
            assigned: DateTime::UNIX_EPOCH,
            signature: None,
        };
        let signable = assignment.signable(&node).unwrap();
        let stored = json::compact(&assignment).unwrap();
        let read: Assignment = serde_json::from_str(&stored).unwrap();
        assert_eq!(read.signable(&node).unwrap(), signable);
        let changes: [fn(&mut Assignment); 7] = [
            |assignment| assignment.generation = 5,
            |assignment| {
                assignment.incarnation = Some(Incarnation::new(DateTime::UNIX_EPOCH, 1));
            },
            |assignment| assignment.manifests.clear(),
            |assignment| assignment.manifests[0].digest = "1f".repeat(32).parse().unwrap(),
            |assignment| assignment.data = "x".into(),
            |assignment| assignment.noop = true,
            |assignment| assignment.governor = Some(GovernorClaim::new("deploys".parse().unwrap())),
        ];
        for change in changes {
            let mut changed = assignment.clone();
            change(&mut changed);
            assert_ne!(changed.signable(&node).unwrap(), signable);
        }
        let other = "web2.lab".parse().unwrap();
        assert_ne!(assignment.signable(&other).unwrap(), signable);
    }

    #[test]
    fn an_open_node_and_a_recent_refusal_are_noted() {
        let note = |trust: &str| {
            let text = format!(
                r#"{{"protocol":"p","identity":"a","collective":"c","version":"1","beat":30,
                "started":"2027-01-15T08:00:00Z","timestamp":"2027-01-15T08:00:00Z",
                "trust":{trust}}}"#
            );
            let status: NodeStatus = serde_json::from_str(&text).unwrap();
            status.note()
        };
        assert_eq!(note("null"), "");
        assert_eq!(note(r#"{"required":true}"#), "");
        assert_eq!(note(r#"{"open":true}"#), "accepts unsigned requests");
        let refused = |time: &str| {
            format!(
                r#"{{"required":true,"last_refusal":{{"time":"{time}","what":"ensure",
                "who":"ann","reason":"request is not signed"}}}}"#
            )
        };
        assert_eq!(
            note(&refused("2027-01-15T07:59:00Z")),
            "refused ensure by ann: request is not signed (2027-01-15T07:59:00Z)"
        );
        assert_eq!(note(&refused("2027-01-15T06:59:00Z")), "");
    }

    #[test]
    fn a_bundle_is_stored_under_its_name_and_digest() {
        let bundle = BundleRef {
            name: "app".parse().unwrap(),
            digest: "0f".repeat(32).parse().unwrap(),
        };
        assert_eq!(bundle.object(), format!("app/{}", "0f".repeat(32)));
        assert!("0F".repeat(32).parse::<BundleDigest>().is_err());
    }
}
