//! External data: fetches, verifies and resolves hierarchical data from outside the manifests, and
//! keeps the last good data for when its source is unreachable.
//!
//! Where sources must be signed, remote data needs a signature beside it, and cached data the one
//! it was fetched with. `trust` decides which signatures are accepted.

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::manifest_watch::get_signature;
use super::trust::{
    Authorizer, SIGNATURE_LIMIT, SourceKind, Sources, UnsignedSource, check_digest,
};
use ccm_core::hiera::{DATA_KEY, HieraError, Source};
use ccm_core::model::signature::{BundleSignature, signature_location};
use ccm_core::run::data::{MAX_DATA, fetch, resolve};
use ccm_core::system::files::{self, Durability, FileError};
use ccm_core::system::{Clock, Digest, HttpError};
use ccm_nats::{BlockingClient, NatsError};
use ccm_template::env::Facts;
use ccm_template::secrets::Secrets;
use ccm_value::{Value, json};

/// Longest cache file: the data as JSON and its signature.
const MAX_CACHE: u64 = 2 * MAX_DATA;

/// Delays between attempts, before the last good data is used.
const WAITS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// Age up to which data is reused for single resources.
const RECENT: Duration = Duration::from_secs(30);

/// Why there is no data, or only old data.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataCacheError {
    #[error("could not resolve external data: {0}")]
    Unresolved(#[from] HieraError),
    #[error("could not resolve external data: {0} resolves to no data")]
    Empty(Source),
    /// The signature could not be fetched from an HTTP server.
    #[error("could not resolve external data: {0}")]
    Http(#[from] HttpError),
    /// The signature could not be fetched from NATS.
    #[error("could not resolve external data: {0}")]
    Nats(#[from] NatsError),
    #[error("external data is refused: {0}")]
    Refused(#[from] UnsignedSource),
    #[error("could not cache external data: {0}")]
    Document(#[from] serde_json::Error),
    #[error("could not cache external data: {0}")]
    File(#[from] FileError),
}

/// External data of an agent.
pub(crate) struct DataCache {
    source: Option<Source>,
    /// File with the last good data, whose secrets are encrypted.
    file: PathBuf,
    /// Opens documents that SOPS encrypted; their values are encrypted again for this node.
    secrets: Secrets,
    /// Last good data and when it was resolved, on the monotonic clock.
    last: Mutex<Option<(Duration, Value)>>,
    /// Last refusal of the data, so that it is audited once.
    refused: Mutex<Option<UnsignedSource>>,
}

/// Resolved data.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    pub(crate) data: Value,
    /// Why it is the last good data instead of new data.
    pub(crate) stale: Option<DataCacheError>,
}

/// Content of the cache file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachedData {
    /// Source of the data; data of another source is not used.
    source: String,
    data: Value,
    /// Signature, where sources must be signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<BundleSignature>,
}

impl DataCache {
    pub(crate) fn new(source: Option<Source>, file: PathBuf, secrets: Secrets) -> Self {
        Self {
            source,
            file,
            secrets,
            last: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Returns the source of the data, if one is configured.
    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Returns data for a run: fetched, or the last good data if that fails. Without either, a run
    /// that needs data must not start.
    pub(crate) fn resolve(
        &self,
        facts: &Facts,
        nats: &BlockingClient,
        clock: &dyn Clock,
        authorizer: &Authorizer,
    ) -> Result<Resolved, DataCacheError> {
        let Some(source) = &self.source else {
            return Ok(Resolved::default());
        };
        // Local files need no signature: write access to them implies control of the machine.
        let is_local = matches!(source, Source::File(_));
        let sources = authorizer.sources().filter(|_| !is_local);
        let mut waits = WAITS.iter();
        let problem = loop {
            match self.resolve_once(source, facts, nats, sources.as_ref()) {
                Ok(data) => {
                    *self.last.lock() = Some((clock.monotonic(), data.clone()));
                    return Ok(Resolved { data, stale: None });
                }
                // Disk errors are not retried.
                Err(problem @ (DataCacheError::Document(_) | DataCacheError::File(_))) => {
                    return Err(problem);
                }
                Err(problem) => match waits.next() {
                    Some(wait) => clock.sleep(*wait),
                    None => break problem,
                },
            }
        };
        match self.last_good(source, sources.as_ref()) {
            Some(cached) => Ok(Resolved {
                data: cached.data,
                stale: Some(problem),
            }),
            None => Err(problem),
        }
    }

    /// Returns data for one resource. Recent data is reused, so that many requests do not cause as
    /// many fetches.
    pub(crate) fn recent(
        &self,
        facts: &Facts,
        nats: &BlockingClient,
        clock: &dyn Clock,
        authorizer: &Authorizer,
    ) -> Result<Resolved, DataCacheError> {
        let now = clock.monotonic();
        let last = self.last.lock().clone();
        match last {
            Some((at, data)) if now.saturating_sub(at) < RECENT => {
                Ok(Resolved { data, stale: None })
            }
            _ => self.resolve(facts, nats, clock, authorizer),
        }
    }

    /// Returns the refusal if it differs from the last one. Good data resets it; fetch errors do
    /// not.
    pub(crate) fn new_refusal(&self, problem: Option<&DataCacheError>) -> Option<UnsignedSource> {
        let refusal = match problem {
            None => None,
            Some(DataCacheError::Refused(refusal)) => Some(refusal),
            Some(_) => return None,
        };
        let mut last = self.refused.lock();
        let is_new = last.as_ref() != refusal;
        *last = refusal.cloned();
        refusal.filter(|_| is_new).cloned()
    }

    /// Fetches data and caches it as the last good data.
    fn resolve_once(
        &self,
        source: &Source,
        facts: &Facts,
        nats: &BlockingClient,
        sources: Option<&Sources<'_>>,
    ) -> Result<Value, DataCacheError> {
        let before = self.read_cached(source);
        let body = fetch(source, nats)?;
        let signature = match sources {
            None => None,
            Some(sources) => {
                let text = signature_of(source, nats)?;
                let before = before.as_ref().and_then(|cached| cached.signature.as_ref());
                let location = source.location();
                Some(sources.verify(text.as_deref(), &location, SourceKind::Data, before)?)
            }
        };
        check_digest(signature.as_ref(), &Digest::of(&body))?;
        let cached = CachedData {
            source: source.location(),
            data: read(source, &body, facts, &self.secrets)?,
            signature,
        };
        self.write_cached(&cached, before.as_ref())?;
        if let Some(sources) = sources {
            sources.accept(cached.signature.as_ref(), &cached.source, SourceKind::Data)?;
        }
        Ok(cached.data)
    }

    fn write_cached(
        &self,
        cached: &CachedData,
        before: Option<&CachedData>,
    ) -> Result<(), DataCacheError> {
        if before == Some(cached) {
            return Ok(());
        }
        let text = json::compact(cached)?;
        files::write_private(&self.file, text.as_bytes(), Durability::Content)?;
        Ok(())
    }

    /// Returns the cached data of a source, if its signature is still accepted.
    fn last_good(&self, source: &Source, sources: Option<&Sources<'_>>) -> Option<CachedData> {
        let cached = self.read_cached(source)?;
        let is_accepted = sources.is_none_or(|sources| {
            let signature = cached.signature.as_ref();
            sources
                .accept(signature, &cached.source, SourceKind::Data)
                .is_ok()
        });
        is_accepted.then_some(cached)
    }

    fn read_cached(&self, source: &Source) -> Option<CachedData> {
        let text = files::read_to_string(&self.file, MAX_CACHE).ok()?;
        let cached: CachedData = serde_json::from_str(&text).ok()?;
        (cached.source == source.location()).then_some(cached)
    }
}

/// Fetches the signature beside a source; `None` if there is none.
fn signature_of(source: &Source, nats: &BlockingClient) -> Result<Option<Vec<u8>>, DataCacheError> {
    let found = match source {
        Source::File(_) => None,
        Source::Http(url) => get_signature(url.reveal())?,
        Source::Kv { bucket, key } => nats
            .kv_bytes(bucket, &signature_location(key))?
            .map(Vec::from),
        Source::Object { bucket, name } => {
            match nats.object_bytes(bucket, &signature_location(name), SIGNATURE_LIMIT) {
                Ok(bytes) => Some(bytes.into()),
                Err(NatsError::NoObject { .. }) => None,
                Err(err) => return Err(err.into()),
            }
        }
    };
    let limit = usize::try_from(SIGNATURE_LIMIT).unwrap_or(usize::MAX);
    // A longer one is no signature.
    Ok(found.filter(|text| text.len() <= limit))
}

/// Parses a document and resolves its data for these facts.
fn read(
    source: &Source,
    body: &[u8],
    facts: &Facts,
    secrets: &Secrets,
) -> Result<Value, DataCacheError> {
    let document = source.read(body, DATA_KEY)?;
    let data = resolve(source, &document, facts, secrets)?.data;
    match data.as_map() {
        Some(map) if !map.is_empty() => Ok(data),
        // Empty data is more likely a mistake than intended.
        _ => Err(DataCacheError::Empty(source.clone())),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;

    use super::*;
    use ccm_core::system::{FixedClock, SystemClock};
    use ccm_nats::Settings;

    #[test]
    fn a_run_fetches_data_and_a_single_request_reuses_recent_data() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("data.yaml");
        let write = |word: &str| {
            let text = format!("hierarchy: {{order: [default]}}\ndata: {{word: {word}}}\n");
            std::fs::write(&source, text).unwrap();
        };
        write("one");
        let location = Source::File(source.clone());
        let cache = DataCache::new(
            Some(location),
            directory.path().join("cached.json"),
            Secrets::default(),
        );
        let nats = BlockingClient::lazy("test", || Settings::plain("nats://127.0.0.1:1"));
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let facts = Facts::default();
        let authorizer = Authorizer::open(
            None,
            &"lab".parse().unwrap(),
            directory.path(),
            "boot",
            Arc::new(SystemClock),
        )
        .unwrap();
        let recent = |cache: &DataCache| cache.recent(&facts, &nats, &clock, &authorizer).unwrap();
        let resolve =
            |cache: &DataCache| cache.resolve(&facts, &nats, &clock, &authorizer).unwrap();
        let word = |resolved: Resolved| resolved.data.get("word").unwrap().to_string();
        assert_eq!(word(recent(&cache)), "one");
        write("two");
        assert_eq!(word(recent(&cache)), "one");
        clock.advance(RECENT);
        assert_eq!(word(recent(&cache)), "two");
        write("three");
        assert_eq!(word(resolve(&cache)), "three");
        std::fs::remove_file(&source).unwrap();
        let stale = resolve(&cache);
        assert!(stale.stale.is_some());
        assert_eq!(word(stale), "three");
        let elsewhere = Source::File(directory.path().join("other.yaml"));
        let cache = DataCache::new(
            Some(elsewhere),
            directory.path().join("cached.json"),
            Secrets::default(),
        );
        let missing = cache.resolve(&facts, &nats, &clock, &authorizer);
        assert!(matches!(missing, Err(DataCacheError::Unresolved(_))));
    }
}
