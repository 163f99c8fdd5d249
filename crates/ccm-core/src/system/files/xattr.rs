//! Extended attributes: short texts stored with a file.
//!
//! An attribute belongs to the inode: replacing the file loses it, editing it in place keeps it.
//! Not every file system supports attributes, and every user with write access to the file may
//! change them, so they are hints, not proofs.

use std::fs::File;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{FileError, Location, failed, proc_path};

/// The longest value that is read.
const MAX_LENGTH: usize = 256;

/// An extended attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xattr<'a> {
    /// The name with its namespace: `user.…`.
    pub name: &'a str,
    pub text: &'a str,
}

impl Xattr<'_> {
    /// Sets the attribute of an open file, if the file system supports it.
    pub(super) fn set(&self, file: &File) -> Result<(), Errno> {
        let result =
            rustix::fs::fsetxattr(file, self.name, self.text.as_bytes(), XattrFlags::empty());
        match result {
            Err(Errno::NOTSUP) => Ok(()),
            result => result,
        }
    }
}

/// Returns an extended attribute of a file. Symlinks are not followed. A value that is too long or
/// not UTF-8 was not set by `ccm` and is returned as an empty string.
pub(crate) fn xattr(path: &Path, name: &str) -> Result<Option<String>, FileError> {
    let mut buffer = [0; MAX_LENGTH];
    match rustix::fs::lgetxattr(path, name, &mut buffer) {
        Ok(length) => {
            let bytes = buffer.get(..length).unwrap_or_default();
            let text = std::str::from_utf8(bytes).unwrap_or_default();
            Ok(Some(text.to_owned()))
        }
        Err(Errno::RANGE) => Ok(Some(String::new())),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("getxattr", path)(errno)),
    }
}

/// Sets an extended attribute of a file and returns whether it is stored: file system and file
/// permissions may not allow it. Symlinks are not followed, and hard links that another user could
/// have created are not changed.
pub(crate) fn set_xattr(path: &Path, xattr: Xattr<'_>) -> Result<bool, FileError> {
    let location = Location::of(path)?;
    let handle = location.open().map_err(location.failed("open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(location.failed("stat"))?;
    if location.may_be_foreign_link(&stat)? {
        return Ok(false);
    }
    // Symlinks have no user attributes, so none is followed.
    let (entry, text) = (proc_path(&handle), xattr.text.as_bytes());
    match rustix::fs::setxattr(entry, xattr.name, text, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(failed("setxattr", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Attributes, Content, Durability, Writer, store};
    use super::*;

    const NAME: &str = "user.ccm.test";

    fn written(text: &str) -> Xattr<'_> {
        Xattr { name: NAME, text }
    }

    #[test]
    fn an_attribute_is_lost_when_the_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let wanted = Attributes::default();
        let content = Content::Bytes(b"x");
        assert_eq!(xattr(&file, NAME).unwrap(), None);
        let durability = Durability::Cached;
        Writer::default()
            .store_with_xattr(&file, content, &wanted, durability, written("a"))
            .unwrap();
        if !set_xattr(&file, written("b")).unwrap() {
            // This file system has no extended attributes.
            assert_eq!(xattr(&file, NAME).unwrap(), None);
            return;
        }
        assert_eq!(xattr(&file, NAME).unwrap().as_deref(), Some("b"));
        Writer::default()
            .store_with_xattr(&file, content, &wanted, durability, written("c"))
            .unwrap();
        assert_eq!(xattr(&file, NAME).unwrap().as_deref(), Some("c"));
        store(&file, content, &wanted, durability).unwrap();
        assert_eq!(xattr(&file, NAME).unwrap(), None);
    }

    #[test]
    fn a_symlink_has_no_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(!set_xattr(&link, written("a")).unwrap());
        assert_eq!(xattr(&link, NAME).unwrap(), None);
    }

    #[test]
    fn a_value_that_is_too_long_is_returned_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        store(
            &file,
            Content::Bytes(b""),
            &Attributes::default(),
            Durability::Cached,
        )
        .unwrap();
        let kept = set_xattr(&file, written(&"x".repeat(MAX_LENGTH + 1))).unwrap();
        assert_eq!(xattr(&file, NAME).unwrap(), kept.then(String::new));
    }
}
