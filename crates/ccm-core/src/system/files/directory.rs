//! Making directories.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::safe_open::Lost;
use super::{
    Attributes, FileError, FileKind, Place, change_attributes, failed, parent_of, safe_open,
    set_attributes,
};

/// Makes a directory, with those it is in, and gives it its owner and mode. One that exists is
/// only given these. A symlink in its place is removed, and what it led to is left alone. The
/// directories above get the same mode as far as the umask lets them.
pub fn create_directory(path: &Path, attributes: &Attributes) -> Result<(), FileError> {
    if path == Path::new("/") {
        return set_attributes(path, attributes);
    }
    let Some(name) = path.file_name() else {
        return Err(FileError::NoName(path.to_owned()));
    };
    let parent = parent_of(path);
    let directory = safe_open::make(parent, attributes.mode.unwrap_or(0o777))
        .map_err(|lost| lost.during("mkdir", parent))?;
    let place = Place {
        path,
        directory,
        name,
    };
    let (directory, name) = (&place.directory, place.name);
    let present = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if present.is_ok_and(|stat| FileKind::of(&stat) == FileKind::Symlink) {
        rustix::fs::unlinkat(directory, name, AtFlags::empty())
            .map_err(place.failed("could not remove symlink: remove"))?;
    }
    // Closed to others until it has its owner.
    let mode = attributes.mode.map_or(0o777, |_| 0o700);
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(place.failed("mkdir")(errno)),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle =
        rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(place.failed("mkdir"))?;
    let stat = rustix::fs::fstat(&handle).map_err(place.failed("stat"))?;
    change_attributes(&handle, &stat, path, attributes)
}

/// Makes a directory, with those it is in, that only we can enter. One that exists is taken as
/// it is, unless it is somebody else's or others may write to it.
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    let handle = safe_open::make(path, 0o700).map_err(|lost| lost.during("mkdir", path))?;
    check_private(&handle, path)
}

/// Checks that a directory of our own is nobody else's and that others may not write to it. One
/// that does not exist is fine.
pub fn check_private_dir(path: &Path) -> Result<(), FileError> {
    match safe_open::enter(path) {
        Ok(handle) => check_private(&handle, path),
        Err(Lost::Os(Errno::NOENT)) => Ok(()),
        Err(lost) => Err(lost.during("open", path)),
    }
}

fn check_private(handle: &OwnedFd, path: &Path) -> Result<(), FileError> {
    let stat = rustix::fs::fstat(handle).map_err(failed::<Errno>("stat", path))?;
    if !safe_open::is_ours(stat.st_uid) {
        return Err(FileError::Foreign {
            path: path.to_owned(),
            owner: stat.st_uid,
        });
    }
    match stat.st_mode & 0o022 {
        0 => Ok(()),
        _ => Err(FileError::NotPrivate(path.to_owned())),
    }
}
