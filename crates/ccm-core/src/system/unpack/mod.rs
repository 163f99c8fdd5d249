//! Extraction of untrusted tar, tar.gz and zip archives.
//!
//! An archive is read twice through one open file. The first pass checks every entry to its last
//! byte, so that a refused archive leaves nothing behind; the second writes the entries through a
//! [`Tree`], which never leaves its directory. Existing files and links are replaced atomically.
//! [`unpack_staged`] writes a new tree beside its place and moves it there when it is complete and
//! on disk. Set-id bits and owners of an archive are ignored.
//!
//! Read next: `rules` decides which entries are acceptable, `tar` and `zip` read the formats.

mod rules;
mod tar;
#[cfg(test)]
mod tests;
mod zip;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::files::{self, Attributes, FileError, PrivateDir, Tree, failed};
use super::{Cause, Digester};
use crate::model::resource::ArchiveFormat;
use rules::{Checked, Checker};

pub use rules::{Limits, Refusal, Rules};

/// Size of one read.
const CHUNK: usize = 64 * 1024;

/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An archive that was not unpacked completely.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("refusing to unpack {}: entry {entry:?}: {refusal}", archive.display())]
    Refused {
        archive: PathBuf,
        entry: String,
        refusal: Refusal,
    },
    #[error("{}: entry {entry:?}: {refusal}", refusal.bundle_text())]
    BadBundle { entry: String, refusal: Refusal },
    #[error("unzip failed: {} is not in gzip format", .0.display())]
    NotGzip(PathBuf),
    #[error("{} was replaced: expected checksum {expected:?}, got {got:?}", archive.display())]
    Replaced {
        archive: PathBuf,
        expected: String,
        got: String,
    },
    #[error("could not read archive {}: {cause}", archive.display())]
    Unreadable {
        archive: PathBuf,
        #[source]
        cause: Cause,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Unpacks an archive into an existing directory and returns its files in order, relative to the
/// directory. Nothing is flushed to disk.
pub fn unpack(
    archive: &Path,
    kind: ArchiveFormat,
    into: &Path,
    rules: Rules,
    limits: Limits,
) -> Result<Vec<PathBuf>, UnpackError> {
    let source = Source::open(archive, kind)?;
    source.verify(rules, limits)?;
    let mut writer = source.write(Tree::open(into)?, rules, limits)?;
    writer.set_modes(|_| true)?;
    Ok(writer.files)
}

/// Unpacks an archive into an existing directory if it has this SHA-256 checksum, and flushes it to
/// disk. The checksum is computed through the handle that is unpacked, so replacing the file
/// meanwhile has no effect.
///
/// A tree that is new to the directory is written to the subdirectory `staging` and moved into
/// place when it is on disk, so that it is never seen incomplete. Where entries exist, or other
/// users could replace the subdirectory, the archive is written over the directory in place.
pub fn unpack_staged(
    archive: &Path,
    checksum: &str,
    kind: ArchiveFormat,
    into: &Path,
    staging: &str,
    writer: files::Writer<'_>,
) -> Result<(), UnpackError> {
    let limits = Limits::ARCHIVE;
    let source = Source::open(archive, kind)?;
    source.check(checksum)?;
    let rules = Rules::Archive;
    let names = source.verify(rules, limits)?;
    let target = Tree::with_writer(into, writer)?;
    match stage(&target, &names, into, staging)? {
        Some(directory) => {
            let staged = Tree::open(directory.path())?;
            let mut writer = source.write(staged, rules, limits)?;
            // A directory that its owner can't write to can't be moved by other users than root.
            writer.set_modes(|path| path.components().count() > 1)?;
            writer.tree.sync()?;
            for name in &names {
                target.take(&writer.tree, name)?;
            }
            writer.tree = target;
            writer.set_modes(|path| path.components().count() == 1)?;
            writer.tree.sync()?;
        }
        None => {
            let mut writer = source.write(target, rules, limits)?;
            writer.set_modes(|_| true)?;
            writer.tree.sync()?;
        }
    }
    Ok(())
}

/// Creates the directory to stage new entries in; `None` if they must be written in place.
fn stage(
    target: &Tree<'_>,
    names: &[OsString],
    into: &Path,
    staging: &str,
) -> Result<Option<PrivateDir>, FileError> {
    let directory = match PrivateDir::replace(into, staging) {
        Err(FileError::NotPrivate(_)) => return Ok(None),
        directory => directory?,
    };
    for name in names {
        if target.contains(name)? {
            return Ok(None);
        }
    }
    Ok(Some(directory))
}

/// One entry of an archive.
struct Entry<'a> {
    name: &'a [u8],
    kind: Kind<'a>,
    mode: u32,
    /// Time since 1970.
    modified: Option<Duration>,
    /// Announced size; shorter content is truncated.
    size: Option<u64>,
    content: &'a mut dyn Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
    HardLink(&'a [u8]),
    /// A description of an unsupported type.
    Other(&'static str),
}

/// The reason why a pass ended early.
enum Stop {
    /// The archive could not be read.
    Read(io::Error),
    /// The current entry is not acceptable.
    Refused(Refusal),
    /// A file could not be written.
    Write(FileError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Self::Write(error)
    }
}

/// An open archive.
struct Source<'a> {
    path: &'a Path,
    kind: ArchiveFormat,
    file: File,
    size: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path, kind: ArchiveFormat) -> Result<Self, UnpackError> {
        let file = files::open(path)?;
        let size = file.metadata().map_err(failed("stat", path))?.len();
        if kind == ArchiveFormat::TarGz {
            let mut magic = Vec::new();
            let mut start = (&file).take(2);
            start
                .read_to_end(&mut magic)
                .map_err(failed("read", path))?;
            if magic != GZIP_MAGIC {
                return Err(UnpackError::NotGzip(path.to_owned()));
            }
        }
        Ok(Self {
            path,
            kind,
            file,
            size,
        })
    }

    /// Checks that the open file has this checksum.
    fn check(&self, checksum: &str) -> Result<(), UnpackError> {
        let failed = failed("read", self.path);
        (&self.file).rewind().map_err(&failed)?;
        let mut buffer = vec![0; CHUNK];
        let mut digester = Digester::default();
        loop {
            let count = match (&self.file).read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count.map_err(&failed)?,
            };
            match buffer.get(..count) {
                Some(chunk) if !chunk.is_empty() => digester.update(chunk),
                _ => break,
            }
        }
        let got = digester.finish().to_string();
        if got.eq_ignore_ascii_case(checksum) {
            Ok(())
        } else {
            Err(UnpackError::Replaced {
                archive: self.path.to_owned(),
                expected: checksum.to_owned(),
                got,
            })
        }
    }

    /// Checks every entry and returns the names of those directly in the directory.
    fn verify(&self, rules: Rules, limits: Limits) -> Result<Vec<OsString>, UnpackError> {
        let mut pass = Pass::new(Checker::new(rules, limits, self.size), None);
        self.each(&mut pass)?;
        Ok(pass.checker.top_level().map(OsString::from).collect())
    }

    /// Writes every entry below a directory. The modes of directories are set later.
    fn write<'t>(
        &self,
        tree: Tree<'t>,
        rules: Rules,
        limits: Limits,
    ) -> Result<Writer<'t>, UnpackError> {
        let mut writer = Writer::new(tree, rules);
        let checker = Checker::new(rules, limits, self.size);
        self.each(&mut Pass::new(checker, Some(&mut writer)))?;
        Ok(writer)
    }

    /// Passes every entry to a pass, in order.
    fn each(&self, pass: &mut Pass<'_, '_>) -> Result<(), UnpackError> {
        self.walk(pass).map_err(|stop| match stop {
            Stop::Read(error) => UnpackError::Unreadable {
                archive: self.path.to_owned(),
                cause: error.into(),
            },
            Stop::Write(error) => error.into(),
            Stop::Refused(refusal) => {
                let entry = pass.entry.clone();
                match pass.checker.rules() {
                    Rules::Bundle => UnpackError::BadBundle { entry, refusal },
                    Rules::Archive => UnpackError::Refused {
                        archive: self.path.to_owned(),
                        entry,
                        refusal,
                    },
                }
            }
        })
    }

    fn walk(&self, pass: &mut Pass<'_, '_>) -> Result<(), Stop> {
        (&self.file).rewind()?;
        let file = BufReader::with_capacity(CHUNK, &self.file);
        match self.kind {
            ArchiveFormat::Zip => zip::each(file, pass),
            ArchiveFormat::Tar => tar::each(file, pass).map(drop),
            ArchiveFormat::TarGz => {
                let decoder = flate2::bufread::MultiGzDecoder::new(file);
                let mut rest = tar::each(decoder, pass)?;
                // Reads the gzip checksum, which follows the last entry.
                copy(&mut pass.checker, &mut rest, |_| Ok(())).map(drop)
            }
        }
    }
}

