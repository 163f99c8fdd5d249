//! The way to a directory, walked so that nobody can lead it astray.
//!
//! Whoever may write to a directory may put a link into it, at any moment. So a link on the way is
//! followed only if it can do no harm: nobody but root or we could have put it there, or it leads
//! to a directory that belongs to the one who did, where he needs no help of ours to write. Every
//! part is entered from the one before by an open handle, and what is judged is what is entered:
//! nothing is looked up twice.
//!
//! A way without links, nearly every one, is a single call to the kernel. What happens at the end
//! of the way is not known here; see `Place` for that.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{FileError, FileKind, failed};

/// How many links a way may have: as many as the kernel takes.
const MOST_LINKS: usize = 40;

/// Opens a directory only to go on from it: needs no right to read it.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How the kernel marks the file system whose links are more than their text.
const PROC: i64 = 0x9fa0;

/// Why a way did not lead to a directory.
#[derive(Debug)]
pub(super) enum Lost {
    Os(Errno),
    /// This link could have been put there by someone, and leads to what is not his.
    Astray(PathBuf),
    /// One of several could have put this link there.
    Movable(PathBuf),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl Lost {
    /// Returns the error of an action at a path.
    pub(super) fn during(self, action: &'static str, path: &Path) -> FileError {
        match self {
            Self::Os(errno) => failed(action, path)(errno),
            Self::Astray(link) => FileError::Astray(link),
            Self::Movable(link) => FileError::Movable(link),
        }
    }
}

/// Opens a directory.
pub(super) fn enter(path: &Path) -> Result<OwnedFd, Lost> {
    walk(path, None)
}

/// Opens a directory, made with those it is in if they are missing.
pub(super) fn make(path: &Path, mode: u32) -> Result<OwnedFd, Lost> {
    walk(path, Some(Mode::from_raw_mode(mode)))
}

fn walk(path: &Path, missing: Option<Mode>) -> Result<OwnedFd, Lost> {
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
        // There is a link; or a kernel, or a filter of system calls, that does not know the call.
        Err(Errno::LOOP | Errno::NOSYS | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let here = rustix::fs::open(".", DIRECTORY, Mode::empty())?;
    Walk { links: 0 }.go(here, Path::new(""), path, missing)
}

/// A walk, and what it has met so far.
struct Walk {
    links: usize,
}

impl Walk {
    /// Goes along a path from a directory, whose name is only there for errors.
    fn go(
        &mut self,
        from: OwnedFd,
        name: &Path,
        path: &Path,
        missing: Option<Mode>,
    ) -> Result<OwnedFd, Lost> {
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
    ) -> Result<OwnedFd, Lost> {
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

    /// Goes where a link leads, if it may be followed.
    fn follow(&mut self, here: OwnedFd, name: &OsStr, shown: &Path) -> Result<OwnedFd, Lost> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(&here, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&link)?;
        if FileKind::of(&found) != FileKind::Symlink {
            return Err(Errno::NOTDIR.into());
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        let author = author(&rustix::fs::fstat(&here)?, &found);
        let target = if is_of_proc(&link)? {
            // Such a link is a door, and its text only a label.
            rustix::fs::openat(&here, name, DIRECTORY, Mode::empty())?
        } else {
            let text = rustix::fs::readlinkat(&link, "", Vec::new())?.into_bytes();
            let text = PathBuf::from(std::ffi::OsString::from_vec(text));
            let name = shown.parent().unwrap_or(Path::new(""));
            // Nothing is ever made for the sake of a link.
            self.go(here, name, &text, None)?
        };
        match author {
            Author::Ours => Ok(target),
            Author::Someone(uid) if rustix::fs::fstat(&target)?.st_uid == uid => Ok(target),
            Author::Someone(_) => Err(Lost::Astray(shown.to_owned())),
            Author::Anyone => Err(Lost::Movable(shown.to_owned())),
        }
    }
}

/// Returns who could have put a link where it is.
///
/// That root made a link does not say that root put it here. Where others may move what is not
/// theirs, one of them could have given one of root's links the name of another, or a second name.
/// A sticky directory forbids that; whether a group has members that matter can't be told.
fn author(directory: &Stat, link: &Stat) -> Author {
    if !is_ours(link.st_uid) {
        Author::Someone(link.st_uid)
    } else if !is_ours(directory.st_uid) {
        Author::Someone(directory.st_uid)
    } else if others_may_move(directory) {
        Author::Anyone
    } else {
        Author::Ours
    }
}

/// Tells whether someone else than root and we could have put things into a directory.
pub(super) fn may_be_planted(directory: &Stat) -> bool {
    !is_ours(directory.st_uid) || directory.st_mode & 0o022 != 0
}

/// Tells whether someone else than root and we could put another thing in place of one of ours.
pub(super) fn may_be_swapped(directory: &Stat) -> bool {
    !is_ours(directory.st_uid) || others_may_move(directory)
}

/// Tells whether a user is root or we.
pub(super) fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Tells whether others than its owner may move what is not theirs about in a directory.
fn others_may_move(directory: &Stat) -> bool {
    directory.st_mode & 0o022 != 0 && directory.st_mode & 0o1000 == 0
}

enum Author {
    /// Root or we, and nobody else.
    Ours,
    Someone(u32),
    /// One of several, and it can't be told who.
    Anyone,
}

fn open(here: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(here, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
}

fn is_of_proc(link: &OwnedFd) -> Result<bool, Errno> {
    Ok(i128::from(rustix::fs::fstatfs(link)?.f_type) == i128::from(PROC))
}
