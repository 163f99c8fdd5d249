//! Pause of a node: runs are suspended, for a reason and optionally until a time. Kept across restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::model::document::{DocumentError, parse_message};
use crate::model::json;
use crate::model::node::Pause;
use crate::model::text::{DurationError, parse_duration, parse_time};
use crate::system::Clock;
use crate::system::files::{self, Durability, FileError};

/// The maximum size of the pause file.
const MAX_BYTES: u64 = 64 * 1024;

/// The maximum length of a reason.
const MAX_REASON: usize = 1024;

/// A pause that can't be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error("invalid pause request: {0}")]
    Request(#[from] RequestError),
    #[error("could not save the pause: {0}")]
    Document(#[from] serde_json::Error),
    #[error("could not save the pause: {0}")]
    File(#[from] FileError),
}

/// An invalid pause request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("reason is required")]
    NoReason,
    #[error("reason is longer than {MAX_REASON} bytes")]
    LongReason,
    #[error("until must be an RFC 3339 time, got {0:?}")]
    Until(String),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("pause is too long")]
    TooLong,
    #[error("until and for exclude each other")]
    UntilAndFor,
    #[error("pause would end before it begins")]
    Over,
}

/// A pause file that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum PauseFileError {
    #[error("{}: {cause}", path.display())]
    Document {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Returns the pause that stands for an unreadable file.
fn unreadable(error: &PauseFileError, since: DateTime<Utc>) -> Pause {
    Pause {
        reason: format!("the pause file can't be read: {error}; use resume to go on"),
        since,
        until: None,
        by: String::new(),
    }
}

/// The body of a pause request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PauseRequest {
    reason: String,
    /// The end of the pause: an RFC 3339 time.
    until: String,
    /// The length of the pause: a duration such as `2h`.
    #[serde(rename = "for")]
    lasting: String,
}

/// The pause of this node, stored in a file.
pub struct PauseStore {
    file: PathBuf,
    clock: Arc<dyn Clock>,
    pause: Mutex<Option<Pause>>,
    changed: Notify,
}

impl PauseStore {
    /// Opens the store. An unreadable file counts as a pause without an end, so that a node that was
    /// paused stays so; its error is returned too.
    pub fn open(file: &Path, clock: Arc<dyn Clock>) -> (Self, Option<PauseFileError>) {
        let read =
            match files::read_to_string(file, MAX_BYTES) {
                Ok(text) => serde_json::from_str(&text).map(Some).map_err(|cause| {
                    PauseFileError::Document {
                        path: file.to_owned(),
                        cause,
                    }
                }),
                Err(err) if err.is_not_found() => Ok(None),
                Err(err) => Err(err.into()),
            };
        let (pause, error) = match read {
            Ok(pause) => (pause, None),
            Err(error) => (Some(unreadable(&error, clock.now())), Some(error)),
        };
        let store = Self {
            file: file.to_owned(),
            clock,
            pause: Mutex::new(pause),
            changed: Notify::new(),
        };
        (store, error)
    }

    /// Returns the current pause, if any.
    pub fn current(&self) -> Option<Pause> {
        let now = self.clock.now();
        let mut pause = self.lock();
        if pause
            .as_ref()
            .is_some_and(|pause| pause.until.is_some_and(|until| until <= now))
        {
            *pause = None;
            // An expired pause has ended even if its file can't be removed.
            let _ = files::remove(&self.file);
        }
        pause.clone()
    }

    /// Waits until a pause is started or ended. For one waiting task.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Starts a pause from a request: a document with `reason`, and `until` or `for`.
    pub fn begin(&self, body: &str, by: &str) -> Result<Pause, PauseError> {
        let pause = self.parse(body, by)?;
        let text = json::compact(&pause)?;
        files::write_private(&self.file, text.as_bytes(), Durability::Complete)?;
        *self.lock() = Some(pause.clone());
        self.changed.notify_one();
        Ok(pause)
    }

    /// Ends the pause, if there is one.
    pub fn end(&self) -> Result<(), PauseError> {
        files::remove(&self.file)?;
        *self.lock() = None;
        self.changed.notify_one();
        Ok(())
    }

