//! Files and directories: inspect, read, write, change attributes and remove.
//!
//! Two rules apply to all writes. Files are replaced atomically: a temporary file in the same
//! directory gets content, owner and mode and is then renamed over the target. And no symlink is
//! followed that another user could have created: the parent directory is opened by `safe_open`,
//! and everything else happens relative to that handle; the last component of a path is never
//! followed. Reads follow symlinks.
//!
//! - `safe_open`: opens directories without following untrusted symlinks
//! - `atomic_write`: writes a file; `temporaries`: removes what a killed process left;
//!   `sparse_copy`: copies one with its holes; `tree`: writes many files below one directory; `tree_digest`:
//!   detects changes of a directory
//! - `inspect`: metadata, digests and content; `trusted_read`: files that only root may change;
//!   `read_beneath`: files inside a directory
//! - `directory`, `private_dir`, `remove`: directories and removal
//! - `free_space`: free space of a file system
//! - `symlink`: symbolic links
//! - `glob`: file name patterns; `xattr`: extended attributes
//! - `random_access`, `append`: queues and logs of `ccm` itself, which are not replaced atomically

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Cause, RandomError};
use safe_open::OpenError;

mod append;
mod atomic_write;
mod directory;
mod free_space;
mod glob;
mod inspect;
mod private_dir;
mod random_access;
mod read_beneath;
mod remove;
mod safe_open;
mod sparse_copy;
mod symlink;
mod temporaries;
#[cfg(test)]
mod tests;
mod tree;
mod tree_digest;
mod trusted_read;
mod xattr;

pub use append::append;
pub use atomic_write::{Content, Durability, Writer, store, store_with, write_private};
pub use directory::{
    check_private_dir, check_storage, check_writable, create_directory, create_private_dir,
};
pub use free_space::{FreeSpace, free_space};
pub use glob::{BadPattern, Glob, GlobError, expand};
pub(crate) use inspect::inspect_and_hash;
pub use inspect::{
    FileKind, Metadata, inspect, list, open, read, read_no_follow, read_to_string, sha256,
};
pub use private_dir::PrivateDir;
pub use random_access::{RandomAccessFile, sync_directory};
pub use read_beneath::read_beneath;
pub use remove::{remove, remove_recursive};
pub use symlink::{Replace, read_link};
pub use temporaries::Temporaries;
pub use tree::Tree;
pub use tree_digest::tree_digest;
pub use trusted_read::{AllowedWriters, check_writers, read_secret, read_trusted};
pub(crate) use xattr::{Xattr, set_xattr, xattr};

/// A failed file operation. Every text names the path.
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
    #[error("{} has no file name", .0.display())]
    NoName(PathBuf),
    #[error("{} is a symlink; refusing to set attributes through it", .0.display())]
    Symlink(PathBuf),
    #[error("{} is a symlink; refusing to write through it", .0.display())]
    WriteThroughSymlink(PathBuf),
    #[error(
        "refusing to follow the symlink {}: another user could have created it, and its target \
         belongs to someone else; use the path of the target instead",
        .0.display()
    )]
    UntrustedLink(PathBuf),
    #[error(
        "refusing to follow the symlink {}: other users may write to {directory} and could have \
         created it; use the path of the target instead, or check the link and run \
         chmod +t {directory}",
        .0.display(),
        directory = parent_of(.0).display()
    )]
    ReplaceableLink(PathBuf),
    #[error(
        "{path} has other names (hard links), and another user could have created this one; \
         refusing to set attributes: remove {path}, or make its directory writable by its owner \
         only",
        path = .0.display()
    )]
    HardLinked(PathBuf),
    #[error(
        "{} is in the way: it is not a symbolic link; remove it first, or set 'force: true'",
        .0.display()
    )]
    InTheWay(PathBuf),
    #[error("{} is outside of its directory", .0.display())]
    OutsideTree(PathBuf),
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
    #[error("refusing to remove {}: a file system is mounted on it or below it; unmount it first", .0.display())]
    Mounted(PathBuf),
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    #[error("{path} is not private: other users may write to it; run chmod go-w {path}", path = .0.display())]
    NotPrivate(PathBuf),
    #[error("{} is not private: it belongs to user {owner}", path.display())]
    NotOwned { path: PathBuf, owner: u32 },
    #[error("{path} may be changed by others: run chmod go-w {path}", path = .0.display())]
    Writable(PathBuf),
    #[error(
        "{path} belongs to user {owner}, who could change it: run chown root {path}",
        path = path.display()
    )]
    UntrustedOwner { path: PathBuf, owner: u32 },
    #[error("{path} may be read by others: run chmod 600 {path}", path = .0.display())]
    Readable(PathBuf),
}

impl FileError {
    /// Whether something on the path does not exist.
    pub fn is_not_found(&self) -> bool {
        self.os_kind() == Some(io::ErrorKind::NotFound)
    }

    /// Whether this process may not do it.
    pub fn is_permission_denied(&self) -> bool {
        self.os_kind() == Some(io::ErrorKind::PermissionDenied)
    }

