//! How far a reader came, in a file of its own.
//!
//! The file is replaced as a whole, after the lines that it stands for have left us. So it never
//! says more than was read; a kill between the two says a little less.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::cli::CliError;
use ccm_core::system::files::{self, Attributes, Content, Durability};
use ccm_value::text::go_time;

/// More than any cursor needs.
const MAX_BYTES: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The last event that was printed.
    seq: u64,
    /// When its stream was made: numbers mean nothing in another one.
    stream: String,
}

/// A file that remembers the last event.
#[derive(Debug)]
pub(super) struct Cursor {
    path: PathBuf,
    stream: String,
    /// What the file says.
    seq: Option<u64>,
}

impl Cursor {
    /// Reads a file, or begins one. `made` is when the stream of events was made.
    pub(super) fn open(path: &Path, made: DateTime<Utc>) -> Result<Self, CliError> {
        let mut cursor = Self {
            path: path.to_owned(),
            stream: go_time(&made),
            seq: None,
        };
        if files::inspect(path, true)
            .map_err(CliError::failed)?
            .is_none()
        {
            return Ok(cursor);
        }
        let path = path.display();
        let text = files::read_to_string(&cursor.path, MAX_BYTES).map_err(CliError::failed)?;
        let note: Note = serde_json::from_str(&text)
            .map_err(|err| CliError::failed(err).at(format_args!("{path} is no cursor")))?;
        if note.stream != cursor.stream {
            let text = format!(
                "{path} is the cursor of a stream made {}, this one was made {}",
                note.stream, cursor.stream
            );
            return Err(CliError::failed(text).hint("remove it to begin anew"));
        }
        cursor.seq = Some(note.seq);
        Ok(cursor)
    }

    /// Returns the number of the event to go on with, if any was read.
    pub(super) fn next(&self) -> Option<u64> {
        Some(self.seq?.saturating_add(1))
    }

    /// Remembers the last event.
    pub(super) fn store(&mut self, seq: u64) -> Result<(), CliError> {
        if self.seq == Some(seq) {
            return Ok(());
        }
        let note = Note {
            seq,
            stream: self.stream.clone(),
        };
        let mut text = serde_json::to_string(&note).map_err(CliError::failed)?;
        text.push('\n');
        let content = Content::Bytes(text.as_bytes());
        let attributes = Attributes {
            mode: Some(0o644),
            ..Attributes::default()
        };
        files::store(&self.path, content, &attributes, Durability::Content)
            .map_err(CliError::failed)?;
        self.seq = Some(seq);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_goes_on_after_the_last_event_it_was_told() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("cursor");
        let mut cursor = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(cursor.next(), None);
        cursor.store(41).unwrap();
        let again = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(again.next(), Some(42));
    }

    #[test]
    fn the_cursor_of_another_stream_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("cursor");
        let mut cursor = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        cursor.store(41).unwrap();
        let later = DateTime::from_timestamp(1, 0).unwrap();
        let error = Cursor::open(&path, later).unwrap_err();
        let found = error.to_string();
        assert!(found.contains("is the cursor of a stream made"), "{found}");
        assert_eq!(error.hints(), ["remove it to begin anew"]);
    }

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("cursor");
        for text in ["", "17", "{\"seq\": -1, \"stream\": \"\"}", "[]"] {
            std::fs::write(&path, text).unwrap();
            assert!(Cursor::open(&path, DateTime::UNIX_EPOCH).is_err(), "{text}");
        }
    }
}
