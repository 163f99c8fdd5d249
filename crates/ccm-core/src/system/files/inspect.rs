//! Looking at files: what they are, whose, and what they hold. Changes nothing.
//!
//! Only regular files are ever opened, so no look can hang on a pipe, wake a device or read
//! without end. A stable run does little else than this, thousands of times: one look costs one
//! `stat`, and a hash an open, a check, the reads and a close.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::super::{Digest, Digester};
use super::{FileError, failed};

/// Read at once: big enough to make the calls cheap, small enough for any stack.
const CHUNK: usize = 64 * 1024;

/// What sort of thing a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    /// A pipe, a socket or a device.
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

/// What a look at a path shows.
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
            // A date that no calendar holds is as unknown as the first.
            mtime: DateTime::from_timestamp(stat.st_mtime, nanoseconds).unwrap_or_default(),
        }
    }
}

/// Returns what is at a path, or nothing if nothing is. Without `follow` a link is described
/// itself; with it, only a link that leads nowhere is. Every other failure is an error: a path
/// that cannot be looked at is not absent.
pub fn inspect(path: &Path, follow: bool) -> Result<Option<Metadata>, FileError> {
    Ok(look(path, follow)?.map(|stat| Metadata::from(&stat)))
}

/// Returns what is at a path, and the digest of its content if that is a regular file, or nothing
/// if nothing is there. Links are followed as in [`inspect`].
pub fn inspect_and_hash(path: &Path) -> Result<Option<(Metadata, Option<Digest>)>, FileError> {
    let Some(stat) = look(path, true)? else {
        return Ok(None);
    };
    if FileKind::of(&stat) != FileKind::Regular {
        return Ok(Some((Metadata::from(&stat), None)));
    }
    // What was opened may not be what was looked at: describe what was hashed.
    let mut opened = match open_regular_unseen(path) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let digest = opened.hash(path)?;
    Ok(Some((Metadata::from(&opened.stat), Some(digest))))
}

/// Returns the names in a directory, sorted; none if it does not exist.
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

fn look(path: &Path, follow: bool) -> Result<Option<Stat>, FileError> {
    let first = if follow {
        rustix::fs::stat(path)
    } else {
        rustix::fs::lstat(path)
    };
    match first {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) if follow => look(path, false),
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
    fn content(self, path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
        let Self { file, stat } = self;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let mut content = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or_default());
        // One byte more than allowed tells a full file from one that is too long. Files that the
        // kernel makes up have no size to ask for.
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
        // The size saves the call that would only say "no more". A file that grows meanwhile is
        // hashed as long as it was when it was opened.
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

/// Opens a file for reading if it is a regular one.
pub(super) fn open_regular(path: &Path) -> Result<Opened, FileError> {
    let stat = rustix::fs::stat(path).map_err(failed::<Errno>("open", path))?;
    match FileKind::of(&stat) {
        FileKind::Regular => open_regular_unseen(path),
        _ => Err(FileError::NotRegular(path.to_owned())),
    }
}

/// Opens a file that was a regular one when last looked at, and checks that it still is. Should
/// it have become a pipe or a terminal, opening it neither waits nor takes it over.
fn open_regular_unseen(path: &Path) -> Result<Opened, FileError> {
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
