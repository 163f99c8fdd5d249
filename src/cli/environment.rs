//! Shared flags for NATS, facts and packages, and the template environment built from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::CliError;
use ccm_core::facts::{FactPaths, Gatherer};
use ccm_core::run::environment::{MAX_READ, TemplateContext};
use ccm_core::run::{EnvironmentError, STATE_DIR, secret_key};
use ccm_core::system::{Accounts, SystemClock, files};
use ccm_nats::{
    BlockingClient, ConnectMode, Connection, ContextError, ContextOptions, CredentialFlags,
    NatsError, Settings, context, registration,
};
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_template::secrets::Secrets;
use ccm_value::diagnostic::Diagnostic;
use ccm_value::document::{self, DocumentError};
use ccm_value::secret::Secret;
use ccm_value::value::{Map, Value};

/// Connection name that NATS servers display.
const CONNECTION: &str = "ccm";

/// NATS context that is used if it exists and no other is selected.
const DEFAULT_CONTEXT: &str = "CCM";

/// Time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Heading of the NATS flags in help texts.
pub(super) const NATS_HEADING: &str = "NATS";

/// Flags that select a NATS server and log in. The program accepts them before its commands, too.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ConnectionArgs {
    /// NATS server URLs, comma-separated; override those of the context
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "NATS_URL",
        value_name = "URL",
        hide_env_values = true
    )]
    server: Option<String>,

    /// NATS context to connect with
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "NATS_CONTEXT",
        value_name = "NAME"
    )]
    context: Option<String>,

    /// User name, or token if no password is given [env: NATS_USER]
    #[arg(
        long,
        id = "nats_user",
        global = true,
        help_heading = "NATS",
        value_name = "NAME",
        conflicts_with_all = ["creds", "nkey"]
    )]
    user: Option<String>,

    /// Password of the user; file:///PATH reads it from a file [env: NATS_PASSWORD]
    // Other commands have passwords of their own, so the id differs from the flag.
    #[arg(
        long,
        id = "nats_password",
        global = true,
        help_heading = "NATS",
        value_name = "PASSWORD",
        value_parser = secret
    )]
    password: Option<Secret>,

    /// File with a user JWT and its seed [env: NATS_CREDS]
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        value_name = "FILE",
        conflicts_with = "nkey",
        value_hint = clap::ValueHint::FilePath
    )]
    creds: Option<String>,

    /// File with an nkey seed [env: NATS_NKEY]
    #[arg(long, global = true, help_heading = "NATS", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    nkey: Option<String>,

    /// File with the CA certificates of the server [env: NATS_CA]
    #[arg(long, global = true, help_heading = "NATS", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    tlsca: Option<String>,

    /// File with a TLS client certificate [env: NATS_CERT]
    #[arg(long, global = true, help_heading = "NATS", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    tlscert: Option<String>,

    /// File with the key of the TLS client certificate [env: NATS_KEY]
    #[arg(long, global = true, help_heading = "NATS", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    tlskey: Option<String>,
}

/// NATS connection flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct NatsArgs {
    #[command(flatten)]
    connection: ConnectionArgs,

    /// NATS stream that holds registration data
    // Commands without registration data accept the flag too, as upstream does, and hide it.
    #[arg(
        short = 'R',
        long,
        global = true,
        help_heading = "NATS",
        value_name = "STREAM",
        default_value = registration::STREAM
    )]
    registration: String,
}

impl ConnectionArgs {
    fn settings_over(
        &self,
        configured_server: Option<String>,
        configured_context: Option<String>,
    ) -> Result<Settings, ContextError> {
        let given = ContextOptions {
            server: self.server.clone(),
            context: self.context.clone(),
            configured_server,
            configured_context,
            credentials: CredentialFlags {
                user: self.user.clone(),
                password: self.password.clone(),
                creds: self.creds.clone(),
                nkey: self.nkey.clone(),
                tls_ca: self.tlsca.clone(),
                tls_cert: self.tlscert.clone(),
                tls_key: self.tlskey.clone(),
            },
        };
        context::resolve(&given, &variables(), Some(DEFAULT_CONTEXT))
    }
}

/// Reads a flag with a secret, which `Debug` does not show.
#[expect(clippy::unnecessary_wraps, reason = "clap expects a result")]
pub(super) fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

impl NatsArgs {
    /// Returns the servers and credentials.
    fn settings(&self) -> Result<Settings, ContextError> {
        self.settings_over(None, None)
    }

    /// Returns the settings of a named context, or of the current one.
    pub(super) fn settings_of(&self, context: Option<&str>) -> Result<Settings, ContextError> {
        let Some(name) = context else {
            return self.settings();
        };
        let other = ConnectionArgs {
            context: Some(name.into()),
            ..ConnectionArgs::default()
        };
        other.settings_over(None, None)
    }

