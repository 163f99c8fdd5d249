//! `ccm fleet pause`: nodes that are to be left alone, with a reason.

use std::time::Duration;

use serde_json::json;

use super::Place;
use super::request::{AskArgs, Errand, wait};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_nats::Verb;
use ccm_value::text::go_duration;

/// Pauses nodes: they change nothing and stay out of rollouts until resumed
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The nodes
    #[arg(value_name = "NODE")]
    named: Vec<NodeName>,

    /// Why; everyone who is refused sees it
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// How long; until resumed unless given
    #[arg(long = "for", value_name = "DURATION", value_parser = wait)]
    lasting: Option<Duration>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.careful_selection(&args.named)?;
    let mut errand = Errand::of(Verb::Pause, selection, &args.ask);
    let mut request = json!({ "reason": args.reason });
    if let (Some(lasting), Some(entries)) = (args.lasting, request.as_object_mut()) {
        entries.insert("for".into(), go_duration(lasting).into());
    }
    errand.ask.body = request.to_string().into();
    errand.run(place, console)
}
