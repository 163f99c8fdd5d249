//! `ccm registration watch`: prints registry changes until interrupted.

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{EntryFilter, line};
use crate::cli::environment::NatsArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line, Sink as _};
use ccm_core::model::registration::Entry;
use ccm_nats::registration::{Change, Watch};

/// Watch registration updates in real time
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    filter: EntryFilter,

    /// Output one JSON document per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(
    args: &Args,
    nats: &NatsArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    runtime::block_on(async {
        let connection = nats.connect().await?;
        let stream = nats.registration_stream();
        let watching = connection.watch_registrations(stream, args.filter.tokens());
        let watch = watching.await.map_err(CliError::of_registrations)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            shown = show(watch, args.json, console) => shown?,
        }
        Ok(Verdict::default())
    })
}

/// Prints changes until the connection ends.
async fn show(mut watch: Watch, is_json: bool, console: &mut Console) -> Result<(), CliError> {
    while let Some(change) = watch.next().await {
        match (change, is_json) {
            (Change::Denied(denial), _) => return Err(CliError::failed(denial)),
            (Change::Unreadable(problem), _) => {
                console.log(&Line::new(Level::Warn, problem.to_string()));
            }
            (Change::Updated(entry), true) => {
                let document = json!({ "action": "register", "entry": entry });
                console.print(&format!("{document}\n"));
            }
            (Change::Removed { entry, reason }, true) => {
                let document = json!({ "action": "remove", "entry": entry, "reason": reason });
                console.print(&format!("{document}\n"));
            }
            (Change::Updated(entry), false) => console.line(&updated(&entry)),
            (Change::Removed { entry, reason }, false) => {
                let line = line(Level::Warn, "Removed entry", &entry);
                console.line(&line.with("reason", reason));
            }
        }
    }
    Ok(())
}

fn updated(entry: &Entry) -> Line {
    let port = entry.port().map_or("none".into(), |port| port.to_string());
    let line = line(Level::Info, "Updated entry", entry).with("port", port);
    match entry.ttl {
        Some(ttl) => line.with("ttl", ttl),
        None => line,
    }
}
