//! Writing many files below one directory, with paths from untrusted sources.
//!
//! Every component is opened relative to its parent's handle, and no symlink is followed, whether
//! it existed before or was created by this tree. Files and links are replaced atomically. The
//! caller decides which paths and links are acceptable.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{
    Attributes, Content, Durability, FileError, FileKind, Location, Writer, atomic_write,
    change_attributes, failed, remove, safe_open,
};

/// Mode of created parent directories.
const PARENT_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory to write below.
#[derive(Debug)]
pub struct Tree<'a> {
    path: PathBuf,
    root: OwnedFd,
    writer: Writer<'a>,
    /// The last opened directory: most files are next to the previous one.
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'a> Tree<'a> {
    /// Opens an existing directory. Trusted symlinks in its path are followed.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::with_writer(path, Writer::default())
    }

    /// Opens an existing directory, and writes its files with this writer.
    pub fn with_writer(path: &Path, writer: Writer<'a>) -> Result<Self, FileError> {
        let root = safe_open::open_dir(path).map_err(|err| err.during("open", path))?;
        Ok(Self {
            path: path.to_owned(),
            root,
            writer,
            last: None,
        })
    }

    /// Creates a directory and missing parents. A symlink of that name is replaced.
    pub fn directory(&mut self, relative: &Path) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        match FileKind::at(&location)? {
            Some(FileKind::Directory) => return Ok(()),
            Some(FileKind::Symlink) => {
                rustix::fs::unlinkat(&location.directory, location.name, AtFlags::empty())
                    .map_err(location.failed("remove"))?;
            }
            Some(_) => return Err(FileError::NotADirectory(path)),
            None => {}
        }
        rustix::fs::mkdirat(&location.directory, location.name, PARENT_MODE)
            .map_err(location.failed("mkdir"))
    }

    /// Sets owner, group and permissions of a directory of the tree.
    pub(crate) fn set_directory_attributes(
        &mut self,
        relative: &Path,
        attributes: &Attributes,
    ) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let handle = self.open_dir(relative)?;
        let stat = rustix::fs::fstat(&handle).map_err(failed("stat", &path))?;
        change_attributes(&handle, &stat, &path, attributes)
    }

    /// Writes a file with its attributes. Missing directories are created.
    pub(crate) fn store(
        &mut self,
        relative: &Path,
        content: Content<'_>,
        attributes: &Attributes,
        durability: Durability,
    ) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        self.writer
            .store_at(&location, attributes, durability, |file| {
                atomic_write::write(&path, content, file)
            })
    }

    /// Removes a file, a symlink or an empty directory of the tree.
    pub(crate) fn remove(&mut self, relative: &Path) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        // The directory may be the cached one.
        self.last = None;
        match remove::remove_one(&location) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(location.failed("remove")(errno)),
        }
    }

    /// Writes a file with content written by `fill`. Missing directories are created.
    pub fn file<E: From<FileError>>(
        &mut self,
        relative: &Path,
        mode: u32,
        fill: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        let attributes = Attributes {
            mode: Some(mode),
            ..Attributes::default()
        };
        self.writer
            .store_at(&location, &attributes, Durability::Cached, fill)
    }

    /// Creates a symlink with this target, unchecked.
    pub fn symlink(&mut self, relative: &Path, text: &OsStr) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        create_link(&location, self.writer, "symlink", |name| {
            rustix::fs::symlinkat(text, &location.directory, name)
        })
    }

    /// Creates a hard link to a file of the tree.
    pub fn hard_link(&mut self, relative: &Path, existing: &Path) -> Result<(), FileError> {
        let existing_path = self.path.join(existing);
        let source = self.location(existing, &existing_path)?;
        if FileKind::at(&source)? != Some(FileKind::Regular) {
            return Err(FileError::NotRegular(existing_path));
        }
        let path = self.path.join(relative);
        let location = self.location(relative, &path)?;
        create_link(&location, self.writer, "link", |name| {
            // Without flags a symlink that replaced the file meanwhile is not followed.
            let (from, to) = (&source.directory, &location.directory);
            rustix::fs::linkat(from, source.name, to, name, AtFlags::empty())
        })
    }

    /// Reports whether the directory has an entry of this name.
    pub(crate) fn contains(&self, name: &OsStr) -> Result<bool, FileError> {
        match rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("stat", &self.path.join(name))(errno)),
        }
    }

    /// Moves an entry of another tree on the same file system into this one.
    pub(crate) fn take(&self, from: &Self, name: &OsStr) -> Result<(), FileError> {
        rustix::fs::renameat(&from.root, name, &self.root, name)
            .map_err(failed("rename", &from.path.join(name)))
    }

    /// Flushes the whole file system to disk: one call, however many files were written.
    pub fn sync(&self) -> Result<(), FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, ".", flags, Mode::empty())
            .and_then(rustix::fs::syncfs)
            .map_err(failed("sync", &self.path))
    }

    /// Returns the location of a path; creates missing directories.
    fn location<'p>(
        &mut self,
        relative: &'p Path,
        path: &'p Path,
    ) -> Result<Location<'p>, FileError> {
        let (Some(name), Some(parent)) = (relative.file_name(), relative.parent()) else {
            return Err(FileError::NoName(path.to_owned()));
        };
        Ok(Location {
            path,
            directory: self.open_dir(parent)?,
            name,
        })
    }

    /// Returns a handle of a directory of the tree; creates it if it is missing.
    fn open_dir(&mut self, relative: &Path) -> Result<OwnedFd, FileError> {
        if let Some((path, handle)) = &self.last
            && path == relative
        {
            return handle.try_clone().map_err(failed("open", relative));
        }
        let mut handle = self.root.try_clone().map_err(failed("open", &self.path))?;
        let mut path = self.path.clone();
        for component in relative.components() {
            let Component::Normal(name) = component else {
                return Err(FileError::OutsideTree(self.path.join(relative)));
            };
            path.push(name);
            handle = open_or_create(&handle, name, &path)?;
        }
        let copy = handle.try_clone().map_err(failed("open", &path))?;
        self.last = Some((relative.to_owned(), copy));
        Ok(handle)
    }
}

