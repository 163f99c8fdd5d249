//! `ccm fleet facts`: prints the facts of nodes.

use super::FleetArgs;
use super::reply_report::TextStyle;
use super::request::{FleetCall, RequestArgs};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_nats::Verb;

/// Show facts of nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Query to run on the facts, such as host.info.platform
    path: Option<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

pub(super) fn run(args: Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&[])?;
    let mut call = FleetCall::new(Verb::Facts, selection, &args.request);
    match args.path {
        Some(path) => call.request.body = path.into(),
        None => call.style = TextStyle::Documents,
    }
    call.run(fleet, console)
}
