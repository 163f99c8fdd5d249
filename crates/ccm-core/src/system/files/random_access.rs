//! Files of our own that grow and change in place: queues and journals.
//!
//! Everything else is written beside its place and renamed; a queue cannot be. So here a crash may
//! leave half of a write, and whoever writes must be able to tell. Positions are always given,
//! never kept: a write that failed half way is done again over itself.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// A file that only we can read, open for writing in place.
#[derive(Debug)]
pub struct InPlace {
    path: PathBuf,
    file: File,
}

impl InPlace {
    /// Makes a new file; one that exists is an error.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        Self::opened(path, OFlags::CREATE | OFlags::EXCL, "create")
    }

    /// Opens a regular file that exists. A link in its place is refused.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        // Should it be a pipe, opening it must not wait.
        let opened = Self::opened(path, OFlags::NONBLOCK, "open")?;
        let stat = rustix::fs::fstat(&opened.file).map_err(failed::<Errno>("stat", path))?;
        match FileKind::of(&stat) {
            FileKind::Regular => Ok(opened),
            _ => Err(FileError::NotRegular(path.to_owned())),
        }
    }

    fn opened(path: &Path, how: OFlags, action: &'static str) -> Result<Self, FileError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | how;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed::<Errno>(action, path))?;
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
        })
    }

    /// Returns `length` bytes from `offset` on; fewer is an error.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(failed("read", &self.path))?;
        Ok(bytes)
    }

    /// Returns the whole content, if it is no longer than `limit` bytes.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, FileError> {
        let size = self.file.metadata().map_err(failed("stat", &self.path))?;
        match usize::try_from(size.len()) {
            Ok(length) if size.len() <= limit => self.read_at(0, length),
            _ => Err(FileError::TooLarge {
                path: self.path.clone(),
                limit,
            }),
        }
    }

    /// Writes bytes at `offset`. After an error some of them may be there.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(failed("write", &self.path))
    }

    /// Cuts off what lies behind the first `length` bytes.
    pub fn truncate(&self, length: u64) -> Result<(), FileError> {
        self.file
            .set_len(length)
            .map_err(failed("truncate", &self.path))
    }

    /// Returns when all that was written survives a power cut; its name is the directory's part,
    /// see [`sync_directory`].
    pub fn sync(&self) -> Result<(), FileError> {
        rustix::fs::fdatasync(&self.file).map_err(failed("sync", &self.path))
    }
}

/// Returns when the names in a directory survive a power cut.
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(failed("sync", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_until_it_is_cut_off() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("queue");
        let file = InPlace::create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        file.write_at(0, b"hello").unwrap();
        file.write_at(3, b"p!").unwrap();
        file.sync().unwrap();
        sync_directory(room.path()).unwrap();
        let file = InPlace::open(&path).unwrap();
        assert_eq!(file.read_at(3, 2).unwrap(), b"p!");
        assert_eq!(file.read(5).unwrap(), b"help!");
        assert!(matches!(file.read(4), Err(FileError::TooLarge { .. })));
        file.truncate(4).unwrap();
        assert!(file.read_at(0, 5).is_err());
    }

    #[test]
    fn a_link_a_pipe_and_a_taken_name_are_refused() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        drop(InPlace::create(&at("file")).unwrap());
        assert!(InPlace::create(&at("file")).is_err());
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(InPlace::open(&at("link")).is_err());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let error = InPlace::open(&at("pipe")).unwrap_err();
        assert!(matches!(error, FileError::NotRegular(_)), "{error}");
        let error = InPlace::open(&at("missing")).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