impl FileKind {
    /// Returns the type of the file at a location, symlinks not followed.
    pub(super) fn at(location: &Location<'_>) -> Result<Option<Self>, FileError> {
        match rustix::fs::statat(
            &location.directory,
            location.name,
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Ok(stat) => Ok(Some(Self::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(location.failed("stat")(errno)),
        }
    }
}

/// Opens a subdirectory; creates it if it is missing.
fn open_or_create(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<OwnedFd, FileError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => match rustix::fs::mkdirat(parent, name, PARENT_MODE) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(errno) => return Err(failed("mkdir", path)(errno)),
        },
        opened => opened,
    };
    opened.map_err(|errno| {
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        match (errno, stat.map(|stat| FileKind::of(&stat))) {
            (Errno::NOTDIR | Errno::LOOP, Ok(FileKind::Symlink)) => {
                FileError::WriteThroughSymlink(path.to_owned())
            }
            (Errno::NOTDIR, _) => FileError::NotADirectory(path.to_owned()),
            (errno, _) => failed("open", path)(errno),
        }
    })
}

/// Creates a link under a temporary name and renames it.
fn create_link(
    location: &Location<'_>,
    writer: Writer<'_>,
    action: &'static str,
    create: impl FnOnce(&OsString) -> Result<(), Errno>,
) -> Result<(), FileError> {
    let name = writer.begin(location).map_err(location.failed(action))?;
    if let Err(errno) = create(&name) {
        writer.end();
        return Err(location.failed(action)(errno));
    }
    let renamed = rustix::fs::renameat(
        &location.directory,
        &name,
        &location.directory,
        location.name,
    );
    // Renaming one hard link over another of the same file does nothing and succeeds.
    let _ = rustix::fs::unlinkat(&location.directory, &name, AtFlags::empty());
    writer.end();
    renamed.map_err(location.failed("could not rename temporary link: rename"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn write(tree: &mut Tree<'_>, name: &str, text: &str) -> Result<(), FileError> {
        tree.file(Path::new(name), 0o640, |mut file| {
            file.write_all(text.as_bytes())
                .map_err(failed("write", Path::new(name)))
        })
    }

    #[test]
    fn a_file_gets_its_directories_its_content_and_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path()).unwrap();
        write(&mut tree, "a/b/c", "one").unwrap();
        write(&mut tree, "a/b/c", "two").unwrap();
        let path = dir.path().join("a/b/c");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn paths_outside_of_the_tree_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        let mut tree = Tree::open(&dir.path().join("in")).unwrap();
        for name in ["../out", "a/../../out", "/out", ".."] {
            assert!(write(&mut tree, name, "").is_err(), "{name}");
        }
        assert!(!dir.path().join("out").exists());
    }

    #[test]
    fn nothing_is_written_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("out")).unwrap();
        std::fs::create_dir(at("in")).unwrap();
        symlink("../out", at("in/link")).unwrap();
        let mut tree = Tree::open(&at("in")).unwrap();
        let error = write(&mut tree, "link/file", "").unwrap_err();
        assert!(
            matches!(error, FileError::WriteThroughSymlink(_)),
            "{error}"
        );
        assert!(!at("out/file").exists());
    }

    #[test]
    fn an_existing_symlink_is_replaced_and_its_target_kept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("out")).unwrap();
        std::fs::create_dir(at("out/sub")).unwrap();
        File::create(at("out/file")).unwrap();
        std::fs::create_dir(at("in")).unwrap();
        symlink("../out/file", at("in/f")).unwrap();
        symlink("../out/sub", at("in/d")).unwrap();
        let mut tree = Tree::open(&at("in")).unwrap();
        write(&mut tree, "f", "new").unwrap();
        tree.directory(Path::new("d")).unwrap();
        assert_eq!(at("out/file").metadata().unwrap().len(), 0);
        assert!(at("out/sub").exists());
        assert!(!at("in/f").is_symlink() && !at("in/d").is_symlink());
    }

    #[test]
    fn links_are_created_repeatedly_without_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(dir.path()).unwrap();
        write(&mut tree, "file", "x").unwrap();
        for _ in 0..2 {
            tree.symlink(Path::new("soft"), OsStr::new("file")).unwrap();
            tree.hard_link(Path::new("hard"), Path::new("file"))
                .unwrap();
        }
        let names = super::super::list(dir.path()).unwrap();
        assert_eq!(names, ["file", "hard", "soft"]);
        assert_eq!(dir.path().join("hard").metadata().unwrap().nlink(), 2);
    }

    #[test]
    fn only_regular_files_can_be_hard_linked() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/etc/passwd", dir.path().join("soft")).unwrap();
        let mut tree = Tree::open(dir.path()).unwrap();
        let error = tree.hard_link(Path::new("hard"), Path::new("soft"));
        assert!(matches!(error, Err(FileError::NotRegular(_))));
    }
}
