//! `ccm status`: what is, without asking for anything.

use super::environment::{FactArgs, PackageArgs, environment};
use super::output::Console;
use super::{CliError, Verdict};
use crate::model::resource::{Archive, File, Package, Properties, Resource, Scaffold, Service};
use crate::model::state::{Detail, State};
use crate::model::{TypeName, json, yaml};
use crate::resource::{self, Host, service};
use crate::system::{Accounts, SystemClock, SystemRunner};

/// Shows the current state of a resource
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The type of the resource
    #[arg(value_name = "TYPE")]
    type_name: String,

    /// The name of the resource
    name: String,

    /// For a scaffold: the directory of templates to compare it with
    #[arg(long, value_name = "DIR")]
    source: Option<String>,

    /// For a scaffold: the template language
    #[arg(long, value_parser = ["go", "jet", "jinja"], default_value = "jet")]
    engine: String,
    /// The provider to ask
    #[arg(long, default_value_t)]
    provider: String,

    #[command(flatten)]
    packages: PackageArgs,

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
    let state = inspect(type_name, args)
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

fn inspect(type_name: TypeName, args: &Args) -> Result<State, String> {
    let mut resource = match type_name {
        TypeName::File => {
            let name = super::ensure::absolute(&args.name)?;
            Resource::new(name, "present", Properties::File(File::default()))
        }
        TypeName::Package => {
            let package = Properties::Package(Package::default());
            checked(Resource::new(&args.name, "present", package))?
        }
        TypeName::Scaffold => {
            let name = super::ensure::absolute(&args.name)?;
            let scaffold = Scaffold {
                source: args.source.clone().unwrap_or_default(),
                engine: args.engine.clone(),
                ..Scaffold::default()
            };
            Resource::new(name, "present", Properties::Scaffold(scaffold))
        }
        TypeName::Service => {
            let service = Properties::Service(Service::default());
            checked(Resource::new(&args.name, "running", service))?
        }
        TypeName::Archive => {
            let name = super::ensure::absolute(&args.name)?;
            Resource::new(name, "present", Properties::Archive(Archive::default()))
        }
        other => return Err(format!("unsupported resource type {other}")),
    };
    resource.common.provider.clone_from(&args.provider);
    let accounts = Accounts::default();
    let directory = std::env::current_dir().unwrap_or_default();
    let env = environment(&directory, true, &FactArgs::default()).map_err(|err| err.to_string())?;
    let host = Host {
        runner: &SystemRunner::new(),
        clock: &SystemClock,
        accounts: &accounts,
        working_dir: &directory,
        env: &env,
        packages: &args.packages.shared(),
        services: &service::Memory::default(),
    };
    let provider = resource::select_provider(&resource, host).map_err(|err| err.to_string())?;
    resource::inspect(&resource, &provider, host).map_err(|err| err.to_string())
}

/// Returns a resource whose name may go to a command; nothing else would check it here.
fn checked(mut resource: Resource) -> Result<Resource, String> {
    resource.complete().map_err(|err| err.to_string())?;
    Ok(resource)
}

/// Returns what upstream prints: the metadata alone, or the type's own keys.
fn metadata(state: &State) -> Result<serde_json::Value, serde_json::Error> {
    let detail = serde_json::to_value(&state.detail)?;
    Ok(match (&state.detail, detail.get("metadata")) {
        (Detail::Exec(_) | Detail::Apply(_), _) | (_, None) => detail,
        (_, Some(metadata)) => metadata.clone(),
    })
}