    /// Whether the disk or a quota is full.
    pub fn is_storage_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let kind = self.os_kind();
        kind.is_some_and(|kind| matches!(kind, StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// Whether the data is missing or damaged, so that a retry is useless.
    pub fn is_permanent(&self) -> bool {
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

/// Returns a function that adds the action and the path to a system error.
pub(super) fn failed<E: Into<Cause>>(action: &'static str, path: &Path) -> impl Fn(E) -> FileError {
    move |cause| FileError::Os {
        action,
        path: path.to_owned(),
        cause: cause.into(),
    }
}

/// Owner, group and mode of a file. `None` leaves an attribute unchanged.
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

    /// Returns the arguments of chown.
    fn owner(&self) -> Result<(Option<Uid>, Option<Gid>), Errno> {
        // chown takes u32::MAX as "leave unchanged" and would succeed.
        if [self.uid, self.gid].contains(&Some(u32::MAX)) {
            return Err(Errno::INVAL);
        }
        Ok((self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw)))
    }
}

/// Sets owner and mode of an existing file or directory. Refuses symlinks, and hard links that
/// another user could have created.
pub fn set_attributes(path: &Path, attributes: &Attributes) -> Result<(), FileError> {
    if path.file_name().is_none() {
        // `/` or `..`: there is no parent to open.
        let handle = safe_open::open_dir(path).map_err(|err| err.during("open", path))?;
        let stat = rustix::fs::fstat(&handle).map_err(failed("stat", path))?;
        return change_attributes(&handle, &stat, path, attributes);
    }
    let location = Location::resolve(path).map_err(|err| err.during("open", path))?;
    let handle = location.open().map_err(location.failed("open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(location.failed("stat"))?;
    if FileKind::of(&stat) == FileKind::Symlink {
        return Err(FileError::Symlink(path.to_owned()));
    }
    if FileKind::of(&stat) != FileKind::Directory && location.may_be_foreign_link(&stat)? {
        return Err(FileError::HardLinked(path.to_owned()));
    }
    change_attributes(&handle, &stat, path, attributes)
}

/// Changes the attributes that differ from `stat`. The handle may be opened with `O_PATH`.
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
        // chown clears the set-id bits, so the mode is set after it.
        Some(mode) if !is_owned || mode != Mode::from_raw_mode(stat.st_mode) => {
            // fchmod does not accept an O_PATH handle; its entry in /proc is the same file.
            rustix::fs::chmod(proc_path(handle), mode).map_err(failed("chmod", path))
        }
        _ => Ok(()),
    }
}

/// An open directory and a name in it.
struct Location<'a> {
    path: &'a Path,
    directory: OwnedFd,
    name: &'a OsStr,
}

impl<'a> Location<'a> {
    /// Returns the location of a path. The directory must exist.
    fn of(path: &'a Path) -> Result<Self, FileError> {
        if path.file_name().is_none() {
            return Err(FileError::NoName(path.to_owned()));
        }
        Self::resolve(path).map_err(|err| {
            let parent = parent_of(path);
            match err {
                OpenError::Os(Errno::NOENT | Errno::NOTDIR) => {
                    FileError::NotADirectory(parent.to_owned())
                }
                err => err.during("open", parent),
            }
        })
    }

    /// Returns the location of a path, with the error of the directory unchanged.
    fn resolve(path: &'a Path) -> Result<Self, OpenError> {
        let name = path.file_name().ok_or(OpenError::Os(Errno::INVAL))?;
        Ok(Self {
            path,
            directory: safe_open::open_dir(parent_of(path))?,
            name,
        })
    }

    /// Opens the file with `O_PATH`, symlinks not followed. Needs no read permission, and neither
    /// blocks on a FIFO nor opens a device.
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, self.name, flags, Mode::empty())
    }

    /// Whether other users could replace the file, or a directory of its path.
    fn others_may_replace(&self) -> Result<bool, FileError> {
        let ancestors = parent_of(self.path).ancestors();
        for directory in ancestors.filter(|it| !it.as_os_str().is_empty()) {
            let handle =
                safe_open::open_dir(directory).map_err(|err| err.during("open", directory))?;
            let stat = rustix::fs::fstat(&handle).map_err(failed::<Errno>("stat", directory))?;
            if safe_open::others_may_replace(&stat) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the opened file may be a hard link created by another user: a user who may write to
    /// a directory may link any file into it, including files of root.
    fn may_be_foreign_link(&self, opened: &Stat) -> Result<bool, FileError> {
        let directory = rustix::fs::fstat(&self.directory).map_err(self.failed("stat"))?;
        if !safe_open::others_may_create(&directory) {
            return Ok(false);
        }
        if directory.st_mode & 0o022 == 0 && opened.st_uid == directory.st_uid {
            // Only the directory's owner could have created it, and owns the file as well.
            return Ok(false);
        }
        // The file must have one name, and it must still be this one: the link may have been
        // replaced since the file was opened.
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let named = rustix::fs::statat(&self.directory, self.name, flags);
        let named = named.map_err(self.failed("stat"))?;
        let is_same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino);
        Ok(!is_same || named.st_nlink > 1)
    }

    /// Returns a function that adds the action and this path to a system error.
    fn failed(&self, action: &'static str) -> impl Fn(Errno) -> FileError {
        failed(action, self.path)
    }
}

/// Returns the parent directory; `.` for a bare name.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the path of a handle in `/proc`, for calls that do not accept an `O_PATH` handle.
fn proc_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}
