//! `ccm validate`: checks a manifest without applying it.

use clap::ValueHint;

use super::apply::{Inputs, load};
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::manifest::{Problem, deep_check};
use ccm_value::text::count_of;

/// Check a manifest and print every problem with its position
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Manifest to check, as for `ccm apply`
    #[arg(value_hint = ValueHint::AnyPath)]
    manifest: String,

    #[command(flatten)]
    inputs: Inputs,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let manifest = load(&args.manifest, &args.inputs, console)?.manifest;
    let problems = deep_check(&manifest);
    if problems.is_empty() {
        let count = count_of(manifest.resources.len(), "resource");
        console.print(&format!("{}: {count}, no problems\n", args.manifest));
        return Ok(Verdict::default());
    }
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    Err(CliError::usage(lines.join("\n")))
}
