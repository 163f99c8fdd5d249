//! `ccm fleet status`: prints the state of a resource on nodes.

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::request::{FleetCall, RequestArgs};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::TypeName;
use ccm_core::model::node::NodeName;
use ccm_core::model::request::STATUS_REQUEST;
use ccm_nats::Verb;

/// Get the status of a resource on nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Resource type
    #[arg(value_name = "TYPE")]
    type_name: TypeName,

    /// Resource name
    name: String,

    /// Nodes to query
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&args.named)?;
    let mut call = FleetCall::new(Verb::Status, selection, &args.request);
    let request = json!({
        "protocol": STATUS_REQUEST,
        "type": args.type_name.as_str(),
        "name": args.name,
    });
    call.request.body = request.to_string().into();
    call.run(fleet, console)
}
