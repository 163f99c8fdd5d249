//! `ccm validate`: checks a manifest without applying it.

mod report;

use clap::{ValueEnum, ValueHint};

use super::apply::{Inputs, load};
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::manifest::Checks;
use ccm_value::diagnostic::{Diagnostic, Location};
use ccm_value::document::Mark;
use ccm_value::text::count_of;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Manifest to check, as for `ccm apply`
    #[arg(value_hint = ValueHint::AnyPath)]
    manifest: String,

    /// Output format; all but text are printed on standard output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Output JSON, as with --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    #[command(flatten)]
    inputs: Inputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Problems with their source lines
    Text,
    /// One JSON document
    Json,
    /// Workflow commands of GitHub Actions, shown as annotations
    Github,
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let format = if args.json { Format::Json } else { args.format };
    let loaded = load(&args.manifest, &args.inputs, Checks::All, console);
    let resources = match loaded {
        Ok(loaded) => Ok(loaded.manifest.resources.len()),
        Err(err) if format == Format::Text => return Err(err),
        Err(err) => Err(err),
    };
    let problems = match &resources {
        Ok(_) => Vec::new(),
        Err(err) => problems(&args.manifest, err),
    };
    let count = resources.as_ref().copied().ok();
    console.print(&match format {
        Format::Text => {
            let count = count_of(count.unwrap_or_default(), "resource");
            format!("{}: {count}, no problems\n", args.manifest)
        }
        Format::Json => report::json(&args.manifest, count, &problems)?,
        Format::Github => report::github(&problems),
        Format::Sarif => report::sarif(&problems)?,
    });
    match &resources {
        Ok(_) => Ok(Verdict::default()),
        Err(err) => Ok(Verdict::exit(err.exit_code())),
    }
}

/// Returns the problems of a manifest. An error without a position, such as a file that does not exist,
/// is one problem of the whole manifest.
fn problems(manifest: &str, error: &CliError) -> Vec<Diagnostic> {
    if !error.diagnostics().is_empty() {
        return error.diagnostics().to_vec();
    }
    vec![Diagnostic {
        message: error.to_string(),
        location: Location::without_line(manifest, Mark::default()),
        help: error.hints().first().cloned(),
        ..Diagnostic::default()
    }]
}
