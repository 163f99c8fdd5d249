//! The administrator's own facts: files in the configuration directories, merged in a fixed order.
//!
//! In each directory `facts.json`, then `facts.yaml`, then the files of `facts.d` by name; every
//! step is deep merged over those before it. Facts decide what a node becomes, so a link is never
//! followed: whoever may write somewhere else must not speak for this directory. A file that
//! cannot be used is skipped with a reason, and the others still count.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FactError, ParseError};
use crate::model::{Value, document};
use crate::system::files::{self, FileKind};

/// What all files together may hold. More is a mistake, and every template would carry it.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Returns the facts of all directories, later ones merged over earlier ones, and what was
/// skipped.
pub(super) fn read(directories: &[PathBuf]) -> (Value, Vec<FactError>) {
    let mut reader = Reader {
        facts: Value::empty_map(),
        errors: Vec::new(),
        left: MAX_BYTES,
    };
    for directory in directories {
        if directory.is_absolute() {
            reader.directory(&clean(directory));
        } else {
            let error = FactError::RelativeDirectory(directory.clone());
            reader.errors.push(error);
        }
    }
    (reader.facts, reader.errors)
}

/// Returns an absolute path without `.` and `..`, judged by its text alone.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    clean
}

/// What a file is written in. Its name says so, not its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
}

impl Format {
    fn of(name: &Path) -> Option<Self> {
        // Not `Path::extension`: for that a name like `.json` has none.
        let name = name.to_string_lossy().to_ascii_lowercase();
        match name.rsplit_once('.')?.1 {
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }

    fn parse(self, text: &str) -> Result<Value, ParseError> {
        match self {
            Self::Json => Ok(serde_json::from_str(text)?),
            Self::Yaml => Ok(document::parse(text)?.to_value()),
        }
    }
}

struct Reader {
    facts: Value,
    errors: Vec<FactError>,
    /// How many bytes may still be read.
    left: u64,
}

impl Reader {
    fn directory(&mut self, directory: &Path) {
        for (name, format) in [("facts.json", Format::Json), ("facts.yaml", Format::Yaml)] {
            let path = directory.join(name);
            let facts = open(CWD, &path, &path).and_then(|file| match file {
                Opened::Regular(file) => self.load(file, &path, format),
                Opened::Nothing => Ok(None),
                Opened::Directory => Err(FactError::NotRegular(path.clone())),
            });
            self.take(facts);
        }
        let path = directory.join("facts.d");
        match list(&path) {
            Ok(Some((handle, names))) => {
                for name in names {
                    self.entry(&handle, &path, &name);
                }
            }
            Ok(None) => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Takes a file of `facts.d`, if it is one of ours.
    fn entry(&mut self, handle: &OwnedFd, directory: &Path, name: &Path) {
        let Some(format) = Format::of(name) else {
            return;
        };
        let path = directory.join(name);
        let facts = open(handle, name, &path).and_then(|file| match file {
            Opened::Regular(file) => self.load(file, &path, format),
            Opened::Nothing | Opened::Directory => Ok(None),
        });
        self.take(facts);
    }

    /// Merges what a file held over what came before it.
    fn take(&mut self, facts: Result<Option<Value>, FactError>) {
        match facts {
            Ok(Some(facts)) => self.facts = self.facts.merge_deep(&facts),
            Ok(None) => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Returns the facts in a file; an empty one has none.
    fn load(
        &mut self,
        file: File,
        path: &Path,
        format: Format,
    ) -> Result<Option<Value>, FactError> {
        let mut text = String::new();
        // One byte more than is left tells a file that fits from one that does not.
        let size = file
            .take(self.left.saturating_add(1))
            .read_to_string(&mut text)
            .map_err(|cause| FactError::Read {
                path: path.to_owned(),
                cause: cause.into(),
            })?;
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        let Some(left) = self.left.checked_sub(size) else {
            return Err(FactError::TooLarge {
                path: path.to_owned(),
                limit: MAX_BYTES,
            });
        };
        self.left = left;
        let failed = |cause| FactError::Parse {
            path: path.to_owned(),
            cause,
        };
        match format.parse(&text).map_err(failed)? {
            Value::Null => Ok(None),
            facts @ Value::Map(_) => Ok(Some(facts)),
            other => Err(failed(ParseError::NoMap(other.kind()))),
        }
    }
}

/// What a name stands for.
enum Opened {
    Regular(File),
    Directory,
    Nothing,
}

/// Opens a name without following it if it is a link, and without waiting if it is a pipe.
fn open(at: impl AsFd, name: &Path, path: &Path) -> Result<Opened, FactError> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(at, name, flags, Mode::empty()) {
        Ok(file) => file,
        // A file on the way there is no directory: then there is no such file either.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Opened::Nothing),
        Err(Errno::LOOP) => return Err(FactError::SymlinkedFile(path.to_owned())),
        // What a socket, or a device without a driver, says.
        Err(Errno::NXIO) => return Err(FactError::NotRegular(path.to_owned())),
        Err(errno) => return Err(unreadable(path)(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(unreadable(path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Opened::Regular(file.into())),
        FileType::Directory => Ok(Opened::Directory),
        _ => Err(FactError::NotRegular(path.to_owned())),
    }
}

/// Opens a directory that is no link, and lists its names by their bytes. Returns nothing if there
/// is none.
fn list(path: &Path) -> Result<Option<(OwnedFd, Vec<PathBuf>)>, FactError> {
    match files::inspect(path, false) {
        Ok(Some(found)) if found.kind == FileKind::Symlink => {
            return Err(FactError::SymlinkedDirectory(path.to_owned()));
        }
        Ok(Some(found)) if found.kind == FileKind::Directory => {}
        // An error here is one of the directories on the way, which `open` has told already.
        _ => return Ok(None),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(unreadable(path))?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&handle).map_err(unreadable(path))? {
        let entry = entry.map_err(unreadable(path))?;
        let name = entry.file_name().to_bytes().to_vec();
        names.push(OsString::from_vec(name));
    }
    names.sort();
    Ok(Some((
        handle,
        names.into_iter().map(PathBuf::from).collect(),
    )))
}

fn unreadable(path: &Path) -> impl Fn(Errno) -> FactError {
    move |errno| FactError::Read {
        path: path.to_owned(),
        cause: errno.into(),
    }
}
