//! Creation and reading of symbolic links.
//!
//! A link is created under a temporary name and put into place by one rename, so a reader finds the
//! old file or the new link. The rename itself decides what may be replaced: it is exclusive if
//! nothing was expected, and an exchange otherwise, whose other half is checked before it is
//! removed. So a file that another program creates meanwhile is never lost. A directory that can't be
//! removed gets its name back, so that the next run finds it there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::remove::check_mounts;
use super::safe_open::OpenError;
use super::{FileError, FileKind, Location, Writer, failed, remove_recursive};

/// What a new link may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Nothing: the path must not exist.
    Nothing,
    /// Another symbolic link.
    Link,
    /// Anything, also a directory with its content.
    Anything,
}

/// Returns the target of a symbolic link as written; `None` if the path is not a link.
pub fn read_link(path: &Path) -> Result<Option<OsString>, FileError> {
    let location = match Location::resolve(path) {
        Ok(location) => location,
        Err(OpenError::Os(Errno::NOENT)) => return Ok(None),
        Err(err) => return Err(err.during("readlink", path)),
    };
    match rustix::fs::readlinkat(&location.directory, location.name, Vec::new()) {
        Ok(target) => Ok(Some(OsString::from_vec(target.into_bytes()))),
        Err(Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("readlink", path)(errno)),
    }
}

impl Writer<'_> {
    /// Creates a symbolic link with this target, unchecked. Its directory must exist.
    pub fn symlink(self, path: &Path, target: &OsStr, replace: Replace) -> Result<(), FileError> {
        let location = Location::of(path)?;
        let name = self.begin(&location).map_err(location.failed("symlink"))?;
        let new = TemporaryLink {
            writer: self,
            location: &location,
            name,
        };
        rustix::fs::symlinkat(target, &location.directory, &new.name)
            .map_err(location.failed("symlink"))?;
        match replace {
            Replace::Nothing => new.put_exclusively(),
            Replace::Link | Replace::Anything => new.exchange(replace),
        }
    }
}

/// A new link under a temporary name, which is removed on drop.
struct TemporaryLink<'a> {
    writer: Writer<'a>,
    location: &'a Location<'a>,
    name: OsString,
}

impl TemporaryLink<'_> {
    fn rename(&self, flags: RenameFlags) -> Result<(), Errno> {
        let Location {
            directory, name, ..
        } = self.location;
        rustix::fs::renameat_with(directory, &self.name, directory, *name, flags)
    }

    fn failed(&self) -> impl Fn(Errno) -> FileError {
        self.location
            .failed("could not rename temporary link: rename")
    }

    /// Renames the link to its name, which must not be in use.
    fn put_exclusively(&self) -> Result<(), FileError> {
        let in_the_way = || FileError::InTheWay(self.location.path.to_owned());
        match self.rename(RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(in_the_way()),
            // A file system without this flag.
            Err(Errno::INVAL | Errno::NOSYS) => match FileKind::at(self.location)? {
                Some(_) => Err(in_the_way()),
                None => self.rename(RenameFlags::empty()).map_err(self.failed()),
            },
            renamed => renamed.map_err(self.failed()),
        }
    }

    /// Exchanges the link with what has its name, and removes that if it may be replaced.
    fn exchange(&self, replace: Replace) -> Result<(), FileError> {
        if replace == Replace::Anything {
            check_mounts(self.location)?;
        }
        match self.rename(RenameFlags::EXCHANGE) {
            // Removed meanwhile.
            Err(Errno::NOENT) => return self.put_exclusively(),
            Err(Errno::INVAL | Errno::NOSYS) => return self.put_after_removal(replace),
            exchanged => exchanged.map_err(self.failed())?,
        }
        let old = Location {
            path: &self.old_path(),
            directory: self
                .location
                .directory
                .try_clone()
                .map_err(failed("open", self.location.path))?,
            name: &self.name,
        };
        let kind = FileKind::at(&old)?;
        if replace == Replace::Link && kind != Some(FileKind::Symlink) {
            self.rename(RenameFlags::EXCHANGE).map_err(self.failed())?;
            return Err(FileError::InTheWay(self.location.path.to_owned()));
        }
        match kind {
            Some(FileKind::Directory) => remove_recursive(old.path).inspect_err(|_| {
                // The caller gets the original error.
                let _ = self.rename(RenameFlags::EXCHANGE);
            }),
            // Removed on drop.
            _ => Ok(()),
        }
    }

    /// Replaces the old file on a file system that can't exchange two files.
    fn put_after_removal(&self, replace: Replace) -> Result<(), FileError> {
        match (FileKind::at(self.location)?, replace) {
            (None | Some(FileKind::Symlink), _) => {}
            (Some(_), Replace::Link | Replace::Nothing) => {
                return Err(FileError::InTheWay(self.location.path.to_owned()));
            }
            (Some(FileKind::Directory), Replace::Anything) => {
                remove_recursive(self.location.path)?;
            }
            (Some(_), Replace::Anything) => {}
        }
        self.rename(RenameFlags::empty()).map_err(self.failed())
    }

    /// Returns the path under which the old file is found after an exchange.
    fn old_path(&self) -> PathBuf {
        self.location.path.with_file_name(&self.name)
    }
}

