//! `ccm fleet label`: labels that operators attach to nodes.

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::reply_report::Format;
use super::request::{FormatArgs, inventory};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::NodeName;
use ccm_fleet::forget;
use ccm_fleet::inventory::Inventory;
use ccm_fleet::labels::{self, LabelChange, LabelsError};
use ccm_nats::{Connection, Subjects};

/// Show, set (NAME=VALUE) and remove (NAME-) labels of a node
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Node
    #[arg(value_name = "NODE", add = candidates::nodes())]
    node: NodeName,

    /// Labels to set or remove
    #[arg(value_name = "NAME=VALUE|NAME-", allow_hyphen_values = false)]
    changes: Vec<LabelChange>,

    /// Set labels of a node that does not exist yet
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let labels = runtime::block_on(async {
        let connection = fleet.connect().await?;
        let is_set = |change: &LabelChange| matches!(change, LabelChange::Set(..));
        if args.changes.iter().any(is_set) && !args.create {
            let inventory = inventory(&connection, &subjects, console).await?;
            check_known(&connection, &subjects, &inventory, &args.node).await?;
        }
        let changed = labels::update(&connection, &subjects, &args.node, &args.changes).await;
        changed.map_err(|err| match err {
            LabelsError::Nats(err) => CliError::of_fleet(err),
            err => CliError::failed(err),
        })
    })?;
    let document = json!({ "node": args.node, "labels": labels });
    match args.format.format() {
        Format::Text => {
            for (name, value) in labels.iter() {
                console.print(&format!("{name}={value}\n"));
            }
        }
        Format::Json | Format::Lines => console.print(&format!("{document}\n")),
    }
    Ok(Verdict::default())
}

/// Fails if the fleet knows nothing about a node: its name may be mistyped.
async fn check_known(
    connection: &Connection,
    subjects: &Subjects,
    inventory: &Inventory,
    node: &NodeName,
) -> Result<(), CliError> {
    if inventory.has_reported_itself(node) {
        return Ok(());
    }
    let is_known = forget::is_assigned_or_enrolled(connection, subjects, node).await;
    if is_known.map_err(CliError::from)? {
        return Ok(());
    }
    Err(CliError::usage(format!("node {node} is unknown"))
        .hint("check the name with `ccm fleet nodes`, or use --create to label it in advance"))
}
