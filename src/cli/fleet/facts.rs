//! `ccm fleet facts`: prints the facts of nodes.

use super::FleetArgs;
use super::candidates;
use super::reply_report::TextStyle;
use super::request::{FleetCall, RequestArgs, inventory};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::NodeName;
use ccm_fleet::inventory::Inventory;
use ccm_nats::Verb;

/// Show facts of nodes
///
/// An argument that is the name of a known node selects it; another one is a query.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Query to run on the facts, such as host.info.platform, and names of nodes
    #[arg(value_name = "QUERY|NODE", add = candidates::nodes())]
    words: Vec<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    // Reports invalid flags before connecting.
    args.select.selection(&[])?;
    runtime::block_on(async {
        let connection = fleet.connect().await?;
        let inventory = inventory(&connection, &subjects, console).await?;
        let (query, named) = split(&args.words, &inventory)?;
        let selection = args.select.selection(&named)?;
        let mut call = FleetCall::new(Verb::Facts, selection, &args.request);
        match query {
            Some(query) => call.request.body = query.to_owned().into(),
            None => call.style = TextStyle::Documents,
        }
        call.send(connection, subjects, &inventory, console).await
    })
}

/// Splits the arguments into the query and the names of nodes.
fn split<'a>(
    words: &'a [String],
    inventory: &Inventory,
) -> Result<(Option<&'a str>, Vec<NodeName>), CliError> {
    let mut query = None;
    let mut nodes = Vec::new();
    for word in words {
        match word.parse::<NodeName>() {
            Ok(name) if inventory.is_known(&name) => nodes.push(name),
            _ if query.is_none() => query = Some(word.as_str()),
            _ => return Err(CliError::usage(format!("unknown node {word}"))),
        }
    }
    Ok((query, nodes))
}
