//! `ccm fleet query`: a table of the nodes that match an expression, from the fleet's buckets. Nodes
//! are not contacted; offline nodes match by the facts that they stored.

use serde_json::{Map, Value, json};

use super::FleetArgs;
use super::node_columns::{Column, NodeView};
use super::nodes::unknown_nodes;
use super::reply_report::Format;
use super::request::{FormatArgs, load_selected};
use super::select::SelectArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::table::Table;
use crate::cli::{CliError, Verdict};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::inventory::KeptFacts;
use ccm_fleet::node_condition::newest_version;
use ccm_fleet::selection::Resolved;
use ccm_value::json as text;
use ccm_value::text::count_of;

/// Query nodes by facts, labels and groups, including offline ones
///
/// The expression is the same as for --select, for example:
///
///   ccm fleet query 'Facts.host.info.platform == "debian" && Labels.role == "web"'
///
/// Online nodes have the facts of their presence; offline nodes those that they stored last.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Expression over Facts, Labels, groups and identity [default: all nodes]
    expression: Option<String>,

    /// Columns: identity, status, reason, version, groups, labels, bundle, last_run, facts_age,
    /// Facts.PATH or Labels.NAME
    #[arg(
        long,
        value_name = "COLUMN,…",
        value_delimiter = ',',
        default_value = "identity,status,version,groups,bundle,last_run,facts_age"
    )]
    columns: Vec<Column>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    format: FormatArgs,

    /// Output CSV with a header
    #[arg(
        long,
        help_heading = "Output",
        conflicts_with_all = ["request_json", "request_jsonl"]
    )]
    csv: bool,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let mut selection = args.select.selection(&[])?;
    selection.select = match (selection.select, &args.expression) {
        (Some(select), Some(expression)) => Some(format!("({select}) && ({expression})")),
        (select, expression) => select.or_else(|| expression.clone()),
    };
    let has_facts = args.columns.iter().any(|it| matches!(it, Column::Fact(_)));
    let kept = if has_facts {
        KeptFacts::Selected
    } else {
        KeptFacts::None
    };
    let inventory = load_selected(fleet, &selection, kept, console)?;
    let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
    let names = resolved.names(&selection);
    let newest = newest_version(&inventory);
    let now = SystemClock.now();
    let nodes = names.iter().map(|name| NodeView {
        name,
        inventory: &inventory,
        newest,
        now,
    });
    let document = |node: &NodeView<'_>| -> Value {
        let fields = args.columns.iter();
        fields
            .map(|column| (column.name(), column.value(node)))
            .collect::<Map<String, Value>>()
            .into()
    };
    let text = match (args.csv, args.format.format()) {
        (true, _) => csv(&args.columns, nodes),
        (_, Format::Lines) => nodes.map(|node| format!("{}\n", document(&node))).collect(),
        (_, Format::Json) => {
            let nodes: Vec<Value> = nodes.map(|node| document(&node)).collect();
            let document = json!({ "nodes": nodes, "unknown": resolved.unknown });
            format!("{}\n", text::pretty(&document).map_err(CliError::failed)?)
        }
        (_, Format::Text) => {
            let mut table = Table::new(args.columns.iter().map(Column::title));
            nodes.for_each(|node| table.row(args.columns.iter().map(|it| it.cell(&node))));
            table.render(console.has_colour())
        }
    };
    console.print(&text);
    warn_undecided(&resolved);
    Ok(unknown_nodes(&resolved.unknown))
}

/// Warns about nodes for which the expression could not be evaluated.
fn warn_undecided(resolved: &Resolved) {
    if let Some((node, error)) = resolved.undecided.first() {
        let count = count_of(resolved.undecided.len(), "node");
        print_error(&format!(
            "ccm: warning: the expression could not be evaluated for {count}, such as {node}: {error}"
        ));
    }
}

/// Returns the nodes as CSV.
fn csv<'a>(columns: &[Column], nodes: impl Iterator<Item = NodeView<'a>>) -> String {
    let line = |cells: Vec<String>| format!("{}\r\n", cells.join(","));
    let names = columns.iter().map(|column| csv_field(&column.name()));
    let mut out = line(names.collect());
    for node in nodes {
        let cells = columns.iter().map(|column| csv_field(&column.text(&node)));
        out.push_str(&line(cells.collect()));
    }
    out
}

/// Quotes a field as RFC 4180 requires it.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_csv_field_is_quoted_if_needed() {
        assert_eq!(csv_field("web1"), "web1");
        assert_eq!(csv_field("a,b"), "\"a,b\"");
        assert_eq!(csv_field("say \"x\"\n"), "\"say \"\"x\"\"\n\"");
    }
}
