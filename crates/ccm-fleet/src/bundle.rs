//! Bundle packing: a manifest and its files as a reproducible archive.
//!
//! A bundle has regular files and directories within the limits of [`unpack`]. Entries are sorted,
//! without owners and times, and with only the executable bit of permissions, so that equal content
//! gives equal bytes and the same digest. The manifest is the first entry, which is where nodes
//! expect it. It is checked as by `ccm validate`, for the nodes and not for the machine that packs:
//! what depends on facts is checked with given facts only, and what depends on environment variables,
//! files and stores of a node is not checked.
//!
//! Storage is in [`super::bundle_store`].
//!
//! [`unpack`]: ccm_core::system::unpack

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use ccm_core::engine::read_data_file;
use ccm_core::hiera::DataFile;
use ccm_core::manifest::{self, Checks, Manifest, ManifestError, ManifestInput, Problem};
use ccm_core::model::node::{BundleDigest, NameError};
use ccm_core::run::environment::MAX_READ;
use ccm_core::system::files::{self, FileKind, Metadata};
use ccm_core::system::unpack::Limits;
use ccm_core::system::{Digest, FileError};
use ccm_template::env::{Facts, ReadFile, Unknown};
use ccm_template::expr::Cache;
use ccm_template::{CallError, Env, UnknownValue};
use ccm_value::diagnostic::Location;

/// File name of the manifest in a bundle.
pub(super) const MANIFEST: &str = "manifest.yaml";

/// Directories of version control, which differ between equal checkouts.
const IGNORED: [&str; 3] = [".git", ".hg", ".svn"];

/// Limits of nodes on nesting and on the total length of names.
const MAX_DEPTH: usize = 128;
const MAX_NAME_BYTES: u64 = 32 << 20;

/// Largest bundle that nodes fetch.
const MAX_BUNDLE_BYTES: u64 = 256 << 20;

/// Size of the end of the archive.
const TRAILER: u64 = 64 << 10;

/// Why a bundle can't be packed.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("{} has no {MANIFEST}", .0.display())]
    NoManifest(PathBuf),
    #[error("{} does not exist", .0.display())]
    NotFound(PathBuf),
    #[error("can't bundle {}: {reason}", path.display())]
    Refused {
        path: PathBuf,
        #[source]
        reason: Refusal,
    },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("pack {}: {cause}", path.display())]
    Archive {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Digest(#[from] NameError),
}

/// Why a file can't be part of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("neither a file nor a directory")]
    Special,
    #[error("symlink to a path outside the bundle, or dangling")]
    LinkOutside,
    #[error("symlink to a directory")]
    LinkToDirectory,
    #[error("nested more than {MAX_DEPTH} directories deep")]
    TooDeep,
    #[error("a bundle holds at most {0} files and directories")]
    Entries(usize),
    #[error("the names in a bundle take at most {MAX_NAME_BYTES} bytes")]
    Names,
    #[error("a bundle holds at most {0} bytes")]
    Bytes(u64),
    #[error("a bundle is at most {MAX_BUNDLE_BYTES} bytes when packed")]
    PackedSize,
    #[error("the compression ratio of a bundle is at most {0}")]
    Ratio(u64),
}

/// A packed bundle.
#[derive(Clone, Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Digest of the bytes.
    pub digest: BundleDigest,
    /// Files, the manifest first.
    pub files: Vec<PathBuf>,
    /// Warnings about the manifest.
    pub warnings: Vec<String>,
    /// Parts of the manifest that could not be checked, with the reason.
    pub unchecked: Vec<String>,
    /// Whether some of these parts need facts.
    pub needs_facts: bool,
}

/// Packs a directory with a `manifest.yaml`, or a single manifest. The manifest is checked with these
/// facts.
pub fn pack(source: &Path, facts: &Facts) -> Result<Packed, BundleError> {
    pack_within(source, facts, Limits::BUNDLE)
}

fn pack_within(source: &Path, facts: &Facts, limits: Limits) -> Result<Packed, BundleError> {
    let metadata = inspect(source)?;
    let tree = match metadata.kind {
        FileKind::Directory => Tree::read(source, limits)?,
        _ => Tree::of_file(source, metadata, limits),
    };
    let (manifest, files) = tree.contents.split_at(usize::from(tree.has_manifest));
    let [manifest] = manifest else {
        return Err(BundleError::NoManifest(source.into()));
    };
    let text = files::read_to_string(&manifest.path, limits.bytes)?;
    let (checked, unchecked) = check(&text, manifest, facts)?;
    let needs_facts = unchecked.iter().any(needs_facts);
    let mut unchecked: Vec<String> = unchecked.iter().map(unchecked_line).collect();
    // Several fields of one resource.
    unchecked.dedup();
    let mut packer = Packer::new(source, limits);
    packer.file(manifest, text.as_bytes())?;
    for content in files {
        match content.metadata.kind {
            FileKind::Directory => packer.directory(content)?,
            _ => {
                let bytes = packer.read(content)?;
                packer.file(content, &bytes)?;
            }
        }
    }
    let (bytes, files) = packer.finish()?;
    Ok(Packed {
        digest: Digest::of(&bytes).to_string().parse()?,
        bytes,
        files,
        warnings: checked.warnings,
        unchecked,
        needs_facts,
    })
}

