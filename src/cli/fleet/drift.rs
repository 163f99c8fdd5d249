//! `ccm fleet drift`: what nodes are, beside what they should be.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::Place;
use super::request::{WORK, caller, wait};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle_store::shown;
use ccm_fleet::drift::{self, NodeDrift, Standing, Touched};
use ccm_fleet::preview;
use ccm_value::json;
use ccm_value::text::{count_of, to_the_second};

/// Shows what differs on nodes from what they are assigned, and since when
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// One node, with the events that last changed what differs
    node: Option<NodeName>,

    /// Asks the nodes how they are now; changes nothing
    #[arg(long)]
    refresh: bool,

    /// How long a node may take to answer [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    timeout: Option<Duration>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, place: &Place, console: &mut Console) -> Result<Verdict, CliError> {
    let subjects = place.subjects()?;
    let (nodes, touched) = runtime::block_on(async {
        let connection = place.connect().await?;
        let loaded = drift::load(&connection, &subjects).await;
        let mut nodes = loaded.map_err(CliError::of_fleet)?;
        if let Some(wanted) = &args.node {
            nodes.retain(|it| it.node == *wanted);
            if nodes.is_empty() {
                let text = format!("node {wanted} was never assigned anything and never reported");
                return Err(CliError::usage(text));
            }
        }
        if args.refresh {
            let questions = nodes.iter().flat_map(NodeDrift::questions).collect();
            let limit = args.timeout.unwrap_or(WORK);
            let asked = preview::ask(&connection, &subjects, questions, &caller(), limit).await;
            let answers = asked.map_err(CliError::failed)?;
            drift::refresh(&mut nodes, answers, SystemClock.now());
        }
        let touched = match (&args.node, nodes.first()) {
            (Some(_), Some(node)) => {
                let found = drift::touched(&connection, &subjects, node).await;
                Some(found.map_err(CliError::failed)?)
            }
            _ => None,
        };
        Ok((nodes, touched))
    })?;
    if args.json {
        let document = json!({"nodes": nodes, "changed_by": touched});
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        console.print(&described(&nodes, touched.as_deref()))
    }
    Ok(Verdict::exit(code(&nodes)))
}

/// Returns 1 when something differs or failed, 2 when some were not heard of, else 0.
fn code(nodes: &[NodeDrift]) -> u8 {
    let worst = nodes.iter().map(|node| node.standing).min();
    match worst {
        Some(Standing::Failed | Standing::Drifted) => 1,
        Some(Standing::Lagging) => 2,
        _ => 0,
    }
}

fn described(nodes: &[NodeDrift], touched: Option<&[Touched]>) -> String {
    let mut text = String::new();
    let mut counts: BTreeMap<Standing, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.standing).or_default() += 1;
        let is_quiet = matches!(node.standing, Standing::Converged | Standing::Unassigned);
        if !is_quiet || touched.is_some() || !node.error.is_empty() {
            text.push_str(&node_text(node, touched.unwrap_or_default()));
        }
    }
    if touched.is_none() {
        let words: Vec<String> = counts
            .iter()
            .map(|(standing, count)| format!("{count} {}", standing.as_str()))
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

fn node_text(node: &NodeDrift, touched: &[Touched]) -> String {
    let manifests: Vec<String> = node.manifests.iter().map(shown).collect();
    let manifests = if manifests.is_empty() {
        String::new()
    } else {
        format!(" ({})", manifests.join(", "))
    };
    let mut text = format!("{} {}{manifests}", node.node, node.standing.as_str());
    if node.standing == Standing::Lagging {
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
        let is_it = |it: &&Touched| it.type_name == *type_name && it.name == *name;
        if let Some(last) = touched.iter().find(is_it) {
            let at = to_the_second(&last.at);
            text.push_str(&format!("    last changed at {at} by {}\n", last.event_id));
        }
    }
    text
}
