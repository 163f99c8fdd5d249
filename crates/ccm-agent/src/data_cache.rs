//! Data from outside the manifests: fetched, resolved and checked on its own, and kept for the
//! day on which its source does not answer.
//!
//! Where the agent's file says so, data from elsewhere counts only with a signature beside it, and
//! what is kept only with the one it came with. Who is believed is `trust`'s to say.

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::manifest_watch::get_signature;
use super::trust::{Authorizer, SourceKind, SIGNATURE_LIMIT, Sources, UnsignedSource, check_digest};
use ccm_core::hiera::{DATA_KEY, HieraError, Source};
use ccm_core::model::signature::{BundleSignature, signature_location};
use ccm_core::run::data::{MAX_DATA, fetch, resolve};
use ccm_core::system::files::{self, Durability, FileError};
use ccm_core::system::{Clock, Digest, HttpError};
use ccm_nats::{BlockingClient, NatsError};
use ccm_template::env::Facts;
use ccm_value::{Value, json};

/// The largest file of kept data: its document, as JSON, and who stands for it.
const MAX_KEPT: u64 = 2 * MAX_DATA;

/// The waits between tries, before the last good data has to do.
const WAITS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// How long data serves single requests.
const RECENT: Duration = Duration::from_secs(30);

/// Why there is no data, or none that is fresh.
#[derive(Debug, thiserror::Error)]
pub enum DataCacheError {
    #[error("could not resolve external data: {0}")]
    Unresolved(#[from] HieraError),
    #[error("could not resolve external data: {0} resolves to no data")]
    Empty(Source),
    /// The signature of data on a server can't be fetched.
    #[error("could not resolve external data: {0}")]
    Http(#[from] HttpError),
    /// The signature of data in a bucket can't be fetched.
    #[error("could not resolve external data: {0}")]
    Nats(#[from] NatsError),
    #[error("external data is not believed: {0}")]
    Refused(#[from] UnsignedSource),
    #[error("could not keep external data: {0}")]
    Document(#[from] serde_json::Error),
    #[error("could not keep external data: {0}")]
    File(#[from] FileError),
}

/// Resolves the external data of an agent.
pub struct DataCache {
    source: Option<Source>,
    /// The last data that was good.
    file: PathBuf,
    /// The same, and when it was resolved on the monotonic clock.
    held: Mutex<Option<(Duration, Value)>>,
    /// Why the data was last refused, so that the audit hears of it once.
    refused: Mutex<Option<UnsignedSource>>,
}

/// Data, and what there is to say about it.
#[derive(Debug, Default)]
pub struct Resolved {
    pub data: Value,
    /// Why it is not fresh.
    pub stale: Option<DataCacheError>,
}

/// What is kept of good data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Where it came from: another place's data is none.
    source: String,
    data: Value,
    /// Who stands for it, where that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<BundleSignature>,
}

impl DataCache {
    pub fn new(source: Option<Source>, file: PathBuf) -> Self {
        Self {
            source,
            file,
            held: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Returns where the data comes from, if there is such a place.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Returns the data for a run: fresh, or the last that was good. Without either a run that
    /// needs data must not begin.
    pub fn resolve(
        &self,
        facts: &Facts,
        bus: &BlockingClient,
        clock: &dyn Clock,
        authorizer: &Authorizer,
    ) -> Result<Resolved, DataCacheError> {
        let Some(source) = &self.source else {
            return Ok(Resolved::default());
        };
        // Who may write here may do anything.
        let is_local = matches!(source, Source::File(_));
        let sources = authorizer.sources().filter(|_| !is_local);
        let mut waits = WAITS.iter();
        let problem = loop {
            match self.resolve_once(source, facts, bus, sources.as_ref()) {
                Ok(data) => {
                    *self.held.lock() = Some((clock.monotonic(), data.clone()));
                    return Ok(Resolved { data, stale: None });
                }
                // A disk does not get better by being asked again.
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
            Some(kept) => Ok(Resolved {
                data: kept.data,
                stale: Some(problem),
            }),
            None => Err(problem),
        }
    }

    /// Returns the data for one resource: what a moment ago was fresh is good enough, so that many
    /// requests do not ask its source as many times.
    pub fn recent(
        &self,
        facts: &Facts,
        bus: &BlockingClient,
        clock: &dyn Clock,
        authorizer: &Authorizer,
    ) -> Result<Resolved, DataCacheError> {
        let now = clock.monotonic();
        let held = self.held.lock().clone();
        match held {
            Some((at, data)) if now.saturating_sub(at) < RECENT => {
                Ok(Resolved { data, stale: None })
            }
            _ => self.resolve(facts, bus, clock, authorizer),
        }
    }

    /// Returns a refusal that is another one than the last. Good data ends it; a source that does
    /// not answer says nothing about it.
    pub fn new_refusal(&self, problem: Option<&DataCacheError>) -> Option<UnsignedSource> {
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

    /// Returns fresh data, which is the last that was good from then on.
    fn resolve_once(
        &self,
        source: &Source,
        facts: &Facts,
        bus: &BlockingClient,
        sources: Option<&Sources<'_>>,
    ) -> Result<Value, DataCacheError> {
        let before = self.read_kept(source);
        let body = fetch(source, bus)?;
        let signature = match sources {
            None => None,
            Some(sources) => {
                let text = signature_of(source, bus)?;
                let before = before.as_ref().and_then(|kept| kept.signature.as_ref());
                let place = source.place();
                Some(sources.verify(text.as_deref(), &place, SourceKind::Data, before)?)
            }
        };
        check_digest(signature.as_ref(), &Digest::of(&body))?;
        let kept = Kept {
            source: source.place(),
            data: read(source, &body, facts)?,
            signature,
        };
        self.keep(&kept, before.as_ref())?;
        if let Some(sources) = sources {
            sources.accept(kept.signature.as_ref(), &kept.source, SourceKind::Data)?;
        }
        Ok(kept.data)
    }

    fn keep(&self, kept: &Kept, before: Option<&Kept>) -> Result<(), DataCacheError> {
        if before == Some(kept) {
            return Ok(());
        }
        let text = json::compact(kept)?;
        files::write_private(&self.file, text.as_bytes(), Durability::Content)?;
        Ok(())
    }

    /// Returns the last data of a source that was good, if somebody stands for it where that is
    /// asked.
    fn last_good(&self, source: &Source, sources: Option<&Sources<'_>>) -> Option<Kept> {
        let kept = self.read_kept(source)?;
        let is_believed = sources.is_none_or(|sources| {
            let signature = kept.signature.as_ref();
            sources.accept(signature, &kept.source, SourceKind::Data).is_ok()
        });
        is_believed.then_some(kept)
    }

    fn read_kept(&self, source: &Source) -> Option<Kept> {
        let text = files::read_to_string(&self.file, MAX_KEPT).ok()?;
        let kept: Kept = serde_json::from_str(&text).ok()?;
        (kept.source == source.place()).then_some(kept)
    }
}

/// Returns the text beside a source that says who stands for it; nothing if there is none.
fn signature_of(source: &Source, bus: &BlockingClient) -> Result<Option<Vec<u8>>, DataCacheError> {
    let found = match source {
        Source::File(_) => None,
        Source::Http(url) => get_signature(url.reveal())?,
        Source::Kv { bucket, key } => bus
            .kv_bytes(bucket, &signature_location(key))?
            .map(Vec::from),
    };
    let limit = usize::try_from(SIGNATURE_LIMIT).unwrap_or(usize::MAX);
    // One that is longer is none that anybody made.
    Ok(found.filter(|text| text.len() <= limit))
}

/// Returns the data of a document, resolved for these facts.
fn read(source: &Source, body: &[u8], facts: &Facts) -> Result<Value, DataCacheError> {
    let document = source.read(body, DATA_KEY)?;
    let data = resolve(&document, facts)?;
    match data.as_map() {
        Some(map) if !map.is_empty() => Ok(data),
        // Data that vanished is more likely a mistake than a wish.
        _ => Err(DataCacheError::Empty(source.clone())),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;

    use super::*;
    use ccm_core::system::{FixedClock, SystemClock};
    use ccm_nats::Settings;

    #[test]
    fn a_run_asks_for_fresh_data_and_a_single_request_takes_what_is_recent() {
        let room = tempfile::tempdir().unwrap();
        let source = room.path().join("data.yaml");
        let write = |word: &str| {
            let text = format!("hierarchy: {{order: [default]}}\ndata: {{word: {word}}}\n");
            std::fs::write(&source, text).unwrap();
        };
        write("one");
        let place = Source::File(source.clone());
        let keeper = DataCache::new(Some(place), room.path().join("kept.json"));
        let bus = BlockingClient::lazy("test", || Settings::plain("nats://127.0.0.1:1"));
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let facts = Facts::default();
        let keeps_nobody_out =
            Authorizer::open(None, room.path(), "boot", Arc::new(SystemClock)).unwrap();
        let recent = |keeper: &DataCache| {
            keeper
                .recent(&facts, &bus, &clock, &keeps_nobody_out)
                .unwrap()
        };
        let resolve = |keeper: &DataCache| {
            keeper
                .resolve(&facts, &bus, &clock, &keeps_nobody_out)
                .unwrap()
        };
        let word = |resolved: Resolved| resolved.data.get("word").unwrap().to_string();
        assert_eq!(word(recent(&keeper)), "one");
        write("two");
        assert_eq!(word(recent(&keeper)), "one");
        clock.advance(RECENT);
        assert_eq!(word(recent(&keeper)), "two");
        write("three");
        assert_eq!(word(resolve(&keeper)), "three");
        std::fs::remove_file(&source).unwrap();
        let stale = resolve(&keeper);
        assert!(stale.stale.is_some());
        assert_eq!(word(stale), "three");
        let elsewhere = Source::File(room.path().join("other.yaml"));
        let keeper = DataCache::new(Some(elsewhere), room.path().join("kept.json"));
        let missing = keeper.resolve(&facts, &bus, &clock, &keeps_nobody_out);
        assert!(matches!(missing, Err(DataCacheError::Unresolved(_))));
    }
}
