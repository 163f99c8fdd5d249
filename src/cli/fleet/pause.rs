//! `ccm fleet pause`: pauses nodes.

use std::time::Duration;

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::request::{FleetCall, RequestArgs, positive_duration};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_nats::Verb;
use ccm_value::text::go_duration;

/// Pause nodes: they make no changes and are excluded from rollouts until resumed
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes to pause
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Reason, shown to users whose requests are refused
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Duration of the pause [default: until resumed]
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    duration: Option<Duration>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.explicit_selection(&args.named)?;
    let mut call = FleetCall::new(Verb::Pause, selection, &args.request);
    let mut request = json!({ "reason": args.reason });
    if let (Some(duration), Some(entries)) = (args.duration, request.as_object_mut()) {
        entries.insert("for".into(), go_duration(duration).into());
    }
    call.request.body = request.to_string().into();
    call.run(fleet, console)
}
