//! The newest: when the last signature that was accepted of each source was made.
//!
//! Whoever can write to a source can put an older bundle there, with the signature that was good
//! once. So the time of the last one is kept with the node's state: the cache may be emptied, and
//! the program restarted, without its being forgotten. A file that is lost begins anew; one that
//! is damaged is nobody's mistake to guess at, so nothing is accepted until it is removed. Who may
//! sign is not known here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::UnsignedSource;
use ccm_core::system::files::{self, Durability};
use ccm_value::json;
use ccm_value::text::timestamp;

/// How many sources are remembered. A file of configuration names far fewer at a time.
const MOST: usize = 1000;

/// The longest file that can be ours.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Moment(#[serde(with = "timestamp")] DateTime<Utc>);

type Moments = BTreeMap<String, Moment>;

/// Remembers when accepted signatures were made.
pub(super) struct LastAccepted {
    path: PathBuf,
    /// Held by whoever changes the file.
    changing: Mutex<()>,
}

impl LastAccepted {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            changing: Mutex::default(),
        }
    }

    /// Fails if a newer signature of the source was accepted before.
    pub(super) fn check(&self, source: &str, signed: DateTime<Utc>) -> Result<(), UnsignedSource> {
        match self.read()?.get(source) {
            Some(Moment(accepted)) => not_older(signed, *accepted),
            None => Ok(()),
        }
    }

    /// Remembers a signature of the source: from then on an older one is refused. Fails if this
    /// is one.
    pub(super) fn advance(
        &self,
        source: &str,
        signed: DateTime<Utc>,
    ) -> Result<(), UnsignedSource> {
        let _changing = self.changing.lock();
        let mut moments = self.read()?;
        if let Some(Moment(accepted)) = moments.get(source) {
            not_older(signed, *accepted)?;
            if signed.timestamp_micros() == accepted.timestamp_micros() {
                return Ok(());
            }
        }
        if moments.len() >= MOST && !moments.contains_key(source) {
            forget_oldest(&mut moments);
        }
        moments.insert(source.to_owned(), Moment(signed));
        let text = json::pretty(&moments).map_err(|err| UnsignedSource::Memory(err.to_string()))?;
        files::write_private(&self.path, text.as_bytes(), Durability::Complete)
            .map_err(|err| UnsignedSource::Memory(err.to_string()))
    }

    fn read(&self) -> Result<Moments, UnsignedSource> {
        match files::read_to_string(&self.path, MAX_BYTES) {
            Ok(text) => serde_json::from_str(&text).map_err(|err| {
                let path = self.path.display();
                UnsignedSource::Memory(format!("{path} is damaged, remove it to begin anew: {err}"))
            }),
            Err(err) if err.is_not_found() => Ok(Moments::new()),
            Err(err) => Err(UnsignedSource::Memory(err.to_string())),
        }
    }
}

/// Fails if a signature is older than one that was accepted. Only microseconds are signed.
pub(super) fn not_older(
    signed: DateTime<Utc>,
    accepted: DateTime<Utc>,
) -> Result<(), UnsignedSource> {
    if signed.timestamp_micros() < accepted.timestamp_micros() {
        Err(UnsignedSource::Older { signed, accepted })
    } else {
        Ok(())
    }
}

fn forget_oldest(moments: &mut Moments) {
    let oldest = moments.iter().min_by_key(|(_, moment)| **moment);
    if let Some(source) = oldest.map(|(source, _)| source.clone()) {
        moments.remove(&source);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const SOURCE: &str = "obj://SITE/site.tgz";

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn open(room: &tempfile::TempDir) -> LastAccepted {
        LastAccepted::new(room.path().join("sources.json"))
    }

    #[test]
    fn an_older_signature_is_refused_also_after_a_restart() {
        let room = tempfile::tempdir().unwrap();
        open(&room).advance(SOURCE, at(20)).unwrap();
        for older in [
            open(&room).check(SOURCE, at(19)),
            open(&room).advance(SOURCE, at(19)),
        ] {
            let error = older.unwrap_err().to_string();
            assert!(error.contains("1970-01-01T00:00:19Z"), "{error}");
            assert!(error.contains("1970-01-01T00:00:20Z"), "{error}");
            assert!(error.contains("sign it again"), "{error}");
        }
        open(&room).advance(SOURCE, at(20)).unwrap();
        open(&room).advance(SOURCE, at(21)).unwrap();
        open(&room).check(SOURCE, at(20)).unwrap_err();
    }

    #[test]
    fn every_source_has_a_time_of_its_own() {
        let room = tempfile::tempdir().unwrap();
        open(&room).advance(SOURCE, at(20)).unwrap();
        open(&room).advance("kv://DATA/site", at(10)).unwrap();
        open(&room).check(SOURCE, at(10)).unwrap_err();
        open(&room).check("kv://DATA/site", at(10)).unwrap();
    }

    #[test]
    fn a_damaged_file_accepts_nothing_and_a_lost_one_begins_anew() {
        let room = tempfile::tempdir().unwrap();
        let newest = open(&room);
        std::fs::write(&newest.path, "{\"obj").unwrap();
        let error = newest.advance(SOURCE, at(1)).unwrap_err().to_string();
        assert!(
            error.contains("sources.json is damaged, remove it"),
            "{error}"
        );
        std::fs::remove_file(&newest.path).unwrap();
        newest.advance(SOURCE, at(1)).unwrap();
    }

    #[test]
    fn the_source_that_was_signed_longest_ago_makes_room() {
        let mut moments: Moments = (0..3_i64)
            .map(|number| (format!("s{number}"), Moment(at((number + 2) % 3))))
            .collect();
        forget_oldest(&mut moments);
        assert_eq!(moments.keys().collect::<Vec<_>>(), ["s0", "s2"]);
    }
}
