//! Connection settings: servers and credentials, from contexts of the `nats` command.
//!
//! A context is a JSON file in `nats/context/` of the user's configuration directory. Command-line
//! flags and `NATS_…` variables override it. Errors name the field and the context, never a secret.
//! `secrets` resolves values given by URI; `server` parses server URLs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use ccm_core::system::{FileError, files, users};
use ccm_value::secret::Secret;
use ccm_value::text::quote;

mod secrets;
mod server;

pub use secrets::{CredentialSource, SecretError};
pub use server::Server;

/// The server if none is configured.
const DEFAULT_SERVER: &str = "nats://127.0.0.1:4222";

/// Maximum size of a context file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why the connection settings can't be determined.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("invalid context name {}", quote(.0))]
    Name(String),
    #[error("unknown context {}: {} does not exist", quote(.name), path.display())]
    Unknown { name: String, path: PathBuf },
    #[error("context {context}: {cause}")]
    File {
        context: String,
        #[source]
        cause: FileError,
    },
    /// Without the parser's message, which quotes the file.
    #[error("context {context} is not valid JSON, at line {line}")]
    Json { context: String, line: usize },
    #[error("{origin}: {field} is not supported")]
    Unsupported { origin: String, field: &'static str },
    #[error("{origin}: {field} {source}")]
    Field {
        origin: String,
        field: &'static str,
        source: SecretError,
    },
    #[error("a password needs a user: use --user or NATS_USER")]
    NoUser,
    #[error("invalid server {}: {reason}", quote(.server))]
    Server { server: String, reason: String },
}

/// Server, context and credentials from the command line, and defaults of the configuration file.
#[derive(Clone, Debug, Default)]
pub struct ContextOptions {
    /// `--server`: comma-separated URLs. Overrides everything else.
    pub server: Option<String>,
    /// `--context`: must exist.
    pub context: Option<String>,
    /// Servers of the configuration file; overridden by a variable.
    pub configured_server: Option<String>,
    /// Context of the configuration file; overridden by a variable, must exist.
    pub configured_context: Option<String>,
    /// Override those of the environment and the context.
    pub credentials: CredentialFlags,
}

/// Credentials and certificates of the command line, named as in the `nats` command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialFlags {
    /// User name, or a token if there is no password.
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub creds: Option<String>,
    pub nkey: Option<String>,
    pub tls_ca: Option<String>,
    pub tls_cert: Option<String>,
    pub tls_key: Option<String>,
}

impl CredentialFlags {
    /// Reports whether a user, a credentials file or an nkey was given.
    fn has_login(&self) -> bool {
        let login = [&self.user, &self.creds, &self.nkey];
        login
            .into_iter()
            .any(|flag| filled(flag.as_ref()).is_some())
    }
}

/// Credentials of the client.
#[derive(Clone, Debug, Default)]
pub enum Login {
    #[default]
    Anonymous,
    Password {
        user: String,
        password: Secret,
    },
    /// A `.creds` file: a user JWT and its nkey seed.
    Creds(CredentialSource),
    /// An nkey seed.
    Nkey(CredentialSource),
    /// A user JWT with its seed; a bearer token without one.
    Jwt {
        jwt: Secret,
        seed: Option<Secret>,
    },
    /// A token of Choria with its ed25519 seed, for Choria's brokers.
    Choria {
        token: CredentialSource,
        seed: CredentialSource,
    },
}

/// TLS settings.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// CA certificates of the server, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// TLS handshake before the server's INFO message.
    pub first: bool,
}

/// The JetStream API of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Api {
    #[default]
    Local,
    Domain(String),
    Prefix(String),
}

/// Settings of a connection.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub servers: Vec<Server>,
    pub login: Login,
    /// Token, sent in addition to the login.
    pub token: Option<Secret>,
    pub tls: Tls,
    pub inbox_prefix: Option<String>,
    /// Buffer size of each subscription in messages; the client's default if not set.
    pub backlog: Option<usize>,
    pub api: Api,
    /// Name of the context.
    pub context: Option<String>,
}

impl Settings {
    /// Returns settings for a list of servers, without a context.
    pub fn plain(servers: &str) -> Result<Self, ContextError> {
        let mut settings = Self::default();
        settings.set_servers(servers)?;
        Ok(settings)
    }

