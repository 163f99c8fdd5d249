//! `ccm fleet nodes`: lists nodes from the fleet's buckets. Nodes are not contacted.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::FleetArgs;
use super::reply_report::Format;
use super::request::{FormatArgs, inventory};
use super::select::SelectArgs;
use super::table::table;
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::{NodeName, NodeStatus};
use ccm_fleet::inventory::Inventory;
use ccm_value::json as text;
use ccm_value::text::{go_time, to_the_second};

/// List nodes, including offline ones
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let selection = args.select.selection(&[])?;
    let inventory = runtime::block_on(async {
        let connection = fleet.connect().await?;
        inventory(&connection, &subjects, console).await
    })?;
    let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
    let mut names: Vec<&NodeName> = resolved.chosen.iter().collect();
    if !selection.is_subset() {
        names.extend(&resolved.offline);
    }
    names.sort_unstable();
    let rows = names.into_iter().map(|name| Row::of(name, &inventory));
    match args.format.format() {
        Format::Text => {
            let title = ["NODE", "VERSION", "STATE", "LAST RUN", "NOTE"];
            console.print(&table(title, rows.map(|row| row.cells())));
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
        print_error("no nodes yet: run `ccm agent` on a machine to add it");
    }
    for name in &resolved.unknown {
        print_error(&format!("{name}: unknown node"));
    }
    Ok(Verdict::exit(if resolved.unknown.is_empty() {
        0
    } else {
        2
    }))
}

/// Row of the table.
struct Row<'a> {
    name: &'a NodeName,
    status: Option<&'a NodeStatus>,
    inventory: &'a Inventory,
}

impl<'a> Row<'a> {
    fn of(name: &'a NodeName, inventory: &'a Inventory) -> Self {
        Self {
            name,
            status: inventory.status(name),
            inventory,
        }
    }

    /// Returns the state of the node.
    fn state(&self) -> &'static str {
        match self.status {
            None => "offline",
            Some(status) if status.pause.is_some() => "paused",
            Some(status) if status.current_run.is_some() => "running",
            Some(_) => "idle",
        }
    }

    /// Returns the outcome and time of the last run.
    fn last_run(&self) -> String {
        let format = |outcome: &str, at: DateTime<Utc>| format!("{outcome} {}", to_the_second(&at));
        let ran = self.status.and_then(|status| status.last_run.as_ref());
        let report = || self.inventory.last_report(self.name);
        match ran {
            Some(run) => format(run.outcome.as_str(), run.timestamp),
            None => report().map_or_else(
                || "-".into(),
                |report| {
                    format(
                        report.outcome.map_or("reported", |it| it.as_str()),
                        report.at,
                    )
                },
            ),
        }
    }

    /// Returns the pause reason or current run, and warnings about trust.
    fn note(&self) -> String {
        let Some(status) = self.status else {
            return String::new();
        };
        let doing = match (&status.pause, &status.current_run) {
            (Some(pause), _) if pause.by.is_empty() => pause.reason.clone(),
            (Some(pause), _) => format!("{} ({})", pause.reason, pause.by),
            (None, Some(run)) => format!("{} {}", run.source, run.run_id),
            (None, None) => String::new(),
        };
        let mut notes = vec![doing, status.trust_note()];
        notes.retain(|note| !note.is_empty());
        notes.join("; ")
    }

    fn cells(&self) -> [String; 5] {
        let version = self.status.map_or("-", |status| &status.version);
        [
            self.name.to_string(),
            version.into(),
            self.state().into(),
            self.last_run(),
            self.note(),
        ]
    }

    fn document(&self) -> Value {
        let report = self.inventory.last_report(self.name);
        json!({
            "identity": self.name,
            "state": self.state(),
            "labels": self.inventory.labels(self.name),
            "reported": report.map(|report| go_time(&report.at)),
            "status": self.status,
        })
    }
}
