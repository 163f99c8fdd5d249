//! A directory for our own eyes that lives as long as its owner in the program.
//!
//! What it is for is not known here. A run that is killed leaves it behind, closed to others.

use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::super::random;
use super::{FileError, failed, remove_recursive, safe_open};

/// How often a name that is taken is replaced by another. Chance alone never needs a second.
const MOST_NAMES: usize = 16;

/// A new directory that only we can enter, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes `<prefix><random digits>` in a directory.
    /// Refuses a parent where somebody could put another directory in its place.
    pub fn create(parent: &Path, prefix: &str) -> Result<Self, FileError> {
        let handle = safe_open::enter(parent).map_err(|lost| lost.during("open", parent))?;
        let stat = rustix::fs::fstat(&handle).map_err(failed::<Errno>("stat", parent))?;
        if safe_open::may_be_swapped(&stat) {
            return Err(FileError::NotPrivate(parent.to_owned()));
        }
        for _ in 0..MOST_NAMES {
            let path = parent.join(format!("{prefix}{:032x}", random()?));
            // Never one that exists: someone else may have made it, and look into it.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(Self(path)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed("mkdir", &path)(errno)),
            }
        }
        Err(failed("mkdir", parent)(Errno::EXIST))
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // Whoever is done with it has nothing more to hear.
        let _ = remove_recursive(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_private_directory_is_ours_alone_and_gone_in_the_end() {
        let room = tempfile::tempdir().unwrap();
        let private = PrivateDir::create(room.path(), "p-").unwrap();
        let path = private.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        std::fs::create_dir(path.join("full")).unwrap();
        drop(private);
        assert!(!path.exists());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
    fn it_is_not_made_where_others_could_swap_it() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let room = tempfile::tempdir().unwrap();
        for (owner, mode, is_made) in [
            (0, 0o1777, true),
            (0, 0o777, false),
            (0, 0o770, false),
            (1234, 0o755, false),
        ] {
            chown(room.path(), Some(owner), None).unwrap();
            std::fs::set_permissions(room.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let made = PrivateDir::create(room.path(), "p-");
            assert_eq!(made.is_ok(), is_made, "{owner} {mode:o}");
        }
    }

    #[test]
    fn without_its_parent_there_is_none() {
        let room = tempfile::tempdir().unwrap();
        let error = PrivateDir::create(&room.path().join("gone"), "p-").unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
