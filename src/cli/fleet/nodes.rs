//! `ccm fleet nodes`: who there is, as the fleet's buckets know it. Nobody is asked.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::Place;
use super::reply_report::Format;
use super::request::{FormatArgs, inventory};
use super::select::SelectArgs;
use crate::cli::output::{Console, complain};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::{NodeName, NodeStatus};
use ccm_fleet::inventory::Inventory;
use ccm_value::json as text;
use ccm_value::text::{go_time, to_the_second};

/// Lists nodes, also those that are known and away
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let subjects = place.subjects()?;
    let selection = args.select.selection(&[])?;
    let inventory = runtime::block_on(async {
        let connection = place.connect().await?;
        inventory(&connection, &subjects, console).await
    })?;
    let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
    let mut names: Vec<&NodeName> = resolved.chosen.iter().collect();
    if !selection.is_part() {
        names.extend(&resolved.offline);
    }
    names.sort_unstable();
    let rows = names.into_iter().map(|name| Row::of(name, &inventory));
    match args.format.format() {
        Format::Text => console.print(&table(rows)),
        Format::Lines => rows.for_each(|row| console.print(&format!("{}\n", row.document()))),
        Format::Json => {
            let nodes: Vec<Value> = rows.map(|row| row.document()).collect();
            let document = json!({ "nodes": nodes, "unknown": resolved.unknown });
            let text = text::pretty(&document).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
    }
    if inventory.is_empty() {
        complain("no nodes yet: `ccm agent` on a machine makes it one");
    }
    for name in &resolved.unknown {
        complain(&format!("{name}: unknown node"));
    }
    Ok(Verdict::exit(if resolved.unknown.is_empty() {
        0
    } else {
        2
    }))
}

/// One node of the list.
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

    /// Returns what the node is doing, in one word.
    fn state(&self) -> &'static str {
        match self.status {
            None => "offline",
            Some(status) if status.pause.is_some() => "paused",
            Some(status) if status.current_run.is_some() => "running",
            Some(_) => "idle",
        }
    }

    /// Returns how and when its last run ended.
    fn last_run(&self) -> String {
        let told = |outcome: &str, at: DateTime<Utc>| format!("{outcome} {}", to_the_second(&at));
        let ran = self.status.and_then(|status| status.last_run.as_ref());
        let said = || self.inventory.last_said(self.name);
        match ran {
            Some(run) => told(run.outcome.as_str(), run.timestamp),
            None => said().map_or_else(
                || "-".into(),
                |said| told(said.outcome.map_or("reported", |it| it.as_str()), said.at),
            ),
        }
    }

    /// Returns what one should know before doing anything with it.
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
        .map(plain)
    }

    fn document(&self) -> Value {
        let said = self.inventory.last_said(self.name);
        json!({
            "identity": self.name,
            "state": self.state(),
            "labels": self.inventory.labels(self.name),
            "reported": said.map(|said| go_time(&said.at)),
            "status": self.status,
        })
    }
}

/// Returns a text without anything that a terminal would act on.
fn plain(text: String) -> String {
    if text.contains(char::is_control) {
        text.replace(char::is_control, " ")
    } else {
        text
    }
}

/// Lays rows out in columns as wide as their widest cell.
fn table<'a>(rows: impl Iterator<Item = Row<'a>>) -> String {
    let title = ["NODE", "VERSION", "STATE", "LAST RUN", "NOTE"].map(String::from);
    let lines: Vec<[String; 5]> = std::iter::once(title)
        .chain(rows.map(|row| row.cells()))
        .collect();
    let mut widths = [0; 5];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}
