//! Completion candidates from NATS: names of nodes, bundles and rollouts.
//!
//! Queries run only while a shell completes a word. They have a short time limit, and any failure
//! results in no candidates and no output, because a message would disturb the user's input.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{Args as _, Command, FromArgMatches as _};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::FleetArgs;
use crate::cli::{CliError, completion, runtime};
use ccm_fleet::bundle_store::{BundleStore, short_name};
use ccm_fleet::inventory::Inventory;
use ccm_fleet::rollout_store::RolloutStore;
use ccm_fleet::selection::Selection;
use ccm_nats::{Connection, Subjects};

/// Time limit of a query, including the connection.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Flags of the command line that select the fleet to query.
const FLEET_FLAGS: [&str; 4] = ["--server", "--context", "--collective", "--prefix"];

/// Returns the completer for names of nodes.
pub(super) fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        complete(current, async |connection, subjects| {
            let inventory = Inventory::load(&connection, &subjects).await;
            let inventory = inventory.map_err(CliError::failed)?;
            let all = inventory.resolve(&Selection::default());
            let all = all.map_err(CliError::failed)?;
            let names = all.chosen.iter().chain(&all.offline);
            Ok(names
                .map(|name| CompletionCandidate::new(name.as_str()))
                .collect())
        })
    })
}

/// Returns the completer for bundles: names, and names with a digest.
pub(super) fn bundles() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        complete(current, async |connection, _| {
            let bundles = BundleStore::open(&connection).await?.list().await?;
            let mut candidates = Vec::new();
            let mut last = None;
            for stored in &bundles {
                let name = &stored.bundle.name;
                if last != Some(name) {
                    candidates.push(CompletionCandidate::new(name.as_str()));
                    last = Some(name);
                }
                candidates.push(CompletionCandidate::new(short_name(&stored.bundle)));
            }
            Ok(candidates)
        })
    })
}

/// Returns the completer for rollout ids, with the state and bundle as description.
pub(super) fn rollouts() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        complete(current, async |connection, subjects| {
            let store = RolloutStore::open(&connection, &subjects).await?;
            let (rollouts, _) = store.list().await?;
            // The list is sorted by time; recent rollouts are the likely ones.
            let newest_first = rollouts.iter().rev().map(|stored| &stored.rollout);
            Ok(newest_first
                .map(|rollout| {
                    let bundle = short_name(&rollout.bundle);
                    let help = format!("{} {bundle}", rollout.state.as_str());
                    CompletionCandidate::new(rollout.id.as_str()).help(Some(help.into()))
                })
                .collect())
        })
    })
}

/// Queries candidates and returns those that start with the current word.
fn complete(
    current: &OsStr,
    query: impl AsyncFnOnce(Connection, Subjects) -> Result<Vec<CompletionCandidate>, CliError>,
) -> Vec<CompletionCandidate> {
    let candidates = fleet_args(&completion::words()).and_then(|fleet| {
        let subjects = fleet.subjects()?;
        runtime::block_on(async {
            let query = async { query(fleet.nats.connect().await?, subjects).await };
            let result = tokio::time::timeout(TIMEOUT, query).await;
            result.map_err(CliError::failed)?
        })
    });
    let prefix = current.to_string_lossy();
    let is_match = |candidate: &CompletionCandidate| {
        let value = candidate.get_value().to_string_lossy();
        value.starts_with(&*prefix)
    };
    let candidates = candidates.unwrap_or_default().into_iter();
    candidates.filter(is_match).collect()
}

/// Parses the fleet flags among the words of an incomplete command line.
fn fleet_args(words: &[OsString]) -> Result<FleetArgs, CliError> {
    let mut flags = vec![OsString::from("ccm")];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if FLEET_FLAGS.contains(&name) {
            flags.push(word.clone());
            if !text.contains('=') {
                flags.extend(words.next().cloned());
            }
        }
    }
    let command = FleetArgs::augment_args(Command::new("ccm"));
    let matches = command.try_get_matches_from(flags);
    let matches = matches.map_err(CliError::usage)?;
    FleetArgs::from_arg_matches(&matches).map_err(CliError::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<FleetArgs, CliError> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        fleet_args(&words)
    }

    #[test]
    fn fleet_flags_are_found_anywhere_in_an_incomplete_command_line() {
        let fleet = parse(&[
            "ccm",
            "fleet",
            "--collective=ops",
            "pause",
            "--prefix",
            "x.y",
            "--reason",
            "--node",
            "",
        ]);
        let fleet = fleet.unwrap();
        assert_eq!(fleet.collective.as_str(), "ops");
        assert_eq!(fleet.prefix, "x.y");
        assert!(parse(&["ccm", "fleet", "--collective"]).is_err());
    }
}
