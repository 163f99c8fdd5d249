//! Files and directories of the machine: looked at, written, owned and removed.
//!
//! Two rules hold everywhere. A target is never partial and never wrongly owned, not for an
//! instant: it is made beside its place, complete in content, owner and mode, and renamed over
//! it. And what changes something follows no link that someone else could have put there: a
//! directory is opened once, along a way that `way` checks, and everything happens relative to that
//! handle; the last part of a path is never followed. Looking follows links as the author wrote them.
//!
//! Read next: `way` finds directories, `store` writes, `look` reads, `tree` writes much below one
//! directory, `directory`, `private` and `remove` do what they are called, `guard` reads what is
//! believed, `glob` finds files by pattern, `note` keeps a few bytes with a file. `in_place` and
//! `append` are the exceptions to the first rule, for queues and logs of our own.
//! Nothing here knows what `ensure` or `force` mean; only some words of its errors do, because
//! they are promised to users.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Cause, RandomError};
use safe_open::Lost;

mod append;
mod atomic_write;
mod directory;
mod glob;
mod inspect;
mod private_dir;
mod random_access;
mod remove;
mod safe_open;
#[cfg(test)]
mod tests;
mod tree;
mod trusted_read;
mod xattr;

pub use append::append;
pub use atomic_write::{Content, Durability, store, store_with, store_with_note, write_private};
pub use directory::{check_private_dir, create_directory, create_private_dir};
pub use glob::{BadPattern, Glob, GlobError, expand};
pub use inspect::{
    FileKind, Metadata, inspect, inspect_and_hash, list, open, read, read_to_string, sha256,
};
pub use private_dir::PrivateDir;
pub use random_access::{InPlace, sync_directory};
pub use remove::{remove, remove_recursive};
pub use tree::Tree;
pub use trusted_read::{Writers, guard, read_guarded, read_secret};
pub use xattr::{Note, note, set_note};

/// What went wrong with which path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{action} {}: {cause}", path.display())]
    Os {
        action: &'static str,
        path: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("\"{}\" is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{} does not end in a name", .0.display())]
    NoName(PathBuf),
    #[error("{} is a symlink; refusing to set attributes through it", .0.display())]
    Symlink(PathBuf),
    #[error("{} is a symlink; refusing to write through it", .0.display())]
    ThroughLink(PathBuf),
    #[error(
        "refusing to follow the symlink {}: someone else could have put it there, and what it \
         leads to is not theirs; name what it leads to instead",
        .0.display()
    )]
    Astray(PathBuf),
    #[error(
        "refusing to follow the symlink {}: others may write to {directory} and could have put it \
         there; name what it leads to instead, or look at it and run chmod +t {directory}",
        .0.display(),
        directory = parent_of(.0).display()
    )]
    Movable(PathBuf),
    #[error(
        "{path} has other names, and someone else could have made this one; refusing to set \
         attributes that they would share: remove {path}, or make its directory writable by its \
         owner alone",
        path = .0.display()
    )]
    Shared(PathBuf),
    #[error("{} does not stay below its directory", .0.display())]
    Leaves(PathBuf),
    #[error(
        "cannot remove {path}: directory is not empty, set 'force: true' to remove non-empty \
         directories: remove {path}: {cause}",
        path = path.display()
    )]
    NotEmpty {
        path: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    #[error("{path} is not private: others may write to it; run chmod go-w {path}", path = .0.display())]
    NotPrivate(PathBuf),
    #[error("{} is not private: it belongs to user {owner}", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("{path} may be changed by others: run chmod go-w {path}", path = .0.display())]
    Writable(PathBuf),
    #[error(
        "{path} belongs to user {owner}, who could change it: run chown root {path}",
        path = path.display()
    )]
    NotOurs { path: PathBuf, owner: u32 },
    #[error("{path} may be read by others: run chmod 600 {path}", path = .0.display())]
    Readable(PathBuf),
}

impl FileError {
    /// Whether something on the path does not exist.
    pub fn is_not_found(&self) -> bool {
        self.os_kind() == Some(io::ErrorKind::NotFound)
    }

    /// Whether there is no room for it.
    pub fn is_storage_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let kind = self.os_kind();
        kind.is_some_and(|kind| matches!(kind, StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// Whether what was to be read is not there or not whole, and will not be.
    pub fn is_lost_for_good(&self) -> bool {
        use io::ErrorKind::{NotFound, UnexpectedEof};
        match self {
            Self::Os { cause, .. } => {
                matches!(cause.kind(), NotFound | UnexpectedEof) || cause.is(Errno::IO)
            }
            _ => false,
        }
    }

    fn os_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Os { cause, .. } => Some(cause.kind()),
            _ => None,
        }
    }
}

/// Returns a wrapper of system errors that names the action and the path.
pub(super) fn failed<E: Into<Cause>>(action: &'static str, path: &Path) -> impl Fn(E) -> FileError {
    move |cause| FileError::Os {
        action,
        path: path.to_owned(),
        cause: cause.into(),
    }
}

/// Who owns a file and who may do what. What is not given is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits, with set-id and sticky bits: at most `0o7777`.
    pub mode: Option<u32>,
}