    /// Parses a request; a plain text is the reason.
    fn parse(&self, body: &str, by: &str) -> Result<Pause, RequestError> {
        let request = match body.trim() {
            "" => PauseRequest::default(),
            body => {
                let node = parse_message(body)?;
                match node.text().filter(|_| !node.is_null()) {
                    Some(reason) => PauseRequest {
                        reason: reason.to_string(),
                        ..PauseRequest::default()
                    },
                    None => PauseRequest::deserialize(&node)?,
                }
            }
        };
        if request.reason.trim().is_empty() {
            return Err(RequestError::NoReason);
        }
        if request.reason.len() > MAX_REASON {
            return Err(RequestError::LongReason);
        }
        let now = self.clock.now();
        let until = match (request.until.as_str(), request.lasting.as_str()) {
            ("", "") => None,
            (until, "") => Some(
                parse_time(until)
                    .map_err(|_| RequestError::Until(until.into()))?
                    .to_utc(),
            ),
            ("", lasting) => {
                let nanos = parse_duration(lasting)?;
                let end = now.checked_add_signed(chrono::TimeDelta::nanoseconds(nanos));
                Some(end.ok_or(RequestError::TooLong)?)
            }
            _ => return Err(RequestError::UntilAndFor),
        };
        if until.is_some_and(|until| until <= now) {
            return Err(RequestError::Over);
        }
        Ok(Pause {
            reason: request.reason,
            by: by.into(),
            since: now,
            until,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pause>> {
        self.pause.lock()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;
    use futures_util::FutureExt as _;

    use super::*;
    use crate::system::FixedClock;

    fn store() -> (tempfile::TempDir, Arc<FixedClock>, PauseStore) {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(FixedClock::new(
            DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
        ));
        let (store, error) = PauseStore::open(&directory.path().join("pause"), clock.clone());
        assert!(error.is_none(), "{error:?}");
        (directory, clock, store)
    }

    #[test]
    fn a_pause_survives_a_restart_and_ends_by_itself() {
        let (directory, clock, store) = store();
        store
            .begin(r#"{"reason":"disk swap","for":"2h"}"#, "ann")
            .unwrap();
        let (again, _) = PauseStore::open(&directory.path().join("pause"), clock.clone());
        let pause = again.current().unwrap();
        assert_eq!(
            (pause.reason.as_str(), pause.by.as_str()),
            ("disk swap", "ann")
        );
        clock.advance(Duration::from_secs(2 * 3600));
        assert_eq!(again.current(), None);
        let (third, _) = PauseStore::open(&directory.path().join("pause"), clock);
        assert_eq!(third.current(), None);
    }

    #[test]
    fn a_damaged_file_is_a_pause_until_it_is_ended() {
        let (directory, clock, store) = store();
        store.begin("upgrade", "ann").unwrap();
        std::fs::write(directory.path().join("pause"), "{").unwrap();
        let open = || PauseStore::open(&directory.path().join("pause"), clock.clone());
        let (damaged, error) = open();
        assert!(error.is_some());
        let reason = damaged.current().unwrap().reason;
        assert!(
            reason.starts_with("the pause file can't be read: "),
            "{reason}"
        );
        damaged.end().unwrap();
        assert_eq!(open().0.current(), None);
    }

    #[test]
    fn a_pause_without_an_end_lasts_until_it_is_ended() {
        let (_directory, clock, store) = store();
        store.begin("reason: moving house\n", "").unwrap();
        clock.advance(Duration::from_secs(1_000_000));
        assert!(store.current().is_some());
        store.end().unwrap();
        assert_eq!(store.current(), None);
    }

    #[test]
    fn a_plain_text_is_the_reason() {
        let (_directory, _clock, store) = store();
        assert_eq!(store.begin("disk swap", "").unwrap().reason, "disk swap");
        assert_eq!(
            store.begin("\"disk swap\"", "").unwrap().reason,
            "disk swap"
        );
    }

    #[test]
    fn an_invalid_request_is_rejected_with_its_error() {
        let (_directory, _clock, store) = store();
        for (body, reason) in [
            ("", "reason is required"),
            ("{\"reason\":\" \"}", "reason is required"),
            (
                "{\"reason\":\"x\",\"for\":\"1h\",\"until\":\"2099-01-01T00:00:00Z\"}",
                "until and for exclude each other",
            ),
            (
                "{\"reason\":\"x\",\"until\":\"tomorrow\"}",
                "until must be an RFC 3339 time, got \"tomorrow\"",
            ),
            (
                "{\"reason\":\"x\",\"until\":\"2020-01-01T00:00:00Z\"}",
                "pause would end before it begins",
            ),
            (
                "{\"reasons\":\"x\"}",
                "unknown property \"reasons\", did you mean \"reason\"?",
            ),
        ] {
            let error = store.begin(body, "").unwrap_err().to_string();
            assert!(error.ends_with(reason), "{error}");
        }
        assert_eq!(store.current(), None);
    }

    #[test]
    fn every_change_wakes_the_waiting_task() {
        let (_directory, _clock, store) = store();
        assert!(store.changed().now_or_never().is_none());
        store.begin("{\"reason\":\"x\"}", "").unwrap();
        assert!(store.changed().now_or_never().is_some());
        store.end().unwrap();
        assert!(store.changed().now_or_never().is_some());
    }
}
