//! Files that are believed: read only if nobody else could have written them, or seen a secret.
//!
//! Whoever may change such a file commands whoever reads it, and that is often root. What is looked
//! at is what is read, also if the path changes meanwhile. What such a file says is not known here.

use std::path::Path;

use super::inspect::open_regular;
use super::{FileError, Metadata, safe_open};

/// Whose hand may have been in a file, besides root and us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Nobody's.
    Nobody,
    /// That of the group of root: its members are as good as root on many systems.
    RootsGroup,
}

/// Returns the text of a file, of at most `limit` bytes, unless somebody else could have written it.
/// Links are followed.
pub fn read_guarded(path: &Path, limit: u64, writers: Writers) -> Result<String, FileError> {
    let opened = open_regular(path)?;
    guard(path, &Metadata::from(&opened.stat), writers)?;
    opened.text(path, limit)
}

/// Refuses a file or directory that somebody else could change.
pub fn guard(path: &Path, about: &Metadata, writers: Writers) -> Result<(), FileError> {
    let is_trusted_group = writers == Writers::RootsGroup && about.gid == 0;
    let writable = if is_trusted_group { 0o002 } else { 0o022 };
    if about.mode & writable != 0 {
        return Err(FileError::Writable(path.to_owned()));
    }
    if !safe_open::is_ours(about.uid) {
        return Err(FileError::NotOurs {
            path: path.to_owned(),
            owner: about.uid,
        });
    }
    Ok(())
}

/// Returns the text of a secret of ours, of at most `limit` bytes. Refuses a file that others may
/// read or write.
pub fn read_secret(path: &Path, limit: u64) -> Result<String, FileError> {
    let opened = open_regular(path)?;
    if opened.stat.st_mode & 0o077 != 0 {
        return Err(FileError::Readable(path.to_owned()));
    }
    if !safe_open::is_ours(opened.stat.st_uid) {
        return Err(FileError::Foreign {
            path: path.to_owned(),
            owner: opened.stat.st_uid,
        });
    }
    opened.text(path, limit)
}
