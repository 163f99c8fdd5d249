//! Custom facts: files in the configuration directories, merged in a fixed order.
//!
//! In each directory `facts.json`, then `facts.yaml`, then the files of `facts.d` by name; each is
//! deep-merged over the previous ones. Symlinks are not followed, because facts decide how a node
//! is configured and must come from this directory. Invalid files are skipped with a warning.

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

/// Maximum size of all files together.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Returns the facts of all directories, later ones merged over earlier ones, and the warnings.
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

/// Returns an absolute path without `.` and `..`, by its text only.
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

/// The format of a file, by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
}

impl Format {
    fn of(name: &Path) -> Option<Self> {
        // Not `Path::extension`, which returns none for `.json`.
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
    /// Remaining size limit in bytes.
    left: u64,
}

impl Reader {
    fn directory(&mut self, directory: &Path) {
        for (name, format) in [("facts.json", Format::Json), ("facts.yaml", Format::Yaml)] {
            let path = directory.join(name);
            let facts = open(CWD, &path, &path).and_then(|file| match file {
                Opened::Regular(file) => self.load(file, &path, format),
                Opened::Missing => Ok(None),
                Opened::Directory => Err(FactError::NotRegular(path.clone())),
            });
            self.merge(facts);
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

    /// Reads a file of `facts.d` if it has a known extension.
    fn entry(&mut self, handle: &OwnedFd, directory: &Path, name: &Path) {
        let Some(format) = Format::of(name) else {
            return;
        };
        let path = directory.join(name);
        let facts = open(handle, name, &path).and_then(|file| match file {
            Opened::Regular(file) => self.load(file, &path, format),
            Opened::Missing | Opened::Directory => Ok(None),
        });
        self.merge(facts);
    }

    /// Merges the facts of a file over the previous ones.
    fn merge(&mut self, facts: Result<Option<Value>, FactError>) {
        match facts {
            Ok(Some(facts)) => self.facts = self.facts.merge_deep(&facts),
            Ok(None) => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Returns the facts in a file; `None` if it is empty.
    fn load(
        &mut self,
        file: File,
        path: &Path,
        format: Format,
    ) -> Result<Option<Value>, FactError> {
        let mut text = String::new();
        // Reads one byte beyond the limit to detect files that exceed it.
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
            other => Err(failed(ParseError::NotAMap(other.kind()))),
        }
    }
}

/// The result of opening a file.
enum Opened {
    Regular(File),
    Directory,
    Missing,
}

/// Opens a file without following symlinks or blocking on a FIFO.
fn open(at: impl AsFd, name: &Path, path: &Path) -> Result<Opened, FactError> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(at, name, flags, Mode::empty()) {
        Ok(file) => file,
        // NOTDIR: a parent is a file.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Opened::Missing),
        Err(Errno::LOOP) => return Err(FactError::SymlinkedFile(path.to_owned())),
        // A socket, or a device without a driver.
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

/// Opens a directory that is not a symlink and returns its names, sorted by their bytes; `None` if
/// it does not exist.
fn list(path: &Path) -> Result<Option<(OwnedFd, Vec<PathBuf>)>, FactError> {
    match files::inspect(path, false) {
        Ok(Some(found)) if found.kind == FileKind::Symlink => {
            return Err(FactError::SymlinkedDirectory(path.to_owned()));
        }
        Ok(Some(found)) if found.kind == FileKind::Directory => {}
        // Errors of parent directories were already reported by `open`.
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
