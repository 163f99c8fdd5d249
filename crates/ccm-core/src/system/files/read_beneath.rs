//! Reading of files inside a directory, without leaving it through `..` or symlinks.

use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::inspect::Opened;
use super::{FileError, FileKind, failed};

/// Flags of the file itself: neither blocks on a FIFO nor acquires a terminal.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the content of a regular file below a directory, of at most `limit` bytes; `None` if there
/// is none. Symlinks are followed only if they stay inside the directory; where the kernel lacks
/// `openat2`, none is followed.
pub fn read_beneath(
    directory: &Path,
    relative: &Path,
    limit: u64,
) -> Result<Option<Vec<u8>>, FileError> {
    let path = directory.join(relative);
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let opened = rustix::fs::openat(CWD, directory, DIRECTORY, Mode::empty())
        .and_then(|directory| open_beneath(directory, relative));
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::XDEV | Errno::LOOP) => return Err(FileError::OutsideTree(path)),
        Err(errno) => return Err(failed("open", &path)(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed::<Errno>("stat", &path))?;
    if FileKind::of(&stat) != FileKind::Regular {
        return Err(FileError::NotRegular(path));
    }
    let opened = Opened {
        file: file.into(),
        stat,
    };
    opened.content(&path, limit).map(Some)
}

fn open_beneath(directory: OwnedFd, relative: &Path) -> Result<OwnedFd, Errno> {
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&directory, relative, FILE, Mode::empty(), rules) {
        // A kernel or seccomp filter without openat2.
        Err(Errno::NOSYS | Errno::PERM) => open_without_links(directory, relative),
        opened => opened,
    }
}

/// Opens each component relative to the previous one; a symlink is an error.
fn open_without_links(directory: OwnedFd, relative: &Path) -> Result<OwnedFd, Errno> {
    let mut here = directory;
    let mut components = relative.components().peekable();
    while let Some(component) = components.next() {
        let name = match component {
            Component::Normal(name) => name,
            Component::CurDir => continue,
            _ => return Err(Errno::XDEV),
        };
        let flags = match components.peek() {
            Some(_) => DIRECTORY,
            None => FILE,
        };
        here = rustix::fs::openat(&here, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(here)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("site/data")).unwrap();
        std::fs::write(at("secret"), "secret").unwrap();
        std::fs::write(at("site/data/own"), "own").unwrap();
        symlink(at("secret"), at("site/data/out")).unwrap();
        symlink("../../secret", at("site/data/up")).unwrap();
        symlink(root.path(), at("site/parent")).unwrap();
        symlink("own", at("site/data/alias")).unwrap();
        symlink("gone", at("site/data/dangling")).unwrap();
        root
    }

    fn outcome(root: &Path, name: &str) -> String {
        match read_beneath(&root.join("site"), Path::new(name), 100) {
            Ok(Some(content)) => String::from_utf8(content).unwrap(),
            Ok(None) => "none".into(),
            Err(FileError::OutsideTree(_)) => "outside".into(),
            Err(err) => err.to_string(),
        }
    }

    #[test]
    fn only_files_inside_the_directory_are_read() {
        let root = tree();
        for (name, expected) in [
            ("data/own", "own"),
            ("./data//own", "own"),
            ("data/alias", "own"),
            ("data/missing", "none"),
            ("data/dangling", "none"),
            ("data/own/below", "none"),
            ("data/out", "outside"),
            ("data/up", "outside"),
            ("parent/secret", "outside"),
            ("../secret", "outside"),
            ("/etc/hostname", "outside"),
        ] {
            assert_eq!(outcome(root.path(), name), expected, "{name}");
        }
        assert!(outcome(root.path(), "data").ends_with("is not a regular file"));
    }

    #[test]
    fn without_openat2_no_link_is_followed() {
        let root = tree();
        let open = |name: &str| {
            let site =
                rustix::fs::open(root.path().join("site"), DIRECTORY, Mode::empty()).unwrap();
            open_without_links(site, Path::new(name)).err()
        };
        assert_eq!(open("data/own"), None);
        assert_eq!(open("data/out"), Some(Errno::LOOP));
        assert_eq!(open("parent/secret"), Some(Errno::NOTDIR));
        assert_eq!(open("data/../../secret"), Some(Errno::XDEV));
    }

    #[test]
    fn a_file_above_the_limit_is_refused() {
        let root = tree();
        let read = read_beneath(root.path(), Path::new("secret"), 3);
        assert!(matches!(read, Err(FileError::TooLarge { limit: 3, .. })));
    }
}
