//! `ccm facts`: prints the facts of this node.

use super::environment::gatherer;
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::facts::Gatherer;
use ccm_template::path;
use ccm_value::{Value, json, yaml};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Query to run on the facts, such as host.info.platform
    query: Option<String>,

    /// Output YAML instead of JSON
    #[arg(long)]
    yaml: bool,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let gatherer = gatherer();
    let found = match &args.query {
        None => Some(gatherer.all()),
        Some(query) => find(&gatherer, query),
    };
    for warning in gatherer.warnings() {
        console.log(&Line::new(Level::Warn, warning));
    }
    let text = match (found, args.yaml) {
        (Some(value), true) => yaml_text(&value)?,
        (None, true) => "null\n".into(),
        (Some(value), false) => {
            let text = json::pretty(&value).map_err(CliError::failed)?;
            format!("{text}\n")
        }
        (None, false) => {
            let query = args.query.as_deref().unwrap_or_default();
            return Err(CliError::failed(format!("no fact matches {query:?}")));
        }
    };
    console.print(&text);
    Ok(Verdict::default())
}

fn yaml_text(value: &Value) -> Result<String, CliError> {
    let document = serde_json::to_value(value).map_err(CliError::failed)?;
    Ok(yaml::print(&document))
}

/// Evaluates a query; gathers a single section if the query starts with its plain name.
fn find(gatherer: &Gatherer, query: &str) -> Option<Value> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let first = query.split(['.', '|']).next().unwrap_or_default();
    if !first.is_empty() && first.chars().all(plain) {
        let section = gatherer.section(first)?;
        let root: Value = [(first, section)].into_iter().collect();
        return path::find(&root, query);
    }
    path::find(&gatherer.all(), query)
}
