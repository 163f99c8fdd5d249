//! `ccm status`: what is, without asking for anything.

use super::output::Console;
use super::{CliError, Verdict};
use crate::model::resource::{Archive, File, Properties, Resource};
use crate::model::state::{Detail, State};
use crate::model::{TypeName, json, yaml};
use crate::resource::{self, Host};
use crate::system::{Accounts, SystemClock, SystemRunner};

/// Shows the current state of a resource
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The type of the resource
    #[arg(value_name = "TYPE")]
    type_name: String,

    /// The name of the resource
    name: String,

    /// Prints JSON instead of YAML
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let type_name: TypeName = args.type_name.parse().map_err(CliError::usage)?;
    if type_name == TypeName::Exec {
        console.print("exec resources do not support retrieving status\n");
        return Ok(Verdict::default());
    }
    let state = inspect(type_name, &args.name)
        .map_err(|err| CliError::failed(format!("could not get status: {err}")))?;
    let document = metadata(&state).map_err(CliError::failed)?;
    if args.json {
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        console.print(&format!("{}\n", yaml::print(&document)));
    }
    Ok(Verdict::default())
}

fn inspect(type_name: TypeName, name: &str) -> Result<State, String> {
    let properties = match type_name {
        TypeName::Archive => Properties::Archive(Archive::default()),
        TypeName::File => Properties::File(File::default()),
        other => return Err(format!("unsupported resource type {other}")),
    };
    let name = super::ensure::absolute(name)?;
    let resource = Resource::new(name, "present", properties);
    let accounts = Accounts::default();
    let directory = std::env::current_dir().unwrap_or_default();
    let host = Host {
        runner: &SystemRunner::new(),
        clock: &SystemClock,
        accounts: &accounts,
        working_dir: &directory,
    };
    let provider = resource::select_provider(&resource, host).map_err(|err| err.to_string())?;
    resource::inspect(&resource, provider, host).map_err(|err| err.to_string())
}

/// Returns what upstream prints: the metadata alone, or the type's own keys.
fn metadata(state: &State) -> Result<serde_json::Value, serde_json::Error> {
    let detail = serde_json::to_value(&state.detail)?;
    Ok(match (&state.detail, detail.get("metadata")) {
        (Detail::Exec(_) | Detail::Apply(_), _) | (_, None) => detail,
        (_, Some(metadata)) => metadata.clone(),
    })
}
