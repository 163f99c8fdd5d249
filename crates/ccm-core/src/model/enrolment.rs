//! Enrolment of nodes: requests, replies, and the records of tokens, requests and enrolled nodes.
//!
//! A node creates its own key and signs its request with it, so a request never contains a secret.
//! How requests are decided is in `ccm_fleet::enrolment`.

use std::fmt;
use std::net::IpAddr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::governor::GovernorName;
use super::node::{NodeName, Token};
use super::text::{maybe_timestamp, timestamp};

pub const ENROLMENT_REQUEST: &str = "io.choria.ccm.v1.enrolment.request";
pub const ENROLMENT_REPLY: &str = "io.choria.ccm.v1.enrolment.reply";

/// Request of a node to become a member of the fleet. The signer of the message is its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolmentRequest {
    pub protocol: String,
    pub node: NodeName,
    /// Version of the program on the node.
    #[serde(default)]
    pub version: String,
}

/// State of an enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnrolmentState {
    /// Waits for the decision of an operator.
    Pending,
    Approved,
    /// Rejected by an operator.
    Rejected,
    /// Refused by a rule: an invalid token, or a name that is taken.
    Refused,
}

/// Reply to an enrolment request, signed by the key that issues credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentReply {
    pub protocol: String,
    pub node: NodeName,
    /// Key of the node.
    pub public_key: String,
    pub state: EnrolmentState,
    /// Cause of a rejection or refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Credentials and settings of an approved node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<Membership>,
}

/// Credentials and settings of a member of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// JWT of the node's NATS user. Useless without the node's seed.
    pub jwt: String,
    pub collective: Token,
    pub subject_prefix: String,
    /// Prefix of the reply subjects that the node may subscribe to.
    pub inbox_prefix: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Token>,
    /// The `trust` section of the agent configuration, as YAML.
    pub trust: String,
}

/// Permissions of a node in addition to those that every node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeGrants {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Token>,
    /// Addresses at which the node registers services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub governors: Vec<GovernorName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub object_buckets: Vec<Token>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_buckets: Vec<Token>,
}

impl NodeGrants {
    /// Returns the names of the lists and their values as tokens of a subject. The names are those
    /// of the placeholders in `packaging/nats` and of the tags in JWTs.
    pub fn lists(&self) -> [(&'static str, Vec<String>); 5] {
        let words = |tokens: &[Token]| tokens.iter().map(Token::to_string).collect();
        let address = |address: &IpAddr| address.to_string().replace('.', "_");
        [
            ("group", words(&self.groups)),
            ("address", self.addresses.iter().map(address).collect()),
            (
                "governor",
                self.governors.iter().map(|name| name.to_string()).collect(),
            ),
            ("objects", words(&self.object_buckets)),
            ("values", words(&self.kv_buckets)),
        ]
    }

    /// Returns the tags of the node's JWT.
    pub fn tags(&self, node: &NodeName) -> Vec<String> {
        let mut tags = vec![format!("node:{}", node.token()), format!("identity:{node}")];
        for (name, values) in self.lists() {
            tags.extend(values.into_iter().map(|value| format!("{name}:{value}")));
        }
        tags
    }
}

/// A token that permits nodes to send enrolment requests. Its secret is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentToken {
    pub id: Token,
    /// Public key of the token's NATS user.
    pub public_key: String,
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    pub created_by: String,
    #[serde(
        default,
        with = "maybe_timestamp",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires: Option<DateTime<Utc>>,
    /// Whether requests are approved without an operator.
    pub automatic: bool,
    /// Maximum number of approved nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    /// Number of approved nodes.
    #[serde(default)]
    pub approved: u32,
    /// Patterns of permitted node names; empty permits all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    #[serde(default)]
    pub grants: NodeGrants,
    #[serde(default)]
    pub revoked: bool,
}

/// A request that waits for a decision, or was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingNode {
    pub node: NodeName,
    pub public_key: String,
    /// Token that the request was sent with.
    pub token: Token,
    pub version: String,
    #[serde(with = "timestamp")]
    pub requested: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejection>,
}

/// The rejection of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    #[serde(with = "timestamp")]
    pub time: DateTime<Utc>,
    pub by: String,
    pub reason: String,
}

/// An enrolled node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledNode {
    pub node: NodeName,
    pub public_key: String,
    /// Operator, or the token of an automatic approval.
    pub approved_by: String,
    #[serde(with = "timestamp")]
    pub approved: DateTime<Utc>,
    #[serde(default)]
    pub grants: NodeGrants,
    pub jwt: String,
    #[serde(
        default,
        with = "maybe_timestamp",
        skip_serializing_if = "Option::is_none"
    )]
    pub revoked: Option<DateTime<Utc>>,
}

impl fmt::Display for EnrolmentState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Refused => "refused",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_become_tags_with_tokens_of_subjects() {
        let grants = NodeGrants {
            groups: vec!["web".parse().unwrap()],
            addresses: vec!["10.0.0.1".parse().unwrap()],
            ..NodeGrants::default()
        };
        let tags = grants.tags(&"web1.example.net".parse().unwrap());
        assert_eq!(
            tags,
            [
                "node:web1_example_net",
                "identity:web1.example.net",
                "group:web",
                "address:10_0_0_1"
            ]
        );
    }

    #[test]
    fn requests_reject_unknown_fields() {
        let text = r#"{"protocol":"x","node":"web1","version":"1","groups":["db"]}"#;
        assert!(serde_json::from_str::<EnrolmentRequest>(text).is_err());
    }
}
