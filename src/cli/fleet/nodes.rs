//! `ccm fleet nodes`: lists nodes from the fleet's buckets. Nodes are not contacted.

use serde_json::{Value, json};

use super::FleetArgs;
use super::candidates;
use super::node_columns::{condition_cell, last_run};
use super::reply_report::Format;
use super::request::{FormatArgs, NO_NODES, load_selected};
use super::select::SelectArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::table::{Cell, Table};
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::{NodeName, NodeStatus};
use ccm_fleet::inventory::{Inventory, KeptFacts};
use ccm_fleet::node_condition::{Condition, newest_version};
use ccm_value::json as text;
use ccm_value::text::go_time;

/// List nodes, including offline ones
///
/// STATUS is online, or the most urgent of: offline, refusing (a request or assignment was refused in
/// the last hour), paused, waiting for a governor, busy (a run is in progress), no-trust (unsigned
/// requests are accepted) and old-version (other agents are newer).
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes to list
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.selection(&args.named)?;
    // The table has no facts.
    let kept = match args.format.format() {
        Format::Text => KeptFacts::None,
        Format::Lines | Format::Json => KeptFacts::Selected,
    };
    let inventory = load_selected(fleet, &selection, kept, console)?;
    let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
    let names = resolved.names(&selection);
    let newest = newest_version(&inventory);
    let rows = names.iter().map(|name| Row::of(name, &inventory, newest));
    match args.format.format() {
        Format::Text => {
            let mut table = Table::new(["NODE", "VERSION", "STATUS", "LAST RUN", "REASON"]);
            rows.for_each(|row| table.row(row.cells()));
            console.print(&table.render(console.has_colour()));
        }
        Format::Lines => rows.for_each(|row| console.print(&format!("{}\n", row.document()))),
        Format::Json => {
            let nodes: Vec<Value> = rows.map(|row| row.document()).collect();
            let document = json!({ "nodes": nodes, "unknown": resolved.unknown });
            let text = text::pretty(&document).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
    }
    if inventory.is_empty() {
        print_error(&format!(
            "{NO_NODES}: run `ccm agent` on a machine to add it"
        ));
    }
    Ok(unknown_nodes(&resolved.unknown))
}

/// Lists the unknown nodes of a selection on standard error and returns the exit code.
pub(super) fn unknown_nodes(unknown: &[String]) -> Verdict {
    for name in unknown {
        print_error(&format!("{name}: unknown node"));
    }
    Verdict::exit(if unknown.is_empty() { 0 } else { 2 })
}

/// Row of the table.
struct Row<'a> {
    name: &'a NodeName,
    status: Option<&'a NodeStatus>,
    inventory: &'a Inventory,
    condition: Condition,
}

impl<'a> Row<'a> {
    fn of(name: &'a NodeName, inventory: &'a Inventory, newest: Option<&str>) -> Self {
        Self {
            name,
            status: inventory.status(name),
            inventory,
            condition: Condition::of(name, inventory, newest),
        }
    }

    /// Returns the activity of the node.
    fn state(&self) -> &'static str {
        match self.status {
            None => "offline",
            Some(status) if status.pause.is_some() => "paused",
            Some(status) if status.current_run.is_some() => "running",
            Some(_) => "idle",
        }
    }

    fn cells(&self) -> [Cell; 5] {
        [
            self.name.as_str().into(),
            self.inventory.version(self.name).unwrap_or("-").into(),
            condition_cell(&self.condition),
            last_run(self.name, self.inventory),
            self.condition.reason.as_str().into(),
        ]
    }

    fn document(&self) -> Value {
        let report = self.inventory.last_report(self.name);
        let facts = self.inventory.facts(self.name);
        json!({
            "identity": self.name,
            "state": self.state(),
            "condition": self.condition.kind.as_str(),
            "reason": self.condition.reason,
            "labels": self.inventory.labels(self.name),
            "reported": report.map(|report| go_time(&report.at)),
            "facts_time": facts.map(|(_, time)| go_time(&time)),
            "status": self.status,
        })
    }
}
