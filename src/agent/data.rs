//! Data from outside the manifests: fetched, resolved and checked on its own, and kept for the
//! day on which its source does not answer.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::hiera::{self, DATA_KEY, HieraError, Source};
use crate::model::{Value, json};
use crate::nats::Bus;
use crate::system::files::{self, Durability};
use crate::system::http::{self, HttpError};
use crate::system::{Clock, SystemClock};
use crate::template::env::Facts;

/// How long a server may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The largest document of data.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The waits between tries, before the last good data has to do.
const WAITS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// How long data serves single requests.
const RECENT: Duration = Duration::from_secs(30);

/// Fetches the bytes of a document from wherever it is.
pub fn fetch(source: &Source, bus: &Bus) -> Result<Vec<u8>, HieraError> {
    let failed = |cause: String| HieraError::Fetch {
        from: source.clone(),
        cause,
    };
    match source {
        Source::File(path) => read_file(path),
        Source::Http(url) => get(source, url.reveal()),
        Source::Kv { bucket, key } => bus
            .kv_bytes(bucket, key)
            .map_err(|err| failed(err.to_string()))?
            .map(Vec::from)
            .ok_or_else(|| failed("key not found".into())),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, HieraError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    files::read(&path, MAX_BYTES).map_err(|err| match err {
        err if err.is_not_found() => HieraError::FileNotFound(path.clone()),
        err => HieraError::Fetch {
            from: Source::File(path.clone()),
            cause: err.to_string(),
        },
    })
}

fn get(source: &Source, url: &str) -> Result<Vec<u8>, HieraError> {
    let mut body = Vec::new();
    let request = http::Request::new(url, TIME_LIMIT, MAX_BYTES);
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

/// Resolves the external data of an agent.
pub struct DataKeeper {
    source: Option<Source>,
    /// The last data that was good.
    file: PathBuf,
    /// The same, and when it was resolved on the monotonic clock.
    held: Mutex<Option<(Duration, Value)>>,
}

/// Data, and what there is to say about it.
#[derive(Debug, Default, PartialEq)]
pub struct Resolved {
    pub data: Value,
    /// Why it is not fresh.
    pub stale: Option<String>,
}

impl DataKeeper {
    pub fn new(source: Option<Source>, file: PathBuf) -> Self {
        Self {
            source,
            file,
            held: Mutex::default(),
        }
    }

    /// Returns where the data comes from, if there is such a place.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Returns the data for a run: fresh, or the last that was good. Without either a run that
    /// needs data must not begin.
    pub fn resolve(&self, facts: &Facts, bus: &Bus, clock: &dyn Clock) -> Result<Resolved, String> {
        let Some(source) = &self.source else {
            return Ok(Resolved::default());
        };
        let mut waits = WAITS.iter();
        let error = loop {
            match resolve_once(source, facts, bus) {
                Ok(data) => {
                    self.keep(&data)?;
                    *self.lock() = Some((clock.monotonic(), data.clone()));
                    return Ok(Resolved { data, stale: None });
                }
                Err(err) => match waits.next() {
                    Some(wait) => clock.sleep(*wait),
                    None => break err,
                },
            }
        };
        match self.last_good() {
            Some(data) => Ok(Resolved {
                data,
                stale: Some(error),
            }),
            None => Err(format!("could not resolve external data: {error}")),
        }
    }

    /// Returns the data for one resource: what a moment ago was fresh is good enough, so that many
    /// requests do not ask its source as many times.
    pub fn recent(&self, facts: &Facts, bus: &Bus, clock: &dyn Clock) -> Result<Resolved, String> {
        let now = clock.monotonic();
        let held = self.lock().clone();
        match held {
            Some((at, data)) if now.saturating_sub(at) < RECENT => {
                Ok(Resolved { data, stale: None })
            }
            _ => self.resolve(facts, bus, clock),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Duration, Value)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, data: &Value) -> Result<(), String> {
        if self.last_good().as_ref() == Some(data) {
            return Ok(());
        }
        let text = json::compact(data).map_err(|err| err.to_string())?;
        files::write_private(&self.file, text.as_bytes(), Durability::Content)
            .map_err(|err| format!("could not keep external data: {err}"))
    }

    fn last_good(&self) -> Option<Value> {
        let text = files::read_to_string(&self.file, MAX_BYTES).ok()?;
        serde_json::from_str(&text).ok()
    }
}

fn resolve_once(source: &Source, facts: &Facts, bus: &Bus) -> Result<Value, String> {
    let body = fetch(source, bus).map_err(|err| err.to_string())?;
    let document = source
        .read(&body, DATA_KEY)
        .map_err(|err| err.to_string())?;
    let data = hiera::resolve(&document.root, facts, DATA_KEY).map_err(|err| err.to_string())?;
    hiera::validate(&data, &document.annotations.rules).map_err(|err| err.to_string())?;
    match data.as_map() {
        Some(map) if !map.is_empty() => Ok(data),
        // Data that vanished is more likely a mistake than a wish.
        _ => Err(format!("{source} resolves to no data")),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::nats::Settings;
    use crate::system::FixedClock;

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
        let keeper = DataKeeper::new(Some(place), room.path().join("kept.json"));
        let bus = Bus::lazy("test", || Settings::plain("nats://127.0.0.1:1"));
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        let facts = Facts::default();
        let word = |resolved: Resolved| resolved.data.get("word").unwrap().to_string();
        assert_eq!(word(keeper.recent(&facts, &bus, &clock).unwrap()), "one");
        write("two");
        assert_eq!(word(keeper.recent(&facts, &bus, &clock).unwrap()), "one");
        clock.advance(RECENT);
        assert_eq!(word(keeper.recent(&facts, &bus, &clock).unwrap()), "two");
        write("three");
        assert_eq!(word(keeper.resolve(&facts, &bus, &clock).unwrap()), "three");
        std::fs::remove_file(&source).unwrap();
        let stale = keeper.resolve(&facts, &bus, &clock).unwrap();
        assert!(stale.stale.is_some());
        assert_eq!(word(stale), "three");
    }
}