impl Attributes {
    fn mode_bits(&self) -> Option<Mode> {
        self.mode.map(Mode::from_raw_mode)
    }

    /// Returns the owner and group to give to chown.
    fn owner(&self) -> Result<(Option<Uid>, Option<Gid>), Errno> {
        // To chown the highest number means "leave it": it would succeed and do nothing.
        if [self.uid, self.gid].contains(&Some(u32::MAX)) {
            return Err(Errno::INVAL);
        }
        Ok((self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw)))
    }
}

/// Gives an existing file or directory its owner, then its mode. Refuses a symlink, and a file of
/// several names that someone else could have put there.
pub fn set_attributes(path: &Path, attributes: &Attributes) -> Result<(), FileError> {
    if path.file_name().is_none() {
        // The root, or a way back: there is nothing above to go through.
        let handle = safe_open::enter(path).map_err(|lost| lost.during("open", path))?;
        let stat = rustix::fs::fstat(&handle).map_err(failed("stat", path))?;
        return change_attributes(&handle, &stat, path, attributes);
    }
    let place = Place::seek(path).map_err(|lost| lost.during("open", path))?;
    let handle = place.open().map_err(place.failed("open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(place.failed("stat"))?;
    if FileKind::of(&stat) == FileKind::Symlink {
        return Err(FileError::Symlink(path.to_owned()));
    }
    if FileKind::of(&stat) != FileKind::Directory && place.may_be_shared(&stat)? {
        return Err(FileError::Shared(path.to_owned()));
    }
    change_attributes(&handle, &stat, path, attributes)
}

/// Changes what differs from `stat`. The handle may be one that only names the file.
fn change_attributes(
    handle: &OwnedFd,
    stat: &Stat,
    path: &Path,
    attributes: &Attributes,
) -> Result<(), FileError> {
    let is_owned = attributes.uid.is_none_or(|uid| uid == stat.st_uid)
        && attributes.gid.is_none_or(|gid| gid == stat.st_gid);
    if !is_owned {
        let chown = failed("chown", path);
        let (uid, gid) = attributes.owner().map_err(&chown)?;
        rustix::fs::chownat(handle, "", uid, gid, AtFlags::EMPTY_PATH).map_err(chown)?;
    }
    match attributes.mode_bits() {
        // A change of owner drops the set-id bits: the mode comes after it, and again.
        Some(mode) if !is_owned || mode != Mode::from_raw_mode(stat.st_mode) => {
            // A handle that only names a file cannot be passed to fchmod, but its entry in /proc
            // is the very same file.
            rustix::fs::chmod(entry_of(handle), mode).map_err(failed("chmod", path))
        }
        _ => Ok(()),
    }
}

/// The place of a file: its directory, held open, and its name in there.
struct Place<'a> {
    path: &'a Path,
    directory: OwnedFd,
    name: &'a OsStr,
}

impl<'a> Place<'a> {
    /// Returns the place of a path, whose directory must exist.
    fn of(path: &'a Path) -> Result<Self, FileError> {
        if path.file_name().is_none() {
            return Err(FileError::NoName(path.to_owned()));
        }
        Self::seek(path).map_err(|lost| {
            let parent = parent_of(path);
            match lost {
                Lost::Os(Errno::NOENT | Errno::NOTDIR) => {
                    FileError::NotADirectory(parent.to_owned())
                }
                lost => lost.during("open", parent),
            }
        })
    }

    /// Returns the place of a path, or what is wrong with its directory.
    fn seek(path: &'a Path) -> Result<Self, Lost> {
        let name = path.file_name().ok_or(Lost::Os(Errno::INVAL))?;
        Ok(Self {
            path,
            directory: safe_open::enter(parent_of(path))?,
            name,
        })
    }

    /// Opens what is here, a link itself if it is one, only to name it: this needs no right to
    /// read, never waits for a pipe's other end and does not wake a device.
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, self.name, flags, Mode::empty())
    }

    /// Tells whether what was opened here may be a second name that someone else gave to a file: he
    /// who may write to a directory may link any file into it, one of root's too.
    fn may_be_shared(&self, opened: &Stat) -> Result<bool, FileError> {
        let directory = rustix::fs::fstat(&self.directory).map_err(self.failed("stat"))?;
        if !safe_open::may_be_planted(&directory) {
            return Ok(false);
        }
        if directory.st_mode & 0o022 == 0 && opened.st_uid == directory.st_uid {
            // Only its owner could have put it there, and it is his own.
            return Ok(false);
        }
        // It must have one name, and that must be this one: a link that was taken away again since the
        // file was opened does not count either.
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let named = rustix::fs::statat(&self.directory, self.name, flags);
        let named = named.map_err(self.failed("stat"))?;
        let is_it = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino);
        Ok(!is_it || named.st_nlink > 1)
    }

    /// Returns an error of this place.
    fn failed(&self, action: &'static str) -> impl Fn(Errno) -> FileError {
        failed(action, self.path)
    }
}

/// Returns the directory that a path is in; of a bare name that is where we are.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns a path to the very file of a handle, for calls that take no handle of its sort.
fn entry_of(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}
