//! Authenticity of requests, and signed replies, as in Choria's security with tokens.
//!
//! A request is authentic if the issuer of an organization that this node trusts signed the
//! token of its caller, that token has not expired and permits requests to nodes, and the key in it
//! signed the request. A caller whose token requires it needs the signature of a delegator of the
//! same organization instead. A request is valid for its time to live. Replays are detected by the
//! agent, which has the storage for it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::key::{ChoriaKey, ChoriaKeyError, ChoriaSeed};
use super::message::{MessageError, Reply, Request, SecureReply, SecureRequest, TransportMessage};
use super::token::{ClientClaims, ServerClaims, TokenError, organization};
use ccm_core::system::Digest;
use ccm_value::secret::Secret;

/// Longest time to live that is granted: requests are stored as long to detect replays.
const MAX_TTL: u64 = 60 * 60;

/// Why a request is refused. No message contains text of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("token of the caller: {0}")]
    CallerToken(TokenError),
    #[error("token of the signer: {0}")]
    SignerToken(TokenError),
    #[error("the token of the caller permits no requests to nodes")]
    NoFleetManagement,
    #[error("the token of the caller requires the signature of a delegator")]
    NeedsDelegator,
    #[error("the token of the signer permits no signatures for others")]
    NoDelegator,
    #[error("the token of the caller has an Open Policy Agent policy, which is not supported here")]
    OpaPolicy,
    #[error("the request names another caller than the token")]
    OtherCaller,
    #[error("the signature does not match the request")]
    Signature,
    #[error("the request is older than its time to live")]
    Expired,
    #[error("the request is from the future")]
    Future,
}

/// Public keys of the issuers that are trusted, by organization.
#[derive(Clone, Debug)]
pub struct TrustChain {
    issuers: BTreeMap<String, ChoriaKey>,
}

/// An authentic request.
#[derive(Clone, Debug)]
pub struct AuthenticRequest {
    pub request: Request,
    /// Verified claims of the caller.
    pub claims: ClientClaims,
    /// Key that signed the request.
    pub signer: ChoriaKey,
    /// Name in the token of that key: the caller, or its delegator.
    pub signer_name: String,
    /// Digest of the signed bytes: the same for a replayed request.
    pub digest: Digest,
    /// When the request expires.
    pub expiry: DateTime<Utc>,
}

impl TrustChain {
    pub fn new(issuers: impl IntoIterator<Item = (String, ChoriaKey)>) -> Self {
        let issuers = issuers.into_iter().collect();
        Self { issuers }
    }

    /// Reports whether nobody is trusted.
    pub fn is_empty(&self) -> bool {
        self.issuers.is_empty()
    }

    fn issuer_of(&self, token: &str) -> Result<&ChoriaKey, TokenError> {
        let name = organization(token)?;
        self.issuers.get(&name).ok_or(TokenError::UnknownIssuer)
    }

    /// Authenticates the request in a transport message.
    pub fn authenticate(
        &self,
        transport: &TransportMessage,
        now: DateTime<Utc>,
    ) -> Result<AuthenticRequest, SecurityError> {
        let secure = SecureRequest::decode(transport.data())?;
        let (claims, signer, signer_name) = match secure.signer_token() {
            None => self.verify_caller(secure.caller_token(), now)?,
            Some(token) => self.verify_delegated(secure.caller_token(), token, now)?,
        };
        if !signer.is_signature_valid(secure.request(), secure.signature()) {
            return Err(SecurityError::Signature);
        }
        let request = Request::decode(secure.request())?;
        // A delegator has authenticated the caller itself and may name it.
        if secure.signer_token().is_none() && request.caller != claims.caller {
            return Err(SecurityError::OtherCaller);
        }
        if claims.has_opa_policy() {
            return Err(SecurityError::OpaPolicy);
        }
        let ttl = TimeDelta::seconds(request.ttl.min(MAX_TTL).cast_signed());
        let age = now.signed_duration_since(request.time());
        if age > ttl {
            return Err(SecurityError::Expired);
        }
        if -age > ttl {
            return Err(SecurityError::Future);
        }
        Ok(AuthenticRequest {
            claims,
            signer,
            signer_name,
            digest: Digest::of(secure.request()),
            expiry: request.time() + ttl,
            request,
        })
    }

