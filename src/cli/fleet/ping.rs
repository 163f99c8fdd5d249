//! `ccm fleet ping`: checks which nodes reply.

use super::FleetArgs;
use super::candidates;
use super::request::{FleetCall, RequestArgs};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_nats::Verb;

/// Ping nodes and list those that do not reply
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes to ping
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&args.named)?;
    FleetCall::new(Verb::Ping, selection, &args.request).run(fleet, console)
}
