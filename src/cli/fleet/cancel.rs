//! `ccm fleet cancel`: a run that is to end early, wherever it is.

use super::Place;
use super::reply_report::Show;
use super::request::{AskArgs, Errand};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::run::RunId;
use ccm_nats::Verb;

/// Cancels a run that is going on or waiting; the resource at work is finished first
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The run, as `ccm fleet apply --json` and `ccm fleet nodes --json` show it
    #[arg(value_name = "RUN")]
    run: RunId,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    // Only the node that has the run does anything about it, so everyone may be asked.
    let selection = args.select.selection(&[])?;
    let mut errand = Errand::of(Verb::Cancel, selection, &args.ask);
    errand.ask.body = args.run.to_string().into();
    errand.show = Show::Noteworthy;
    errand.must_change = Some(format!("no node has run {}", args.run));
    errand.run(place, console)
}
