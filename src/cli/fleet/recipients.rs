//! Recipients of encrypted values: the public keys of selected nodes, from their presence.

use super::FleetArgs;
use super::request::load_inventory;
use crate::cli::CliError;
use crate::cli::output::Console;
use ccm_core::secrets::Recipient;
use ccm_fleet::selection::{Selection, parse_name_or_pattern};

/// Flags for the recipients of encrypted values.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes that can open the value: a name, a /regular expression/ or an expression over facts, labels
    /// and groups; repeatable
    #[arg(long = "for", value_name = "SELECTION")]
    selections: Vec<String>,

    /// Public key that can open the value (age1…); repeatable
    #[arg(short = 'r', long = "recipient", value_name = "KEY")]
    keys: Vec<Recipient>,

    #[command(flatten)]
    fleet: FleetArgs,
}

impl Args {
    /// Returns the recipients, each once. A selected node that is offline or has no key is an error:
    /// it could not open the value.
    pub(in crate::cli) fn recipients(&self, console: &Console) -> Result<Vec<Recipient>, CliError> {
        let mut found = self.keys.clone();
        if !self.selections.is_empty() {
            let inventory = load_inventory(&self.fleet, console)?;
            for text in &self.selections {
                let resolved = inventory
                    .resolve(&selection(text))
                    .map_err(CliError::usage)?;
                if let Some(name) = resolved.unknown.first() {
                    return Err(CliError::usage(format!("{name}: unknown node")));
                }
                if let Some(name) = resolved.offline.first() {
                    let text = format!("{name} is offline: its public key is not known");
                    return Err(CliError::failed(text)
                        .hint("give its key with --recipient, or select online nodes only"));
                }
                if resolved.chosen.is_empty() {
                    return Err(CliError::usage(format!("no node matches {text}")));
                }
                for name in &resolved.chosen {
                    let key = inventory
                        .status(name)
                        .map(|status| status.recipient.as_str());
                    let key = key.unwrap_or_default().parse().map_err(|_| {
                        CliError::failed(format!("{name} has no key for encrypted values")).hint(
                            "upgrade its agent, or see the problems in ccm fleet nodes --json",
                        )
                    })?;
                    found.push(key);
                }
            }
        }
        match found.is_empty() {
            true => Err(CliError::usage("no recipients")
                .hint("select nodes with --for, or give public keys with --recipient")),
            false => {
                found.sort();
                found.dedup();
                Ok(found)
            }
        }
    }
}

/// Returns the selection of a name, a pattern or an expression.
fn selection(text: &str) -> Selection {
    match parse_name_or_pattern(text) {
        Ok(name) => Selection {
            nodes: vec![name],
            ..Selection::default()
        },
        Err(_) => Selection {
            select: Some(text.to_owned()),
            ..Selection::default()
        },
    }
}
