//! Nodes: how one is named, what it says about itself, what it should be and what it became.
//!
//! A name is valid from the moment it exists, so whoever holds one may put its token into a
//! subject, a key or a file name without looking at it again.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::decision::AssignmentSignature;
use super::event::TransactionEvent;
use super::governor::GovernorClaim;
use super::run::{CurrentRun, RunSummary};
use super::secret::redact_urls;
use super::text::{maybe_timestamp, quote, timestamp, to_the_second};
use super::{Value, json};

pub const NODE_STATUS: &str = "io.choria.ccm.v1.node.status";
pub const ASSIGNMENT: &str = "io.choria.ccm.v1.node.assignment";
pub const REPORT: &str = "io.choria.ccm.v1.node.report";

/// The longest name of a node; DNS allows no longer one.
const MAX_NAME: usize = 253;

/// The longest text of a refusal.
const MAX_REFUSAL_TEXT: usize = 1024;

/// What is said about a node whose file says `trust: {required: false}`.
const OPEN: &str = "obeys unsigned requests";

/// The longest single word of a subject that we make; the name of every node fits into one.
const MAX_TOKEN: usize = MAX_NAME;

/// A text that names no node, collective or group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("invalid identity {}: use lower case letters, digits, '.' and '-'", quote(.0))]
    Identity(String),
    #[error("invalid name {}: use letters, digits, '_' and '-'", quote(.0))]
    Token(String),
    #[error("invalid digest {}: expected 64 hex digits", quote(.0))]
    Digest(String),
}

/// The identity of a node: its lower-case fully qualified domain name, unless configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as one word of a subject or key.
    pub fn token(&self) -> Token {
        Token(self.0.replace('.', "_"))
    }
}

impl NodeName {
    /// Returns the name of a host that has none of its own.
    pub fn localhost() -> Self {
        Self("localhost".into())
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
        let has_empty_part = text.split('.').any(str::is_empty);
        if text.len() > MAX_NAME || has_empty_part || !text.chars().all(plain) {
            return Err(NameError::Identity(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// One word of a subject: a collective, a group, or the name of a node with its dots replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(String);

impl Token {
    /// Returns the collective of nodes that name none.
    pub fn default_collective() -> Self {
        Self("default".into())
    }

    /// Returns Choria's collective of nodes that name none.
    pub fn choria_collective() -> Self {
        Self("mcollective".into())
    }

    /// Returns what this program is called.
    pub fn program() -> Self {
        Self("ccm".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if text.is_empty() || text.len() > MAX_TOKEN || !text.chars().all(plain) {
            return Err(NameError::Token(text.into()));
        }
        Ok(Self(text.into()))
    }
}

/// The SHA-256 of a bundle, in hex: what a manifest is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleDigest(String);

impl BundleDigest {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BundleDigest {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if text.len() != 64 || !text.chars().all(hex) {
            return Err(NameError::Digest(text.into()));
        }
        Ok(Self(text.into()))
    }
}

macro_rules! text_newtype {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    )*};
}

text_newtype!(NodeName, Token, BundleDigest);

/// Why a node leaves its assignment and schedule alone, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub reason: String,
    /// Who asked for it, as far as the caller said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
    /// When it ends by itself.
    #[serde(
        default,
        with = "maybe_timestamp",
        skip_serializing_if = "Option::is_none"
    )]
    pub until: Option<DateTime<Utc>>,
}

/// What waits on a node's disk for the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolStatus {
    pub pending: u64,
    /// How many events were given up because the spool was full, since it was made.
    pub dropped: u64,
}

/// An order that a node did not obey, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    #[serde(with = "timestamp")]
    pub time: DateTime<Utc>,
    /// The verb of the request, or `assignment`.
    pub what: String,
    /// The generation of the assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Who asked: the signer, or what an unproven caller says; empty if nobody says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub reason: String,
}

impl Refusal {
    /// What an assignment is called.
    pub const ASSIGNMENT: &str = "assignment";

