//! Cursor file: the sequence number of the last printed event.
//!
//! The file is replaced atomically after the events have been written, so it is never ahead of the
//! output; after a crash it may be behind it.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::cli::CliError;
use ccm_core::system::files::{self, Attributes, Content, Durability};
use ccm_value::text::go_time;

/// Size limit of a cursor file.
const MAX_BYTES: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct CursorDocument {
    /// Sequence number of the last printed event.
    seq: u64,
    /// Creation time of the stream; sequence numbers are valid in this stream only.
    stream: String,
}

/// Open cursor file.
#[derive(Debug)]
pub(super) struct Cursor {
    path: PathBuf,
    stream: String,
    /// Sequence number in the file.
    seq: Option<u64>,
}

impl Cursor {
    /// Reads the file if it exists. `made` is the creation time of the event stream.
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
        let document: CursorDocument = serde_json::from_str(&text)
            .map_err(|err| CliError::failed(err).at(format_args!("{path} is not a cursor file")))?;
        if document.stream != cursor.stream {
            let text = format!(
                "{path} is the cursor of a stream created at {}, but this stream was created at {}",
                document.stream, cursor.stream
            );
            return Err(CliError::failed(text).hint("remove the file to start again"));
        }
        cursor.seq = Some(document.seq);
        Ok(cursor)
    }

    /// Returns the sequence number to continue with, if one is stored.
    pub(super) fn next(&self) -> Option<u64> {
        Some(self.seq?.saturating_add(1))
    }

    /// Stores the sequence number of the last printed event.
    pub(super) fn store(&mut self, seq: u64) -> Result<(), CliError> {
        if self.seq == Some(seq) {
            return Ok(());
        }
        let document = CursorDocument {
            seq,
            stream: self.stream.clone(),
        };
        let mut text = serde_json::to_string(&document).map_err(CliError::failed)?;
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
#[expect(clippy::disallowed_methods, reason = "tests write fixture files")]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_continues_after_the_stored_event() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let mut cursor = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(cursor.next(), None);
        cursor.store(41).unwrap();
        let again = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(again.next(), Some(42));
    }

    #[test]
    fn the_cursor_of_another_stream_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        let mut cursor = Cursor::open(&path, DateTime::UNIX_EPOCH).unwrap();
        cursor.store(41).unwrap();
        let later = DateTime::from_timestamp(1, 0).unwrap();
        let error = Cursor::open(&path, later).unwrap_err();
        let found = error.to_string();
        assert!(
            found.contains("is the cursor of a stream created at"),
            "{found}"
        );
        assert_eq!(error.hints(), ["remove the file to start again"]);
    }

    #[test]
    fn an_invalid_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cursor");
        for text in ["", "17", "{\"seq\": -1, \"stream\": \"\"}", "[]"] {
            std::fs::write(&path, text).unwrap();
            assert!(Cursor::open(&path, DateTime::UNIX_EPOCH).is_err(), "{text}");
        }
    }
}