    /// Returns the server URLs, comma separated, without credentials.
    pub fn server_list(&self) -> String {
        let server_list: Vec<&str> = self.servers.iter().map(Server::as_str).collect();
        server_list.join(",")
    }

    /// Sets the servers from a comma-separated list. Credentials in a URL apply to the connection.
    fn set_servers(&mut self, list: &str) -> Result<(), ContextError> {
        self.servers.clear();
        let mut named = list.split(',').map(str::trim).filter(|url| !url.is_empty());
        if named.clone().next().is_none() {
            return self.set_servers(DEFAULT_SERVER);
        }
        named.try_for_each(|url| {
            let (server, credentials) = server::parse(url)?;
            self.servers.push(server);
            match credentials {
                None => {}
                Some((token, None)) => self.token = Some(token),
                Some((user, Some(password))) => {
                    let user = user.reveal().to_owned();
                    self.login = Login::Password { user, password };
                }
            }
            Ok(())
        })
    }
}

/// Resolves the settings from flags, variables and contexts. Without a named context: the default
/// context if it exists, else the selected one, else a server on this machine.
pub fn resolve(
    given: &ContextOptions,
    env: &BTreeMap<String, String>,
    default_context: Option<&str>,
) -> Result<Settings, ContextError> {
    let from_env = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let named = given.context.as_ref().filter(|name| !name.is_empty());
    let named = named
        .or_else(|| from_env("NATS_CONTEXT"))
        .or(given.configured_context.as_ref());
    let dir = ContextDir::of(env);
    let found = match named {
        Some(name) => Some(dir.load(name)?),
        None => dir.fallback(default_context)?,
    };
    let (name, file) = match found {
        Some((name, file)) => (Some(name), file),
        None => (None, ContextFile::default()),
    };
    let expand = secrets::Expansion {
        env,
        home: dir.home.as_deref(),
    };
    let mut settings = match &name {
        Some(name) => file.settings(&format!("context {name}"), &expand)?,
        None => Settings::plain("")?,
    };
    settings.context = name;
    let (over, origin) = match &given.credentials {
        flags if *flags == CredentialFlags::default() => {
            (ContextFile::from_env(env), "environment")
        }
        flags => (ContextFile::from_env(env).with_flags(flags), "command line"),
    };
    if given.credentials.password.is_some() && over.user.is_none() {
        return Err(ContextError::NoUser);
    }
    settings.overlay(over.with_token(), origin, &expand)?;
    let server = given.server.as_ref().filter(|server| !server.is_empty());
    let server = server
        .or_else(|| from_env("NATS_URL"))
        .or(given.configured_server.as_ref());
    if let Some(server) = server {
        let (login, token) = (settings.login.clone(), settings.token.clone());
        settings.set_servers(server)?;
        // A login by flag overrides that in a URL.
        if given.credentials.has_login() {
            (settings.login, settings.token) = (login, token);
        }
    }
    Ok(settings)
}

impl Settings {
    /// Overrides the settings of a context with those of the command line and the environment. A
    /// credential there replaces all credentials of the context.
    fn overlay(
        &mut self,
        over: ContextFile,
        origin: &str,
        expand: &secrets::Expansion<'_>,
    ) -> Result<(), ContextError> {
        let over = over.settings(origin, expand)?;
        if over.token.is_some() || !matches!(over.login, Login::Anonymous) {
            self.login = over.login;
            self.token = over.token;
        }
        if over.tls.ca.is_some() {
            self.tls.ca = over.tls.ca;
        }
        if over.tls.identity.is_some() {
            self.tls.identity = over.tls.identity;
        }
        Ok(())
    }
}