    /// Returns it with texts that are safe to publish again and again: much of it was written by
    /// whoever was refused.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        for text in [&mut self.who, &mut self.reason] {
            let kept = text.chars().filter(|c| !c.is_control());
            *text = kept.take(MAX_REFUSAL_TEXT).collect();
        }
        self
    }

    /// Reports whether two are the same order, refused for the same reason.
    pub fn is_repeated_by(&self, other: &Self) -> bool {
        let time = other.time;
        Self {
            time,
            ..self.clone()
        } == *other
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

/// Whose orders a node obeys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustStatus {
    /// Requests and assignments without a trusted signature are refused: the agent's file says so,
    /// or says nothing while the agent has a NATS server that is not on its machine.
    #[serde(default)]
    pub required: bool,
    /// The agent's file says `trust: {required: false}`: whoever NATS lets through is obeyed.
    #[serde(default)]
    pub open: bool,
    /// What was last refused since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<Refusal>,
}

/// What a node says about itself: the answer to a ping, and its presence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub protocol: String,
    pub identity: NodeName,
    pub collective: Token,
    #[serde(default)]
    pub groups: Vec<Token>,
    /// The version of the agent.
    pub version: String,
    #[serde(with = "timestamp")]
    pub started: DateTime<Utc>,
    /// When this was said.
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    /// Seconds between two beats of presence.
    pub beat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_run: Option<CurrentRun>,
    /// How many runs wait behind the current one.
    #[serde(default)]
    pub queued: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunSummary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Whose orders it obeys; older agents do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<TrustStatus>,
    #[serde(default)]
    pub spool: SpoolStatus,
    /// The generation of the assignment that the node last converged to.
    #[serde(default)]
    pub generation: u64,
    /// Facts that selections use: what does not change from minute to minute.
    #[serde(default)]
    pub facts: Value,
}

/// How long a refusal is worth a note.
const NOTED: TimeDelta = TimeDelta::hours(1);

impl NodeStatus {
    /// Returns what one should know about whom the node obeys: that it is open to all, and what it
    /// refused lately. Empty where there is nothing to say.
    pub fn trust_note(&self) -> String {
        let Some(trust) = &self.trust else {
            return String::new();
        };
        let open = trust.open.then(|| OPEN.to_owned());
        let is_recent =
            |refusal: &&Refusal| self.timestamp.signed_duration_since(refusal.time) < NOTED;
        let refusal = trust.last_refusal.as_ref().filter(is_recent);
        let refusal =
            refusal.map(|refusal| format!("{refusal} ({})", to_the_second(&refusal.time)));
        let notes: Vec<String> = [open, refusal].into_iter().flatten().collect();
        notes.join("; ")
    }
}

/// A manifest bundle in the object store, by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleRef {
    pub name: Token,
    pub digest: BundleDigest,
}

impl BundleRef {
    /// Returns the name of the object that holds it.
    pub fn object(&self) -> String {
        format!("{}/{}", self.name, self.digest)
    }
}

/// How far a signer with a policy may count on from the highest generation that a node accepted.
pub const MAX_GENERATION_STEP: u64 = 1_000_000;

/// Returns the generation of the next assignment, from that of the present one and from the last
/// one that the node reported. One that is out of the node's reach was never accepted.
pub fn next_generation(present: u64, reported: u64) -> u64 {
    let is_far = present > reported.saturating_add(MAX_GENERATION_STEP);
    let highest = match is_far {
        true => reported,
        false => present.max(reported),
    };
    highest.saturating_add(1)
}

/// What a node should be: which manifests, with which data. The highest generation wins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub protocol: String,
    pub generation: u64,
    pub manifests: Vec<BundleRef>,
    #[serde(default)]
    pub data: Value,
    /// The node only says what it would do.
    #[serde(default)]
    pub noop: bool,
    /// The slot without which the node does not begin to converge; once it has, it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorClaim>,
    /// The rollout that made it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Token>,
    #[serde(with = "timestamp")]
    pub assigned: DateTime<Utc>,
    /// Who stands for it; nodes that know signers take no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<AssignmentSignature>,
}

