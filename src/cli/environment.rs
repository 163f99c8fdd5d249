//! What templates see when a person runs us: facts, the process environment, a `.env` file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::CliError;
use ccm_core::facts::{Gatherer, Places};
use ccm_core::run::EnvironmentError;
use ccm_core::run::environment::{MAX_READ, Surroundings};
use ccm_core::system::{SystemClock, files};
use ccm_nats::{
    Bus, Connection, ContextError, Given, NatsError, Patience, Settings, context, registration,
};
use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_value::document;
use ccm_value::value::{Map, Value};

/// What the servers call our connections.
const CONNECTION: &str = "ccm";

/// The context that is used when there is one of this name and none is asked for.
const DEFAULT_CONTEXT: &str = "CCM";

/// How long connecting may take while a person waits.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Where NATS is. Nothing connects unless it has to.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct NatsArgs {
    /// The NATS servers: URLs joined by commas, over those of the context
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "NATS_URL",
        value_name = "URL",
        hide_env_values = true
    )]
    server: Option<String>,

    /// The NATS context, as the nats command keeps it
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "NATS_CONTEXT",
        value_name = "NAME"
    )]
    context: Option<String>,

    /// The stream that holds registered services
    // Commands that look none up take it, as upstream's do, and hide it.
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

impl NatsArgs {
    /// Returns where the servers are and who we are there.
    fn settings(&self) -> Result<Settings, ContextError> {
        self.settings_over(None, None)
    }

    /// Returns those of a named context, or of the one in use.
    pub(super) fn settings_of(&self, context: Option<&str>) -> Result<Settings, ContextError> {
        let Some(name) = context else {
            return self.settings();
        };
        let other = Self {
            server: None,
            context: Some(name.into()),
            ..self.clone()
        };
        other.settings()
    }

    /// Returns the same, where a file names servers and a context too.
    pub(super) fn settings_over(
        &self,
        configured_server: Option<String>,
        configured_context: Option<String>,
    ) -> Result<Settings, ContextError> {
        let given = Given {
            server: self.server.clone(),
            context: self.context.clone(),
            configured_server,
            configured_context,
        };
        context::resolve(&given, &variables(), Some(DEFAULT_CONTEXT))
    }

    /// Returns the stream that holds registered services.
    pub(super) fn registration_stream(&self) -> &str {
        &self.registration
    }

    /// Returns a bus that connects when it is first used.
    pub(super) fn bus(&self) -> Bus {
        let args = self.clone();
        Bus::lazy(CONNECTION, move || args.settings())
    }

    /// Connects now.
    pub(super) async fn connect(&self) -> Result<Connection, CliError> {
        let settings = self.settings().map_err(CliError::usage)?;
        let patience = Patience::Once(CONNECT_LIMIT);
        let connected = ccm_nats::connect(&settings, patience, CONNECTION).await;
        connected.map_err(|err| {
            let nobody_said = self.server.is_none() && settings.context.is_none();
            let is_unreached = matches!(err, NatsError::Connect { .. });
            let error = CliError::failed(err);
            if nobody_said && is_unreached {
                return error.hint("say where it is with --server, --context or NATS_URL");
            }
            error
        })
    }
}

/// How packages are set up.
#[derive(Debug, Default, clap::Args)]
pub(super) struct PackageArgs {
    /// The package module that `provider: cfengine` stands for: a name or a path
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
    /// Returns the module that `provider: cfengine` stands for.
    pub(super) fn module(&self) -> Option<&str> {
        self.cfengine_module.as_deref()
    }
}

/// Facts that somebody gives by hand.
#[derive(Debug, Default, clap::Args)]
pub(super) struct FactArgs {
    /// A fact, over those of the system and of --facts
    #[arg(long = "fact", value_name = "KEY=VALUE")]
    fact: Vec<String>,

    /// A JSON or YAML file of facts, over those of the system
    #[arg(long = "facts", value_name = "FILE")]
    facts: Option<PathBuf>,
}

impl FactArgs {
    /// Returns the facts given; the command line wins over the file.
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

/// Splits `KEY=VALUE` or `KEY:VALUE` at the first of either sign.
pub(super) fn split_pair(pair: &str) -> Result<(&str, &str), CliError> {
    pair.split_once(['=', ':'])
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| CliError::usage(format!("expected KEY=VALUE, got '{pair}'")))
}

/// Reads a JSON or YAML file that holds a mapping.
pub(super) fn read_document(file: &Path) -> Result<Value, CliError> {
    let text = files::read_to_string(file, MAX_READ).map_err(CliError::usage)?;
    let node = document::parse(&text).map_err(|err| CliError::usage(err).at(file.display()))?;
    match node.to_value() {
        Value::Null => Ok(Value::empty_map()),
        value @ Value::Map(_) => Ok(value),
        other => Err(CliError::usage(format!(
            "{}: expected a mapping, found a {}",
            file.display(),
            other.kind()
        ))),
    }
}

/// Returns the variables that templates see.
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

/// Returns what templates see outside a run.
pub(super) fn environment(
    directory: &Path,
    read_env: bool,
    facts: &FactArgs,
    nats: &NatsArgs,
) -> Result<Env, CliError> {
    let surroundings = Surroundings {
        facts: lazy_facts(facts.given()?),
        environ: environ(read_env).map_err(CliError::usage)?,
        bus: Arc::new(nats.bus()),
        registration_stream: nats.registration.clone(),
    };
    Ok(surroundings.env(directory))
}

/// Facts that are gathered when a template names them, with those given laid over.
pub(super) fn lazy_facts(given: Value) -> Facts {
    let gather = Arc::new(gatherer()).into_source();
    Facts::Lazy(Arc::new(move |section| {
        let found = gather(section);
        match section {
            None => found.merge_deep(&given),
            Some(name) => match given.get(name) {
                Some(over) => {
                    let over: Value = [(name, over.clone())].into_iter().collect();
                    found.merge_deep(&over)
                }
                None => found,
            },
        }
    }))
}

/// Returns the gatherer of this machine.
pub(super) fn gatherer() -> Gatherer {
    Gatherer::new(Places::from_env(&variables()), Arc::new(SystemClock))
}

/// Returns the process environment, as far as it is text.
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

/// Reads `KEY=value` lines; one pair of double quotes around a value is not part of it.
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
    fn quotes_around_a_value_are_not_part_of_it() {
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
    fn a_pair_splits_at_the_first_of_either_sign() {
        assert_eq!(split_pair("a=b:c").unwrap(), ("a", "b:c"));
        assert_eq!(split_pair("a:b=c").unwrap(), ("a", "b=c"));
        assert!(split_pair("ab").is_err());
        assert!(split_pair("=b").is_err());
    }
}
