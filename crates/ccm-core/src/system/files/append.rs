//! A log of our own that several processes write to: each write goes to the end, whole.
//!
//! Its size is bounded: a full log becomes the one old log, in place of the one before it. What is
//! written is not known here.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// Adds bytes to the end of a file that only we can read, and makes it if need be. A file that has
/// `most` bytes or more is first renamed to the same name with `.1` behind it.
pub fn append(path: &Path, bytes: &[u8], most: u64) -> Result<(), FileError> {
    let mut file = open(path)?;
    let size = file.metadata().map_err(failed("stat", path))?.len();
    if size >= most {
        // Two writers may both find it full: the second renames what the first began. That costs
        // old lines, never this one.
        rustix::fs::rename(path, old(path)).map_err(failed::<Errno>("rename", path))?;
        file = open(path)?;
    }
    file.write_all(bytes).map_err(failed("write", path))
}

fn open(path: &Path) -> Result<File, FileError> {
    // Never follow a link, never wait for the other end of a pipe.
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

fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn lines_follow_each_other_in_a_file_of_our_own() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("log");
        append(&path, b"one\n", 100).unwrap();
        append(&path, b"two\n", 100).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_full_log_makes_room_and_the_oldest_goes() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("log");
        for line in ["one\n", "two\n", "three\n"] {
            append(&path, line.as_bytes(), 1).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(std::fs::read_to_string(old(&path)).unwrap(), "two\n");
        assert_eq!(room.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("log");
        std::os::unix::fs::symlink(room.path().join("victim"), &path).unwrap();
        assert!(append(&path, b"x\n", 100).is_err());
        assert!(!room.path().join("victim").exists());
    }
}
