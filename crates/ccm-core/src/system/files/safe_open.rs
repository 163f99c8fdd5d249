//! Opening directories without following untrusted symlinks.
//!
//! A user who may write to a directory can create a symlink in it at any time. A symlink is
//! followed only if no other user than root or the effective user could have created it, or if it
//! leads to a directory of the user who could. Every component is opened relative to the handle of
//! the previous one, and checks apply to opened handles, so nothing is looked up twice.
//!
//! A path without symlinks needs a single call, `openat2` with `RESOLVE_NO_SYMLINKS`.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// Maximum number of symlinks, the same as in the kernel.
const MAX_LINKS: usize = 40;

/// Flags for directories on the path: needs no read permission.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// File system type of procfs, whose links do not resolve by their text.
const PROC: i64 = 0x9fa0;

/// A directory that was not opened.
#[derive(Debug)]
pub(super) enum OpenError {
    Os(Errno),
    /// The link could have been created by another user, and its target belongs to someone else.
    UntrustedLink(PathBuf),
    /// Several users could have created or moved the link.
    ReplaceableLink(PathBuf),
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl OpenError {
    /// Returns the error of an action at a path.
    pub(super) fn during(self, action: &'static str, path: &Path) -> FileError {
        match self {
            Self::Os(errno) => failed(action, path)(errno),
            Self::UntrustedLink(link) => FileError::UntrustedLink(link),
            Self::ReplaceableLink(link) => FileError::ReplaceableLink(link),
        }
    }
}

/// Opens an existing directory.
pub(super) fn open_dir(path: &Path) -> Result<OwnedFd, OpenError> {
    walk(path, None)
}

/// Opens a directory; creates it and missing parents.
pub(super) fn create_dir_all(path: &Path, mode: u32) -> Result<OwnedFd, OpenError> {
    walk(path, Some(Mode::from_raw_mode(mode)))
}

fn walk(path: &Path, missing: Option<Mode>) -> Result<OwnedFd, OpenError> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let straight = rustix::fs::openat2(
        CWD,
        path,
        DIRECTORY,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    match straight {
        Ok(handle) => return Ok(handle),
        Err(Errno::NOENT) if missing.is_some() => {}
        // A symlink; or a kernel or seccomp filter without openat2.
        Err(Errno::LOOP | Errno::NOSYS | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let here = rustix::fs::open(".", DIRECTORY, Mode::empty())?;
    Walk { links: 0 }.resolve(here, Path::new(""), path, missing)
}

/// A walk along a path.
struct Walk {
    /// Number of symlinks followed.
    links: usize,
}

impl Walk {
    /// Resolves a path relative to a directory, whose name is used in errors only.
    fn resolve(
        &mut self,
        from: OwnedFd,
        name: &Path,
        path: &Path,
        missing: Option<Mode>,
    ) -> Result<OwnedFd, OpenError> {
        let mut here = from;
        let mut shown = name.to_owned();
        for component in path.components() {
            shown.push(component);
            here = match component {
                Component::CurDir | Component::Prefix(_) => here,
                Component::RootDir => rustix::fs::open("/", DIRECTORY, Mode::empty())?,
                Component::ParentDir => open(&here, OsStr::new(".."))?,
                Component::Normal(name) => self.step(here, name, &shown, missing)?,
            };
        }
        Ok(here)
    }

    fn step(
        &mut self,
        here: OwnedFd,
        name: &OsStr,
        shown: &Path,
        missing: Option<Mode>,
    ) -> Result<OwnedFd, OpenError> {
        let opened = match (open(&here, name), missing) {
            (Err(Errno::NOENT), Some(mode)) => match rustix::fs::mkdirat(&here, name, mode) {
                Ok(()) | Err(Errno::EXIST) => open(&here, name),
                Err(errno) => return Err(errno.into()),
            },
            (opened, _) => opened,
        };
        match opened {
            Ok(directory) => Ok(directory),
            Err(Errno::NOTDIR | Errno::LOOP) => self.follow(here, name, shown),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Follows a symlink, if it is trusted.
    fn follow(&mut self, here: OwnedFd, name: &OsStr, shown: &Path) -> Result<OwnedFd, OpenError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(&here, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&link)?;
        if FileKind::of(&found) != FileKind::Symlink {
            return Err(Errno::NOTDIR.into());
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let creator = creator(&rustix::fs::fstat(&here)?, &found);
        let target = if is_on_procfs(&link)? {
            // A magic link: it leads to an open file, whatever its text is.
            rustix::fs::openat(&here, name, DIRECTORY, Mode::empty())?
        } else {
            let text = rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes();
            let text = PathBuf::from(std::ffi::OsString::from_vec(text));
            let name = shown.parent().unwrap_or(Path::new(""));
            // No directories are created for the target of a symlink.
            self.resolve(here, name, &text, None)?
        };
        match creator {
            Creator::Trusted => Ok(target),
            Creator::User(uid) if rustix::fs::fstat(&target)?.st_uid == uid => Ok(target),
            Creator::User(_) => Err(OpenError::UntrustedLink(shown.to_owned())),
            Creator::Several => Err(OpenError::ReplaceableLink(shown.to_owned())),
        }
    }
}

/// Returns who could have created a symlink in a directory.
///
/// The owner of the link is not enough: in a directory that others may write to, they could have
/// renamed or hard-linked a link of root. The sticky bit prevents that. Group-writable counts as
/// writable, because the members of a group are not known here.
fn creator(directory: &Stat, link: &Stat) -> Creator {
    if !is_trusted_user(link.st_uid) {
        Creator::User(link.st_uid)
    } else if !is_trusted_user(directory.st_uid) {
        Creator::User(directory.st_uid)
    } else if others_may_rename(directory) {
        Creator::Several
    } else {
        Creator::Trusted
    }
}

/// Whether other users than root and the effective user could have created files in a directory.
pub(super) fn others_may_create(directory: &Stat) -> bool {
    !is_trusted_user(directory.st_uid) || directory.st_mode & 0o022 != 0
}

/// Whether other users could replace a file of root or the effective user in a directory.
pub(super) fn others_may_replace(directory: &Stat) -> bool {
    !is_trusted_user(directory.st_uid) || others_may_rename(directory)
}

/// Whether a user is root or the effective user.
pub(super) fn is_trusted_user(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Whether users other than the owner may rename files they don't own.
fn others_may_rename(directory: &Stat) -> bool {
    directory.st_mode & 0o022 != 0 && directory.st_mode & 0o1000 == 0
}

enum Creator {
    /// Root or the effective user only.
    Trusted,
    User(u32),
    /// Any of several users.
    Several,
}

fn open(here: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(here, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

fn is_on_procfs(link: &OwnedFd) -> Result<bool, Errno> {
    Ok(i128::from(rustix::fs::fstatfs(link)?.f_type) == i128::from(PROC))
}
