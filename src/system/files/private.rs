//! A directory for our own eyes that lives as long as its owner in the program.
//!
//! What it is for is not known here. A run that is killed leaves it behind, closed to others.

use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::super::random;
use super::{FileError, failed, remove_recursive};

/// How often a name that is taken is replaced by another. Chance alone never needs a second.
const MOST_NAMES: usize = 16;

/// A new directory that only we can enter, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes `<prefix><random digits>` in a directory.
    pub fn create(parent: &Path, prefix: &str) -> Result<Self, FileError> {
        for _ in 0..MOST_NAMES {
            let path = parent.join(format!("{prefix}{:032x}", random()));
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
    fn without_its_parent_there_is_none() {
        let room = tempfile::tempdir().unwrap();
        let error = PrivateDir::create(&room.path().join("gone"), "p-").unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
}
