//! Lookup of a program by name.
//!
//! A command with a search path of its own is looked up only there. Other commands are looked up in
//! the inherited `PATH`, then in the default path. Relative entries such as `.` are skipped, unlike
//! in the C library, because the working directory must not decide which program runs.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType};

use super::{Command, DEFAULT_PATH};

/// Returns the executable file of a command.
pub(super) fn program_of(command: &Command<'_>) -> Option<PathBuf> {
    let name = &command.program;
    if let Some(path) = &command.path {
        return find(name, path);
    }
    let found = command.path_variable().and_then(|path| find(name, path));
    found.or_else(|| locate(name))
}

/// Returns the executable file of a command without a search path.
pub(super) fn locate(program: &str) -> Option<PathBuf> {
    let inherited = std::env::var("PATH").ok();
    inherited
        .and_then(|path| find(program, &path))
        .or_else(|| find(program, DEFAULT_PATH))
}

/// Returns the first executable file of that name. Relative directories are skipped.
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
