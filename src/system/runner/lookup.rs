//! Finding a program by name, in the search path its command will see.
//!
//! The search is ours, not the C library's: that one would look through the path of this process,
//! and a directory like `.` in it would let the working directory decide what runs.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType};

/// Returns the first executable file of that name. Directories that are not absolute are passed
/// over.
pub(super) fn find(program: &str, search_path: &str) -> Option<PathBuf> {
    search_path
        .split(':')
        .filter(|dir| dir.starts_with('/'))
        .map(|dir| Path::new(dir).join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0
    }) && rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}
