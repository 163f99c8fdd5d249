//! Removal of files and directory trees.
//!
//! A tree is walked by handles and no symlink is followed: if a directory is replaced by a symlink
//! meanwhile, the link is removed, not its target. Going up is checked, too: a directory that was
//! moved away ends the walk with an error. The number of open files does not depend on the depth of
//! the tree.
//!
//! If a file system is mounted on the tree or below it, nothing is removed: the list of mounts is
//! read first. One that is mounted later is not entered.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::safe_open::OpenError;
use super::{FileError, Location, failed, proc_path, read};

/// Maximum number of times that a directory is emptied while others create files in it.
const MAX_PASSES: usize = 16;

/// The mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Maximum size of the list of mounts.
const MAX_MOUNTS_BYTES: u64 = 64 << 20;

/// Removes a file, a symlink or an empty directory. A missing path is not an error.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let Some(location) = find(path)? else {
        return Ok(());
    };
    match remove_one(&location) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno @ (Errno::NOTEMPTY | Errno::EXIST)) => Err(FileError::NotEmpty {
            path: path.to_owned(),
            cause: errno.into(),
        }),
        Err(errno) => Err(failed("remove", path)(errno)),
    }
}

/// Removes a file or a directory tree. A missing path is not an error.
pub fn remove_recursive(path: &Path) -> Result<(), FileError> {
    let fail = failed("remove", path);
    let Some(location) = find(path)? else {
        return Ok(());
    };
    match remove_one(&location) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(fail(errno)),
    }
    check_mounts(&location)?;
    let name = CString::new(location.name.as_encoded_bytes()).map_err(|_| fail(Errno::INVAL))?;
    remove_tree(location.directory, name).map_err(|errno| match errno {
        Errno::XDEV => FileError::Mounted(path.to_owned()),
        errno => fail(errno),
    })
}

/// Checks that no file system is mounted on a directory or below it, which could then be removed only in
/// part.
pub(super) fn check_mounts(location: &Location<'_>) -> Result<(), FileError> {
    if has_mount(location)? {
        return Err(FileError::Mounted(location.path.to_owned()));
    }
    Ok(())
}

/// Reports whether a file system is mounted on a directory or below it.
fn has_mount(location: &Location<'_>) -> Result<bool, FileError> {
    let parent = proc_path(&location.directory);
    let parent = rustix::fs::readlink(&parent, Vec::new())
        .map_err(failed::<Errno>("readlink", Path::new(&parent)))?;
    let tree = Path::new(OsStr::from_bytes(parent.as_bytes())).join(location.name);
    let mounts = read(Path::new(MOUNTS), MAX_MOUNTS_BYTES)?;
    let mut lines = mounts.split(|byte| *byte == b'\n');
    Ok(lines.any(|line| mount_point(line).is_some_and(|point| point.starts_with(&tree))))
}

/// Returns the mount point in a line of the list of mounts, where blanks and backslashes are written
/// as a backslash and three octal digits.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut bytes = parts.next()?.to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(3)?;
        let code = u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok()?;
        bytes.push(code);
        bytes.extend_from_slice(rest);
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

/// Returns the location of a path, or `None` if its directory is missing.
fn find(path: &Path) -> Result<Option<Location<'_>>, FileError> {
    match Location::resolve(path) {
        Ok(location) => Ok(Some(location)),
        Err(OpenError::Os(Errno::NOENT)) => Ok(None),
        Err(err) => Err(err.during("remove", path)),
    }
}

pub(super) fn remove_one(location: &Location<'_>) -> Result<(), Errno> {
    match rustix::fs::unlinkat(&location.directory, location.name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {
            rustix::fs::unlinkat(&location.directory, location.name, AtFlags::REMOVEDIR)
        }
        done => done,
    }
}

/// An opened directory of the tree, removed when its content is gone.
struct Level {
    name: CString,
    /// Its parent directory, compared on the way up.
    parent: Identity,
    /// Subdirectories that are still to be removed.
    pending: Vec<CString>,
    /// Number of times that it was emptied again.
    passes: usize,
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

/// Removes the current directory with its content and then its parents, up to the first level.
fn climb(mut here: OwnedFd, mut levels: Vec<Level>) -> Result<(), Errno> {
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.pending.pop() {
            if let Some(below) = descend(&here, name, &mut levels)? {
                here = below;
            }
            continue;
        }
        let above = open_directory(&here, c"..")?;
        if Identity::of(&above)? != level.parent {
            // The directory was moved: its parent is not part of the tree.
            return Err(Errno::STALE);
        }
        match rustix::fs::unlinkat(&above, &*level.name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.passes < MAX_PASSES => {
                level.passes += 1;
                level.pending = remove_files(&here)?;
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

/// Opens a directory and removes all entries that are not directories. Returns `None` if it does
/// not exist, or was not a directory and has been removed.
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
    if is_mount_point(parent, &here)? {
        return Err(Errno::XDEV);
    }
    levels.push(Level {
        name,
        parent: Identity::of(parent)?,
        pending: remove_files(&here)?,
        passes: 0,
    });
    Ok(Some(here))
}

/// Reports whether another file system, or another part of the same one, is mounted on a directory.
fn is_mount_point(parent: &OwnedFd, here: &OwnedFd) -> Result<bool, Errno> {
    if Identity::of(parent)?.device != Identity::of(here)?.device {
        return Ok(true);
    }
    // Bind mounts have the same device. Kernels before 5.8 don't know the attribute.
    match rustix::fs::statx(here, "", AtFlags::EMPTY_PATH, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes the entries that are not directories, and returns the names of those that are.
fn remove_files(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
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
            // Some file systems do not report the type of an entry.
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
    fn a_directory_replaced_by_a_symlink_is_unlinked_and_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
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
    fn a_mount_point_is_unescaped() {
        let line = br"36 35 98:0 /mnt1 /mnt/a\040b\134c rw,noatime - ext3 /dev/root rw";
        let found = mount_point(line);
        assert_eq!(found.as_deref(), Some(Path::new(r"/mnt/a b\c")));
        assert_eq!(mount_point(b""), None);
    }

    #[test]
    fn a_directory_that_was_moved_away_ends_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("tree")).unwrap();
        std::fs::create_dir(at("tree/moved")).unwrap();
        std::fs::create_dir(at("outside")).unwrap();
        // Would be removed by name if the parent were not compared.
        std::fs::create_dir(at("outside/victim")).unwrap();
        let mut levels = Vec::new();
        let here = descend(&open(&at("tree")), c"moved".into(), &mut levels).unwrap();
        rustix::fs::rename(at("tree/moved"), at("outside/moved")).unwrap();
        levels.last_mut().unwrap().name = c"victim".into();
        assert_eq!(climb(here.unwrap(), levels), Err(Errno::STALE));
        assert!(at("outside/victim").exists());
    }
}
