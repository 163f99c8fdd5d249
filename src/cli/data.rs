//! Data from outside a manifest, for commands that show it.

use super::CliError;
use super::output::Console;
use crate::hiera::{Document, Source};
use crate::nats::Bus;
use crate::run::data;

/// Logs what is odd about a document's annotations.
pub(super) fn warn(document: &Document, console: &Console) {
    for line in data::warnings(document) {
        console.log(&line);
    }
}

/// Fetches and reads a document.
pub(super) fn fetch(source: &str, bus: &Bus) -> Result<Document, CliError> {
    let source: Source = source.parse().map_err(CliError::usage)?;
    data::open(&source, bus).map_err(|err| {
        if err.is_unreachable() {
            CliError::failed(err)
        } else {
            CliError::usage(err)
        }
    })
}
