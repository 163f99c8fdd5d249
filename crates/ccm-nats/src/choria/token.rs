//! Tokens of Choria: JSON web tokens of clients and servers, signed with ed25519.
//!
//! A token is signed by the issuer of its organization, or by a chain issuer: a client whose own
//! token the issuer signed. The chain is in two claims of the token: `iss` is
//! `C-ID.KEY` of the chain issuer, and `tcs` is the issuer's signature of `ID.KEY`, a dot, and the
//! chain issuer's signature of the token's id and the first part. Tokens of other algorithms, and
//! tokens that do not expire, are refused. No error contains text of a token.

use chrono::{DateTime, Utc};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::key::ChoriaKey;
use ccm_core::model::id::EventId;

/// Value of `purpose` in tokens of clients.
const CLIENT: &str = "choria_client_id";

/// Value of `purpose` in tokens of servers.
const SERVER: &str = "choria_server";

/// Prefix of `iss` in tokens signed by the issuer of an organization.
const ORG_ISSUER: &str = "I-";

/// Prefix of `iss` in tokens signed by a chain issuer.
const CHAIN_ISSUER: &str = "C-";

/// Maximum length of a token: policies are part of it.
const MAX_TOKEN: usize = 256 * 1024;

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not a token of Choria")]
    Format,
    #[error("the token is not signed with ed25519")]
    Algorithm,
    #[error("the token is not that of a {0}")]
    Purpose(&'static str),
    #[error("the organization of the token has no issuer here")]
    UnknownIssuer,
    #[error("the token is not signed by the issuer of its organization")]
    Signature,
    #[error("the token has no valid chain of trust to the issuer of its organization")]
    Chain,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token has no valid public key")]
    PublicKey,
}

/// Claims that all tokens have.
#[derive(Clone, Debug, Deserialize)]
struct StandardClaims {
    #[serde(default)]
    purpose: String,
    /// Trust chain signature.
    #[serde(default)]
    tcs: String,
    #[serde(default)]
    public_key: String,
    /// Expiry of the chain issuer.
    #[serde(default, deserialize_with = "seconds")]
    issexp: Option<i64>,
    #[serde(default)]
    iss: String,
    #[serde(default)]
    jti: String,
    #[serde(default, deserialize_with = "seconds")]
    iat: Option<i64>,
    #[serde(default, deserialize_with = "seconds")]
    nbf: Option<i64>,
    #[serde(default, deserialize_with = "seconds")]
    exp: Option<i64>,
    /// Organization.
    #[serde(default)]
    ou: String,
}

/// Reads a time in seconds, which may have a fraction.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let number = Option::<serde_json::Number>::deserialize(from)?;
    Ok(number.and_then(|number| {
        let whole = number.as_f64().map(|seconds| seconds.floor() as i64);
        number.as_i64().or(whole)
    }))
}

/// Permissions of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClientPermissions {
    /// May send requests to nodes.
    pub fleet_management: bool,
    /// May send requests that a delegator signed.
    pub signed_fleet_management: bool,
    /// May sign requests of others.
    pub authentication_delegator: bool,
}

/// Claims of a client token.
#[derive(Clone, Debug, Deserialize)]
pub struct ClientClaims {
    #[serde(default, rename = "callerid")]
    pub caller: String,
    /// `agent.action`, `agent.*` or `*`; empty if the token has no such policy.
    #[serde(default)]
    pub agents: Vec<String>,
    #[serde(default)]
    opa_policy: String,
    #[serde(default)]
    pub permissions: ClientPermissions,
    #[serde(flatten)]
    standard: StandardClaims,
}

impl ClientClaims {
    /// Parses a token and verifies it with the key of an issuer.
    pub fn verify(token: &str, issuer: &ChoriaKey, now: DateTime<Utc>) -> Result<Self, TokenError> {
        let token = Token::split(token)?;
        let claims: Self = token.claims()?;
        claims.standard.check(&token, issuer, CLIENT, now)?;
        Ok(claims)
    }

    pub fn public_key(&self) -> Result<ChoriaKey, TokenError> {
        self.standard.public_key()
    }

    /// Reports whether the token has a policy for Open Policy Agent.
    pub fn has_opa_policy(&self) -> bool {
        !self.opa_policy.is_empty()
    }

    /// Reports whether the policy of the token allows an action; `None` if it has none.
    pub fn allows(&self, agent: &str, action: &str) -> Option<bool> {
        if self.agents.is_empty() {
            return None;
        }
        let is_match = |allowed: &String| {
            let parts: Vec<&str> = allowed.split('.').collect();
            match parts.as_slice() {
                ["*"] => true,
                [name, "*"] => *name == agent,
                [name, allowed] => *name == agent && *allowed == action,
                _ => false,
            }
        };
        // An entry that can't be understood may have been meant as a limit.
        let is_valid = |allowed: &String| allowed == "*" || allowed.split('.').count() == 2;
        Some(self.agents.iter().all(is_valid) && self.agents.iter().any(is_match))
    }
}

