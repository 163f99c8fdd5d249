//! `ccm hiera`: data resolved by facts, for people and for scripts.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;

use super::environment::{NatsArgs, gatherer, read_document, split_pair, variables};
use super::output::Console;
use super::{CliError, Verdict, data};
use ccm_core::hiera::{self, DATA_KEY};
use ccm_template::env::Facts;
use ccm_template::path;
use ccm_value::value::Map;
use ccm_value::{Value, json, yaml};

/// Resolves hierarchical data
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Resolves a document and prints its data
    #[command(alias = "resolve")]
    Parse(Box<ParseArgs>),
    /// Prints the facts that a document would be resolved with
    Facts(FactsArgs),
}

#[derive(Debug, clap::Args)]
struct FactSources {
    /// A JSON or YAML file of facts
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,

    /// Takes the process environment as facts
    #[arg(short = 'E', long)]
    env_facts: bool,

    /// Takes the facts of the system; always done
    #[arg(short = 'S', long, hide = true)]
    system_facts: bool,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
struct ParseArgs {
    /// The document: a file, an http or https URL, or kv://BUCKET/KEY
    #[arg(env = "HIERA_INPUT")]
    input: String,

    /// Facts, as key=value
    #[arg(value_name = "FACT=VALUE")]
    fact: Vec<String>,

    /// Data over the document's own, as key=value
    #[arg(short = 'D', long, value_name = "KEY=VALUE")]
    data: Vec<String>,

    /// A JSON or YAML file of data over the document's own
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,

    #[command(flatten)]
    sources: FactSources,

    #[command(flatten)]
    nats: NatsArgs,

    /// Prints only what this path finds
    #[arg(long, value_name = "PATH")]
    query: Option<String>,

    /// Prints YAML
    #[arg(long, conflicts_with = "env")]
    yaml: bool,

    /// Prints variables for a shell
    #[arg(long)]
    env: bool,

    /// What the names of these variables begin with
    #[arg(long, value_name = "PREFIX", default_value = "HIERA")]
    env_prefix: String,
}

#[derive(Debug, clap::Args)]
struct FactsArgs {
    /// Facts, as key=value
    #[arg(value_name = "FACT=VALUE")]
    fact: Vec<String>,

    #[command(flatten)]
    sources: FactSources,

    /// Prints only what this path finds
    #[arg(long, value_name = "PATH")]
    query: Option<String>,
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let text = match args.command {
        Command::Parse(args) => parse(&args, console)?,
        Command::Facts(args) => facts(&args)?,
    };
    console.print(&format!("{}\n", text.trim()));
    Ok(Verdict::default())
}

fn parse(args: &ParseArgs, console: &Console) -> Result<String, CliError> {
    let document = data::fetch(&args.input, &args.nats.bus())?;
    data::warn(&document, console);
    let facts = args.sources.layered(&args.fact)?;
    let mut found = hiera::resolve(&document.root, &facts, DATA_KEY).map_err(CliError::failed)?;
    if let Some(file) = &args.data_file {
        found = found.merge_deep(&read_document(file)?);
    }
    found = found.merge_deep(&pairs(&args.data)?);
    hiera::validate(&found, &document.annotations.rules).map_err(CliError::failed)?;
    if let Some(query) = &args.query {
        found = path::find(&found, query).map_or(Value::Null, path::with_float_numbers);
    }
    if args.env {
        return hiera::env_lines(&found, &args.env_prefix).map_err(CliError::failed);
    }
    if args.yaml {
        let document = serde_json::to_value(&found).map_err(CliError::failed)?;
        return Ok(yaml::print(&document));
    }
    json::pretty(&found).map_err(CliError::failed)
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
    /// Returns facts by layers, each replacing whole top keys: the system's, the environment's,
    /// the file's, those given.
    fn layered(&self, given: &[String]) -> Result<Facts, CliError> {
        let mut over = Value::empty_map();
        if self.env_facts {
            let environ: Map = variables()
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect();
            over = environ.into();
        }
        if let Some(file) = &self.facts {
            over = over.merge_shallow(&read_document(file)?);
        }
        over = over.merge_shallow(&pairs(given)?);
        let gather = Arc::new(gatherer()).into_source();
        Ok(Facts::Lazy(Arc::new(move |section| match section {
            None => gather(None).merge_shallow(&over),
            Some(name) => match over.get(name) {
                Some(value) => [(name, value.clone())].into_iter().collect(),
                None => gather(Some(name)),
            },
        })))
    }
}

/// Reads key=value pairs; values are text.
fn pairs(pairs: &[String]) -> Result<Value, CliError> {
    let mut map = Map::new();
    for pair in pairs {
        let (key, value) = split_pair(pair)?;
        map.insert(key.into(), value.into());
    }
    Ok(map.into())
}