/// The directory with the contexts.
struct ContextDir {
    root: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl ContextDir {
    /// Returns the context directory. The home directory is that of the user database, not `HOME`,
    /// as in the `nats` command.
    fn of(env: &BTreeMap<String, String>) -> Self {
        let home = users::home();
        let configured = env.get("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
        let root = match configured {
            Some(path) => Some(PathBuf::from(path)),
            None => home.as_ref().map(|home| home.join(".config")),
        };
        Self {
            root: root.map(|root| root.join("nats")),
            home,
        }
    }

    /// Returns a context by name or path.
    fn load(&self, name: &str) -> Result<(String, ContextFile), ContextError> {
        let path = Path::new(name);
        let is_path = path.is_absolute() || (name.ends_with(".json") && exists(path));
        let path = if is_path {
            path.to_owned()
        } else {
            self.file(name)?
        };
        match read(name, &path)? {
            Some(file) => Ok((name.to_owned(), file)),
            None => Err(ContextError::Unknown {
                name: name.into(),
                path,
            }),
        }
    }

    /// Returns the default context if it exists, else the selected one.
    fn fallback(
        &self,
        default: Option<&str>,
    ) -> Result<Option<(String, ContextFile)>, ContextError> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let selected = match files::read_to_string(&root.join("context.txt"), MAX_BYTES) {
            Ok(text) => Some(text.trim().to_owned()).filter(|name| !name.is_empty()),
            Err(err) if err.is_not_found() => None,
            Err(cause) => {
                return Err(ContextError::File {
                    context: "selection".into(),
                    cause,
                });
            }
        };
        if let Some(name) = default
            && let Some(file) = read(name, &self.file(name)?)?
        {
            return Ok(Some((name.to_owned(), file)));
        }
        selected.map(|name| self.load(&name)).transpose()
    }

    fn file(&self, name: &str) -> Result<PathBuf, ContextError> {
        let is_plain = !name.is_empty() && !name.contains("..") && !name.contains(['/', '\\']);
        match &self.root {
            Some(root) if is_plain => Ok(root.join("context").join(format!("{name}.json"))),
            _ => Err(ContextError::Name(name.into())),
        }
    }
}

fn exists(path: &Path) -> bool {
    matches!(files::inspect(path, true), Ok(Some(_)))
}

/// Reads a context file, if it exists.
fn read(name: &str, path: &Path) -> Result<Option<ContextFile>, ContextError> {
    let context = || name.to_owned();
    let text = match files::read_to_string(path, MAX_BYTES) {
        Ok(text) => text,
        Err(err) if err.is_not_found() => return Ok(None),
        Err(cause) => {
            return Err(ContextError::File {
                context: context(),
                cause,
            });
        }
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|err| ContextError::Json {
            context: context(),
            line: err.line(),
        })
}

/// A context file, without the fields that do not affect the connection.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ContextFile {
    url: Option<String>,
    user: Option<String>,
    password: Option<Secret>,
    token: Option<Secret>,
    creds: Option<String>,
    nkey: Option<String>,
    user_jwt: Option<Secret>,
    user_seed: Option<Secret>,
    cert: Option<String>,
    key: Option<String>,
    ca: Option<String>,
    tls_first: Option<bool>,
    inbox_prefix: Option<String>,
    jetstream_domain: Option<String>,
    jetstream_api_prefix: Option<String>,
    socks_proxy: Option<String>,
    nsc: Option<String>,
    windows_cert_store: Option<String>,
    windows_cert_match: Option<String>,
    windows_cert_match_by: Option<String>,
}

impl ContextFile {
    /// Returns the settings of the `NATS_…` variables, except the server.
    fn from_env(env: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| env.get(name).filter(|value| !value.is_empty()).cloned();
        let secret = |name: &str| text(name).map(Secret::new);
        Self {
            user: text("NATS_USER"),
            password: secret("NATS_PASSWORD"),
            token: secret("NATS_TOKEN"),
            creds: text("NATS_CREDS"),
            nkey: text("NATS_NKEY"),
            user_jwt: secret("NATS_JWT"),
            user_seed: secret("NATS_SEED"),
            cert: text("NATS_CERT"),
            key: text("NATS_KEY"),
            ca: text("NATS_CA"),
            socks_proxy: text("NATS_SOCKS_PROXY"),
            ..Self::default()
        }
    }

