//! What the templates of a run see and may call, built the same way for every entry point.

use std::path::Path;
use std::sync::Arc;

use super::bus::{Bus, BusError, BusErrorKind};
use crate::model::Value;
use crate::model::registration::Entry;
use crate::system::files;
use ccm_template::env::Facts;
use ccm_template::{CallError, Env};

/// The largest file that a template may read.
pub const MAX_READ: u64 = 16 * 1024 * 1024;

/// What templates see besides their data.
#[derive(Clone)]
pub struct Surroundings {
    pub facts: Facts,
    /// The variables of the process, and of a `.env` file where one is read.
    pub environ: Value,
    pub bus: Arc<dyn Bus>,
    /// The stream that holds registered services.
    pub registration_stream: String,
}

impl Surroundings {
    /// Returns the environment of templates whose relative paths start at `directory`.
    pub fn env(&self, directory: &Path) -> Env {
        let (values, registry) = (self.bus.clone(), self.bus.clone());
        let stream = self.registration_stream.clone();
        Env {
            facts: self.facts.clone(),
            environ: self.environ.clone(),
            data: Value::empty_map(),
            working_dir: directory.to_owned(),
            read_file: Some(Arc::new(|path: &Path| {
                files::read_to_string(path, MAX_READ).map_err(CallError::new)
            })),
            kv_get: Some(Arc::new(move |bucket: &str, key: &str| {
                text_of(&*values, bucket, key).map_err(CallError::new)
            })),
            registrations: Some(Arc::new(move |words| {
                let found = registered(&*registry, &stream, words).map_err(CallError::new)?;
                Ok(found.iter().map(Entry::to_value).collect())
            })),
            ..Env::default()
        }
    }
}

/// Why a template gets nothing from the bus.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("key {key} not found in bucket {bucket}")]
    NoKey { bucket: String, key: String },
    #[error("key {key} of bucket {bucket} is not UTF-8 text")]
    NotText { bucket: String, key: String },
    #[error("could not query registrations: {source}{}", remedy(.source))]
    Registrations { source: BusError },
}

/// Tells the author of a template what to do about a stream that is not there.
fn remedy(error: &BusError) -> &'static str {
    match error.kind {
        BusErrorKind::NotFound => ": run `ccm registration init`",
        BusErrorKind::Settings | BusErrorKind::GivenUp | BusErrorKind::Failed => "",
    }
}

/// Returns the value of a key as text.
fn text_of(bus: &dyn Bus, bucket: &str, key: &str) -> Result<String, LookupError> {
    let named = || (bucket.to_owned(), key.to_owned());
    let found = bus.value(bucket, key)?.ok_or_else(|| {
        let (bucket, key) = named();
        LookupError::NoKey { bucket, key }
    })?;
    String::from_utf8(found).map_err(|_| {
        let (bucket, key) = named();
        LookupError::NotText { bucket, key }
    })
}

/// Returns the registered services that match, or why a template gets none.
pub fn registered(
    bus: &dyn Bus,
    stream: &str,
    words: [&str; 4],
) -> Result<Vec<Entry>, LookupError> {
    bus.registrations(stream, words)
        .map_err(|source| LookupError::Registrations { source })
}
