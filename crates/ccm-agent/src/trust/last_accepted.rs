//! Last accepted signatures: the signing time of the last accepted signature of each source.
//!
//! Prevents downgrades: write access to a source would allow to restore an older bundle with its
//! valid signature. The times are part of the state of the node, so they survive restarts and an
//! emptied cache. A missing file starts empty; with a damaged one nothing is accepted until it is
//! removed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::UnsignedSource;
use ccm_core::system::files::{self, Durability};
use ccm_value::json;
use ccm_value::text::timestamp;

/// Most stored sources.
const MAX_SOURCES: usize = 1000;

/// Longest valid file.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct SigningTime(#[serde(with = "timestamp")] DateTime<Utc>);

type SigningTimes = BTreeMap<String, SigningTime>;

/// Signing times on disk.
pub(super) struct LastAccepted {
    path: PathBuf,
    /// Held while the file is changed.
    changing: Mutex<()>,
}

impl LastAccepted {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            changing: Mutex::default(),
        }
    }

    /// Fails if a newer signature of the source was accepted.
    pub(super) fn check(&self, source: &str, signed: DateTime<Utc>) -> Result<(), UnsignedSource> {
        match self.read()?.get(source) {
            Some(SigningTime(accepted)) => check_not_older(signed, *accepted),
            None => Ok(()),
        }
    }

    /// Stores the signing time of a source: older signatures are refused from then on. Fails if
    /// this one is older.
    pub(super) fn advance(
        &self,
        source: &str,
        signed: DateTime<Utc>,
    ) -> Result<(), UnsignedSource> {
        let _changing = self.changing.lock();
        let mut times = self.read()?;
        if let Some(SigningTime(accepted)) = times.get(source) {
            check_not_older(signed, *accepted)?;
            if signed.timestamp_micros() == accepted.timestamp_micros() {
                return Ok(());
            }
        }
        if times.len() >= MAX_SOURCES && !times.contains_key(source) {
            remove_oldest(&mut times);
        }
        times.insert(source.to_owned(), SigningTime(signed));
        let text = json::pretty(&times).map_err(|err| UnsignedSource::Storage(err.to_string()))?;
        files::write_private(&self.path, text.as_bytes(), Durability::Complete)
            .map_err(|err| UnsignedSource::Storage(err.to_string()))
    }

    fn read(&self) -> Result<SigningTimes, UnsignedSource> {
        match files::read_to_string(&self.path, MAX_BYTES) {
            Ok(text) => serde_json::from_str(&text).map_err(|err| {
                let path = self.path.display();
                UnsignedSource::Storage(format!(
                    "{path} is damaged, remove it to start over: {err}"
                ))
            }),
            Err(err) if err.is_not_found() => Ok(SigningTimes::new()),
            Err(err) => Err(UnsignedSource::Storage(err.to_string())),
        }
    }
}

/// Fails if a signature is older than the accepted one. Signed times have microseconds.
pub(super) fn check_not_older(
    signed: DateTime<Utc>,
    accepted: DateTime<Utc>,
) -> Result<(), UnsignedSource> {
    if signed.timestamp_micros() < accepted.timestamp_micros() {
        Err(UnsignedSource::Older { signed, accepted })
    } else {
        Ok(())
    }
}

fn remove_oldest(times: &mut SigningTimes) {
    let oldest = times.iter().min_by_key(|(_, time)| **time);
    if let Some(source) = oldest.map(|(source, _)| source.clone()) {
        times.remove(&source);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const SOURCE: &str = "obj://SITE/site.tgz";

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn open(directory: &tempfile::TempDir) -> LastAccepted {
        LastAccepted::new(directory.path().join("sources.json"))
    }

    #[test]
    fn an_older_signature_is_refused_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).advance(SOURCE, at(20)).unwrap();
        for older in [
            open(&directory).check(SOURCE, at(19)),
            open(&directory).advance(SOURCE, at(19)),
        ] {
            let error = older.unwrap_err().to_string();
            assert!(error.contains("1970-01-01T00:00:19Z"), "{error}");
            assert!(error.contains("1970-01-01T00:00:20Z"), "{error}");
            assert!(error.contains("sign it again"), "{error}");
        }
        open(&directory).advance(SOURCE, at(20)).unwrap();
        open(&directory).advance(SOURCE, at(21)).unwrap();
        open(&directory).check(SOURCE, at(20)).unwrap_err();
    }

    #[test]
    fn every_source_has_a_time_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        open(&directory).advance(SOURCE, at(20)).unwrap();
        open(&directory).advance("kv://DATA/site", at(10)).unwrap();
        open(&directory).check(SOURCE, at(10)).unwrap_err();
        open(&directory).check("kv://DATA/site", at(10)).unwrap();
    }

    #[test]
    fn with_a_damaged_file_nothing_is_accepted_and_a_missing_one_starts_empty() {
        let directory = tempfile::tempdir().unwrap();
        let last_accepted = open(&directory);
        std::fs::write(&last_accepted.path, "{\"obj").unwrap();
        let error = last_accepted
            .advance(SOURCE, at(1))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sources.json is damaged, remove it"),
            "{error}"
        );
        std::fs::remove_file(&last_accepted.path).unwrap();
        last_accepted.advance(SOURCE, at(1)).unwrap();
    }

    #[test]
    fn the_source_with_the_oldest_signature_is_removed_first() {
        let mut times: SigningTimes = (0..3_i64)
            .map(|number| (format!("s{number}"), SigningTime(at((number + 2) % 3))))
            .collect();
        remove_oldest(&mut times);
        assert_eq!(times.keys().collect::<Vec<_>>(), ["s0", "s2"]);
    }
}
