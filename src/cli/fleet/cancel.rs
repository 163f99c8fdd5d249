//! `ccm fleet cancel`: cancels a run on the node that has it, or the runs of one request.

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::flag_values::BadValue;
use super::reply_report::TextStyle;
use super::request::{FleetCall, RequestArgs};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunId;
use ccm_nats::Verb;

/// Cancel runs; the current resource is finished first
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Run id, or the request id of `ccm fleet apply` to cancel its runs on all nodes
    #[arg(value_name = "RUN", value_parser = run_id)]
    run: RunId,

    /// Nodes that may have the run [default: all nodes]
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Kill the running command instead of finishing the current resource
    #[arg(long)]
    now: bool,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

fn run_id(text: &str) -> Result<RunId, BadValue> {
    text.parse().map_err(|_| BadValue::RunId)
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    // Nodes without this run ignore the request, so it may be sent to all of them.
    let selection = args.select.selection(&args.named)?;
    let mut call = FleetCall::new(Verb::Cancel, selection, &args.request);
    call.request.body = match args.now {
        true => json!({"run_id": args.run, "now": true}).to_string().into(),
        false => args.run.to_string().into(),
    };
    call.style = TextStyle::HideOk;
    call.must_change = Some(format!("no node has run {}", args.run));
    call.run(fleet, console)
}