/// One pass over an archive, which checks it or also writes it.
struct Pass<'w, 't> {
    checker: Checker,
    writer: Option<&'w mut Writer<'t>>,
    /// Name of the current entry, for errors.
    entry: String,
}

impl<'w, 't> Pass<'w, 't> {
    fn new(checker: Checker, writer: Option<&'w mut Writer<'t>>) -> Self {
        Self {
            checker,
            writer,
            entry: String::new(),
        }
    }

    /// Checks an entry, reads it completely and writes it if there is a writer.
    fn process(&mut self, entry: Entry<'_>) -> Result<(), Stop> {
        self.set_current(entry.name);
        match (
            self.checker.check(entry.name, entry.kind)?,
            &mut self.writer,
        ) {
            (Checked::File(path), Some(writer)) => writer.file(path, entry, &mut self.checker),
            (checked, Some(writer)) => {
                writer.other(checked, entry.mode)?;
                entry.read(&mut self.checker, |_| Ok(()))
            }
            (_, None) => entry.read(&mut self.checker, |_| Ok(())),
        }
    }

    /// Sets the name of the current entry, for errors.
    fn set_current(&mut self, name: &[u8]) {
        self.entry.clear();
        let text = String::from_utf8_lossy(name);
        self.entry.extend(text.chars().take(256));
    }
}