/// Claims of a server token.
#[derive(Clone, Debug, Deserialize)]
pub struct ServerClaims {
    #[serde(default)]
    pub identity: String,
    #[serde(default)]
    pub collectives: Vec<String>,
    #[serde(flatten)]
    standard: StandardClaims,
}

impl ServerClaims {
    /// Parses a token and verifies it with the key of an issuer.
    pub fn verify(token: &str, issuer: &ChoriaKey, now: DateTime<Utc>) -> Result<Self, TokenError> {
        let token = Token::split(token)?;
        let claims: Self = token.claims()?;
        claims.standard.check(&token, issuer, SERVER, now)?;
        Ok(claims)
    }

    pub fn public_key(&self) -> Result<ChoriaKey, TokenError> {
        self.standard.public_key()
    }

    /// Returns when the token expires.
    pub fn expiry(&self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp(self.standard.earliest_expiry()?, 0)
    }
}

/// Returns the organization that a token names, without verifying the token.
pub(super) fn organization(token: &str) -> Result<String, TokenError> {
    let claims: StandardClaims = Token::split(token)?.claims()?;
    Ok(claims.ou)
}

impl StandardClaims {
    fn public_key(&self) -> Result<ChoriaKey, TokenError> {
        self.public_key.parse().map_err(|_| TokenError::PublicKey)
    }

    /// Checks signature, purpose and times.
    fn check(
        &self,
        token: &Token<'_>,
        issuer: &ChoriaKey,
        purpose: &str,
        now: DateTime<Utc>,
    ) -> Result<(), TokenError> {
        let key = match self.iss.strip_prefix(CHAIN_ISSUER) {
            Some(chain_issuer) => self.chain_issuer(chain_issuer, issuer)?,
            None => *issuer,
        };
        if !key.is_signature_valid(token.signed.as_bytes(), &token.signature) {
            return Err(TokenError::Signature);
        }
        if let Some(named) = self.iss.strip_prefix(ORG_ISSUER)
            && named.parse::<ChoriaKey>() != Ok(*issuer)
        {
            return Err(TokenError::Signature);
        }
        if self.purpose != purpose {
            let wanted = if purpose == CLIENT {
                "client"
            } else {
                "server"
            };
            return Err(TokenError::Purpose(wanted));
        }
        let now = now.timestamp();
        if self.earliest_expiry().is_none_or(|expiry| expiry <= now) {
            return Err(TokenError::Expired);
        }
        if self.nbf.is_some_and(|start| start > now) {
            return Err(TokenError::NotYetValid);
        }
        Ok(())
    }

    fn earliest_expiry(&self) -> Option<i64> {
        match self.issexp {
            Some(issuer) => self.exp.map(|expiry| expiry.min(issuer)),
            None => self.exp,
        }
    }

    /// Verifies that the issuer of the organization signed the chain issuer `ID.KEY`, and that
    /// one for this token. Returns the key of the chain issuer.
    fn chain_issuer(&self, named: &str, issuer: &ChoriaKey) -> Result<ChoriaKey, TokenError> {
        let is_made_at_its_time = self
            .jti
            .parse::<EventId>()
            .is_ok_and(|id| Some(id.time().timestamp()) == self.iat);
        if !is_made_at_its_time || self.public_key.is_empty() || self.issexp.is_none() {
            return Err(TokenError::Chain);
        }
        let (id, key) = split_once(named)?;
        let key: ChoriaKey = key.parse().map_err(|_| TokenError::Chain)?;
        let (of_issuer, of_chain) = split_once(&self.tcs)?;
        let decode = |text: &str| {
            let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
            bytes.map_err(|_| TokenError::Chain)
        };
        let certified = format!("{id}.{}", key.to_hex());
        let made = format!("{}.{of_issuer}", self.jti);
        let is_valid = issuer.is_signature_valid(certified.as_bytes(), &decode(of_issuer)?)
            && key.is_signature_valid(made.as_bytes(), &decode(of_chain)?);
        is_valid.then_some(key).ok_or(TokenError::Chain)
    }
}

/// Splits a text that has exactly one dot, with text on both sides.
fn split_once(text: &str) -> Result<(&str, &str), TokenError> {
    match text.split_once('.') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains('.') => Ok((a, b)),
        _ => Err(TokenError::Chain),
    }
}

/// A token whose signature is not verified yet.
struct Token<'t> {
    /// Header and claims.
    signed: &'t str,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'t> Token<'t> {
    fn split(text: &'t str) -> Result<Self, TokenError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
        }
        let text = text.trim();
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Format)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Format)?;
        if text.len() > MAX_TOKEN {
            return Err(TokenError::Format);
        }
        let decode = |part: &str| {
            let bytes = BASE64URL_NOPAD.decode(part.as_bytes());
            bytes.map_err(|_| TokenError::Format)
        };
        let header: Header =
            serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Format)?;
        if header.alg != "EdDSA" {
            return Err(TokenError::Algorithm);
        }
        Ok(Self {
            signed,
            claims: decode(claims)?,
            signature: decode(signature)?,
        })
    }

    fn claims<C: DeserializeOwned>(&self) -> Result<C, TokenError> {
        serde_json::from_slice(&self.claims).map_err(|_| TokenError::Format)
    }
}
