//! `ccm hiera explain`: shows which level gave the value of a key.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::CliError;
use super::super::environment::{NatsArgs, read_document};
use super::super::output::Console;
use super::{FactSources, pairs, resolve};
use ccm_core::hiera::{self, Explanation, KeyPath, LevelExplanation};
use ccm_core::secrets::redact_sealed;
use ccm_value::{Value, json};
use clap::ValueHint;

#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
pub(super) struct Args {
    /// Key of the data, with dots between keys: web.port
    key: String,

    /// Facts about the node
    #[arg(value_name = "FACT=VALUE")]
    fact: Vec<String>,

    /// Manifest, its directory, or a document with hierarchical data
    #[arg(short, long, env = "HIERA_INPUT", value_name = "SOURCE", default_value = "manifest.yaml", value_hint = ValueHint::AnyPath)]
    manifest: String,

    /// Hiera data that overrides the manifest's, as for `ccm apply`
    #[arg(long, env = "CCM_HIERA_DATA", value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    hiera: Option<String>,

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

    /// Output JSON
    #[arg(long)]
    json: bool,
}

/// Returns the explanation of a key as text or JSON.
pub(super) fn explain(args: &Args, console: &Console) -> Result<String, CliError> {
    let facts = args.sources.layered(&args.fact)?;
    let nats = args.nats.client();
    let manifest = match Path::new(&args.manifest).is_dir() {
        true => format!("{}/manifest.yaml", args.manifest.trim_end_matches('/')),
        false => args.manifest.clone(),
    };
    let (_, document) = resolve(&manifest, &facts, &nats, console)?;
    let document = document.map_data(redact_sealed);
    let mut layers: Vec<(String, Value)> = Vec::new();
    if let Some(source) = &args.hiera {
        let (_, resolved) = resolve(source, &facts, &nats, console)?;
        let data = redact_sealed(&resolved.data);
        layers.push((format!("--hiera {source}"), data));
    }
    if let Some(file) = &args.data_file {
        let name = format!("--data-file {}", file.display());
        layers.push((name, read_document(file)?));
    }
    if !args.data.is_empty() {
        layers.push(("--data".into(), pairs(&args.data)?));
    }
    let Ok(key) = args.key.parse::<KeyPath>();
    let explanation = hiera::explain(&document, &layers, &key);
    match args.json {
        true => json::pretty(&explanation).map_err(CliError::failed),
        false => text(&explanation),
    }
}

fn text(explanation: &Explanation) -> Result<String, CliError> {
    let Explanation {
        key,
        merge,
        merge_key,
        levels,
        value,
    } = explanation;
    let origin = match (merge.as_str(), merge_key) {
        (_, Some(key)) => format!(", as hierarchy.merge says for {key}"),
        ("deep", None) => ": mappings are merged and lists concatenated".into(),
        _ => String::new(),
    };
    let mut out = format!("{key}: merge {merge}{origin}\n\n");
    for level in levels {
        level_lines(level, &mut out)?;
    }
    let value = match value {
        Some(value) => shown(value)?,
        None => "no value".into(),
    };
    // Writing to a string cannot fail.
    let _ = write!(out, "\nResult: {value}");
    Ok(out)
}

/// Adds a level with its effect, and its value on a line of its own.
fn level_lines(level: &LevelExplanation, out: &mut String) -> Result<(), CliError> {
    let name = match &level.name {
        Some(name) => format!("{name} ({})", level.level),
        None => level.level.clone(),
    };
    let replaced = match level.value.is_some() && !level.used {
        true => "; replaced by a later level",
        false => "",
    };
    let _ = writeln!(out, "  {name}: {}{replaced}", level.effect.describe());
    if let Some(value) = &level.value {
        let _ = writeln!(out, "    {}", shown(value)?);
    }
    Ok(())
}

fn shown(value: &Value) -> Result<String, CliError> {
    json::compact(value).map_err(CliError::failed)
}