impl Entry<'_> {
    /// Reads the content completely and passes it to `write`.
    fn read(
        self,
        checker: &mut Checker,
        write: impl FnMut(&[u8]) -> Result<(), FileError>,
    ) -> Result<(), Stop> {
        let length = copy(checker, self.content, write)?;
        match self.size {
            Some(size) if size != length => Err(io::Error::from(io::ErrorKind::UnexpectedEof))?,
            _ => Ok(()),
        }
    }
}

/// Reads to the end within the limits and returns the length.
fn copy(
    checker: &mut Checker,
    content: &mut dyn Read,
    mut write: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<u64, Stop> {
    let mut buffer = vec![0; CHUNK];
    let mut length = 0;
    loop {
        let count = match content.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        let chunk = buffer.get(..count).unwrap_or_default();
        if chunk.is_empty() {
            return Ok(length);
        }
        length += checker.count(chunk.len())?;
        write(chunk)?;
    }
}

/// Writes checked entries.
struct Writer<'t> {
    tree: Tree<'t>,
    rules: Rules,
    /// Directory modes, set at the end because they may forbid writing.
    modes: Vec<(PathBuf, u32)>,
    files: Vec<PathBuf>,
}

impl<'t> Writer<'t> {
    fn new(tree: Tree<'t>, rules: Rules) -> Self {
        Self {
            tree,
            rules,
            modes: Vec::new(),
            files: Vec::new(),
        }
    }

    fn file(&mut self, path: PathBuf, entry: Entry<'_>, checker: &mut Checker) -> Result<(), Stop> {
        let modified = entry
            .modified
            .and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        let mode = self.rules.mode(entry.mode, 0o600);
        self.tree.file(&path, mode, |mut file| {
            entry.read(checker, |bytes| {
                file.write_all(bytes).map_err(failed("write", &path))
            })?;
            if let Some(time) = modified {
                file.set_modified(time)
                    .map_err(failed("set the time of", &path))?;
            }
            Ok::<(), Stop>(())
        })?;
        self.files.push(path);
        Ok(())
    }

    fn other(&mut self, checked: Checked, mode: u32) -> Result<(), FileError> {
        match checked {
            Checked::Directory(path) => {
                self.tree.directory(&path)?;
                self.modes.push((path, self.rules.mode(mode, 0o700)));
                Ok(())
            }
            Checked::Symlink(path, text) => self.tree.symlink(&path, &text),
            Checked::HardLink(path, existing) => self.tree.hard_link(&path, &existing),
            Checked::File(_) | Checked::Root => Ok(()),
        }
    }

    /// Sets the modes of the directories that `select` accepts.
    fn set_modes(&mut self, select: impl Fn(&Path) -> bool) -> Result<(), FileError> {
        // Innermost first: the mode of an outer one may forbid access.
        let selected = self.modes.iter().rev().filter(|(path, _)| select(path));
        for (path, mode) in selected {
            let attributes = Attributes {
                mode: Some(*mode),
                ..Attributes::default()
            };
            self.tree.set_directory_attributes(path, &attributes)?;
        }
        Ok(())
    }
}
