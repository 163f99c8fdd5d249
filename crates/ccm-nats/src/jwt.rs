//! NATS JWTs, version 2: claims of operators, accounts and users, signed with nkeys.
//!
//! An account lists scoped signing keys: a user JWT signed with one of them has the permissions of
//! its template and none of its own, so whoever holds the key can't grant more. Which roles there
//! are, and where keys are stored, is not decided here. [`push_account`] updates running servers.

mod push;

pub use push::push_account;

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::{KeyPair, KeyPairType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use ccm_core::system::Digest;
use ccm_value::secret::Secret;

/// Version of the claims.
const VERSION: u8 = 2;

/// Algorithm of the signature.
const ALGORITHM: &str = "ed25519-nkey";

/// Maximum length of a JWT; an account with 5,000 revocations is smaller.
const MAX_LENGTH: usize = 1 << 20;

/// Why a JWT or a key is invalid. No message contains text of the JWT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("not a NATS JWT")]
    Format,
    #[error("the claims of the JWT are invalid")]
    Claims,
    #[error("the JWT is not of type {0}")]
    Type(&'static str),
    #[error("the signature of the JWT is invalid")]
    Signature,
    #[error("the seed can't sign")]
    Seed,
    #[error("not the seed of {0}")]
    Kind(KeyKind),
}

/// The owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Operator,
    Account,
    User,
}

impl KeyKind {
    fn pair_type(self) -> KeyPairType {
        match self {
            Self::Operator => KeyPairType::Operator,
            Self::Account => KeyPairType::Account,
            Self::User => KeyPairType::User,
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Operator => "an operator",
            Self::Account => "an account",
            Self::User => "a user",
        })
    }
}

/// A key of an operator, account or user.
#[derive(Clone)]
pub struct Key(KeyPair);

impl Key {
    /// Returns a new key.
    pub fn generate(kind: KeyKind) -> Self {
        Self(KeyPair::new(kind.pair_type()))
    }

    /// Returns the key of a seed, if it is of this kind.
    pub fn from_seed(kind: KeyKind, seed: &str) -> Result<Self, JwtError> {
        let pair = KeyPair::from_seed(seed.trim()).map_err(|_| JwtError::Kind(kind))?;
        if pair.key_pair_type() != kind.pair_type() {
            return Err(JwtError::Kind(kind));
        }
        Ok(Self(pair))
    }

    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    /// Returns the secret seed.
    pub fn seed(&self) -> Result<Secret, JwtError> {
        self.0.seed().map(Secret::new).map_err(|_| JwtError::Seed)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({})", self.public_key())
    }
}

/// Reports whether a text is the public key of a user.
pub fn is_user_key(text: &str) -> bool {
    text.starts_with('U') && KeyPair::from_public_key(text).is_ok()
}

/// The part of the claims that depends on their type.
pub trait ClaimType: Serialize + DeserializeOwned {
    /// The value of `type`.
    const TYPE: &'static str;
}

/// Claims of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signing_keys: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub system_account: String,
}

impl ClaimType for Operator {
    const TYPE: &'static str = "operator";
}

/// Claims of an account. Fields that this program does not use are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    pub limits: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signing_keys: Vec<SigningKey>,
    /// Public keys of users, or `*`, with the time up to which their JWTs are revoked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revocations: BTreeMap<String, i64>,
    /// Permissions of users that were signed with a key without scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_permissions: Option<Permissions>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ClaimType for Account {
    const TYPE: &'static str = "account";
}

impl Account {
    /// Returns an account without limits; without JetStream if `has_jetstream` is false.
    pub fn unlimited(has_jetstream: bool) -> Self {
        let mut limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1,
        });
        if has_jetstream && let Some(limits) = limits.as_object_mut() {
            for name in ["mem_storage", "disk_storage", "streams", "consumer"] {
                limits.insert(name.into(), (-1).into());
            }
        }
        Self {
            limits: limits.as_object().cloned().unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// A signing key of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SigningKey {
    Scoped(Box<UserScope>),
    /// A key that may sign any user.
    Plain(String),
}

/// A signing key whose users have the permissions of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserScope {
    kind: String,
    pub key: String,
    pub role: String,
    pub template: UserTemplate,
    #[serde(default)]
    description: String,
}

impl UserScope {
    pub fn new(key: String, role: &str, template: UserTemplate) -> Self {
        Self {
            kind: "user_scope".into(),
            key,
            role: role.into(),
            template,
            description: String::new(),
        }
    }
}

