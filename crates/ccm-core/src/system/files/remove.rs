//! Removing files and whole trees, without ever leaving the tree.
//!
//! A tree is walked by handles, never by paths, and no link is followed: whoever swaps a
//! directory for a link while we work loses the link, not what it leads to. The way back up is
//! checked: a directory that was moved away under us ends the walk. Memory grows with the names,
//! open files not at all, so neither depth nor width of a hostile tree matters.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::safe_open::Lost;
use super::{FileError, Place, failed};

/// How often a directory is emptied again because someone keeps filling it.
const MOST_SWEEPS: usize = 16;

/// Removes a file, a link or an empty directory. One that is missing is fine.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let Some(place) = find(path)? else {
        return Ok(());
    };
    match remove_one(&place) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno @ (Errno::NOTEMPTY | Errno::EXIST)) => Err(FileError::NotEmpty {
            path: path.to_owned(),
            cause: errno.into(),
        }),
        Err(errno) => Err(failed("remove", path)(errno)),
    }
}

/// Removes whatever has this name, with all that is in it. One that is missing is fine.
pub fn remove_recursive(path: &Path) -> Result<(), FileError> {
    let fail = failed("remove", path);
    let Some(place) = find(path)? else {
        return Ok(());
    };
    match remove_one(&place) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let name = CString::new(place.name.as_encoded_bytes()).map_err(|_| fail(Errno::INVAL))?;
    remove_tree(place.directory, name).map_err(fail)
}

/// Returns the place of what is to be removed; nothing if even its directory is missing.
fn find(path: &Path) -> Result<Option<Place<'_>>, FileError> {
    match Place::seek(path) {
        Ok(place) => Ok(Some(place)),
        Err(Lost::Os(Errno::NOENT)) => Ok(None),
        Err(lost) => Err(lost.during("remove", path)),
    }
}

fn remove_one(place: &Place<'_>) -> Result<(), Errno> {
    match rustix::fs::unlinkat(&place.directory, place.name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(&place.directory, place.name, AtFlags::REMOVEDIR),
        done => done,
    }
}

/// A directory on the way down, to be removed on the way up.
struct Level {
    name: CString,
    /// The directory that holds it, to know it again.
    parent: Identity,
    /// Its directories that are still to be removed.
    open: Vec<CString>,
    sweeps: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(handle: &OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(handle)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

fn remove_tree(parent: OwnedFd, name: CString) -> Result<(), Errno> {
    let mut levels = Vec::new();
    match descend(&parent, name, &mut levels)? {
        Some(here) => climb(here, levels),
        None => Ok(()),
    }
}

/// Removes the directory we are in and those above, down to the first level; what is still in
/// them goes before.
fn climb(mut here: OwnedFd, mut levels: Vec<Level>) -> Result<(), Errno> {
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.open.pop() {
            if let Some(below) = descend(&here, name, &mut levels)? {
                here = below;
            }
            continue;
        }
        let above = open_directory(&here, c"..")?;
        if Identity::of(&above)? != level.parent {
            // Someone moved this directory: what is above it now is not ours.
            return Err(Errno::STALE);
        }
        match rustix::fs::unlinkat(&above, &*level.name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.sweeps < MOST_SWEEPS => {
                level.sweeps += 1;
                level.open = sweep(&here)?;
                continue;
            }
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        levels.pop();
        here = above;
    }
    Ok(())
}

/// Enters a directory and removes all of it that is no directory. Returns nothing if it is gone,
/// or was no directory after all, and so is gone now.
fn descend(
    parent: &OwnedFd,
    name: CString,
    levels: &mut Vec<Level>,
) -> Result<Option<OwnedFd>, Errno> {
    let here = match open_directory(parent, &name) {
        Ok(here) => here,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            rustix::fs::unlinkat(parent, &*name, AtFlags::empty())?;
            return Ok(None);
        }
        Err(errno) => return Err(errno),
    };
    levels.push(Level {
        name,
        parent: Identity::of(parent)?,
        open: sweep(&here)?,
        sweeps: 0,
    });
    Ok(Some(here))
}

/// Removes what is no directory, and returns the names of what is.
fn sweep(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            directories.push(name.to_owned());
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Some file systems do not say beforehand what an entry is.
            Err(Errno::ISDIR) => directories.push(name.to_owned()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(directories)
}

fn open_directory(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_directory_that_became_a_link_is_unlinked_and_not_entered() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        std::fs::create_dir(at("outside")).unwrap();
        std::fs::File::create(at("outside/file")).unwrap();
        std::fs::create_dir(at("tree")).unwrap();
        std::os::unix::fs::symlink("../outside", at("tree/swapped")).unwrap();
        let mut levels = Vec::new();
        let entered = descend(&open(&at("tree")), c"swapped".into(), &mut levels).unwrap();
        assert!(entered.is_none() && levels.is_empty());
        assert!(!at("tree/swapped").is_symlink());
        assert!(at("outside/file").exists());
    }

    #[test]
    fn a_directory_that_was_moved_away_ends_the_walk_where_it_is() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        std::fs::create_dir(at("tree")).unwrap();
        std::fs::create_dir(at("tree/moved")).unwrap();
        std::fs::create_dir(at("outside")).unwrap();
        // A victim that the way up would meet by its name.
        std::fs::create_dir(at("outside/victim")).unwrap();
        let mut levels = Vec::new();
        let here = descend(&open(&at("tree")), c"moved".into(), &mut levels).unwrap();
        rustix::fs::rename(at("tree/moved"), at("outside/moved")).unwrap();
        levels.last_mut().unwrap().name = c"victim".into();
        assert_eq!(climb(here.unwrap(), levels), Err(Errno::STALE));
        assert!(at("outside/victim").exists());
    }
}