impl Drop for TemporaryLink<'_> {
    fn drop(&mut self) {
        // After a rename there is none; the caller gets the original error.
        let directory = &self.location.directory;
        let _ = rustix::fs::unlinkat(directory, &self.name, AtFlags::empty());
        self.writer.end();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::fs;

    use super::*;

    fn put(path: &Path, target: &str, replace: Replace) -> Result<(), String> {
        let made = Writer::default().symlink(path, OsStr::new(target), replace);
        made.map_err(|err| err.to_string())
    }

    #[test]
    fn a_relative_target_is_kept_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("current");
        put(&path, "../a//b/.", Replace::Nothing).unwrap();
        assert_eq!(read_link(&path).unwrap().unwrap(), "../a//b/.");
    }

    #[test]
    fn only_what_may_be_replaced_is_replaced_and_nothing_is_left_behind() {
        for (what, replace, is_replaced) in [
            ("nothing", Replace::Nothing, true),
            ("nothing", Replace::Link, true),
            ("nothing", Replace::Anything, true),
            ("link", Replace::Nothing, false),
            ("link", Replace::Link, true),
            ("link", Replace::Anything, true),
            ("file", Replace::Nothing, false),
            ("file", Replace::Link, false),
            ("file", Replace::Anything, true),
            ("directory", Replace::Nothing, false),
            ("directory", Replace::Link, false),
            ("directory", Replace::Anything, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            match what {
                "link" => std::os::unix::fs::symlink("old", &path).unwrap(),
                "file" => fs::write(&path, "kept").unwrap(),
                "directory" => {
                    fs::create_dir_all(path.join("a/b")).unwrap();
                    fs::write(path.join("a/b/c"), "kept").unwrap();
                }
                _ => {}
            }
            let result = put(&path, "new", replace);
            let target = read_link(&path).unwrap();
            assert_eq!(result.is_ok(), is_replaced, "{what} {replace:?} {result:?}");
            assert_eq!(
                target.is_some_and(|it| it == "new"),
                is_replaced,
                "{what} {replace:?}"
            );
            assert_eq!(super::super::list(dir.path()).unwrap(), ["x"], "{what}");
            match (what, is_replaced) {
                ("file", false) => assert_eq!(fs::read(&path).unwrap(), b"kept"),
                ("directory", false) => assert_eq!(fs::read(path.join("a/b/c")).unwrap(), b"kept"),
                _ => {}
            }
        }
    }

    #[test]
    fn a_path_that_is_no_link_has_no_target() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        for name in ["file", "none", "none/below"] {
            assert_eq!(read_link(&dir.path().join(name)).unwrap(), None, "{name}");
        }
    }
}