/// Permissions and limits of users of a scope. Subjects may contain `{{name()}}` and
/// `{{tag(NAME)}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserTemplate {
    #[serde(flatten)]
    pub permissions: Permissions,
    pub subs: i64,
    pub data: i64,
    pub payload: i64,
    /// The JWT alone is sufficient to connect; the key is not needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bearer_token: bool,
}

impl UserTemplate {
    /// Returns a template without limits on subscriptions and messages.
    pub fn unlimited(permissions: Permissions) -> Self {
        Self {
            permissions,
            subs: -1,
            data: -1,
            payload: -1,
            bearer_token: false,
        }
    }
}

/// Permissions of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions {
    #[serde(rename = "pub", default, skip_serializing_if = "SubjectList::is_empty")]
    pub publish: SubjectList,
    #[serde(rename = "sub", default, skip_serializing_if = "SubjectList::is_empty")]
    pub subscribe: SubjectList,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp: Option<Responses>,
}

/// Allowed and denied subjects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectList {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl SubjectList {
    fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }
}

/// Permission to reply to received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Responses {
    pub max: i64,
    /// Time limit in nanoseconds.
    pub ttl: i64,
}

/// Claims of a user that was signed with a scoped key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Public key of the account, whose signing key is the issuer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub issuer_account: String,
    /// `name:value`, for templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

impl ClaimType for User {
    const TYPE: &'static str = "user";
}

/// The claims of a JWT.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims<T> {
    pub name: String,
    /// Public key that the claims are about.
    pub subject: String,
    /// In whole seconds.
    pub issued: DateTime<Utc>,
    pub expires: Option<DateTime<Utc>>,
    pub body: T,
}

/// The claims of a JWT as JSON.
#[derive(Serialize, Deserialize)]
struct Document<T> {
    #[serde(default)]
    jti: String,
    iat: i64,
    iss: String,
    #[serde(default)]
    name: String,
    sub: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    nats: Typed<T>,
}

#[derive(Serialize, Deserialize)]
struct Typed<T> {
    #[serde(flatten)]
    body: T,
    #[serde(rename = "type")]
    type_name: String,
    version: u8,
}

impl<T: ClaimType> Claims<T> {
    /// Returns the JWT of these claims, signed with a key.
    pub fn sign(&self, issuer: &Key) -> Result<String, JwtError>
    where
        T: Clone,
    {
        let mut document = Document {
            jti: String::new(),
            iat: self.issued.timestamp(),
            iss: issuer.public_key(),
            name: self.name.clone(),
            sub: self.subject.clone(),
            exp: self.expires.map(|time| time.timestamp()),
            nats: Typed {
                body: self.body.clone(),
                type_name: T::TYPE.into(),
                version: VERSION,
            },
        };
        // The id identifies the content: servers compare the ids of two versions of an account.
        let bytes = serde_json::to_vec(&document).map_err(|_| JwtError::Claims)?;
        document.jti = BASE32_NOPAD.encode(Digest::of(&bytes).as_bytes());
        let header = json!({ "typ": "JWT", "alg": ALGORITHM }).to_string();
        let body = serde_json::to_vec(&document).map_err(|_| JwtError::Claims)?;
        let signed = format!(
            "{}.{}",
            BASE64URL_NOPAD.encode(header.as_bytes()),
            BASE64URL_NOPAD.encode(&body)
        );
        let signature = issuer.0.sign(signed.as_bytes());
        let signature = BASE64URL_NOPAD.encode(&signature.map_err(|_| JwtError::Seed)?);
        Ok(format!("{signed}.{signature}"))
    }
}

/// A verified JWT.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<T> {
    pub claims: Claims<T>,
    /// Public key of the signer. The caller decides whether it is trusted.
    pub issuer: String,
}

