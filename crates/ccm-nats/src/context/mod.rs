//! Where the server is and who we are: contexts as the `nats` command keeps them.
//!
//! A context is a JSON file below `nats/context/` of the user's configuration directory. What the
//! command line or a `NATS_…` variable says beats the file. Nothing is connected here, and no
//! secret appears in an error: only which field of which context is wrong. Secrets that are named
//! by URI are fetched by `secrets`.

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

/// The server when nobody names one.
const DEFAULT_SERVER: &str = "nats://127.0.0.1:4222";

/// The largest context file that is read.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why it is not known whom to talk to.
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
    /// The parser's own text would show what stands in the file.
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
    #[error("invalid server {}: {reason}", quote(.server))]
    Server { server: String, reason: String },
}

/// What a command line or configuration file says about the server.
#[derive(Clone, Debug, Default)]
pub struct ContextOptions {
    /// `--server`: URLs joined by commas. Beats everything.
    pub server: Option<String>,
    /// `--context`. Must exist if given.
    pub context: Option<String>,
    /// Servers of a configuration file; a variable beats them.
    pub configured_server: Option<String>,
    /// The context of a configuration file; a variable beats it. Must exist if given.
    pub configured_context: Option<String>,
}

/// How we say who we are.
#[derive(Clone, Debug, Default)]
pub enum Login {
    #[default]
    Anonymous,
    Password {
        user: String,
        password: Secret,
    },
    /// A `.creds` file: a JWT and the seed that proves it.
    Creds(CredentialSource),
    /// A seed alone.
    Nkey(CredentialSource),
    /// A JWT with its seed; without one it is a bearer token.
    Jwt {
        jwt: Secret,
        seed: Option<Secret>,
    },
}

/// Which certificates to use.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Who may sign for the server, instead of whom the machine trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The handshake comes before the server's first word.
    pub first: bool,
}

/// Where the JetStream of this connection is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Api {
    #[default]
    Local,
    Domain(String),
    Prefix(String),
}

/// Everything a connection needs to know.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub servers: Vec<Server>,
    pub login: Login,
    /// Sent beside the login.
    pub token: Option<Secret>,
    pub tls: Tls,
    pub inbox_prefix: Option<String>,
    /// How many messages wait for each listener before more are dropped, if not as many as the
    /// client likes.
    pub backlog: Option<usize>,
    pub api: Api,
    /// The context they came from.
    pub context: Option<String>,
}

impl Settings {
    /// Returns the settings for servers without any context.
    pub fn plain(servers: &str) -> Result<Self, ContextError> {
        let mut settings = Self::default();
        settings.set_servers(servers)?;
        Ok(settings)
    }

    /// Returns the servers as people may see them.
    pub fn server_list(&self) -> String {
        let server_list: Vec<&str> = self.servers.iter().map(Server::as_str).collect();
        server_list.join(",")
    }

    /// Takes a list of URLs apart. Credentials in one are those of the connection.
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

/// Returns the settings that flags, variables and contexts amount to. `default_context` is used
/// if it exists; otherwise the selected context is, and without one a server on this machine.
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
    let over = ContextFile::from_env(env);
    settings.overlay(&over, &expand)?;
    let server = given.server.as_ref().filter(|server| !server.is_empty());
    let server = server
        .or_else(|| from_env("NATS_URL"))
        .or(given.configured_server.as_ref());
    if let Some(server) = server {
        settings.set_servers(server)?;
    }
    Ok(settings)
}

impl Settings {
    /// Lays the fields of the environment over those of a context. A credential replaces all
    /// credentials of the file: two identities at once are nobody's wish.
    fn overlay(
        &mut self,
        over: &ContextFile,
        expand: &secrets::Expansion<'_>,
    ) -> Result<(), ContextError> {
        let over = over.settings("environment", expand)?;
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

/// The directory that holds the contexts.
struct ContextDir {
    root: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl ContextDir {
    /// The user database says where home is, not a variable: the `nats` command does the same.
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

    /// Returns a context that was asked for by name or by path.
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

    /// Returns the default context if there is one, else the one that was selected.
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

/// Reads a context; one that does not exist is none.
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

/// A context as it is stored. Fields that only colour or describe are not read.
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
    /// Returns what the variables of the `nats` command say, but for the server.
    fn from_env(env: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| env.get(name).cloned();
        let secret = |name: &str| text(name).map(Secret::new);
        let user = text("NATS_USER").filter(|user| !user.is_empty());
        let password = secret("NATS_PASSWORD").filter(|password| !password.is_empty());
        let (user, token) = match (user, &password) {
            // A user without a password is a token.
            (Some(user), None) => (None, Some(Secret::new(user))),
            (user, _) => (user, None),
        };
        Self {
            user,
            password,
            token: secret("NATS_TOKEN").or(token),
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

    /// Returns the settings this amounts to. `origin` says in errors where it stands.
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
        let material = |field, value: &Option<String>| {
            filled(value.as_ref())
                .map(|text| expand.material(text).map_err(|err| bad(field, err)))
                .transpose()
        };
        let login = if let Some(user) = filled(self.user.as_ref()) {
            Login::Password {
                user: user.to_owned(),
                password: secret("password", &self.password)?.unwrap_or_default(),
            }
        } else if let Some(creds) = material("creds", &self.creds)? {
            Login::Creds(creds)
        } else if let Some(seed) = material("nkey", &self.nkey)? {
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

/// Returns a text that is there and not empty.
fn filled(value: Option<&String>) -> Option<&str> {
    value.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
