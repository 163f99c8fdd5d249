//! Output of diagnoses: a table with remedies, or JSON. The exit code is 1 if a check failed.

use super::output::Console;
use super::table::{Cell, Paint, Table};
use super::{CliError, Verdict};
use ccm_core::model::diagnosis::{Check, CheckState, Diagnosis};
use ccm_value::json;

/// Flags of all diagnoses.
#[derive(Debug, clap::Args)]
pub(super) struct DiagnosisArgs {
    /// Output JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Only show warnings and failures
    #[arg(long, conflicts_with = "json")]
    problems: bool,
}

/// Prints a diagnosis and returns its exit code.
pub(super) fn print(
    diagnosis: &Diagnosis,
    args: &DiagnosisArgs,
    console: &Console,
) -> Result<Verdict, CliError> {
    if args.json {
        let text = json::pretty(diagnosis).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        let checks = diagnosis.checks.iter();
        let is_shown = |check: &&Check| !args.problems || check.state >= CheckState::Warning;
        let shown: Vec<&Check> = checks.filter(is_shown).collect();
        match shown.is_empty() {
            true => console.print("no problems\n"),
            false => console.print(&table(&shown).render(console.has_colour())),
        }
    }
    Ok(Verdict {
        failed: diagnosis.has_failed(),
        ..Verdict::default()
    })
}

fn table(checks: &[&Check]) -> Table {
    let mut table = Table::new(["CHECK", "STATE", "FOUND"]);
    for check in checks {
        let mut lines = check.found.lines();
        table.row([
            check.name.as_str().into(),
            state_cell(check.state),
            lines.next().unwrap_or_default().into(),
        ]);
        for line in lines {
            table.row([Cell::default(), Cell::default(), line.into()]);
        }
        if !check.remedy.is_empty() {
            let remedy = format!("remedy: {}", check.remedy);
            table.row([Cell::default(), Cell::default(), remedy.into()]);
        }
    }
    table
}

fn state_cell(state: CheckState) -> Cell {
    let paint = match state {
        CheckState::Ok => Paint::Green,
        CheckState::NotChecked => Paint::Dim,
        CheckState::Warning => Paint::Yellow,
        CheckState::Failed => Paint::Red,
    };
    Cell::painted(state.as_str(), paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_on_the_line_below() {
        let checks = [
            Check::ok("clock", "fine"),
            Check::failed("server", "refused\nand more", "start it"),
        ];
        assert_eq!(
            table(&checks.iter().collect::<Vec<_>>()).render(false),
            "CHECK   STATE   FOUND\n\
             clock   ok      fine\n\
             server  failed  refused\n                and more\n                remedy: start it\n"
        );
    }
}