/// Returns the metadata of a path, following symlinks.
fn inspect(path: &Path) -> Result<Metadata, BundleError> {
    let found = files::inspect(path, true)?;
    found.ok_or_else(|| BundleError::NotFound(path.into()))
}

fn refused(path: &Path, reason: Refusal) -> BundleError {
    BundleError::Refused {
        path: path.into(),
        reason,
    }
}

/// Loads the manifest as a run does, and includes checks of what would only fail during a run. Also
/// returns what could not be checked.
fn check(
    text: &str,
    content: &Content,
    facts: &Facts,
) -> Result<(Manifest, Vec<Problem>), BundleError> {
    let source = content.path.to_string_lossy();
    let directory = content.path.parent().unwrap_or(Path::new("."));
    let mut env = check_environment(directory, facts);
    let data_env = env.clone();
    let read_data_file = |file: &DataFile| read_data_file(directory, &data_env, file);
    let input = ManifestInput {
        text,
        source: &source,
        read_data_file: Some(&read_data_file),
        checks: Checks::All,
        ..ManifestInput::default()
    };
    Ok(manifest::load_known(input, &mut env, &Cache::default())?)
}

/// Reports whether a part could be checked if facts were known.
fn needs_facts(problem: &Problem) -> bool {
    match problem.unknown_value() {
        Some(UnknownValue::Facts | UnknownValue::Section(_) | UnknownValue::Data) => true,
        Some(UnknownValue::Environ | UnknownValue::Call(_)) | None => false,
    }
}

/// Returns the environment in which the manifest is checked: files of the bundle can be read, but
/// nothing else of this machine or of NATS.
fn check_environment(directory: &Path, facts: &Facts) -> Env {
    let root = directory.to_path_buf();
    let read_file: ReadFile = Arc::new(move |path| {
        let has_parents = path.components().any(|part| part == Component::ParentDir);
        if has_parents || !path.starts_with(&root) {
            return Err(CallError::new(UnknownValue::Call(
                "a file outside the bundle",
            )));
        }
        files::read_to_string(path, MAX_READ).map_err(CallError::new)
    });
    let unknown = |what| CallError::new(UnknownValue::Call(what));
    Env {
        facts: facts.clone(),
        unknown: Unknown {
            data: false,
            environ: true,
        },
        working_dir: directory.into(),
        read_file: Some(read_file),
        kv_get: Some(Arc::new(move |_, _| Err(unknown("kvGet")))),
        registrations: Some(Arc::new(move |_| Err(unknown("registrations")))),
        ..Env::default()
    }
}

/// Describes a part of the manifest that could not be checked.
fn unchecked_line(problem: &Problem) -> String {
    let reason = match problem.unknown_value() {
        Some(unknown) => unknown.to_string(),
        None => problem.kind.to_string(),
    };
    let Location { source, mark, .. } = &problem.location;
    let position = format!("{source}:{}:{}", mark.line, mark.column);
    match &problem.label {
        Some(label) => format!("{position}: {label}: {reason}"),
        None => format!("{position}: {reason}"),
    }
}

/// One file or directory that goes into a bundle.
struct Content {
    /// Path on disk.
    path: PathBuf,
    /// Path in the bundle.
    name: PathBuf,
    metadata: Metadata,
}

/// The entries of a bundle: the manifest first, the rest sorted, directories before their content.
struct Tree {
    root: PathBuf,
    contents: Vec<Content>,
    has_manifest: bool,
    name_bytes: u64,
    limits: Limits,
}

impl Tree {
    fn of_file(path: &Path, metadata: Metadata, limits: Limits) -> Self {
        Self {
            root: path.into(),
            contents: vec![Content {
                path: path.into(),
                name: MANIFEST.into(),
                metadata,
            }],
            has_manifest: true,
            name_bytes: 0,
            limits,
        }
    }

    fn read(source: &Path, limits: Limits) -> Result<Self, BundleError> {
        let root = std::fs::canonicalize(source).map_err(|cause| BundleError::Archive {
            path: source.into(),
            cause,
        })?;
        let mut tree = Self {
            root,
            contents: Vec::new(),
            has_manifest: false,
            name_bytes: 0,
            limits,
        };
        tree.walk(source, Path::new(""), 0)?;
        let is_manifest = |content: &Content| content.name == Path::new(MANIFEST);
        if let Some(at) = tree.contents.iter().position(is_manifest) {
            let manifest = tree.contents.remove(at);
            tree.has_manifest = manifest.metadata.kind == FileKind::Regular;
            tree.contents.insert(0, manifest);
        }
        Ok(tree)
    }

