//! The trust directory of a fleet: keys of the operator and of the accounts, signing keys of roles,
//! issued users, and the files of the NATS server.
//!
//! An account has one scoped signing key per role, so the key that a controller needs to enrol nodes
//! can't issue anything but agents. `accounts/fleet.jwt` is the current account; servers receive it
//! by [`ccm_nats::jwt::push_account`].
//!
//! - `init`: creates the directory
//! - `users`: issues credentials
//! - `role_rotation`: replaces the signing keys of roles
//! - `signer_rotation`: replaces the request signer
//! - `certificates` and `server_config`: files of the NATS server

mod certificates;
#[cfg(test)]
mod fixture;
mod init;
mod role_rotation;
mod server_config;
mod signer_rotation;
mod users;

pub use init::{InitOptions, TlsFiles};
pub use users::{IssuedUser, UserRecord, UserRequest};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::role_permissions::{self, AgentFeatures, FleetNames, Role};
use ccm_core::model::node::{NameError, Token};
use ccm_core::system::files::{self, Attributes, Content, Durability};
use ccm_core::system::{Clock, FileError, FileLock, LockError};
use ccm_nats::jwt::{
    self, Account, Claims, JwtError, Key, KeyKind, Permissions, SigningKey, SubjectList, UserScope,
    UserTemplate,
};
use ccm_nats::request_signature::KeyError;
use ccm_nats::{ContextError, ContextOptions, Settings, context};
use ccm_value::secret::Secret;

/// File with the public part of the directory.
const FLEET: &str = "fleet.json";

/// Maximum size of a file in the directory.
const MAX_FILE: u64 = 4 << 20;

/// Time to wait for another process that changes the directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Why an operation on a trust directory failed. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{} is not a trust directory: {FLEET} does not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is invalid", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}: {source}", path.display())]
    Jwt { path: PathBuf, source: JwtError },
    #[error("can't sign a JWT")]
    Sign(#[source] JwtError),
    #[error("can't store the request signer")]
    Signer(#[source] KeyError),
    #[error("can't create a certificate")]
    Certificate(#[source] rcgen::Error),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("name of the {role}: {source}")]
    Name { role: Role, source: NameError },
    #[error("not the public key of a user")]
    PublicKey,
    #[error("the request signer {0} was replaced and is not retired yet")]
    SignerNotRetired(String),
    #[error("there is no previous request signer")]
    NoPreviousSigner,
    #[error("{} is not the seed of the request signer {key} in {FLEET}", path.display())]
    SignerSeed { path: PathBuf, key: String },
    #[error("{} is not the seed of a signing key of role {role} in {FLEET}", path.display())]
    RoleSeed { path: PathBuf, role: Role },
}

/// The public part of a trust directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fleet {
    version: u8,
    pub collective: Token,
    pub prefix: String,
    /// URLs of the servers.
    pub servers: Vec<String>,
    operator: String,
    system_account: String,
    /// Public key of the account of the fleet.
    pub account: String,
    /// Public keys of the signing keys of each role; the last one signs, the others are still valid.
    roles: BTreeMap<Role, Vec<String>>,
    system_role: String,
    features: AgentFeatures,
    tls: ServerTls,
    /// Public key of the request signer.
    pub signer: String,
    /// Public key of the one before it, until that is retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_signer: Option<String>,
}

/// TLS files of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ServerTls {
    certificate: PathBuf,
    key: PathBuf,
    /// CA of the certificate; none for those of the system.
    ca: Option<PathBuf>,
    /// Names and addresses in a certificate that was created here; empty for a given one.
    #[serde(default)]
    hosts: Vec<String>,
}

/// An opened trust directory.
#[derive(Debug)]
pub struct TrustDir {
    path: PathBuf,
    pub fleet: Fleet,
}

