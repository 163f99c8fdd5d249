//! Writing many files below one directory, without ever leaving it.
//!
//! Every step goes from an open directory to a name in it, and no link is entered on the way:
//! neither one that was there before nor one that this tree just got. So the paths may come from
//! anywhere. Files and links take their places whole, as in `store`; existing ones are replaced.
//! Which paths and links are wanted is the caller's.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::atomic_write::{store_at, temporary_name};
use super::{
    Attributes, Durability, FileError, FileKind, Place, change_attributes, failed, safe_open,
};

/// The permissions of directories that no one asked for.
const PARENT_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory to write below.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    root: OwnedFd,
    /// The directory entered last: most files are beside the one before.
    last: Option<(PathBuf, OwnedFd)>,
}

impl Tree {
    /// Opens an existing directory. It may be a link, or behind one, if nobody else could have put
    /// that there.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let root = safe_open::enter(path).map_err(|lost| lost.during("open", path))?;
        Ok(Self {
            path: path.to_owned(),
            root,
            last: None,
        })
    }

    /// Makes a directory, with those it is in. A link in its place is replaced.
    pub fn directory(&mut self, relative: &Path) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let place = self.place(relative, &path)?;
        match FileKind::at(&place)? {
            Some(FileKind::Directory) => return Ok(()),
            Some(FileKind::Symlink) => {
                rustix::fs::unlinkat(&place.directory, place.name, AtFlags::empty())
                    .map_err(place.failed("remove"))?;
            }
            Some(_) => return Err(FileError::NotADirectory(path)),
            None => {}
        }
        rustix::fs::mkdirat(&place.directory, place.name, PARENT_MODE)
            .map_err(place.failed("mkdir"))
    }

    /// Sets the permissions of a directory of the tree.
    pub fn set_directory_mode(&mut self, relative: &Path, mode: u32) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let handle = self.enter(relative)?;
        let stat = rustix::fs::fstat(&handle).map_err(failed("stat", &path))?;
        let attributes = Attributes {
            mode: Some(mode),
            ..Attributes::default()
        };
        change_attributes(&handle, &stat, &path, &attributes)
    }

    /// Writes a file with content that `fill` brings. Missing directories are made.
    pub fn file<E: From<FileError>>(
        &mut self,
        relative: &Path,
        mode: u32,
        fill: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.path.join(relative);
        let place = self.place(relative, &path)?;
        let attributes = Attributes {
            mode: Some(mode),
            ..Attributes::default()
        };
        store_at(&place, &attributes, Durability::Cached, fill)
    }

    /// Makes a symlink with this text, whatever it leads to.
    pub fn symlink(&mut self, relative: &Path, text: &OsStr) -> Result<(), FileError> {
        let path = self.path.join(relative);
        let place = self.place(relative, &path)?;
        put(&place, "symlink", |name| {
            rustix::fs::symlinkat(text, &place.directory, name)
        })
    }

    /// Gives a file of the tree a second name.
    pub fn hard_link(&mut self, relative: &Path, existing: &Path) -> Result<(), FileError> {
        let existing_path = self.path.join(existing);
        let source = self.place(existing, &existing_path)?;
        if FileKind::at(&source)? != Some(FileKind::Regular) {
            return Err(FileError::NotRegular(existing_path));
        }
        let path = self.path.join(relative);
        let place = self.place(relative, &path)?;
        put(&place, "link", |name| {
            // Without flags this never follows a link that took the file's place meanwhile.
            let (from, to) = (&source.directory, &place.directory);
            rustix::fs::linkat(from, source.name, to, name, AtFlags::empty())
        })
    }

    /// Returns the place of a path, its directory entered and, if need be, made.
    fn place<'p>(&mut self, relative: &'p Path, path: &'p Path) -> Result<Place<'p>, FileError> {
        let (Some(name), Some(parent)) = (relative.file_name(), relative.parent()) else {
            return Err(FileError::NoName(path.to_owned()));
        };
        Ok(Place {
            path,
            directory: self.enter(parent)?,
            name,
        })
    }

    /// Returns a handle of a directory of the tree, made if need be.
    fn enter(&mut self, relative: &Path) -> Result<OwnedFd, FileError> {
        if let Some((path, handle)) = &self.last
            && path == relative
        {
            return handle.try_clone().map_err(failed("open", relative));
        }
        let mut handle = self.root.try_clone().map_err(failed("open", &self.path))?;
        let mut path = self.path.clone();
        for component in relative.components() {
            let Component::Normal(name) = component else {
                return Err(FileError::Leaves(self.path.join(relative)));
            };
            path.push(name);
            handle = step(&handle, name, &path)?;
        }
        let copy = handle.try_clone().map_err(failed("open", &path))?;
        self.last = Some((relative.to_owned(), copy));
        Ok(handle)
    }
}