    /// Returns the settings with flags of the command line. A login there replaces every other one;
    /// only the password of a user may come from the environment.
    fn with_flags(self, flags: &CredentialFlags) -> Self {
        let CredentialFlags {
            user,
            password,
            creds,
            nkey,
            tls_ca,
            tls_cert,
            tls_key,
        } = flags.clone();
        let base = match flags.has_login() {
            true => Self {
                password: self.password.filter(|_| user.is_some()),
                cert: self.cert,
                key: self.key,
                ca: self.ca,
                socks_proxy: self.socks_proxy,
                ..Self::default()
            },
            false => self,
        };
        Self {
            user: user.or(base.user),
            password: password.or(base.password),
            creds: creds.or(base.creds),
            nkey: nkey.or(base.nkey),
            ca: tls_ca.or(base.ca),
            cert: tls_cert.or(base.cert),
            key: tls_key.or(base.key),
            ..base
        }
    }

    /// Returns the settings with a user without a password as the token, as in the `nats` command.
    fn with_token(self) -> Self {
        match (filled(self.user.as_ref()), &self.password) {
            (Some(user), None) => Self {
                token: self.token.clone().or_else(|| Some(Secret::new(user))),
                user: None,
                ..self
            },
            _ => self,
        }
    }

    /// Returns the settings of the context. `origin` names it in errors.
    fn settings(
        &self,
        origin: &str,
        expand: &secrets::Expansion<'_>,
    ) -> Result<Settings, ContextError> {
        for (field, value) in [
            ("socks_proxy", &self.socks_proxy),
            ("nsc", &self.nsc),
            ("windows_cert_store", &self.windows_cert_store),
            ("windows_cert_match", &self.windows_cert_match),
            ("windows_cert_match_by", &self.windows_cert_match_by),
        ] {
            if filled(value.as_ref()).is_some() {
                let origin = origin.to_owned();
                return Err(ContextError::Unsupported { origin, field });
            }
        }
        let bad = |field, source| ContextError::Field {
            origin: origin.into(),
            field,
            source,
        };
        let path = |field, value: &Option<String>| {
            filled(value.as_ref())
                .map(|text| expand.path(text).map_err(|err| bad(field, err)))
                .transpose()
        };
        let secret = |field, value: &Option<Secret>| {
            value
                .as_ref()
                .filter(|secret| !secret.is_empty())
                .map(|text| expand.secret(text).map_err(|err| bad(field, err)))
                .transpose()
        };
        let credentials = |field, value: &Option<String>| {
            filled(value.as_ref())
                .map(|text| expand.credentials(text).map_err(|err| bad(field, err)))
                .transpose()
        };
        let login = if let Some(user) = filled(self.user.as_ref()) {
            Login::Password {
                user: user.to_owned(),
                password: secret("password", &self.password)?.unwrap_or_default(),
            }
        } else if let Some(creds) = credentials("creds", &self.creds)? {
            Login::Creds(creds)
        } else if let Some(seed) = credentials("nkey", &self.nkey)? {
            Login::Nkey(seed)
        } else if let Some(jwt) = secret("user_jwt", &self.user_jwt)? {
            let seed = secret("user_seed", &self.user_seed)?;
            Login::Jwt { jwt, seed }
        } else {
            Login::Anonymous
        };
        let identity = match (path("cert", &self.cert)?, path("key", &self.key)?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(bad("cert", SecretError::Alone("key"))),
            (None, Some(_)) => return Err(bad("key", SecretError::Alone("cert"))),
        };
        let api = match (
            filled(self.jetstream_domain.as_ref()),
            filled(self.jetstream_api_prefix.as_ref()),
        ) {
            (_, Some(prefix)) => Api::Prefix(prefix.trim_end_matches('.').to_owned()),
            (Some(domain), None) => Api::Domain(domain.to_owned()),
            (None, None) => Api::Local,
        };
        let mut settings = Settings {
            login,
            token: secret("token", &self.token)?,
            tls: Tls {
                ca: path("ca", &self.ca)?,
                identity,
                first: self.tls_first.unwrap_or_default(),
            },
            inbox_prefix: filled(self.inbox_prefix.as_ref())
                .map(|prefix| prefix.trim_end_matches('.').to_owned()),
            api,
            ..Settings::default()
        };
        settings.set_servers(self.url.as_deref().unwrap_or_default())?;
        Ok(settings)
    }
}

/// Returns the text unless it is empty.
fn filled(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
