//! External data: fetched from a file, a URL, a KV bucket or an object store, resolved for a node's facts and validated.

use std::path::Path;
use std::time::Duration;

use super::nats_client::NatsClient;
use crate::engine::{self, Level, Line, directory_of};
use crate::hiera::{self, DATA_KEY, DataFile, Document, HieraError, ResolvedData, Source};
use crate::secrets::is_sops;
use crate::system::http::{self, HttpError};
use crate::system::{SystemClock, files};
use ccm_template::env::Facts;
use ccm_template::secrets::Secrets;
use ccm_template::{CallError, Env};

/// The timeout of an HTTP request.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The maximum size of a data document.
pub const MAX_DATA: u64 = 16 * 1024 * 1024;

/// Fetches the bytes of a document.
pub fn fetch(source: &Source, nats: &dyn NatsClient) -> Result<Vec<u8>, HieraError> {
    let failed = |cause: CallError| HieraError::Fetch {
        from: source.clone(),
        cause,
    };
    match source {
        Source::File(path) => read_file(path),
        Source::Http(url) => http_get(source, url.reveal()),
        Source::Kv { bucket, key } => nats
            .value(bucket, key)
            .map_err(|err| failed(CallError::new(err)))?
            .ok_or_else(|| failed("key not found".into())),
        Source::Object { bucket, name } => nats
            .object_bytes(bucket, name, MAX_DATA)
            .map_err(|err| failed(CallError::new(err))),
    }
}

/// Fetches and parses a document.
pub fn open(source: &Source, nats: &dyn NatsClient) -> Result<Document, HieraError> {
    source.read(&fetch(source, nats)?, DATA_KEY)
}

/// Returns the validated data of a document for a node with these facts; see [`resolve_unchecked`].
pub fn resolve(
    source: &Source,
    document: &Document,
    facts: &Facts,
    secrets: &Secrets,
) -> Result<ResolvedData, HieraError> {
    let resolve = || {
        let resolved = resolve_unchecked(source, document, facts, secrets)?;
        hiera::validate(&resolved.data, &document.annotations.rules)?;
        Ok(resolved)
    };
    resolve().map_err(|err| document.locate(err, DATA_KEY))
}

/// Returns the data of a document for a node with these facts, before it is validated. Data files are
/// read below the directory of a local document; others have none.
pub fn resolve_unchecked(
    source: &Source,
    document: &Document,
    facts: &Facts,
    secrets: &Secrets,
) -> Result<ResolvedData, HieraError> {
    let env = Env {
        secrets: secrets.clone(),
        ..Env::default()
    };
    let read = |file: &DataFile| match source {
        Source::File(path) => engine::read_data_file(&directory_of(path), &env, file),
        Source::Http(_) | Source::Kv { .. } | Source::Object { .. } => Ok(None),
    };
    let opened;
    let root = match is_sops(&document.root) {
        true => {
            let unsealed = engine::unseal(document.clone(), secrets);
            opened = unsealed.map_err(|cause| HieraError::Fetch {
                from: source.clone(),
                cause,
            })?;
            &opened.root
        }
        false => &document.root,
    };
    hiera::resolve_levels(root, facts, DATA_KEY, &read)
}

/// Returns warnings about unrecognized annotations in a document.
pub fn warnings(document: &Document) -> Vec<Line> {
    let warnings = document.annotations.warnings.iter();
    warnings
        .map(|warning| {
            Line::new(Level::Warn, "Unrecognized annotation in hiera data")
                .with("key", &warning.path)
                .with("annotation", &warning.annotation)
        })
        .collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, HieraError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    files::read(&path, MAX_DATA).map_err(|err| match err {
        err if err.is_not_found() => HieraError::FileNotFound(path.clone()),
        err => HieraError::Fetch {
            from: Source::File(path.clone()),
            cause: CallError::new(err),
        },
    })
}

fn http_get(source: &Source, url: &str) -> Result<Vec<u8>, HieraError> {
    let mut body = Vec::new();
    let request = http::Request::new(url, TIME_LIMIT, MAX_DATA);
    match http::get(&request, &SystemClock, &mut body) {
        Ok(_) => Ok(body),
        Err(HttpError::Status { code, text }) => {
            source.check_status(code, &format!("{code} {text}"))?;
            Ok(body)
        }
        Err(err) => Err(HieraError::Fetch {
            from: source.clone(),
            cause: CallError::new(err),
        }),
    }
}