impl TrustDir {
    /// Opens a directory.
    pub fn open(path: &Path) -> Result<Self, TrustError> {
        let file = path.join(FLEET);
        let text = match files::read_trusted(&file, MAX_FILE, files::AllowedWriters::None) {
            Err(err) if err.is_not_found() => {
                return Err(TrustError::NoDirectory(path.to_owned()));
            }
            text => text?,
        };
        let fleet = serde_json::from_str(&text)
            .map_err(|source| TrustError::Invalid { path: file, source })?;
        // Contexts and the server configuration contain absolute paths.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, fleet })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the directory.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Takes the lock of the directory, and reads it again.
    pub fn lock(&mut self, clock: &dyn Clock) -> Result<FileLock, TrustError> {
        let lock = FileLock::acquire(&self.at("lock"), "ccm fleet trust", LOCK_PATIENCE, clock)?;
        self.fleet = Self::open(&self.path)?.fleet;
        Ok(lock)
    }

    fn names(&self) -> FleetNames {
        FleetNames {
            prefix: self.fleet.prefix.clone(),
            collective: self.fleet.collective.clone(),
        }
    }

    /// Returns the settings of the user that updates accounts on servers.
    pub fn system_settings(&self) -> Result<Settings, TrustError> {
        self.settings("system")
    }

    /// Returns the settings of the first controller.
    pub fn controller_settings(&self) -> Result<Settings, TrustError> {
        self.settings("controller-main")
    }

    fn settings(&self, context: &str) -> Result<Settings, TrustError> {
        let file = self.at(&format!("contexts/{context}.json"));
        let options = ContextOptions {
            context: Some(file.display().to_string()),
            ..ContextOptions::default()
        };
        Ok(context::resolve(&options, &BTreeMap::new(), None)?)
    }

    /// Returns the CA certificates of the server in PEM; empty for those of the system.
    pub fn ca(&self) -> Result<String, TrustError> {
        match &self.fleet.tls.ca {
            Some(path) => Ok(files::read_to_string(path, MAX_FILE)?),
            None => Ok(String::new()),
        }
    }

    /// Returns the `trust` section of the agent configuration.
    pub fn agent_trust(&self) -> Result<String, TrustError> {
        let file = self.at("agent-trust.yaml");
        Ok(files::read_trusted(
            &file,
            MAX_FILE,
            files::AllowedWriters::None,
        )?)
    }

    /// Returns the JWT of the fleet's account.
    pub fn account_jwt(&self) -> Result<String, TrustError> {
        let text = files::read_to_string(&self.at("accounts/fleet.jwt"), MAX_FILE)?;
        Ok(text.trim().to_owned())
    }

    fn account(&self) -> Result<Claims<Account>, TrustError> {
        let verified = jwt::verify(&self.account_jwt()?).map_err(|source| TrustError::Jwt {
            path: self.at("accounts/fleet.jwt"),
            source,
        })?;
        Ok(verified.claims)
    }

    /// Revokes all JWTs of a user that were issued until now, and returns the new account.
    pub fn revoke(&self, public_key: &str, now: DateTime<Utc>) -> Result<String, TrustError> {
        if !jwt::is_user_key(public_key) {
            return Err(TrustError::PublicKey);
        }
        let mut account = self.account()?;
        let revoked = account.body.revocations.entry(public_key.into());
        let revoked = revoked.or_insert(0);
        *revoked = now.timestamp().max(*revoked);
        self.store_account(account, now)
    }

    /// Returns the time at which a user was revoked, if it was.
    pub fn revocations(&self) -> Result<BTreeMap<String, i64>, TrustError> {
        Ok(self.account()?.body.revocations)
    }

    /// Updates the permissions of all roles to those of this version, and returns the new account.
    pub fn refresh(&self, now: DateTime<Utc>) -> Result<String, TrustError> {
        let mut account = self.account()?;
        let keys = self.scopes();
        if account.body.signing_keys == keys {
            return self.account_jwt();
        }
        account.body.signing_keys = keys;
        self.store_account(account, now)
    }

    /// Creates a new certificate of the server; nothing if its certificate was not created here.
    pub fn renew_certificate(&self, now: DateTime<Utc>) -> Result<bool, TrustError> {
        let tls = &self.fleet.tls;
        if tls.hosts.is_empty() {
            return Ok(false);
        }
        let key = files::read_secret(&self.at("keys/ca.key"), MAX_FILE)?;
        let made = certificates::create_server_certificate(&Secret::new(key), &tls.hosts, now)?;
        store_public(&tls.certificate, &made.certificate)?;
        store_secret(&tls.key, &made.key)?;
        Ok(true)
    }

    /// Returns the scoped signing keys of all roles.
    fn scopes(&self) -> Vec<SigningKey> {
        let mut scopes = Vec::new();
        for (role, keys) in &self.fleet.roles {
            let permissions = role_permissions::scope(&self.names(), *role, &self.fleet.features);
            let mut template = UserTemplate::unlimited(permissions);
            // A token is one text, without a key beside it.
            template.bearer_token = *role == Role::Enroll;
            for key in keys {
                let scope = UserScope::new(key.clone(), role.as_str(), template.clone());
                scopes.push(SigningKey::Scoped(Box::new(scope)));
            }
        }
        scopes
    }

    /// Signs and stores the account of the fleet.
    fn store_account(
        &self,
        account: Claims<Account>,
        now: DateTime<Utc>,
    ) -> Result<String, TrustError> {
        // Servers keep the account with the later time, in whole seconds.
        let issued = now.max(account.issued + chrono::TimeDelta::seconds(1));
        let account = Claims { issued, ..account };
        let signer = self.key(KeyKind::Operator, "operator-signing")?;
        let jwt = account.sign(&signer).map_err(TrustError::Sign)?;
        store_public(&self.at("accounts/fleet.jwt"), &format!("{jwt}\n"))?;
        Ok(jwt)
    }

    fn store_fleet(&self) -> Result<(), TrustError> {
        let file = self.at(FLEET);
        let text = serde_json::to_string_pretty(&self.fleet).map_err(|source| {
            let path = file.clone();
            TrustError::Invalid { path, source }
        })?;
        store_public(&file, &format!("{text}\n"))
    }

    fn seed_path(&self, name: &str) -> PathBuf {
        self.at(&format!("keys/{name}.seed"))
    }

    fn key(&self, kind: KeyKind, name: &str) -> Result<Key, TrustError> {
        let path = self.seed_path(name);
        let seed = files::read_secret(&path, MAX_FILE)?;
        Key::from_seed(kind, &seed).map_err(|source| TrustError::Jwt { path, source })
    }

    fn store_key(&self, name: &str, key: &Key) -> Result<(), TrustError> {
        let seed = key.seed().map_err(TrustError::Sign)?;
        store_secret(
            &self.seed_path(name),
            &Secret::new(format!("{}\n", seed.reveal())),
        )
    }
}

/// Permissions that allow nothing.
fn nothing() -> Permissions {
    let none = SubjectList {
        allow: Vec::new(),
        deny: vec![">".into()],
    };
    Permissions {
        publish: none.clone(),
        subscribe: none,
        resp: None,
    }
}

fn store_public(path: &Path, text: &str) -> Result<(), TrustError> {
    store(path, text, 0o644)
}

fn store_secret(path: &Path, text: &Secret) -> Result<(), TrustError> {
    store(path, text.reveal(), 0o600)
}

fn store(path: &Path, text: &str, mode: u32) -> Result<(), TrustError> {
    let attributes = Attributes {
        mode: Some(mode),
        ..Attributes::default()
    };
    let content = Content::Bytes(text.as_bytes());
    files::store(path, content, &attributes, Durability::Complete)?;
    Ok(())
}
