//! Enrolment: decides about requests of nodes that want to become members of the fleet.
//!
//! The rules are pure functions in `rules`; records are in `store`; [`Approver`] answers requests
//! and issues credentials with the signing key of agents, which can issue nothing else. The side of
//! the node is in the agent.

mod approver;
mod audit;
mod rules;
mod store;
mod tokens;

pub use approver::{Approval, Approver, Notice};
pub use store::{EnrolmentStore, Stored};
pub use tokens::{TokenRequest, create_token};

use std::path::PathBuf;

use crate::trust::TrustError;
use ccm_core::model::node::{NameError, NodeName};
use ccm_core::system::RandomError;
use ccm_core::system::files::BadPattern;
use ccm_nats::NatsError;
use ccm_nats::enrolment_token::TokenError;
use ccm_nats::jwt::JwtError;
use ccm_value::text::quote;

/// Why an operation on enrolments failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("can't sign the credentials")]
    Sign(#[source] JwtError),
    #[error("record {key} is invalid")]
    Record {
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("invalid name pattern {}", quote(.0))]
    Pattern(String, #[source] BadPattern),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{} contains no signing key of this fleet", .0.display())]
    Key(PathBuf),
    #[error("no request of node {0}")]
    NoRequest(NodeName),
    #[error("{count} requests of node {node}: select one by its key")]
    Ambiguous { node: NodeName, count: usize },
    #[error("node {node} is enrolled already, with key {public_key}")]
    Taken { node: NodeName, public_key: String },
    #[error("no token {0}")]
    NoToken(String),
    #[error("the key of node {0} was revoked: enroll the node with a new key")]
    Revoked(NodeName),
}