impl FileKind {
    /// Returns what is at a place, links not followed.
    fn at(place: &Place<'_>) -> Result<Option<Self>, FileError> {
        match rustix::fs::statat(&place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Self::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(place.failed("stat")(errno)),
        }
    }
}

/// Enters one directory, made if need be.
fn step(parent: &OwnedFd, name: &OsStr, path: &Path) -> Result<OwnedFd, FileError> {
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
                FileError::ThroughLink(path.to_owned())
            }
            (Errno::NOTDIR, _) => FileError::NotADirectory(path.to_owned()),
            (errno, _) => failed("open", path)(errno),
        }
    })
}

/// Makes something under a name of its own and renames it into its place.
fn put(
    place: &Place<'_>,
    action: &'static str,
    make: impl FnOnce(&OsString) -> Result<(), Errno>,
) -> Result<(), FileError> {
    let name = temporary_name(place.name).map_err(place.failed(action))?;
    make(&name).map_err(place.failed(action))?;
    let renamed = rustix::fs::renameat(&place.directory, &name, &place.directory, place.name);
    // Renaming one name of a file over another name of it does nothing, and says so to no one.
    let _ = rustix::fs::unlinkat(&place.directory, &name, AtFlags::empty());
    renamed.map_err(place.failed("could not rename temporary link: rename"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn write(tree: &mut Tree, name: &str, text: &str) -> Result<(), FileError> {
        tree.file(Path::new(name), 0o640, |mut file| {
            file.write_all(text.as_bytes())
                .map_err(failed("write", Path::new(name)))
        })
    }

    #[test]
    fn a_file_gets_its_directories_its_content_and_its_mode() {
        let room = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(room.path()).unwrap();
        write(&mut tree, "a/b/c", "one").unwrap();
        write(&mut tree, "a/b/c", "two").unwrap();
        let path = room.path().join("a/b/c");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_path_that_climbs_or_starts_at_the_root_is_refused() {
        let room = tempfile::tempdir().unwrap();
        std::fs::create_dir(room.path().join("in")).unwrap();
        let mut tree = Tree::open(&room.path().join("in")).unwrap();
        for name in ["../out", "a/../../out", "/out", ".."] {
            assert!(write(&mut tree, name, "").is_err(), "{name}");
        }
        assert!(!room.path().join("out").exists());
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        std::fs::create_dir(at("out")).unwrap();
        std::fs::create_dir(at("in")).unwrap();
        symlink("../out", at("in/link")).unwrap();
        let mut tree = Tree::open(&at("in")).unwrap();
        let error = write(&mut tree, "link/file", "").unwrap_err();
        assert!(matches!(error, FileError::ThroughLink(_)), "{error}");
        assert!(!at("out/file").exists());
    }

    #[test]
    fn a_link_in_the_way_is_replaced_and_what_it_led_to_is_kept() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
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
    fn links_are_made_and_made_again_and_leave_nothing_beside() {
        let room = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(room.path()).unwrap();
        write(&mut tree, "file", "x").unwrap();
        for _ in 0..2 {
            tree.symlink(Path::new("soft"), OsStr::new("file")).unwrap();
            tree.hard_link(Path::new("hard"), Path::new("file"))
                .unwrap();
        }
        let names = super::super::list(room.path()).unwrap();
        assert_eq!(names, ["file", "hard", "soft"]);
        assert_eq!(room.path().join("hard").metadata().unwrap().nlink(), 2);
    }

    #[test]
    fn only_a_file_gets_a_second_name() {
        let room = tempfile::tempdir().unwrap();
        symlink("/etc/passwd", room.path().join("soft")).unwrap();
        let mut tree = Tree::open(room.path()).unwrap();
        let error = tree.hard_link(Path::new("hard"), Path::new("soft"));
        assert!(matches!(error, Err(FileError::NotRegular(_))));
    }
}
