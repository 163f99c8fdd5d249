//! `ccm util`: helpers for interactive use and scripts.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};

use super::help::{command_pages, man_pages};
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::resource::package::versions::{debian, generic, rpm};
use ccm_core::system::files::{self, Attributes, Content, Durability};

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

    /// Write the manual page of every command into a directory
    ManPages {
        /// Directory to write to; must exist
        directory: PathBuf,
    },

    /// Write the command reference of the book into a directory
    #[command(hide = true)]
    ReferencePages {
        /// Directory to write to; must exist
        directory: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rules {
    Debian,
    Rpm,
    Generic,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    match &args.command {
        Command::Vercmp { rules, a, b } => compare_versions(*rules, a, b, console),
        Command::ManPages { directory } => {
            let pages = man_pages(super::with_help())?.into_iter();
            write_pages(directory, pages.map(|page| (page.file_name(), page.text)))
        }
        Command::ReferencePages { directory } => {
            let pages = command_pages(super::with_help()).into_iter();
            write_pages(directory, pages.map(|page| (page.file_name, page.text)))
        }
    }
}

/// Writes pages, each with its file name, into a directory.
fn write_pages(
    directory: &Path,
    pages: impl Iterator<Item = (String, String)>,
) -> Result<Verdict, CliError> {
    let attributes = Attributes {
        mode: Some(0o644),
        ..Attributes::default()
    };
    for (name, text) in pages {
        let content = Content::Bytes(text.as_bytes());
        let path = directory.join(name);
        files::store(&path, content, &attributes, Durability::Content).map_err(CliError::failed)?;
    }
    Ok(Verdict::default())
}

fn compare_versions(
    rules: Rules,
    a: &str,
    b: &str,
    console: &mut Console,
) -> Result<Verdict, CliError> {
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
