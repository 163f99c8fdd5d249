//! `ccm hiera`: resolves hierarchical data and prints it, or how it came about.

mod explain;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Subcommand, ValueHint};

use super::environment::{NatsArgs, gatherer, read_document, split_pair, variables};
use super::output::Console;
use super::{CliError, Verdict, data};
use ccm_core::hiera::{self, DATA_KEY, Document, ResolvedData};
use ccm_core::run::data::resolve_unchecked;
use ccm_core::secrets::redact_sealed;
use ccm_nats::BlockingClient;
use ccm_template::env::Facts;
use ccm_template::path;
use ccm_template::secrets::Secrets;
use ccm_value::value::Map;
use ccm_value::{Value, json, yaml};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Resolve a YAML or JSON document and print the result
    #[command(alias = "resolve")]
    Parse(Box<ParseArgs>),
    /// Show which level of a hierarchy gives the value of a key
    Explain(Box<explain::Args>),
    /// Show the facts that a document would be resolved with
    Facts(FactsArgs),
}

#[derive(Debug, clap::Args)]
struct FactSources {
    /// JSON or YAML file with facts
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,

    /// Use the process environment as facts
    #[arg(short = 'E', long)]
    env_facts: bool,

    /// Use the system facts (always on)
    #[arg(short = 'S', long, hide = true)]
    system_facts: bool,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
struct ParseArgs {
    /// Document to resolve: a file, an http or https URL, kv://BUCKET/KEY or obj://BUCKET/NAME
    #[arg(env = "HIERA_INPUT", value_hint = ValueHint::FilePath)]
    input: String,

    /// Facts about the node
    #[arg(value_name = "FACT=VALUE")]
    fact: Vec<String>,

    /// Override data value (always a string); repeatable
    #[arg(short = 'D', long, value_name = "KEY=VALUE")]
    data: Vec<String>,

    /// JSON or YAML file with override data values
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,

    #[command(flatten)]
    sources: FactSources,

    #[command(flatten)]
    nats: NatsArgs,

    /// Query to run on the result
    #[arg(long, value_name = "PATH")]
    query: Option<String>,

    /// Output YAML instead of JSON
    #[arg(long, conflicts_with = "env")]
    yaml: bool,

    /// Output environment variables
    #[arg(long)]
    env: bool,

    /// Prefix for environment variable names
    #[arg(long, value_name = "PREFIX", default_value = "HIERA")]
    env_prefix: String,
}

#[derive(Debug, clap::Args)]
struct FactsArgs {
    /// Facts about the node
    #[arg(value_name = "FACT=VALUE")]
    fact: Vec<String>,

    #[command(flatten)]
    sources: FactSources,

    /// Query to run on the result
    #[arg(long, value_name = "PATH")]
    query: Option<String>,
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let text = match args.command {
        Command::Parse(args) => parse(&args, console)?,
        Command::Explain(args) => explain::explain(&args, console)?,
        Command::Facts(args) => facts(&args)?,
    };
    console.print(&format!("{}\n", text.trim()));
    Ok(Verdict::default())
}

fn parse(args: &ParseArgs, console: &Console) -> Result<String, CliError> {
    let facts = args.sources.layered(&args.fact)?;
    let (document, resolved) = resolve(&args.input, &facts, &args.nats.client(), console)?;
    let located = |err| CliError::of_data(document.locate(err, DATA_KEY));
    let mut found = resolved.data;
    if let Some(file) = &args.data_file {
        found = found.merge_deep(&read_document(file)?);
    }
    found = found.merge_deep(&pairs(&args.data)?);
    hiera::validate(&found, &document.annotations.rules).map_err(|err| located(err.into()))?;
    found = redact_sealed(&found);
    if let Some(query) = &args.query {
        found = path::find(&found, query).map_or(Value::Null, path::with_float_numbers);
    }
    if args.env {
        return hiera::env_lines(&found, &args.env_prefix).map_err(CliError::failed);
    }
    if args.yaml {
        return Ok(yaml::print(&found));
    }
    json::pretty(&found).map_err(CliError::failed)
}

/// Fetches a document and resolves its data, with its data files.
fn resolve(
    input: &str,
    facts: &Facts,
    nats: &BlockingClient,
    console: &Console,
) -> Result<(Document, ResolvedData), CliError> {
    let (source, document) = data::fetch(input, nats)?;
    data::warn(&document, console);
    let resolved = resolve_unchecked(&source, &document, facts, &Secrets::default());
    let resolved = resolved.map_err(|err| CliError::of_data(document.locate(err, DATA_KEY)))?;
    Ok((document, resolved))
}

fn facts(args: &FactsArgs) -> Result<String, CliError> {
    let facts = args.sources.layered(&args.fact)?.all();
    match &args.query {
        None => json::pretty(&facts).map_err(CliError::failed),
        Some(query) => match path::find(&facts, query) {
            None => Ok(String::new()),
            Some(Value::Str(text)) => Ok(text.to_string()),
            Some(value) => json::compact(&value).map_err(CliError::failed),
        },
    }
}

impl FactSources {
    /// Returns the facts of the system, the environment, the file and the arguments; a later source
    /// replaces whole top-level keys of the earlier ones.
    fn layered(&self, given: &[String]) -> Result<Facts, CliError> {
        let mut overrides = Value::empty_map();
        if self.env_facts {
            let environ: Map = variables()
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect();
            overrides = environ.into();
        }
        if let Some(file) = &self.facts {
            overrides = overrides.merge_shallow(&read_document(file)?);
        }
        overrides = overrides.merge_shallow(&pairs(given)?);
        let gather = Arc::new(gatherer()).into_source();
        Ok(Facts::Lazy(Arc::new(move |section| match section {
            None => gather(None).merge_shallow(&overrides),
            Some(name) => match overrides.get(name) {
                Some(value) => [(name, value.clone())].into_iter().collect(),
                None => gather(Some(name)),
            },
        })))
    }
}

/// Parses `key=value` pairs into a map of strings.
fn pairs(pairs: &[String]) -> Result<Value, CliError> {
    let mut map = Map::new();
    for pair in pairs {
        let (key, value) = split_pair(pair)?;
        map.insert(key.into(), value.into());
    }
    Ok(map.into())
}
