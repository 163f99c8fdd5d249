//! Creation of a trust directory.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::users::{UserRequest, context_document};
use super::{
    Fleet, ServerTls, TrustDir, TrustError, certificates, nothing, role_rotation, server_config,
    store_public, store_secret,
};
use crate::role_permissions::{AgentFeatures, FleetNames, Role};
use ccm_core::model::enrolment::NodeGrants;
use ccm_core::system::files::{self, Attributes};
use ccm_nats::jwt::{
    self, Account, Claims, Key, KeyKind, Operator, Permissions, SigningKey, SubjectList, User,
    UserScope, UserTemplate,
};
use ccm_nats::request_signature::Signer;
use ccm_value::secret::Secret;

/// Name of the system user, and of its context.
const SYSTEM: &str = "system";

/// Name of the request signer in the agents' configuration.
const SIGNER: &str = "fleet";

/// Settings of a new trust directory.
#[derive(Clone, Debug)]
pub struct InitOptions {
    pub names: FleetNames,
    /// Address and port of the NATS server.
    pub listen: String,
    /// Names and addresses of the server; the first is in the contexts.
    pub hosts: Vec<String>,
    /// Port in the contexts.
    pub port: u16,
    pub features: AgentFeatures,
    /// Existing certificate; else a CA is created.
    pub tls: Option<TlsFiles>,
}

/// Existing TLS files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// CA of the certificate; none for those of the system.
    pub ca: Option<PathBuf>,
}

/// Keys of a new fleet.
struct Keys {
    operator: Key,
    operator_signing: Key,
    system: Key,
    system_role: Key,
    account: Key,
    roles: Vec<(Role, Key)>,
    signer: Signer,
}

impl Keys {
    fn generate() -> Self {
        let account = || Key::generate(KeyKind::Account);
        Self {
            operator: Key::generate(KeyKind::Operator),
            operator_signing: Key::generate(KeyKind::Operator),
            system: account(),
            system_role: account(),
            account: account(),
            roles: Role::ALL.map(|role| (role, account())).into(),
            signer: Signer::generate(),
        }
    }
}

