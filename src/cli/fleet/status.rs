//! `ccm fleet status`: one resource as it is on many nodes.

use serde_json::json;

use super::Place;
use super::request::{AskArgs, Errand};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::TypeName;
use ccm_core::model::request::STATUS_REQUEST;
use ccm_nats::Verb;

/// Shows the current state of a resource on nodes
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The type of the resource
    #[arg(value_name = "TYPE")]
    type_name: TypeName,

    /// The name of the resource
    name: String,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&[])?;
    let mut errand = Errand::of(Verb::Status, selection, &args.ask);
    let request = json!({
        "protocol": STATUS_REQUEST,
        "type": args.type_name.as_str(),
        "name": args.name,
    });
    errand.ask.body = request.to_string().into();
    errand.run(place, console)
}
