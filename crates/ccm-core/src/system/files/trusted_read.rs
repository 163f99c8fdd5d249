//! Reading configuration and secrets with a check of owner and mode.
//!
//! Refuses files that other users could have changed, because the reader often runs as root, and
//! secrets that others may read. The check applies to the opened file, not to the path.

use std::path::Path;

use super::inspect::open_regular;
use super::{FileError, Metadata, safe_open};

/// Who may have write access to a trusted file, besides root and the effective user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedWriters {
    /// No one else.
    None,
    /// The group of root, whose members are equivalent to root on many systems.
    RootGroup,
}

/// Returns the text of a file of at most `limit` bytes. Refuses a file that other users may change.
/// Symlinks are followed.
pub fn read_trusted(path: &Path, limit: u64, writers: AllowedWriters) -> Result<String, FileError> {
    let opened = open_regular(path)?;
    check_writers(path, &Metadata::from(&opened.stat), writers)?;
    opened.text(path, limit)
}

/// Refuses a file or directory that other users may change.
pub fn check_writers(
    path: &Path,
    metadata: &Metadata,
    writers: AllowedWriters,
) -> Result<(), FileError> {
    let is_trusted_group = writers == AllowedWriters::RootGroup && metadata.gid == 0;
    let writable = if is_trusted_group { 0o002 } else { 0o022 };
    if metadata.mode & writable != 0 {
        return Err(FileError::Writable(path.to_owned()));
    }
    if !safe_open::is_trusted_user(metadata.uid) {
        return Err(FileError::UntrustedOwner {
            path: path.to_owned(),
            owner: metadata.uid,
        });
    }
    Ok(())
}

/// Returns the text of a secret file of at most `limit` bytes. Refuses a file that others may read
/// or write.
pub fn read_secret(path: &Path, limit: u64) -> Result<String, FileError> {
    let opened = open_regular(path)?;
    if opened.stat.st_mode & 0o077 != 0 {
        return Err(FileError::Readable(path.to_owned()));
    }
    if !safe_open::is_trusted_user(opened.stat.st_uid) {
        return Err(FileError::NotOwned {
            path: path.to_owned(),
            owner: opened.stat.st_uid,
        });
    }
    opened.text(path, limit)
}