impl TrustDir {
    /// Creates a trust directory, which must not exist or be empty.
    pub fn init(
        path: &Path,
        options: &InitOptions,
        now: DateTime<Utc>,
    ) -> Result<Self, TrustError> {
        if files::inspect(path, true)?.is_some() && !files::list(path)?.is_empty() {
            return Err(TrustError::NotEmpty(path.to_owned()));
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        create_directories(&path)?;
        let keys = Keys::generate();
        let tls = prepare_tls(&path, options, now)?;
        let directory = Self {
            fleet: fleet(options, &keys, tls),
            path,
        };
        directory.store_keys(&keys)?;
        directory.store_accounts(&keys, now)?;
        directory.store_system_user(&keys, now)?;
        directory.store_agent_trust()?;
        let text = server_config::text(&directory.fleet, &directory.path, &options.listen);
        store_public(&directory.at("nats.conf"), &text)?;
        // Written last: without it the directory is not a trust directory.
        directory.store_fleet()?;
        directory.issue_first_users(now)?;
        Ok(directory)
    }

    fn store_keys(&self, keys: &Keys) -> Result<(), TrustError> {
        for (name, key) in [
            ("operator", &keys.operator),
            ("operator-signing", &keys.operator_signing),
            ("system-account", &keys.system),
            ("role-system", &keys.system_role),
            ("account", &keys.account),
        ] {
            self.store_key(name, key)?;
        }
        for (role, key) in &keys.roles {
            self.store_key(&role_rotation::current(*role), key)?;
        }
        self.store_first_signer(&keys.signer)
    }

    fn store_accounts(&self, keys: &Keys, now: DateTime<Utc>) -> Result<(), TrustError> {
        let operator = Claims {
            name: "ccm".into(),
            subject: keys.operator.public_key(),
            issued: now,
            expires: None,
            body: Operator {
                signing_keys: vec![keys.operator_signing.public_key()],
                system_account: keys.system.public_key(),
            },
        };
        let jwt = operator.sign(&keys.operator).map_err(TrustError::Sign)?;
        store_public(&self.at("operator.jwt"), &format!("{jwt}\n"))?;
        let mut system = Account::unlimited(false);
        system.signing_keys = vec![system_scope(keys.system_role.public_key())];
        system.default_permissions = Some(nothing());
        let mut fleet = Account::unlimited(true);
        fleet.signing_keys = self.scopes();
        fleet.default_permissions = Some(nothing());
        for (file, name, key, body) in [
            ("system", "SYS", &keys.system, system),
            ("fleet", "FLEET", &keys.account, fleet),
        ] {
            let account = Claims {
                name: name.into(),
                subject: key.public_key(),
                issued: now,
                expires: None,
                body,
            };
            let jwt = account.sign(&keys.operator_signing);
            let jwt = jwt.map_err(TrustError::Sign)?;
            store_public(
                &self.at(&format!("accounts/{file}.jwt")),
                &format!("{jwt}\n"),
            )?;
            // The server reads accounts from here at its first start, and updates them itself.
            let file = format!("resolver/{}.jwt", key.public_key());
            store_public(&self.at(&file), &jwt)?;
        }
        Ok(())
    }

    /// Creates the user that updates accounts on servers.
    fn store_system_user(&self, keys: &Keys, now: DateTime<Utc>) -> Result<(), TrustError> {
        let key = Key::generate(KeyKind::User);
        let claims = Claims {
            name: SYSTEM.into(),
            subject: key.public_key(),
            issued: now,
            expires: None,
            body: User {
                issuer_account: keys.system.public_key(),
                tags: Vec::new(),
            },
        };
        let jwt = claims.sign(&keys.system_role).map_err(TrustError::Sign)?;
        let creds = jwt::credentials(&jwt, &key.seed().map_err(TrustError::Sign)?);
        let file = self.at("creds/system.creds");
        store_secret(&file, &creds)?;
        self.store_context(SYSTEM, &file, &format!("_INBOX_{SYSTEM}"))?;
        Ok(())
    }

    /// Stores the context of a user, and returns its path.
    pub(super) fn store_context(
        &self,
        name: &str,
        creds: &Path,
        inbox: &str,
    ) -> Result<PathBuf, TrustError> {
        let document = context_document(&self.fleet, creds, inbox);
        let path = self.at(&format!("contexts/{name}.json"));
        store_secret(&path, &Secret::new(format!("{document:#}\n")))?;
        Ok(path)
    }

    fn store_agent_trust(&self) -> Result<(), TrustError> {
        let text = format!(
            "# Signers that agents trust. Part of the configuration of every enrolled node.\n\
             trust:\n  required: true\n  signers:\n    - name: {SIGNER}\n      key: {}\n",
            self.fleet.signer
        );
        store_public(&self.at("agent-trust.yaml"), &text)
    }

    /// Issues an operator and a controller, with contexts.
    fn issue_first_users(&self, now: DateTime<Utc>) -> Result<(), TrustError> {
        for (role, name) in [(Role::Operator, "admin"), (Role::Controller, "main")] {
            let request = UserRequest {
                role,
                name: name.into(),
                public_key: None,
                expires: None,
                grants: NodeGrants::default(),
            };
            let issued = self.issue(&request, now)?;
            if let Some(creds) = &issued.creds {
                self.store_user(&issued, creds)?;
            }
        }
        Ok(())
    }
}

fn create_directories(path: &Path) -> Result<(), TrustError> {
    // The server may run as another user, and reads some of it.
    let attributes = |mode| Attributes {
        mode: Some(mode),
        ..Attributes::default()
    };
    files::create_directory(path, &attributes(0o755))?;
    for (name, mode) in [
        ("keys", 0o700),
        ("creds", 0o700),
        ("contexts", 0o700),
        ("users", 0o700),
        ("accounts", 0o755),
        ("resolver", 0o755),
        ("jetstream", 0o700),
        ("tls", 0o755),
    ] {
        files::create_directory(&path.join(name), &attributes(mode))?;
    }
    Ok(())
}

/// Creates a CA and a certificate, unless there is one.
fn prepare_tls(
    path: &Path,
    options: &InitOptions,
    now: DateTime<Utc>,
) -> Result<ServerTls, TrustError> {
    if let Some(given) = &options.tls {
        return Ok(ServerTls {
            certificate: given.certificate.clone(),
            key: given.key.clone(),
            ca: given.ca.clone(),
            hosts: Vec::new(),
        });
    }
    let authority = certificates::create_authority(now)?;
    let server = certificates::create_server_certificate(&authority.key, &options.hosts, now)?;
    let tls = ServerTls {
        certificate: path.join("tls/server.pem"),
        key: path.join("tls/server.key"),
        ca: Some(path.join("tls/ca.pem")),
        hosts: options.hosts.clone(),
    };
    store_secret(&path.join("keys/ca.key"), &authority.key)?;
    store_public(&path.join("tls/ca.pem"), &authority.certificate)?;
    store_public(&tls.certificate, &server.certificate)?;
    store_secret(&tls.key, &server.key)?;
    Ok(tls)
}

fn fleet(options: &InitOptions, keys: &Keys, tls: ServerTls) -> Fleet {
    let host = options.hosts.first().map_or("127.0.0.1", String::as_str);
    let host = certificates::url_host(host);
    let roles = keys.roles.iter();
    Fleet {
        version: 1,
        collective: options.names.collective.clone(),
        prefix: options.names.prefix.clone(),
        servers: vec![format!("tls://{host}:{}", options.port)],
        operator: keys.operator.public_key(),
        system_account: keys.system.public_key(),
        account: keys.account.public_key(),
        roles: roles
            .map(|(role, key)| (*role, vec![key.public_key()]))
            .collect(),
        system_role: keys.system_role.public_key(),
        features: options.features.clone(),
        tls,
        signer: keys.signer.public_key(),
        previous_signer: None,
    }
}

/// Returns the signing key of system users.
fn system_scope(key: String) -> SigningKey {
    let subjects = SubjectList {
        allow: vec!["$SYS.>".into(), "_INBOX_{{name()}}.>".into()],
        deny: Vec::new(),
    };
    let permissions = Permissions {
        publish: subjects.clone(),
        subscribe: subjects,
        resp: None,
    };
    let template = UserTemplate::unlimited(permissions);
    SigningKey::Scoped(Box::new(UserScope::new(key, SYSTEM, template)))
}