/// Decodes a JWT and verifies that its issuer signed it.
pub fn verify<T: ClaimType>(text: &str) -> Result<Verified<T>, JwtError> {
    let text = text.trim();
    if text.len() > MAX_LENGTH {
        return Err(JwtError::Format);
    }
    let (signed, signature) = text.rsplit_once('.').ok_or(JwtError::Format)?;
    let (header, body) = signed.split_once('.').ok_or(JwtError::Format)?;
    let decode = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes());
    let decode = |text: &str| decode(text).map_err(|_| JwtError::Format);
    let header: Value = serde_json::from_slice(&decode(header)?).map_err(|_| JwtError::Format)?;
    if header.get("alg").and_then(Value::as_str) != Some(ALGORITHM) {
        return Err(JwtError::Format);
    }
    let body = decode(body)?;
    let issuer: Value = serde_json::from_slice(&body).map_err(|_| JwtError::Claims)?;
    let issuer = issuer.get("iss").and_then(Value::as_str);
    let issuer = issuer.ok_or(JwtError::Claims)?.to_owned();
    let key = KeyPair::from_public_key(&issuer).map_err(|_| JwtError::Claims)?;
    key.verify(signed.as_bytes(), &decode(signature)?)
        .map_err(|_| JwtError::Signature)?;
    let type_name: Document<Map<String, Value>> =
        serde_json::from_slice(&body).map_err(|_| JwtError::Claims)?;
    if type_name.nats.type_name != T::TYPE || type_name.nats.version != VERSION {
        return Err(JwtError::Type(T::TYPE));
    }
    let document: Document<T> = serde_json::from_slice(&body).map_err(|_| JwtError::Claims)?;
    let time = |seconds| DateTime::from_timestamp(seconds, 0).ok_or(JwtError::Claims);
    Ok(Verified {
        claims: Claims {
            name: document.name,
            subject: document.sub,
            issued: time(document.iat)?,
            expires: document.exp.map(time).transpose()?,
            body: document.nats.body,
        },
        issuer,
    })
}

/// Returns the text of a credentials file.
pub fn credentials(jwt: &str, seed: &Secret) -> Secret {
    Secret::new(format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        seed.reveal()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims<T>(subject: &Key, body: T) -> Claims<T> {
        Claims {
            name: "web1".into(),
            subject: subject.public_key(),
            issued: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            expires: DateTime::from_timestamp(1_800_000_000, 0),
            body,
        }
    }

    #[test]
    fn signed_claims_are_verified_and_equal() {
        let (issuer, user) = (
            Key::generate(KeyKind::Account),
            Key::generate(KeyKind::User),
        );
        let body = User {
            issuer_account: "A".into(),
            tags: vec!["node:web1".into()],
        };
        let claims = claims(&user, body);
        let jwt = claims.sign(&issuer).unwrap();
        let verified: Verified<User> = verify(&jwt).unwrap();
        assert_eq!(verified.claims, claims);
        assert_eq!(verified.issuer, issuer.public_key());
    }

    #[test]
    fn altered_and_foreign_text_is_rejected() {
        let issuer = Key::generate(KeyKind::Account);
        let jwt = claims(&Key::generate(KeyKind::User), User::default())
            .sign(&issuer)
            .unwrap();
        let (signed, _) = jwt.rsplit_once('.').unwrap();
        let other = claims(&Key::generate(KeyKind::User), User::default())
            .sign(&issuer)
            .unwrap();
        let (_, foreign) = other.rsplit_once('.').unwrap();
        let swapped = format!("{signed}.{foreign}");
        assert_eq!(verify::<User>(&swapped), Err(JwtError::Signature));
        assert_eq!(verify::<Account>(&jwt), Err(JwtError::Type("account")));
        for bad in ["", "a.b", "a.b.c", "..", &jwt[1..]] {
            assert!(verify::<User>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_account_keeps_fields_that_are_not_used() {
        let mut account = Account::unlimited(true);
        let scope = UserScope::new(
            "AKEY".into(),
            "agent",
            UserTemplate::unlimited(Permissions::default()),
        );
        account.signing_keys = vec![
            SigningKey::Scoped(Box::new(scope)),
            SigningKey::Plain("B".into()),
        ];
        account.revocations.insert("U".into(), 5);
        account.other.insert("exports".into(), json!([1]));
        let operator = Key::generate(KeyKind::Operator);
        let jwt = claims(&Key::generate(KeyKind::Account), account.clone());
        let jwt = jwt.sign(&operator).unwrap();
        let read = verify::<Account>(&jwt).unwrap().claims.body;
        assert_eq!(read.other.get("exports"), Some(&json!([1])));
        assert_eq!(
            (read.signing_keys, read.revocations),
            (account.signing_keys, account.revocations)
        );
    }

    #[test]
    fn a_seed_of_another_kind_is_rejected() {
        let seed = Key::generate(KeyKind::User).seed().unwrap();
        let error = Key::from_seed(KeyKind::Account, seed.reveal()).unwrap_err();
        assert_eq!(error.to_string(), "not the seed of an account");
        assert!(is_user_key(&Key::generate(KeyKind::User).public_key()));
        assert!(!is_user_key(&Key::generate(KeyKind::Account).public_key()));
    }
}
