//! Data from outside a manifest: fetched, resolved and checked on its own.

use std::path::Path;
use std::time::Duration;

use super::output::Console;
use super::{CliError, environment};
use crate::engine::{Level, Line};
use crate::hiera::{self, DATA_KEY, Document, HieraError, Source};
use crate::model::Value;
use crate::nats::Bus;
use crate::system::http::{self, HttpError};
use crate::system::{SystemClock, files};
use crate::template::env::Facts;

/// How long a server may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

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
    let body = match &source {
        Source::File(path) => read_file(path),
        Source::Http(url) => get(&source, url.reveal()),
        Source::Kv { bucket, key } => bus
            .kv_bytes(bucket, key)
            .map_err(|err| err.to_string())
            .and_then(|found| found.ok_or_else(|| "key not found".into()))
            .map(Vec::from)
            .map_err(|cause| HieraError::Fetch {
                from: source.clone(),
                cause,
            }),
    };
    source
        .read(&body.map_err(CliError::failed)?, DATA_KEY)
        .map_err(CliError::usage)
}

fn read_file(path: &Path) -> Result<Vec<u8>, HieraError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    files::read(&path, environment::MAX_READ_BYTES).map_err(|err| match err {
        err if err.is_not_found() => HieraError::FileNotFound(path.clone()),
        err => HieraError::Fetch {
            from: Source::File(path.clone()),
            cause: err.to_string(),
        },
    })
}

fn get(source: &Source, url: &str) -> Result<Vec<u8>, HieraError> {
    let mut body = Vec::new();
    let request = http::Request::new(url, TIME_LIMIT, environment::MAX_READ_BYTES);
    match http::get(&request, &SystemClock, &mut body) {
        Ok(_) => Ok(body),
        Err(HttpError::Status { code, text }) => {
            source.check_status(code, &format!("{code} {text}"))?;
            Ok(body)
        }
        Err(err) => Err(HieraError::Fetch {
            from: source.clone(),
            cause: err.to_string(),
        }),
    }
}
