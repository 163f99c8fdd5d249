//! Data from outside a manifest: fetched, resolved and checked on its own.

use super::CliError;
use super::output::Console;
use crate::agent;
use crate::engine::{Level, Line};
use crate::hiera::{self, DATA_KEY, Document, Source};
use crate::model::Value;
use crate::nats::Bus;
use crate::system::files;
use crate::template::env::Facts;

/// Resolves a source with its own hierarchy and validates it.
pub(super) fn resolve(
    source: &str,
    facts: &Facts,
    bus: &Bus,
    console: &Console,
) -> Result<Value, CliError> {
    let document = fetch(source, bus)?;
    warn(&document, console);
    let data = hiera::resolve(&document.root, facts, DATA_KEY).map_err(CliError::usage)?;
    hiera::validate(&data, &document.annotations.rules).map_err(CliError::usage)?;
    Ok(data)
}

/// Resolves a source; a file that does not exist has no data.
pub(super) fn resolve_if_there(
    source: &str,
    facts: &Facts,
    bus: &Bus,
    console: &Console,
) -> Result<Value, CliError> {
    if let Ok(Source::File(path)) = source.parse()
        && files::inspect(&path, true)
            .map_err(CliError::usage)?
            .is_none()
    {
        return Ok(Value::empty_map());
    }
    resolve(source, facts, bus, console)
}

/// Says what is odd about a document's annotations.
pub(super) fn warn(document: &Document, console: &Console) {
    for warning in &document.annotations.warnings {
        let line = Line::new(Level::Warn, "Unrecognized annotation in hiera data")
            .with("key", &warning.path)
            .with("annotation", &warning.annotation);
        console.log(&line);
    }
}

/// Fetches and reads a document.
pub(super) fn fetch(source: &str, bus: &Bus) -> Result<Document, CliError> {
    let source: Source = source.parse().map_err(CliError::usage)?;
    let body = agent::data::fetch(&source, bus).map_err(CliError::failed)?;
    source.read(&body, DATA_KEY).map_err(CliError::usage)
}