    /// Returns the settings, with defaults from a configuration file.
    pub(super) fn settings_over(
        &self,
        configured_server: Option<String>,
        configured_context: Option<String>,
    ) -> Result<Settings, ContextError> {
        self.connection
            .settings_over(configured_server, configured_context)
    }

    /// Returns the servers of `--server` or `NATS_URL`.
    pub(super) fn given_servers(&self) -> Option<&str> {
        self.connection.server.as_deref()
    }

    /// Reports whether a server or a context was given.
    pub(super) fn is_given(&self) -> bool {
        self.connection.server.is_some() || self.connection.context.is_some()
    }

    /// Returns the name of the registration stream.
    pub(super) fn registration_stream(&self) -> &str {
        &self.registration
    }

    /// Returns a NATS client that connects on first use.
    pub(super) fn client(&self) -> BlockingClient {
        let args = self.clone();
        BlockingClient::lazy(CONNECTION, move || args.settings())
    }

    /// Connects to NATS.
    pub(super) async fn connect(&self) -> Result<Connection, CliError> {
        let settings = self.settings().map_err(CliError::usage)?;
        connect(&settings).await.map_err(|err| {
            let is_default = self.connection.server.is_none() && settings.context.is_none();
            let is_unreachable = matches!(err, NatsError::Connect { .. });
            let error = CliError::failed(err);
            if is_default && is_unreachable {
                return error.hint("select a server with --server, --context or NATS_URL");
            }
            error
        })
    }
}

/// Connects to NATS with these settings.
pub(super) async fn connect(settings: &Settings) -> Result<Connection, NatsError> {
    ccm_nats::connect(settings, ConnectMode::Once(CONNECT_LIMIT), CONNECTION).await
}

/// Flags for packages.
#[derive(Debug, Default, clap::Args)]
pub(super) struct PackageArgs {
    /// CFEngine package module for `provider: cfengine`, as a name or path
    #[arg(
        long,
        global = true,
        env = "CCM_CFENGINE_MODULE",
        value_name = "MODULE",
        hide = true
    )]
    cfengine_module: Option<String>,
}

impl PackageArgs {
    /// Returns the CFEngine package module for `provider: cfengine`.
    pub(super) fn module(&self) -> Option<&str> {
        self.cfengine_module.as_deref()
    }
}

/// Flags for records that outlive a run.
#[derive(Debug, Default, clap::Args)]
pub(super) struct StateArgs {
    /// Directory for pending refreshes and records of unpacked archives [default:
    /// /var/lib/choria/ccm, or a directory of the user]
    #[arg(
        long,
        global = true,
        env = "CCM_STATE_DIR",
        value_name = "DIR",
        value_hint = clap::ValueHint::DirPath,
        hide_short_help = true
    )]
    state_dir: Option<PathBuf>,
}

impl StateArgs {
    /// Returns the state directory: root shares that of the agent, other users have their own. A
    /// user without a home directory has none.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        if let Some(directory) = &self.state_dir {
            return Some(directory.clone());
        }
        let (uid, _) = Accounts::default().current();
        if uid == 0 {
            return Some(STATE_DIR.into());
        }
        let variable = |name: &str| {
            let value = std::env::var_os(name).map(PathBuf::from);
            value.filter(|path| path.is_absolute())
        };
        let state = variable("XDG_STATE_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
        Some(state.join("choria/ccm"))
    }
}

/// Flag for the key of encrypted values.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SecretKeyArgs {
    /// Key that opens encrypted values [default: that of the agent, secret.key in its state directory]
    #[arg(long, env = "CCM_SECRET_KEY", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    secret_key: Option<PathBuf>,
}

impl SecretKeyArgs {
    /// Returns the key file: as given, or that of the state directory.
    pub(super) fn file(&self, state_dir: Option<&Path>) -> PathBuf {
        let default = || StateArgs::default().directory();
        match (&self.secret_key, state_dir) {
            (Some(file), _) => file.clone(),
            (None, Some(directory)) => secret_key::path_in(directory),
            (None, None) => secret_key::path_in(&default().unwrap_or(STATE_DIR.into())),
        }
    }

    /// Returns what opens encrypted values.
    pub(super) fn secrets(&self, state_dir: Option<&Path>) -> Result<Secrets, CliError> {
        let file = self.file(state_dir);
        let secrets = secret_key::secrets(&file).map_err(CliError::usage)?;
        match self.secret_key.is_some() && !secrets.has_key() {
            true => Err(CliError::usage(format!(
                "file not found: {}",
                file.display()
            ))),
            false => Ok(secrets),
        }
    }
}

/// Flags that add facts.
#[derive(Debug, Default, clap::Args)]
pub(super) struct FactArgs {
    /// Additional fact; overrides system facts and --facts; repeatable
    #[arg(long = "fact", value_name = "KEY=VALUE")]
    fact: Vec<String>,

