//! Random-access files, for queues and journals.
//!
//! Unlike other files they are changed in place. A crash may leave a partial write, which the
//! caller must be able to detect. Every call takes an offset, so a failed write can be repeated.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// A file with mode 0600, open for reading and writing.
#[derive(Debug)]
pub struct RandomAccessFile {
    path: PathBuf,
    file: File,
}

impl RandomAccessFile {
    /// Creates a new file; an existing one is an error.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        Self::opened(path, OFlags::CREATE | OFlags::EXCL, "create")
    }

    /// Opens an existing regular file. Symlinks are refused.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        // Does not block if it is a FIFO.
        let opened = Self::opened(path, OFlags::NONBLOCK, "open")?;
        let stat = rustix::fs::fstat(&opened.file).map_err(failed::<Errno>("stat", path))?;
        match FileKind::of(&stat) {
            FileKind::Regular => Ok(opened),
            _ => Err(FileError::NotRegular(path.to_owned())),
        }
    }

    fn opened(path: &Path, extra: OFlags, action: &'static str) -> Result<Self, FileError> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
        let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::ISDIR) => return Err(FileError::NotRegular(path.to_owned())),
            file => file.map_err(failed(action, path))?,
        };
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
        })
    }

    /// Returns `length` bytes starting at `offset`; fewer is an error.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(failed("read", &self.path))?;
        Ok(bytes)
    }

    /// Returns the whole content; more than `limit` bytes is an error.
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

    /// Writes bytes at `offset`. After an error some of them may have been written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(failed("write", &self.path))
    }

    /// Truncates the file to `length` bytes.
    pub fn truncate(&self, length: u64) -> Result<(), FileError> {
        self.file
            .set_len(length)
            .map_err(failed("truncate", &self.path))
    }

    /// Flushes the content to disk. The file's name needs [`sync_directory`].
    pub fn sync(&self) -> Result<(), FileError> {
        rustix::fs::fdatasync(&self.file).map_err(failed("sync", &self.path))
    }
}

/// Flushes the names in a directory to disk.
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
    fn content_is_written_read_and_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("queue");
        let file = RandomAccessFile::create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        file.write_at(0, b"hello").unwrap();
        file.write_at(3, b"p!").unwrap();
        file.sync().unwrap();
        sync_directory(dir.path()).unwrap();
        let file = RandomAccessFile::open(&path).unwrap();
        assert_eq!(file.read_at(3, 2).unwrap(), b"p!");
        assert_eq!(file.read(5).unwrap(), b"help!");
        assert!(matches!(file.read(4), Err(FileError::TooLarge { .. })));
        file.truncate(4).unwrap();
        assert!(file.read_at(0, 5).is_err());
    }

    #[test]
    fn symlinks_fifos_and_existing_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(RandomAccessFile::create(&at("file")).unwrap());
        assert!(RandomAccessFile::create(&at("file")).is_err());
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(RandomAccessFile::open(&at("link")).is_err());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        let error = RandomAccessFile::open(&at("pipe")).unwrap_err();
        assert!(matches!(error, FileError::NotRegular(_)), "{error}");
        let error = RandomAccessFile::open(&at("missing")).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
