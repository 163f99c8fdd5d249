//! Creation of enrolment tokens.

use chrono::{DateTime, Utc};

use super::{EnrolmentError, EnrolmentStore};
use crate::role_permissions::Role;
use crate::trust::TrustDir;
use ccm_core::model::enrolment::{EnrolmentToken, NodeGrants};
use ccm_core::model::node::Token;
use ccm_core::system::files::Glob;
use ccm_core::system::random;
use ccm_nats::enrolment_token::{TokenContent, TokenFleet};
use ccm_nats::jwt::{Claims, Key, KeyKind, User};
use ccm_value::secret::Secret;

/// A token to create.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    pub expires: Option<DateTime<Utc>>,
    /// Approve requests without an operator.
    pub automatic: bool,
    pub max_nodes: Option<u32>,
    pub patterns: Vec<String>,
    pub grants: NodeGrants,
    pub created_by: String,
}

/// Creates a token, stores its record, and returns the record with the secret text.
pub async fn create_token(
    store: &EnrolmentStore,
    trust: &TrustDir,
    request: TokenRequest,
    now: DateTime<Utc>,
) -> Result<(EnrolmentToken, Secret), EnrolmentError> {
    for pattern in &request.patterns {
        Glob::parse(pattern).map_err(|err| EnrolmentError::Pattern(pattern.clone(), err))?;
    }
    let id = format!("{:010x}", random()? >> 88);
    let id: Token = id.parse()?;
    // A bearer token needs no key: only its public part identifies the user in revocations.
    let public_key = Key::generate(KeyKind::User).public_key();
    let claims = Claims {
        name: id.to_string(),
        subject: public_key.clone(),
        issued: now,
        expires: request.expires,
        body: User {
            issuer_account: trust.fleet.account.clone(),
            tags: Vec::new(),
        },
    };
    let jwt = claims.sign(&trust.role_key(Role::Enroll)?);
    let content = TokenContent {
        jwt: Secret::new(jwt.map_err(EnrolmentError::Sign)?),
        issuer: trust.role_key(Role::Agent)?.public_key(),
        ca: trust.ca()?,
        fleet: TokenFleet {
            servers: trust.fleet.servers.clone(),
            collective: trust.fleet.collective.clone(),
            prefix: trust.fleet.prefix.clone(),
        },
    };
    let text = content.encode()?;
    let token = EnrolmentToken {
        id,
        public_key,
        created: now,
        created_by: request.created_by,
        expires: request.expires,
        automatic: request.automatic,
        max_nodes: request.max_nodes,
        approved: 0,
        patterns: request.patterns,
        grants: request.grants,
        revoked: false,
    };
    store.put_token(&token, None).await?;
    Ok((token, text))
}
