//! Output of lists: a table, or JSON.

use serde_json::{Value, json};

use super::reply_report::Format;
use crate::cli::CliError;
use crate::cli::output::Console;
use crate::cli::table::{Cell, Table};
use ccm_value::json as text;

/// Prints a list: a table, one JSON document with the list below `name`, or JSON lines.
pub(super) fn print_list<const N: usize>(
    console: &Console,
    format: Format,
    name: &str,
    title: [&str; N],
    rows: impl Iterator<Item = ([String; N], Value)>,
) -> Result<(), CliError> {
    match format {
        Format::Text => {
            let mut table = Table::new(title);
            rows.for_each(|(cells, _)| table.row(cells.map(Cell::from)));
            console.print(&table.render(console.has_colour()));
        }
        Format::Lines => rows.for_each(|(_, row)| console.print(&format!("{row}\n"))),
        Format::Json => {
            let rows: Vec<Value> = rows.map(|(_, row)| row).collect();
            let text = text::pretty(&json!({ name: rows })).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
    }
    Ok(())
}