    /// JSON or YAML file with additional facts; overrides system facts
    #[arg(long = "facts", value_name = "FILE")]
    facts: Option<PathBuf>,
}

impl FactArgs {
    /// Returns the given facts; `--fact` overrides `--facts`.
    pub(super) fn given(&self) -> Result<Value, CliError> {
        let mut given = match &self.facts {
            Some(file) => read_document(file)?,
            None => Value::empty_map(),
        };
        for pair in &self.fact {
            let (key, value) = split_pair(pair)?;
            let one: Value = [(key, Value::from(value))].into_iter().collect();
            given = given.merge_deep(&one);
        }
        Ok(given)
    }
}

/// Splits `KEY=VALUE` or `KEY:VALUE` at the first separator.
pub(super) fn split_pair(pair: &str) -> Result<(&str, &str), CliError> {
    pair.split_once(['=', ':'])
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| CliError::usage(format!("expected KEY=VALUE, got '{pair}'")))
}

/// Reads a mapping from a JSON or YAML file.
pub(super) fn read_document(file: &Path) -> Result<Value, CliError> {
    let text = files::read_to_string(file, MAX_READ).map_err(CliError::usage)?;
    let invalid = |err: DocumentError| {
        let diagnostic = Diagnostic::of_document(&file.to_string_lossy(), &text, &err);
        CliError::usage(err)
            .at(file.display())
            .with_diagnostics(vec![diagnostic])
    };
    let node = document::parse(&text).map_err(invalid)?;
    match node.to_value() {
        Value::Null => Ok(Value::empty_map()),
        value @ Value::Map(_) => Ok(value),
        other => {
            let found = document::describe_kind(other.kind());
            let message = format!("expected a mapping, found {found}");
            let error = DocumentError::new(node.mark, message);
            Err(invalid(error))
        }
    }
}

/// Returns the environment variables for templates.
pub(super) fn environ(read_env: bool) -> Result<Value, EnvironmentError> {
    let mut environ: Map = variables()
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    if read_env {
        environ.extend(read_env_file(Path::new(".env"))?);
    }
    Ok(environ.into())
}

/// Returns the template environment of a command that applies nothing.
pub(super) fn environment(
    directory: &Path,
    read_env: bool,
    facts: &FactArgs,
    nats: &NatsArgs,
) -> Result<Env, CliError> {
    let context = TemplateContext {
        facts: lazy_facts(facts.given()?),
        environ: environ(read_env).map_err(CliError::usage)?,
        nats: Arc::new(nats.client()),
        registration_stream: nats.registration.clone(),
        secrets: Secrets::default(),
    };
    Ok(context.env(directory))
}

/// Returns facts that are gathered on first use, overridden by the given ones.
pub(super) fn lazy_facts(given: Value) -> Facts {
    let gather = OnceLock::new();
    Facts::Lazy(Arc::new(move |section| {
        let gather = gather.get_or_init(|| Arc::new(gatherer()).into_source());
        let found = gather(section);
        match section {
            None => found.merge_deep(&given),
            Some(name) => match given.get(name) {
                Some(value) => {
                    let value: Value = [(name, value.clone())].into_iter().collect();
                    found.merge_deep(&value)
                }
                None => found,
            },
        }
    }))
}

/// Returns the fact gatherer of this machine.
pub(super) fn gatherer() -> Gatherer {
    Gatherer::new(FactPaths::from_env(&variables()), Arc::new(SystemClock))
}

/// Returns the process environment without variables that are not UTF-8.
pub(super) fn variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn read_env_file(file: &Path) -> Result<Vec<(Arc<str>, Value)>, EnvironmentError> {
    if files::inspect(file, true)?.is_none() {
        return Ok(Vec::new());
    }
    let text = files::read_to_string(file, MAX_READ)?;
    Ok(parse_env(&text).collect())
}

/// Parses `KEY=value` lines; a pair of double quotes around a value is removed.
fn parse_env(text: &str) -> impl Iterator<Item = (Arc<str>, Value)> + '_ {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=').filter(|(key, _)| !key.is_empty())?;
        let value = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
            None => value,
        };
        Some((key.into(), value.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_a_value_are_removed() {
        let found: Vec<_> = parse_env("A=1\nB=\"two words\"\nC=\nno line\n=x\nD=a=b\n").collect();
        let expected: Vec<(Arc<str>, Value)> = vec![
            ("A".into(), "1".into()),
            ("B".into(), "two words".into()),
            ("C".into(), "".into()),
            ("D".into(), "a=b".into()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pair_is_split_at_the_first_separator() {
        assert_eq!(split_pair("a=b:c").unwrap(), ("a", "b:c"));
        assert_eq!(split_pair("a:b=c").unwrap(), ("a", "b=c"));
        assert!(split_pair("ab").is_err());
        assert!(split_pair("=b").is_err());
    }
}
