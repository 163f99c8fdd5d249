//! Unpack records: which archive was unpacked into a directory, and whether that was completed.
//!
//! A record is on disk before the archive appears under its name or anything is unpacked, so that
//! the next run can tell an interrupted unpack from a complete one, whatever paths exist. Without a
//! state directory there are no records.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::{Host, ResourceError};
use crate::model::state::UnpackState;
use crate::system::files::{self, Durability, FileError};
use crate::system::{Digest, FileLock};

/// The subdirectory of the state directory.
const DIRECTORY: &str = "archives";

/// The maximum size of a record.
const MAX_BYTES: u64 = 64 * 1024;

/// The time to wait for another process that unpacks the same archive.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// The parts of a record that are read.
#[derive(Debug, Deserialize)]
struct Record {
    /// The SHA-256 digest of the archive.
    digest: String,
    complete: bool,
}

/// The record of an archive and the directory that it is unpacked into.
pub(super) struct UnpackRecord<'a> {
    archive: &'a str,
    extract_parent: &'a str,
    /// Identifies both in file names.
    key: String,
    directory: Option<PathBuf>,
}

impl<'a> UnpackRecord<'a> {
    pub(super) fn new(archive: &'a str, extract_parent: &'a str, host: Host<'_>) -> Self {
        let key = Digest::of(format!("{archive}\0{extract_parent}").as_bytes()).to_string();
        Self {
            archive,
            extract_parent,
            key: key.chars().take(32).collect(),
            directory: host.state_dir.map(|directory| directory.join(DIRECTORY)),
        }
    }

    /// Returns the name of the directory to unpack in, next to the final place.
    pub(super) fn staging(&self) -> String {
        format!(".ccm-unpack-{}", self.key)
    }

    /// Reads the record. A damaged one counts as an interrupted unpack.
    pub(super) fn read(&self) -> Result<UnpackState, FileError> {
        let Some(file) = self.file() else {
            return Ok(UnpackState::Unknown);
        };
        let text = match files::read(&file, MAX_BYTES) {
            Ok(text) => text,
            Err(err) if err.is_not_found() => return Ok(UnpackState::Unknown),
            Err(err) => return Err(err),
        };
        Ok(match serde_json::from_slice::<Record>(&text) {
            Ok(record) if record.complete => UnpackState::Complete(record.digest),
            Ok(record) => UnpackState::Interrupted(record.digest),
            Err(_) => UnpackState::Interrupted(String::new()),
        })
    }

    /// Records that an archive is about to be unpacked.
    pub(super) fn begin(&self, digest: &str) -> Result<(), FileError> {
        self.write(digest, false)
    }

    /// Records that an archive was unpacked completely.
    pub(super) fn complete(&self, digest: &str) -> Result<(), FileError> {
        self.write(digest, true)
    }

    /// Waits for other processes that unpack the same archive into the same directory.
    pub(super) fn lock(&self, host: Host<'_>) -> Result<Option<FileLock>, ResourceError> {
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        files::create_private_dir(directory)?;
        let path = directory.join(format!("{}.lock", self.key));
        let purpose = format!("unpacking {}", self.archive);
        let lock = FileLock::acquire(&path, &purpose, LOCK_TIMEOUT, host.clock)?;
        Ok(Some(lock))
    }

    fn write(&self, digest: &str, is_complete: bool) -> Result<(), FileError> {
        let (Some(directory), Some(file)) = (&self.directory, self.file()) else {
            return Ok(());
        };
        files::create_private_dir(directory)?;
        let text = serde_json::json!({
            "archive": self.archive,
            "extract_parent": self.extract_parent,
            "digest": digest,
            "complete": is_complete,
        })
        .to_string();
        files::write_private(&file, text.as_bytes(), Durability::Complete)
    }

    fn file(&self) -> Option<PathBuf> {
        let directory = self.directory.as_ref()?;
        Some(directory.join(format!("{}.json", self.key)))
    }
}
