//! `ccm status`: prints the current state of a resource.

use clap::builder::PossibleValuesParser;

use super::environment::{FactArgs, NatsArgs, PackageArgs, environment};
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::engine::resource_to_inspect;
use ccm_core::model::TypeName;
use ccm_core::model::resource::Properties;
use ccm_core::model::state::{Detail, State};
use ccm_core::run;
use ccm_core::system::SystemClock;
use ccm_value::text::ZERO_TIME;
use ccm_value::{json, yaml};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Resource type
    #[arg(value_name = "TYPE", value_parser = PossibleValuesParser::new(TypeName::ALL.map(TypeName::as_str)))]
    type_name: String,

    /// Resource name
    name: String,

    /// Source directory of a scaffold to compare the target with
    #[arg(long, value_name = "DIR")]
    source: Option<String>,

    /// Template engine of a scaffold
    #[arg(long, value_parser = ["go", "jet", "jinja"], default_value = "jet")]
    engine: String,

    /// Resource provider
    #[arg(long, default_value_t, hide_default_value = true)]
    provider: String,

    #[command(flatten)]
    packages: PackageArgs,

    /// Output JSON instead of YAML
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: NatsArgs,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let type_name: TypeName = args.type_name.parse().map_err(CliError::usage)?;
    if type_name == TypeName::Exec {
        console.print("exec resources do not support retrieving status\n");
        return Ok(Verdict::default());
    }
    let state =
        inspect(type_name, args).map_err(|err| CliError::failed(err).at("could not get status"))?;
    let document = metadata(&state).map_err(CliError::failed)?;
    if args.json {
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        console.print(&format!("{}\n", yaml::print(&without_zero_mtime(document))));
    }
    Ok(Verdict::default())
}

fn inspect(type_name: TypeName, args: &Args) -> Result<State, CliError> {
    let name = match type_name {
        TypeName::File
        | TypeName::Line
        | TypeName::Link
        | TypeName::Scaffold
        | TypeName::Archive => super::ensure::absolute(&args.name)?,
        TypeName::Apply
        | TypeName::Exec
        | TypeName::Group
        | TypeName::Package
        | TypeName::Service
        | TypeName::User => args.name.clone(),
    };
    let mut resource = resource_to_inspect(type_name, &name).map_err(CliError::usage)?;
    if let Properties::Scaffold(scaffold) = &mut resource.properties {
        scaffold.source = args.source.clone().unwrap_or_default();
        scaffold.engine.clone_from(&args.engine);
    }
    resource.common.provider.clone_from(&args.provider);
    let directory = std::env::current_dir().unwrap_or_default();
    let env = environment(&directory, true, &FactArgs::default(), &args.nats)?;
    run::inspect(&resource, env, args.packages.module(), &SystemClock).map_err(CliError::failed)
}

/// Returns what upstream prints: the metadata, or all keys for types without metadata.
fn metadata(state: &State) -> Result<serde_json::Value, serde_json::Error> {
    let detail = serde_json::to_value(&state.detail)?;
    Ok(match (&state.detail, detail.get("metadata")) {
        (Detail::Exec(_) | Detail::Apply(_), _) | (_, None) => detail,
        (_, Some(metadata)) => metadata.clone(),
    })
}

/// Returns metadata for YAML output, in which upstream leaves out the time of an absent file.
pub(super) fn without_zero_mtime(mut metadata: serde_json::Value) -> serde_json::Value {
    if metadata.get("mtime").is_some_and(|time| time == ZERO_TIME)
        && let Some(keys) = metadata.as_object_mut()
    {
        keys.shift_remove("mtime");
    }
    metadata
}