impl Assignment {
    /// Returns what a signature for one node is made over: everything that decides what the node
    /// becomes. A list has one form, maps are sorted, so nothing else reads the same. Numbers are
    /// written as the wire has them: what left as 5.0 arrives as 5.
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
        // One that has no governor reads as it did before there were any.
        match &self.governor {
            None => json::compact(&parts),
            Some(claim) => json::compact(&(parts, claim)),
        }
        .map(String::into_bytes)
    }
}

/// One resource that is not as the assignment says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    #[serde(rename = "type")]
    pub type_name: String,
    pub name: String,
    /// What would be done about it, or why its health check fails.
    pub message: String,
    #[serde(with = "timestamp")]
    pub since: DateTime<Utc>,
}

impl Drift {
    /// Returns what an event says about a resource that is not as it should be after the run.
    pub fn from_event(event: &TransactionEvent, noop: bool) -> Option<Self> {
        let message = if event.failed {
            event.errors.join(", ")
        } else if event.changed && noop {
            match event.noop_message.as_str() {
                "" => "would change".to_owned(),
                message => message.to_owned(),
            }
        } else {
            return None;
        };
        Some(Self {
            type_name: event.type_name.clone(),
            // As it is stored, and as stored events name it.
            name: redact_urls(&event.name).into_owned(),
            message: redact_urls(&message).into_owned(),
            since: event.timestamp,
        })
    }

    /// Reports whether two are about the same resource.
    pub fn is_same_resource(&self, other: &Self) -> bool {
        self.type_name == other.type_name && self.name == other.name
    }
}

/// What a node last converged to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    pub protocol: String,
    pub identity: NodeName,
    pub generation: u64,
    pub manifests: Vec<BundleRef>,
    /// The run that led here, once there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunSummary>,
    #[serde(default)]
    pub drift: Vec<Drift>,
    /// Why the assignment could not even be tried.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Why the node does not follow the assignment that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_lower_case_domain_name() {
        for good in ["web1", "web1.example.net", "a-b.c", "10.0.0.1"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(254);
        for bad in [
            "", "Web1", "a_b", "a..b", ".a", "a.", "a b", "a*", "a>", &long,
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_token_of_a_name_has_no_dots() {
        let name: NodeName = "web1.example.net".parse().unwrap();
        assert_eq!(name.token().as_str(), "web1_example_net");
    }

    #[test]
    fn a_token_is_one_word_of_a_subject() {
        for bad in ["", "a.b", "*", ">", "a b", "é", &"a".repeat(254)] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
        assert!("DB_eu-1".parse::<Token>().is_ok());
    }

    #[test]
    fn the_token_of_the_longest_name_is_read_back() {
        let name: NodeName = format!("a{}", ".a".repeat(126)).parse().unwrap();
        let text = serde_json::to_string(&name.token()).unwrap();
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), name.token());
    }

    #[test]
    fn a_bad_name_in_a_document_is_refused_while_it_is_read() {
        let error = serde_json::from_str::<NodeName>("\"Bad Name\"").unwrap_err();
        assert!(
            error.to_string().contains("invalid identity \"Bad Name\""),
            "{error}"
        );
    }

    #[test]
    fn all_that_decides_what_a_node_becomes_is_signed() {
        let node: NodeName = "web1.lab".parse().unwrap();
        let digest = "0f".repeat(32).parse().unwrap();
        let name = "app".parse().unwrap();
        let assignment = Assignment {
            protocol: ASSIGNMENT.into(),
            generation: 4,
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
        let changes: [fn(&mut Assignment); 6] = [
            |assignment| assignment.generation = 5,
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
    fn whom_a_node_obeys_and_what_it_refused_lately_is_noted() {
        let note = |trust: &str| {
            let text = format!(
                r#"{{"protocol":"p","identity":"a","collective":"c","version":"1","beat":30,
                "started":"2027-01-15T08:00:00Z","timestamp":"2027-01-15T08:00:00Z",
                "trust":{trust}}}"#
            );
            let status: NodeStatus = serde_json::from_str(&text).unwrap();
            status.trust_note()
        };
        assert_eq!(note("null"), "");
        assert_eq!(note(r#"{"required":true}"#), "");
        assert_eq!(note(r#"{"open":true}"#), "obeys unsigned requests");
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
