//! Finding a program by name.
//!
//! A command that has a search path of its own is looked for there and nowhere else. Any other is
//! looked for where the person who started us would find it, then where every command looks. The
//! search is ours, not the C library's: a directory like `.` in the path would let the working
//! directory decide what runs.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType};

use super::{Command, DEFAULT_PATH};

/// Returns the file that a command runs.
pub(super) fn program_of(command: &Command<'_>) -> Option<PathBuf> {
    let name = &command.program;
    if let Some(path) = &command.path {
        return find(name, path);
    }
    let wanted = command.path_variable().and_then(|path| find(name, path));
    wanted.or_else(|| locate(name))
}

/// Returns the file that a command without a search path runs.
pub(super) fn locate(program: &str) -> Option<PathBuf> {
    let inherited = std::env::var("PATH").ok();
    inherited
        .and_then(|path| find(program, &path))
        .or_else(|| find(program, DEFAULT_PATH))
}

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
