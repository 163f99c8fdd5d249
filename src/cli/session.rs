//! `ccm session`: stores the events of several `ccm ensure` calls and summarizes them.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::output::{Console, Report};
use super::{CliError, Verdict};
use ccm_core::engine::{Level, Line, Session};
use ccm_core::system::{files, random};
use ccm_value::json;
use ccm_value::text::shell_word;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a session store and print the variable that selects it
    #[command(aliases = ["start", "create"])]
    New {
        /// Directory to store the session in [default: new directory in the temporary directory]
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Report on the active session
    Report {
        /// Session store to use
        #[arg(long, env = "CCM_SESSION_STORE", value_name = "DIR")]
        session: Option<PathBuf>,

        /// Remove the session directory afterwards, if it is in the system temporary directory
        #[arg(long)]
        remove: bool,

        /// Output the summary as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    match args.command {
        Command::New { directory } => new(directory, console),
        Command::Report {
            session,
            remove,
            json,
        } => report(session, remove, json, console),
    }
}

fn new(directory: Option<PathBuf>, console: &Console) -> Result<Verdict, CliError> {
    let directory = match directory {
        Some(directory) => std::path::absolute(directory).map_err(CliError::usage)?,
        None => {
            let number = random().map_err(CliError::failed)? as u64;
            std::env::temp_dir().join(format!("ccm-session-{number}"))
        }
    };
    Session::create(&directory).map_err(CliError::failed)?;
    console.print(&format!(
        "export CCM_SESSION_STORE={}\n",
        shell_word(&directory.display().to_string())
    ));
    Ok(Verdict::default())
}

fn report(
    session: Option<PathBuf>,
    remove: bool,
    as_json: bool,
    console: &Console,
) -> Result<Verdict, CliError> {
    let store = session
        .filter(|store| !store.as_os_str().is_empty())
        .ok_or_else(|| {
            CliError::usage("no session store specified")
                .hint("use --session, or create a session with eval \"$(ccm session new)\"")
        })?;
    let session = Session::directory(&store).map_err(CliError::failed)?;
    for reason in &session.skipped {
        console.log(&Line::new(Level::Warn, "Skipping stored event").with("reason", reason));
    }
    let summary = session.summary();
    if as_json {
        let text = json::pretty(&summary).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        console.report("Session Summary", &summary, Report::Session);
    }
    if remove {
        remove_store(&store, console)?;
    }
    Ok(Verdict::default())
}

/// Removes a store, but only inside the temporary directory.
fn remove_store(store: &Path, console: &Console) -> Result<(), CliError> {
    let Ok(real) = store.canonicalize() else {
        return Ok(());
    };
    let temporary = std::env::temp_dir();
    let temporary = temporary.canonicalize().unwrap_or(temporary);
    if real == temporary || !real.starts_with(&temporary) {
        let text = "Session store is outside of the temporary directory and is not removed";
        let line = Line::new(Level::Warn, text).with("store", store.display());
        console.log(&line.with("temporary_directory", temporary.display()));
        return Ok(());
    }
    files::remove_recursive(&real).map_err(CliError::failed)
}
