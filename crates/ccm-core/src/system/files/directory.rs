//! Creation of directories, and checks that a directory is private and can be written to.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::safe_open::OpenError;
use super::{
    Attributes, FileError, FileKind, Location, change_attributes, failed, parent_of, safe_open,
    set_attributes,
};

/// Name of the file that [`check_storage`] writes. One that a killed process left is replaced.
const STORAGE_CHECK: &str = ".storage-check";

/// Bytes that [`check_storage`] writes: at least a block, so that a full disk has no room for it.
const STORAGE_CHECK_BYTES: usize = 4096;

/// Creates a directory and missing parents, and sets its owner and mode; an existing one gets only
/// these. A symlink of that name is removed, its target left alone. Parents get the same mode,
/// subject to the umask.
pub fn create_directory(path: &Path, attributes: &Attributes) -> Result<(), FileError> {
    if path == Path::new("/") {
        return set_attributes(path, attributes);
    }
    let Some(name) = path.file_name() else {
        return Err(FileError::NoName(path.to_owned()));
    };
    let parent = parent_of(path);
    let directory = safe_open::create_dir_all(parent, attributes.mode.unwrap_or(0o777))
        .map_err(|err| err.during("mkdir", parent))?;
    let location = Location {
        path,
        directory,
        name,
    };
    let (directory, name) = (&location.directory, location.name);
    let present = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if present.is_ok_and(|stat| FileKind::of(&stat) == FileKind::Symlink) {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())
            .map_err(location.failed("could not remove symlink: remove"))?;
    }
    // Not accessible to others until its owner is set.
    let mode = attributes.mode.map_or(0o777, |_| 0o700);
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(location.failed("mkdir")(errno)),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(directory, name, flags, Mode::empty())
        .map_err(location.failed("mkdir"))?;
    let stat = rustix::fs::fstat(&handle).map_err(location.failed("stat"))?;
    change_attributes(&handle, &stat, path, attributes)
}

/// Creates a directory with mode 0700 and missing parents. An existing one must not belong to
/// another user or be writable by others.
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    let handle = safe_open::create_dir_all(path, 0o700).map_err(|err| err.during("mkdir", path))?;
    check_private(&handle, path)
}

/// Checks that files can be created in a directory; fails on a read-only file system.
pub fn check_writable(path: &Path) -> Result<(), FileError> {
    rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(failed("write to", path))
}

/// Checks that a file in a directory can be written and flushed; fails if the disk or a quota is
/// full, or if the disk does not work. The directory must be private.
pub fn check_storage(directory: &Path) -> Result<(), FileError> {
    let path = directory.join(STORAGE_CHECK);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
        .map_err(failed("create", &path))?;
    let mut file = File::from(file);
    let written = file
        .write_all(&[0xff; STORAGE_CHECK_BYTES])
        .and_then(|()| file.sync_data())
        .map_err(failed("write", &path));
    // Removed in any case; a full disk permits that.
    match rustix::fs::unlink(&path) {
        Ok(()) | Err(Errno::NOENT) => written,
        Err(errno) => written.and(Err(failed("remove", &path)(errno))),
    }
}

/// Checks that a directory belongs to root or the effective user and is not writable by others. A
/// missing one is not an error.
pub fn check_private_dir(path: &Path) -> Result<(), FileError> {
    match safe_open::open_dir(path) {
        Ok(handle) => check_private(&handle, path),
        Err(OpenError::Os(Errno::NOENT)) => Ok(()),
        Err(err) => Err(err.during("open", path)),
    }
}

fn check_private(handle: &OwnedFd, path: &Path) -> Result<(), FileError> {
    let stat = rustix::fs::fstat(handle).map_err(failed::<Errno>("stat", path))?;
    if !safe_open::is_trusted_user(stat.st_uid) {
        return Err(FileError::NotOwned {
            path: path.to_owned(),
            owner: stat.st_uid,
        });
    }
    match stat.st_mode & 0o022 {
        0 => Ok(()),
        _ => Err(FileError::NotPrivate(path.to_owned())),
    }
}
