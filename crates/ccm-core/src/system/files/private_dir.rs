//! Private temporary directories, removed on drop unless they are kept or moved into place.
//!
//! A process that is killed leaves its directory behind, with mode 0700.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags};
use rustix::io::Errno;

use super::super::random;
use super::{FileError, failed, remove_recursive, safe_open, sync_directory};

/// Attempts to find an unused name.
const MAX_ATTEMPTS: usize = 16;

/// A new directory with mode 0700, removed with its content on drop.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Creates `<prefix><random digits>` in a directory. Refuses a parent in which other users
    /// could replace it.
    pub fn create(parent: &Path, prefix: &str) -> Result<Self, FileError> {
        check_parent(parent)?;
        for _ in 0..MAX_ATTEMPTS {
            let path = parent.join(format!("{prefix}{:032x}", random()?));
            // Never uses an existing directory, which may belong to another user.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(Self(path)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("mkdir", &path)(errno)),
            }
        }
        Err(failed("mkdir", parent)(Errno::EXIST))
    }

    /// Creates the directory `name` in a parent, in place of one that a killed process left there.
    /// Refuses a parent in which other users could replace it.
    pub(crate) fn replace(parent: &Path, name: &str) -> Result<Self, FileError> {
        check_parent(parent)?;
        let path = parent.join(name);
        remove_recursive(&path)?;
        rustix::fs::mkdir(&path, Mode::RWXU).map_err(failed("mkdir", &path))?;
        Ok(Self(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Keeps the directory and returns its path.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }

    /// Flushes the names in the directory to disk and moves it to a path on the same file system,
    /// which must not exist.
    pub fn persist(mut self, target: &Path) -> Result<(), FileError> {
        sync_directory(&self.0)?;
        rustix::fs::renameat_with(CWD, &self.0, CWD, target, RenameFlags::NOREPLACE)
            .map_err(failed("rename", target))?;
        // Nothing is left to remove.
        self.0 = PathBuf::new();
        match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
            _ => sync_directory(Path::new(".")),
        }
    }
}

/// Checks that other users can't replace a directory in this one.
fn check_parent(parent: &Path) -> Result<(), FileError> {
    let handle = safe_open::open_dir(parent).map_err(|err| err.during("open", parent))?;
    let stat = rustix::fs::fstat(&handle).map_err(failed::<Errno>("stat", parent))?;
    if safe_open::others_may_replace(&stat) {
        return Err(FileError::NotPrivate(parent.to_owned()));
    }
    Ok(())
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // Drop cannot return the error.
            let _ = remove_recursive(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_private_directory_has_mode_0700_and_is_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let private = PrivateDir::create(dir.path(), "p-").unwrap();
        let path = private.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        std::fs::create_dir(path.join("full")).unwrap();
        drop(private);
        assert!(!path.exists());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
    fn a_parent_where_others_could_replace_it_is_refused() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let dir = tempfile::tempdir().unwrap();
        for (owner, mode, is_created) in [
            (0, 0o1777, true),
            (0, 0o777, false),
            (0, 0o770, false),
            (1234, 0o755, false),
        ] {
            chown(dir.path(), Some(owner), None).unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let created = PrivateDir::create(dir.path(), "p-");
            assert_eq!(created.is_ok(), is_created, "{owner} {mode:o}");
        }
    }

    #[test]
    fn a_directory_is_moved_into_place_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("final");
        for is_first in [true, false] {
            let private = PrivateDir::create(dir.path(), "p-").unwrap();
            let path = private.path().to_owned();
            std::fs::create_dir(path.join("full")).unwrap();
            assert_eq!(private.persist(&target).is_ok(), is_first);
            assert!(!path.exists());
        }
        assert!(target.join("full").exists());
    }

    #[test]
    fn a_missing_parent_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = PrivateDir::create(&dir.path().join("gone"), "p-").unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
