//! Free space of the file system of a path.

use std::path::Path;

use super::{FileError, failed};

/// Free space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that the current user can still write.
    pub bytes: u64,
    /// Files that can still be created; none if the file system has no such limit.
    pub files: Option<u64>,
}

/// Returns the free space of the file system of a path.
pub fn free_space(path: &Path) -> Result<FreeSpace, FileError> {
    let stat = rustix::fs::statvfs(path).map_err(failed("statvfs", path))?;
    Ok(FreeSpace {
        bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        files: (stat.f_files > 0).then_some(stat.f_favail),
    })
}
