//! Data from outside a manifest: fetched, resolved and checked on its own.

use super::output::Console;
use super::{CliError, environment};
use crate::engine::{Level, Line};
use crate::hiera::{self, DATA_KEY, Document, Source};
use crate::model::Value;
use crate::system::files::{self, FileError};
use crate::template::env::Facts;

/// Resolves a source with its own hierarchy and validates it.
pub(super) fn resolve(source: &str, facts: &Facts, console: &Console) -> Result<Value, CliError> {
    let document = fetch(source)?;
    warn(&document, console);
    let data = hiera::resolve(&document.root, facts, DATA_KEY).map_err(CliError::usage)?;
    hiera::validate(&data, &document.annotations.rules).map_err(CliError::usage)?;
    Ok(data)
}

/// Resolves a source; a file that does not exist has no data.
pub(super) fn resolve_if_there(
    source: &str,
    facts: &Facts,
    console: &Console,
) -> Result<Value, CliError> {
    if let Ok(Source::File(path)) = source.parse()
        && files::inspect(&path, true)
            .map_err(CliError::usage)?
            .is_none()
    {
        return Ok(Value::empty_map());
    }
    resolve(source, facts, console)
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
pub(super) fn fetch(source: &str) -> Result<Document, CliError> {
    let source: Source = source.parse().map_err(CliError::usage)?;
    let body = match &source {
        Source::File(path) => {
            let path = std::path::absolute(path).map_err(CliError::usage)?;
            files::read(&path, environment::MAX_READ_BYTES).map_err(|err| match err {
                err if is_missing(&err) => {
                    CliError::failed(format!("file not found: {}", path.display()))
                }
                err => CliError::failed(err),
            })?
        }
        Source::Http(_) | Source::Kv { .. } => {
            return Err(CliError::failed(format!(
                "{source} can not be read by this version: only files can"
            )));
        }
    };
    source.read(&body, DATA_KEY).map_err(CliError::usage)
}

fn is_missing(err: &FileError) -> bool {
    err.is_not_found()
}