    fn walk(&mut self, directory: &Path, name: &Path, depth: usize) -> Result<(), BundleError> {
        if depth >= MAX_DEPTH {
            return Err(refused(directory, Refusal::TooDeep));
        }
        for entry in files::list(directory)? {
            if IGNORED.iter().any(|ignored| entry == *ignored) {
                continue;
            }
            let (path, name) = (directory.join(&entry), name.join(&entry));
            let metadata = self.inspect(&path)?;
            let length = u64::try_from(name.as_os_str().len()).unwrap_or(u64::MAX);
            self.name_bytes = self.name_bytes.saturating_add(length);
            if self.name_bytes > MAX_NAME_BYTES {
                return Err(refused(&path, Refusal::Names));
            }
            if self.contents.len() >= self.limits.entries {
                return Err(refused(&path, Refusal::Entries(self.limits.entries)));
            }
            self.contents.push(Content {
                path: path.clone(),
                name: name.clone(),
                metadata,
            });
            if metadata.kind == FileKind::Directory {
                self.walk(&path, &name, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Returns the metadata of a directory, a file, or a symlink to a file inside the bundle.
    fn inspect(&self, path: &Path) -> Result<Metadata, BundleError> {
        let own = files::inspect(path, false)?;
        let own = own.ok_or_else(|| BundleError::NotFound(path.into()))?;
        match own.kind {
            FileKind::Regular | FileKind::Directory => Ok(own),
            FileKind::Special => Err(refused(path, Refusal::Special)),
            FileKind::Symlink => {
                let target = std::fs::canonicalize(path).ok();
                if !target.is_some_and(|target| target.starts_with(&self.root)) {
                    return Err(refused(path, Refusal::LinkOutside));
                }
                let target = inspect(path)?;
                match target.kind {
                    FileKind::Regular => Ok(target),
                    // It could be a loop.
                    FileKind::Directory => Err(refused(path, Refusal::LinkToDirectory)),
                    _ => Err(refused(path, Refusal::Special)),
                }
            }
        }
    }
}

/// Writes the archive.
struct Packer<'a> {
    source: &'a Path,
    archive: Builder<GzEncoder<Vec<u8>>>,
    files: Vec<PathBuf>,
    /// Size as nodes count it: content and names.
    bytes: u64,
    limits: Limits,
}

impl<'a> Packer<'a> {
    fn new(source: &'a Path, limits: Limits) -> Self {
        // The gzip header has no name and time by default.
        let gzip = GzEncoder::new(Vec::new(), Compression::default());
        Self {
            source,
            archive: Builder::new(gzip),
            files: Vec::new(),
            bytes: TRAILER,
            limits,
        }
    }

    /// Reads a file within the remaining size.
    fn read(&self, content: &Content) -> Result<Vec<u8>, BundleError> {
        let too_large = || refused(&content.path, Refusal::Bytes(self.limits.bytes));
        let remaining = self.limits.bytes.saturating_sub(self.bytes);
        if content.metadata.size > remaining {
            return Err(too_large());
        }
        files::read(&content.path, remaining).map_err(|error| match error {
            // The file has grown since it was inspected.
            FileError::TooLarge { .. } => too_large(),
            error => error.into(),
        })
    }

    fn file(&mut self, content: &Content, bytes: &[u8]) -> Result<(), BundleError> {
        let mode = match content.metadata.mode & 0o111 {
            0 => 0o644,
            _ => 0o755,
        };
        self.entry(content, EntryType::Regular, mode, bytes)?;
        self.files.push(content.name.clone());
        Ok(())
    }

    fn directory(&mut self, content: &Content) -> Result<(), BundleError> {
        self.entry(content, EntryType::Directory, 0o755, &[])
    }

    fn entry(
        &mut self,
        content: &Content,
        kind: EntryType,
        mode: u32,
        bytes: &[u8],
    ) -> Result<(), BundleError> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let name = u64::try_from(content.name.as_os_str().len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(size).saturating_add(name + 1);
        if self.bytes > self.limits.bytes {
            return Err(refused(&content.path, Refusal::Bytes(self.limits.bytes)));
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        self.archive
            .append_data(&mut header, &content.name, bytes)
            .map_err(|cause| BundleError::Archive {
                path: content.path.clone(),
                cause,
            })
    }

    fn finish(self) -> Result<(Vec<u8>, Vec<PathBuf>), BundleError> {
        let gzip = self.archive.into_inner();
        let packed = gzip.and_then(GzEncoder::finish);
        let packed = packed.map_err(|cause| BundleError::Archive {
            path: self.source.into(),
            cause,
        })?;
        let size = u64::try_from(packed.len()).unwrap_or(u64::MAX);
        if size > MAX_BUNDLE_BYTES {
            return Err(refused(self.source, Refusal::PackedSize));
        }
        let Limits {
            ratio, free_bytes, ..
        } = self.limits;
        if self.bytes > free_bytes && self.bytes > size.saturating_mul(ratio) {
            return Err(refused(self.source, Refusal::Ratio(ratio)));
        }
        Ok((packed, self.files))
    }
}

#[cfg(test)]
mod tests;
