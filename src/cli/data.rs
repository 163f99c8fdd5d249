//! Loading of hiera documents for commands that print them.

use super::CliError;
use super::output::Console;
use ccm_core::hiera::{Document, Source};
use ccm_core::run::data;
use ccm_nats::BlockingClient;

/// Logs the warnings about a document's annotations.
pub(super) fn warn(document: &Document, console: &Console) {
    for line in data::warnings(document) {
        console.log(&line);
    }
}

/// Fetches and parses a document.
pub(super) fn fetch(source: &str, nats: &BlockingClient) -> Result<(Source, Document), CliError> {
    let source: Source = source.parse().map_err(CliError::usage)?;
    let document = data::open(&source, nats).map_err(|err| {
        let diagnostics = err.diagnostics();
        if err.is_unreachable() {
            CliError::failed(err)
        } else {
            CliError::usage(err).with_diagnostics(diagnostics)
        }
    })?;
    Ok((source, document))
}
