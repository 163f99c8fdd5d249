//! Metadata, digests and content of files. Read-only.
//!
//! Only regular files are opened, so that no call blocks on a FIFO, opens a device or reads without
//! end. Stable runs consist mostly of these calls: metadata costs one `stat`, a digest an open, an
//! `fstat`, the reads and a close.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::super::{Digest, Digester};
use super::safe_open::OpenError;
use super::{FileError, Location, failed};

/// Size of one read; the buffer is on the stack.
const CHUNK: usize = 64 * 1024;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    /// A FIFO, a socket or a device.
    Special,
}

impl FileKind {
    pub(super) fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }
}

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub kind: FileKind,
    pub uid: u32,
    pub gid: u32,
    /// Permission, set-id and sticky bits: at most `0o7777`.
    pub mode: u32,
    pub size: u64,
    pub mtime: DateTime<Utc>,
}

impl From<&Stat> for Metadata {
    fn from(stat: &Stat) -> Self {
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or_default();
        Self {
            kind: FileKind::of(stat),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            // Times out of range become 1970.
            mtime: DateTime::from_timestamp(stat.st_mtime, nanoseconds).unwrap_or_default(),
        }
    }
}

/// Returns the metadata of a path, or `None` if it does not exist. Without `follow` a symlink is
/// described itself; with it, only a dangling one is. All other failures are errors: a path that
/// cannot be inspected is not absent.
pub fn inspect(path: &Path, follow: bool) -> Result<Option<Metadata>, FileError> {
    Ok(stat_path(path, follow)?.map(|stat| Metadata::from(&stat)))
}

/// Returns the metadata of a path and, for a regular file, the digest of its content; `None` if it
/// does not exist. Symlinks are followed as in [`inspect`].
pub(crate) fn inspect_and_hash(
    path: &Path,
) -> Result<Option<(Metadata, Option<Digest>)>, FileError> {
    let Some(stat) = stat_path(path, true)? else {
        return Ok(None);
    };
    if FileKind::of(&stat) != FileKind::Regular {
        return Ok(Some((Metadata::from(&stat), None)));
    }
    // The file may have been replaced: describe the one that is hashed.
    let mut opened = match open_expecting_regular(path) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let digest = opened.hash(path)?;
    Ok(Some((Metadata::from(&opened.stat), Some(digest))))
}

/// Returns the names in a directory, sorted; an empty list if it does not exist.
pub fn list(path: &Path) -> Result<Vec<OsString>, FileError> {
    let entries = match std::fs::read_dir(path) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed("list", path))?.file_name());
    }
    names.sort();
    Ok(names)
}

/// Opens a regular file for reading. Links are followed.
pub fn open(path: &Path) -> Result<File, FileError> {
    Ok(open_regular(path)?.file)
}

/// Returns the digest of a regular file. Links are followed.
pub fn sha256(path: &Path) -> Result<Digest, FileError> {
    open_regular(path)?.hash(path)
}

/// Returns the content of a regular file of at most `limit` bytes. Links are followed.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    open_regular(path)?.content(path, limit)
}

/// Returns the text of a regular file of at most `limit` bytes. Links are followed.
pub fn read_to_string(path: &Path, limit: u64) -> Result<String, FileError> {
    open_regular(path)?.text(path, limit)
}

/// Returns metadata and content of a regular file of at most `limit` bytes; `None` if it does not
/// exist. No symlink that another user could have created is followed, and none at the path itself:
/// that is an error, because the caller means to replace the file.
pub fn read_no_follow(path: &Path, limit: u64) -> Result<Option<(Metadata, Vec<u8>)>, FileError> {
    let location = match Location::resolve(path) {
        Ok(location) => location,
        Err(OpenError::Os(Errno::NOENT)) => return Ok(None),
        Err(err) => return Err(err.during("open", path)),
    };
    match FileKind::at(&location)? {
        None => return Ok(None),
        Some(FileKind::Symlink) => return Err(FileError::WriteThroughSymlink(path.to_owned())),
        Some(FileKind::Regular) => {}
        Some(FileKind::Directory | FileKind::Special) => {
            return Err(FileError::NotRegular(path.to_owned()));
        }
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat(
        &location.directory,
        location.name,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let file = file.map_err(location.failed("open"))?;
    let stat = rustix::fs::fstat(&file).map_err(location.failed("stat"))?;
    if FileKind::of(&stat) != FileKind::Regular {
        return Err(FileError::NotRegular(path.to_owned()));
    }
    let metadata = Metadata::from(&stat);
    let opened = Opened {
        file: file.into(),
        stat,
    };
    Ok(Some((metadata, opened.content(path, limit)?)))
}

fn stat_path(path: &Path, follow: bool) -> Result<Option<Stat>, FileError> {
    let first = if follow {
        rustix::fs::stat(path)
    } else {
        rustix::fs::lstat(path)
    };
    match first {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) if follow => stat_path(path, false),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("stat", path)(errno)),
    }
}

/// A regular file, open for reading.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) stat: Stat,
}

impl Opened {
    /// Returns the content, of at most `limit` bytes.
    pub(super) fn content(self, path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
        let Self { file, stat } = self;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let mut content = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or_default());
        // Reads one byte beyond the limit, because files in /proc report no size.
        file.take(limit.saturating_add(1))
            .read_to_end(&mut content)
            .map_err(failed("read", path))?;
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > limit {
            return Err(FileError::TooLarge {
                path: path.to_owned(),
                limit,
            });
        }
        Ok(content)
    }

    /// Returns the content, of at most `limit` bytes, as text.
    pub(super) fn text(self, path: &Path, limit: u64) -> Result<String, FileError> {
        let content = self.content(path, limit)?;
        String::from_utf8(content).map_err(|_| FileError::NotText(path.to_owned()))
    }

    fn hash(&mut self, path: &Path) -> Result<Digest, FileError> {
        let mut buffer = [MaybeUninit::uninit(); CHUNK];
        let mut digester = Digester::default();
        // The known size saves the last read. A file that grows meanwhile is hashed up to the size
        // it had when it was opened.
        let mut left = usize::try_from(self.stat.st_size).unwrap_or_default();
        let is_sized = left > 0;
        loop {
            match rustix::io::read(&self.file, &mut buffer) {
                Ok(([], _)) => break,
                Ok((chunk, _)) if is_sized && chunk.len() >= left => {
                    digester.update(chunk.get(..left).unwrap_or(chunk));
                    break;
                }
                Ok((chunk, _)) => {
                    digester.update(chunk);
                    left = left.saturating_sub(chunk.len());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("read", path)(errno)),
            }
        }
        Ok(digester.finish())
    }
}

/// Opens a regular file for reading.
pub(super) fn open_regular(path: &Path) -> Result<Opened, FileError> {
    let stat = rustix::fs::stat(path).map_err(failed::<Errno>("open", path))?;
    match FileKind::of(&stat) {
        FileKind::Regular => open_expecting_regular(path),
        _ => Err(FileError::NotRegular(path.to_owned())),
    }
}

/// Opens a file that `stat` reported as regular, and checks it again. If it has become a FIFO or a
/// terminal, the open neither blocks nor acquires a controlling terminal.
fn open_expecting_regular(path: &Path) -> Result<Opened, FileError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(failed::<Errno>("open", path))?;
    let stat = rustix::fs::fstat(&file).map_err(failed::<Errno>("stat", path))?;
    match FileKind::of(&stat) {
        FileKind::Regular => Ok(Opened {
            file: file.into(),
            stat,
        }),
        _ => Err(FileError::NotRegular(path.to_owned())),
    }
}
