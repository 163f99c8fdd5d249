//! `ccm util`: helpers for interactive use and scripts.

use std::cmp::Ordering;

use clap::{Subcommand, ValueEnum};

use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::resource::package::versions::{debian, generic, rpm};

/// Utilities for scripts
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare two versions; print -1, 0 or 1 if the first is older, equal or newer
    Vercmp {
        /// Version comparison rules
        rules: Rules,

        /// First version
        #[arg(allow_hyphen_values = true)]
        a: String,

        /// Second version
        #[arg(allow_hyphen_values = true)]
        b: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rules {
    Debian,
    Rpm,
    Generic,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let Command::Vercmp { rules, a, b } = &args.command;
    let order = match rules {
        Rules::Debian => debian::compare(a, b).map_err(CliError::usage)?,
        Rules::Rpm => rpm::compare(a, b),
        Rules::Generic => generic::compare(a, b, false),
    };
    let number = match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    };
    console.print(&format!("{number}\n"));
    Ok(Verdict::default())
}
