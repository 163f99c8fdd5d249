//! Lists: tables with aligned columns, or JSON.

use serde_json::{Value, json};

use super::reply_report::Format;
use crate::cli::CliError;
use crate::cli::output::Console;
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
        Format::Text => console.print(&table(title, rows.map(|(cells, _)| cells))),
        Format::Lines => rows.for_each(|(_, row)| console.print(&format!("{row}\n"))),
        Format::Json => {
            let rows: Vec<Value> = rows.map(|(_, row)| row).collect();
            let text = text::pretty(&json!({ name: rows })).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
    }
    Ok(())
}

/// Formats rows below a title, with aligned columns. Control characters, which a terminal would
/// interpret, are replaced.
pub(super) fn table<const N: usize>(
    title: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows = rows.map(|row| row.map(plain));
    let lines: Vec<[String; N]> = std::iter::once(title.map(String::from))
        .chain(rows)
        .collect();
    let mut widths = [0; N];
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

fn plain(text: String) -> String {
    if text.contains(char::is_control) {
        text.replace(char::is_control, " ")
    } else {
        text
    }
}