    /// Verifies the token of a caller that signed the request itself, and returns its key and name.
    fn verify_caller(
        &self,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<(ClientClaims, ChoriaKey, String), SecurityError> {
        let verify = || {
            let claims = ClientClaims::verify(token, self.issuer_of(token)?, now)?;
            let key = claims.public_key()?;
            Ok((claims, key))
        };
        let (claims, key) = verify().map_err(SecurityError::CallerToken)?;
        if claims.permissions.signed_fleet_management {
            return Err(SecurityError::NeedsDelegator);
        }
        if !claims.permissions.fleet_management {
            return Err(SecurityError::NoFleetManagement);
        }
        let name = claims.caller.clone();
        Ok((claims, key, name))
    }

    /// Verifies the tokens of a caller and of the delegator that signed, and returns key and name of
    /// the delegator. Both must be of the same organization.
    fn verify_delegated(
        &self,
        caller: &str,
        delegator: &str,
        now: DateTime<Utc>,
    ) -> Result<(ClientClaims, ChoriaKey, String), SecurityError> {
        let verify = || {
            let issuer = self.issuer_of(delegator)?;
            let claims = ClientClaims::verify(delegator, issuer, now)?;
            let key = claims.public_key()?;
            Ok((issuer, claims, key))
        };
        let (issuer, signer, key) = verify().map_err(SecurityError::SignerToken)?;
        if !signer.permissions.authentication_delegator {
            return Err(SecurityError::NoDelegator);
        }
        let claims =
            ClientClaims::verify(caller, issuer, now).map_err(SecurityError::CallerToken)?;
        let permissions = claims.permissions;
        if !(permissions.fleet_management || permissions.signed_fleet_management) {
            return Err(SecurityError::NoFleetManagement);
        }
        Ok((claims, key, signer.caller))
    }

    /// Verifies the token of a server.
    pub fn verify_server(
        &self,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<ServerClaims, TokenError> {
        ServerClaims::verify(token, self.issuer_of(token)?, now)
    }
}

/// Why a node can't sign replies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerKeyError {
    #[error(transparent)]
    Seed(#[from] ChoriaKeyError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("the seed is not that of the token")]
    OtherKey,
    #[error("the token is for {0}")]
    OtherIdentity(String),
    #[error("the token is not for collective {0}")]
    OtherCollective(String),
}

/// Token and seed of a server, which sign its replies.
#[derive(Clone, Debug)]
pub struct ServerKey {
    token: Secret,
    seed: ChoriaSeed,
    claims: ServerClaims,
}

impl ServerKey {
    /// Verifies the token of a node with its seed.
    pub fn new(
        token: &Secret,
        seed: &Secret,
        identity: &str,
        chain: &TrustChain,
        now: DateTime<Utc>,
    ) -> Result<Self, ServerKeyError> {
        let token = Secret::new(token.reveal().trim());
        let seed = ChoriaSeed::parse(seed)?;
        let claims = chain.verify_server(token.reveal(), now)?;
        if claims.public_key()? != seed.public_key() {
            return Err(ServerKeyError::OtherKey);
        }
        if claims.identity != identity {
            return Err(ServerKeyError::OtherIdentity(claims.identity));
        }
        Ok(Self {
            token,
            seed,
            claims,
        })
    }

    pub fn claims(&self) -> &ServerClaims {
        &self.claims
    }

    /// Returns the signed reply to a request as the data of a transport message.
    pub fn reply(&self, reply: &Reply) -> Result<Vec<u8>, MessageError> {
        let reply = reply.encode()?;
        let signature = self.seed.sign(&reply);
        SecureReply::new(reply, signature, self.token.reveal()).encode()
    }

    /// Returns a request of this server, as it publishes registration data.
    pub fn request(&self, request: &Request) -> Result<Vec<u8>, MessageError> {
        let request = request.encode()?;
        let signature = self.seed.sign(&request);
        SecureRequest::new(request, signature, self.token.reveal()).encode()
    }
}
