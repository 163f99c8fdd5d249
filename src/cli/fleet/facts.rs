//! `ccm fleet facts`: what nodes are.

use super::Place;
use super::reply_report::Show;
use super::request::{AskArgs, Errand};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_nats::Verb;

/// Shows the facts of nodes, or what a path finds in them
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// A path into the facts, such as host.info.platform
    path: Option<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&[])?;
    let mut errand = Errand::of(Verb::Facts, selection, &args.ask);
    match args.path {
        Some(path) => errand.ask.body = path.into(),
        None => errand.show = Show::Documents,
    }
    errand.run(place, console)
}
