//! Data from outside a manifest, for commands that show it.

use super::CliError;
use super::output::Console;
use ccm_core::hiera::{Document, Source};
use ccm_core::run::data;
use ccm_nats::Bus;

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
