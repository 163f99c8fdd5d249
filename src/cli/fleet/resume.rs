//! `ccm fleet resume`: the end of a pause.

use super::Place;
use super::request::{AskArgs, Errand};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_nats::Verb;

/// Ends the pause of nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The nodes
    #[arg(value_name = "NODE")]
    named: Vec<NodeName>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.careful_selection(&args.named)?;
    Errand::of(Verb::Resume, selection, &args.ask).run(place, console)
}
