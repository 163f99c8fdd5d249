//! Template environment of a run: variables and lookup functions, the same for every entry point.

use std::path::Path;
use std::sync::Arc;

use super::nats_client::{NatsClient, NatsClientError, NatsClientErrorKind};
use crate::model::Value;
use crate::model::registration::Entry;
use crate::system::files;
use ccm_template::env::Facts;
use ccm_template::secrets::Secrets;
use ccm_template::{CallError, Env};

/// The maximum size of a file that a template may read.
pub const MAX_READ: u64 = 16 * 1024 * 1024;

/// What templates use besides their data: facts, process environment and NATS.
#[derive(Clone)]
pub struct TemplateContext {
    pub facts: Facts,
    /// The environment variables of the process, and of a `.env` file if one is read.
    pub environ: Value,
    pub nats: Arc<dyn NatsClient>,
    /// The stream that holds registered services.
    pub registration_stream: String,
    /// What opens encrypted values.
    pub secrets: Secrets,
}

impl TemplateContext {
    /// Returns the template environment for relative paths that start at `directory`.
    pub fn env(&self, directory: &Path) -> Env {
        let (values, registry) = (self.nats.clone(), self.nats.clone());
        let stream = self.registration_stream.clone();
        Env {
            facts: self.facts.clone(),
            environ: self.environ.clone(),
            data: Value::empty_map(),
            secrets: self.secrets.for_run(),
            working_dir: directory.to_owned(),
            read_file: Some(Arc::new(|path: &Path| {
                files::read_to_string(path, MAX_READ).map_err(CallError::new)
            })),
            kv_get: Some(Arc::new(move |bucket: &str, key: &str| {
                value_as_text(&*values, bucket, key).map_err(CallError::new)
            })),
            registrations: Some(Arc::new(move |words| {
                let found =
                    registered_services(&*registry, &stream, words).map_err(CallError::new)?;
                Ok(found.iter().map(Entry::to_value).collect())
            })),
            ..Env::default()
        }
    }
}

/// A failed lookup of a template in NATS.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error(transparent)]
    NatsClient(#[from] NatsClientError),
    #[error("key {key} not found in bucket {bucket}")]
    NoKey { bucket: String, key: String },
    #[error("key {key} of bucket {bucket} is not UTF-8 text")]
    NotText { bucket: String, key: String },
    #[error("could not query registrations: {source}{}", hint(.source))]
    Registrations { source: NatsClientError },
}

/// Returns a hint for the template author if the stream is missing.
fn hint(error: &NatsClientError) -> &'static str {
    match error.kind {
        NatsClientErrorKind::NotFound => ": run `ccm registration init`",
        NatsClientErrorKind::Settings
        | NatsClientErrorKind::GivenUp
        | NatsClientErrorKind::Failed => "",
    }
}

/// Returns the value of a key as text.
fn value_as_text(nats: &dyn NatsClient, bucket: &str, key: &str) -> Result<String, LookupError> {
    let names = || (bucket.to_owned(), key.to_owned());
    let value = nats.value(bucket, key)?.ok_or_else(|| {
        let (bucket, key) = names();
        LookupError::NoKey { bucket, key }
    })?;
    String::from_utf8(value).map_err(|_| {
        let (bucket, key) = names();
        LookupError::NotText { bucket, key }
    })
}

/// Returns the registered services that match cluster, protocol, service and address.
pub fn registered_services(
    nats: &dyn NatsClient,
    stream: &str,
    words: [&str; 4],
) -> Result<Vec<Entry>, LookupError> {
    nats.registrations(stream, words)
        .map_err(|source| LookupError::Registrations { source })
}
