//! Append-only log files shared by several processes, rotated by size.
//!
//! One rotated file is kept.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// Appends bytes to a file with mode 0600, creating it if necessary. A file of `max_size` bytes or
/// more is first renamed to `<name>.1`.
pub fn append(path: &Path, bytes: &[u8], max_size: u64) -> Result<(), FileError> {
    let mut file = open(path)?;
    let size = file.metadata().map_err(failed("stat", path))?.len();
    if size >= max_size {
        // Two processes may rotate at the same time; then old lines are lost, but not this one.
        rustix::fs::rename(path, rotated(path)).map_err(failed::<Errno>("rename", path))?;
        file = open(path)?;
    }
    file.write_all(bytes).map_err(failed("write", path))
}

fn open(path: &Path) -> Result<File, FileError> {
    // Don't follow symlinks, and don't block on a FIFO.
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(failed::<Errno>("open", path))?;
    let stat = rustix::fs::fstat(&file).map_err(failed::<Errno>("stat", path))?;
    match FileKind::of(&stat) {
        FileKind::Regular => Ok(file.into()),
        _ => Err(FileError::NotRegular(path.to_owned())),
    }
}

fn rotated(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, b"one\n", 100).unwrap();
        append(&path, b"two\n", 100).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_full_log_is_rotated_and_the_oldest_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for line in ["one\n", "two\n", "three\n"] {
            append(&path, line.as_bytes(), 1).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(std::fs::read_to_string(rotated(&path)).unwrap(), "two\n");
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_symlink_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::os::unix::fs::symlink(dir.path().join("victim"), &path).unwrap();
        assert!(append(&path, b"x\n", 100).is_err());
        assert!(!dir.path().join("victim").exists());
    }
}
