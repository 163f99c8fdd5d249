//! Users of the fleet's account: issued credentials and their records.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Fleet, MAX_FILE, TrustDir, TrustError, store_secret};
use crate::role_permissions::{self, Role};
use ccm_core::model::enrolment::NodeGrants;
use ccm_core::model::node::{NameError, NodeName, Token};
use ccm_core::system::files;
use ccm_nats::jwt::{self, Claims, Key, KeyKind, User};
use ccm_value::secret::Secret;
use ccm_value::text::{maybe_timestamp, timestamp};

/// A user to issue.
#[derive(Clone, Debug)]
pub struct UserRequest {
    pub role: Role,
    /// Name of a node for agents, else one word.
    pub name: String,
    /// Public key of the user; else a key is created.
    pub public_key: Option<String>,
    pub expires: Option<DateTime<Utc>>,
    /// Permissions of an agent.
    pub grants: NodeGrants,
}

/// Record of an issued user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    pub role: Role,
    pub name: String,
    pub public_key: String,
    #[serde(with = "timestamp")]
    pub issued: DateTime<Utc>,
    #[serde(
        default,
        with = "maybe_timestamp",
        skip_serializing_if = "Option::is_none"
    )]
    pub expires: Option<DateTime<Utc>>,
    /// Signing key of the role at that time.
    pub issuer: String,
}

/// An issued user.
#[derive(Debug)]
pub struct IssuedUser {
    pub record: UserRecord,
    pub jwt: String,
    /// Text of the credentials file; none if the key was not created here.
    pub creds: Option<Secret>,
    pub inbox_prefix: String,
}

impl TrustDir {
    /// Issues a user and records it; replaces the record of an earlier one.
    pub fn issue(
        &self,
        request: &UserRequest,
        now: DateTime<Utc>,
    ) -> Result<IssuedUser, TrustError> {
        let (word, tags) = word_and_tags(request)?;
        let (public_key, seed) = match &request.public_key {
            Some(key) if jwt::is_user_key(key) => (key.clone(), None),
            Some(_) => return Err(TrustError::PublicKey),
            None => {
                let key = Key::generate(KeyKind::User);
                let seed = key.seed().map_err(TrustError::Sign)?;
                (key.public_key(), Some(seed))
            }
        };
        let issuer = self.role_key(request.role)?;
        let claims = Claims {
            name: request.name.clone(),
            subject: public_key.clone(),
            issued: now,
            expires: request.expires,
            body: User {
                issuer_account: self.fleet.account.clone(),
                tags,
            },
        };
        let jwt = claims.sign(&issuer).map_err(TrustError::Sign)?;
        let record = UserRecord {
            role: request.role,
            name: request.name.clone(),
            public_key,
            issued: now,
            expires: request.expires,
            issuer: issuer.public_key(),
        };
        self.store_record(&record)?;
        Ok(IssuedUser {
            creds: seed.map(|seed| jwt::credentials(&jwt, &seed)),
            jwt,
            inbox_prefix: role_permissions::inbox_prefix(request.role, word.as_str()),
            record,
        })
    }

    /// Returns the record of a user, if it was issued from this directory.
    pub fn user(&self, role: Role, name: &str) -> Result<Option<UserRecord>, TrustError> {
        let mut users = self.users()?.into_iter();
        Ok(users.find(|user| user.role == role && user.name == name))
    }

    /// Returns all issued users, sorted by role and name.
    pub fn users(&self) -> Result<Vec<UserRecord>, TrustError> {
        let directory = self.at("users");
        let mut users = Vec::new();
        for name in files::list(&directory)? {
            let path = directory.join(name);
            let text = files::read_to_string(&path, MAX_FILE)?;
            let record: UserRecord = serde_json::from_str(&text)
                .map_err(|source| TrustError::Invalid { path, source })?;
            users.push(record);
        }
        users.sort_by(|a, b| (a.role, &a.name).cmp(&(b.role, &b.name)));
        Ok(users)
    }

    /// Reports whether the key that signed a user is the current one of its role.
    pub fn is_current(&self, user: &UserRecord) -> bool {
        self.is_current_key(user.role, &user.issuer)
    }

    /// Reports whether the current signing key of a role has signed a JWT.
    pub fn has_signed(&self, role: Role, jwt: &str) -> bool {
        jwt::verify::<User>(jwt).is_ok_and(|verified| self.is_current_key(role, &verified.issuer))
    }

    /// Returns the valid users of a role that a previous key has signed, among those that were issued
    /// from this directory.
    pub fn users_of_previous_keys(
        &self,
        role: Role,
        now: DateTime<Utc>,
    ) -> Result<Vec<UserRecord>, TrustError> {
        let revoked = self.revocations()?;
        let mut users = self.users()?;
        users.retain(|user| {
            let is_valid = !revoked.contains_key(&user.public_key)
                && user.expires.is_none_or(|expires| expires > now);
            user.role == role && is_valid && !self.is_current(user)
        });
        Ok(users)
    }

    fn is_current_key(&self, role: Role, key: &str) -> bool {
        let keys = self.fleet.roles.get(&role);
        keys.and_then(|keys| keys.last())
            .is_some_and(|it| it == key)
    }

    /// Writes credentials and context of a user into files, and returns the path of the context.
    pub fn store_user(&self, issued: &IssuedUser, creds: &Secret) -> Result<PathBuf, TrustError> {
        let name = format!("{}-{}", issued.record.role, issued.record.name);
        let file = self.at(&format!("creds/{name}.creds"));
        store_secret(&file, creds)?;
        self.store_context(&name, &file, &issued.inbox_prefix)
    }

    fn store_record(&self, record: &UserRecord) -> Result<(), TrustError> {
        let path = self.at(&format!("users/{}-{}.json", record.role, record.name));
        let text = serde_json::to_string(record).map_err(|source| {
            let path = path.clone();
            TrustError::Invalid { path, source }
        })?;
        store_secret(&path, &Secret::new(text))
    }
}

/// Validates the name, and returns it as one word of a subject, with the tags of the JWT.
fn word_and_tags(request: &UserRequest) -> Result<(Token, Vec<String>), TrustError> {
    let bad = |err: NameError| TrustError::Name {
        role: request.role,
        source: err,
    };
    match request.role {
        Role::Agent => {
            let node: NodeName = request.name.parse().map_err(bad)?;
            Ok((node.token(), request.grants.tags(&node)))
        }
        _ => Ok((request.name.parse().map_err(bad)?, Vec::new())),
    }
}

/// Returns the context of a user, for the `nats` command and for `ccm`.
pub(super) fn context_document(fleet: &Fleet, creds: &Path, inbox: &str) -> Value {
    let mut document = json!({
        "description": "ccm fleet",
        "url": fleet.servers.join(","),
        "creds": creds,
        "inbox_prefix": inbox,
    });
    if let (Some(ca), Some(fields)) = (&fleet.tls.ca, document.as_object_mut()) {
        fields.insert("ca".into(), json!(ca));
    }
    document
}
