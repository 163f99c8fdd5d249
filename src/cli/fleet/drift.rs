//! `ccm fleet drift`: differences between assigned and actual state of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use super::FleetArgs;
use super::candidates;
use super::events::warn_unreadable;
use super::request::{RUN_TIMEOUT, caller, inventory, positive_duration};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::NodeName;
use ccm_fleet::bundle_store::short_name;
use ccm_fleet::drift::{self, DriftState, LastChange, NodeDrift};
use ccm_fleet::preview::PreviewError;
use ccm_value::json;
use ccm_value::text::{count_of, to_the_second};

/// Show how nodes differ from their assigned manifests, and since when
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes to show; a single one with the events that last changed the drifted resources
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Make the nodes check themselves now with a noop run and store the result
    #[arg(long)]
    refresh: bool,

    /// Time to wait for the reply of a node [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    timeout: Option<Duration>,

    /// Output JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    select: SelectArgs,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let selection = args.select.selection(&args.named)?;
    let (nodes, last_changes) = runtime::block_on(async {
        let connection = fleet.connect().await?;
        let loaded = drift::load(&connection, &subjects).await;
        let mut nodes = loaded.map_err(CliError::of_fleet)?;
        if !selection.is_everything() {
            let inventory = inventory(&connection, &subjects, console).await?;
            let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
            let selected: BTreeSet<NodeName> = resolved.names(&selection).into_iter().collect();
            nodes.retain(|it| selected.contains(&it.node));
            let named = args.named.iter().map(NodeName::as_str);
            let mut named = named.chain(resolved.unknown.iter().map(String::as_str));
            let is_missing = |name: &&str| nodes.iter().all(|it| it.node.as_str() != *name);
            if let Some(name) = named.find(is_missing) {
                let text = format!("node {name} has no assignment and never reported");
                return Err(CliError::usage(text));
            }
        }
        if args.refresh {
            let limit = args.timeout.unwrap_or(RUN_TIMEOUT);
            drift::refresh(&connection, &subjects, &mut nodes, &caller(), limit)
                .await
                .map_err(CliError::failed)?;
        }
        let last_changes = match (args.named.as_slice(), nodes.as_slice()) {
            ([_], [node]) => {
                let found = drift::last_changes(&connection, &subjects, node).await;
                let found = found.map_err(CliError::failed)?;
                warn_unreadable(&found.unreadable, "event");
                Some(found.changes)
            }
            _ => None,
        };
        Ok((nodes, last_changes))
    })?;
    if args.json {
        let document = json!({"nodes": nodes, "changed_by": last_changes});
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        console.print(&drift_text(&nodes, last_changes.as_deref()))
    }
    Ok(Verdict::exit(code(&nodes)))
}

/// Returns 1 if a node drifted, failed or refused to check itself, 2 if one did not reply, has not
/// reported its assignment yet or has unreadable records, else 0.
fn code(nodes: &[NodeDrift]) -> u8 {
    let any = |is: fn(&NodeDrift) -> bool| nodes.iter().any(is);
    let has_failed = any(|node| {
        matches!(node.state, DriftState::Failed | DriftState::Drifted)
            || node
                .refresh_error
                .as_ref()
                .is_some_and(|reason| *reason != PreviewError::NoReply)
    });
    let is_unknown = any(|node| {
        matches!(node.state, DriftState::Lagging | DriftState::Unreadable)
            || node.refresh_error.is_some()
    });
    match (has_failed, is_unknown) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 0,
    }
}

fn drift_text(nodes: &[NodeDrift], last_changes: Option<&[LastChange]>) -> String {
    let mut text = String::new();
    let mut counts: BTreeMap<DriftState, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.state).or_default() += 1;
        let is_unremarkable = matches!(node.state, DriftState::Converged | DriftState::Unassigned);
        if !is_unremarkable || last_changes.is_some() || !node.error.is_empty() {
            text.push_str(&node_text(node, last_changes.unwrap_or_default()));
        }
    }
    if last_changes.is_none() {
        let words: Vec<String> = counts
            .iter()
            .map(|(state, count)| format!("{count} {}", state.as_str()))
            .collect();
        let total = count_of(nodes.len(), "node");
        if words.is_empty() {
            text.push_str("no nodes\n")
        } else {
            text.push_str(&format!("{total}: {}\n", words.join(", ")))
        }
    }
    text
}

fn node_text(node: &NodeDrift, last_changes: &[LastChange]) -> String {
    let manifests: Vec<String> = node.manifests.iter().map(short_name).collect();
    let manifests = if manifests.is_empty() {
        String::new()
    } else {
        format!(" ({})", manifests.join(", "))
    };
    let mut text = format!("{} {}{manifests}", node.node, node.state.as_str());
    if let (DriftState::Drifted | DriftState::Converged, Some(source), Some(reported)) =
        (node.state, node.source, &node.reported)
    {
        let at = to_the_second(reported);
        text.push_str(&format!(" by the {} at {at}", source.as_str()));
    }
    if node.state == DriftState::Lagging {
        let since = node
            .assigned
            .as_ref()
            .map(to_the_second)
            .unwrap_or_default();
        text.push_str(&format!(
            ": reported generation {}, assigned {} at {since}",
            node.reported_generation, node.wanted_generation
        ));
    }
    if let Some(refusal) = &node.refusal {
        text.push_str(&format!(": {refusal}"));
    }
    if !node.error.is_empty() {
        text.push_str(&format!(": {}", node.error));
    }
    text.push('\n');
    for item in &node.drift {
        let (type_name, name) = (&item.type_name, &item.name);
        let since = to_the_second(&item.since);
        text.push_str(&format!(
            "  {type_name}#{name}: {} (since {since})\n",
            item.message
        ));
        for line in item.diff.lines() {
            text.push_str(&format!("    {}\n", line.replace(char::is_control, " ")));
        }
        let is_same = |it: &&LastChange| it.type_name == *type_name && it.name == *name;
        if let Some(last) = last_changes.iter().find(is_same) {
            let at = to_the_second(&last.at);
            text.push_str(&format!("    last changed at {at} by {}\n", last.event_id));
        }
    }
    for item in &node.unchecked {
        let (type_name, name, reason) = (&item.type_name, &item.name, &item.reason);
        text.push_str(&format!("  {type_name}#{name}: not checkable: {reason}\n"));
    }
    text
}
