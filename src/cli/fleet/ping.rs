//! `ccm fleet ping`: who answers, and who does not.

use super::Place;
use super::request::{AskArgs, Errand};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_nats::Verb;

/// Asks nodes whether they are there; names those that don't answer
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&[])?;
    Errand::of(Verb::Ping, selection, &args.ask).run(place, console)
}
