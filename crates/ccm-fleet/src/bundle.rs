//! A manifest and its files into one archive, the same bytes for the same content.
//!
//! What is packed is what a node will accept: regular files and directories within the limits of
//! [`unpack`]. Names are sorted, owners and times are nobody's, and of permissions only whether a
//! file can be run is kept, so that two people who pack the same checkout get the same digest. The
//! manifest comes first: that is the one a node takes. It is checked as `ccm validate` checks it,
//! with the facts and data of whoever packs.
//!
//! Where bundles are stored is not known here.
//!
//! [`unpack`]: ccm_core::system::unpack

use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use ccm_core::manifest::{self, Input, Manifest, ManifestError, Problem};
use ccm_core::model::node::{BadName, BundleDigest};
use ccm_core::system::files::{self, FileKind, Metadata};
use ccm_core::system::unpack::Limits;
use ccm_core::system::{Digest, FileError};
use ccm_template::Env;
use ccm_template::expr::Cache;

/// The name of the manifest in a bundle.
const MANIFEST: &str = "manifest.yaml";

/// Left out: what version control keeps for itself differs between equal checkouts.
const IGNORED: [&str; 3] = [".git", ".hg", ".svn"];

/// How deep directories may nest, and how long all names may be together, for a node to accept
/// them.
const DEEPEST: usize = 128;
const MOST_NAME_BYTES: u64 = 32 << 20;

/// The largest bundle that a node fetches.
const LARGEST: u64 = 256 << 20;

/// What the archive itself adds to its content at its end.
const TRAILER: u64 = 64 << 10;

/// Why there is no bundle.
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
    #[error("could not pack {}: {cause}", path.display())]
    Archive {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Digest(#[from] BadName),
}

/// What a bundle can't hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it is neither a file nor a directory")]
    Special,
    #[error("the link leads out of the bundle, or nowhere")]
    LinkLeaves,
    #[error("the link leads to a directory")]
    LinkToDirectory,
    #[error("it is nested more than {DEEPEST} directories deep")]
    TooDeep,
    #[error("a bundle holds at most {0} files and directories")]
    Entries(usize),
    #[error("the names in a bundle take at most {MOST_NAME_BYTES} bytes")]
    Names,
    #[error("a bundle holds at most {0} bytes")]
    Bytes(u64),
    #[error("a bundle is at most {LARGEST} bytes when packed")]
    Large,
    #[error("a bundle is packed to no less than one part in {0}")]
    Ratio(u64),
}

/// A bundle, ready to be stored.
#[derive(Clone, Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Of the bytes: what the bundle is known by.
    pub digest: BundleDigest,
    /// The files in it, the manifest first.
    pub files: Vec<PathBuf>,
    /// What is odd about the manifest but no reason to stop.
    pub warnings: Vec<String>,
}

/// Packs a directory with a `manifest.yaml`, or one manifest that needs no other file. `env` is
/// what the manifest is checked with.
pub fn pack(source: &Path, env: &Env) -> Result<Packed, BundleError> {
    pack_within(source, env, Limits::BUNDLE)
}

fn pack_within(source: &Path, env: &Env, limits: Limits) -> Result<Packed, BundleError> {
    let found = look(source)?;
    let tree = match found.kind {
        FileKind::Directory => Tree::read(source, limits)?,
        _ => Tree::of_file(source, found, limits),
    };
    let (manifest, files) = tree.contents.split_at(usize::from(tree.has_manifest));
    let [manifest] = manifest else {
        return Err(BundleError::NoManifest(source.into()));
    };
    let text = files::read_to_string(&manifest.path, limits.bytes)?;
    let checked = check(&text, manifest, env)?;
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
    })
}

/// Returns what is at a path, beyond links.
fn look(path: &Path) -> Result<Metadata, BundleError> {
    let found = files::inspect(path, true)?;
    found.ok_or_else(|| BundleError::NotFound(path.into()))
}

fn refused(path: &Path, reason: Refusal) -> BundleError {
    BundleError::Refused {
        path: path.into(),
        reason,
    }
}

/// Reads the manifest as a run would, and finds what a run would only meet half way.
fn check(text: &str, content: &Content, env: &Env) -> Result<Manifest, BundleError> {
    let source = content.path.to_string_lossy();
    let input = Input {
        text,
        source: &source,
        ..Input::default()
    };
    let directory = content.path.parent().unwrap_or(Path::new("."));
    let mut env = Env {
        working_dir: directory.into(),
        ..env.clone()
    };
    let manifest = manifest::load(input, &mut env, &Cache::default())?;
    let problems: Vec<Problem> = manifest::deep_check(&manifest);
    if problems.is_empty() {
        Ok(manifest)
    } else {
        Err(ManifestError { problems }.into())
    }
}

/// One file or directory that goes into a bundle.
struct Content {
    /// Where it is.
    path: PathBuf,
    /// What it is called in the bundle.
    name: PathBuf,
    metadata: Metadata,
}

/// What goes into a bundle, the manifest first and the rest sorted, directories before what is in
/// them.
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
        if depth >= DEEPEST {
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
            if self.name_bytes > MOST_NAME_BYTES {
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

    /// Returns what is at a path: a directory, a file, or a file that a link inside leads to.
    fn inspect(&self, path: &Path) -> Result<Metadata, BundleError> {
        let own = files::inspect(path, false)?;
        let own = own.ok_or_else(|| BundleError::NotFound(path.into()))?;
        match own.kind {
            FileKind::Regular | FileKind::Directory => Ok(own),
            FileKind::Special => Err(refused(path, Refusal::Special)),
            FileKind::Symlink => {
                let target = std::fs::canonicalize(path).ok();
                if !target.is_some_and(|target| target.starts_with(&self.root)) {
                    return Err(refused(path, Refusal::LinkLeaves));
                }
                let target = look(path)?;
                match target.kind {
                    FileKind::Regular => Ok(target),
                    // It could lead to where it stands.
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
    /// Counted as a node counts: content, and names that need an entry of their own.
    bytes: u64,
    limits: Limits,
}

impl<'a> Packer<'a> {
    fn new(source: &'a Path, limits: Limits) -> Self {
        // The header of gzip has neither a name nor a time unless it is asked for.
        let gzip = GzEncoder::new(Vec::new(), Compression::default());
        Self {
            source,
            archive: Builder::new(gzip),
            files: Vec::new(),
            bytes: TRAILER,
            limits,
        }
    }

    /// Reads a file that there is room for.
    fn read(&self, content: &Content) -> Result<Vec<u8>, BundleError> {
        let too_large = || refused(&content.path, Refusal::Bytes(self.limits.bytes));
        let room = self.limits.bytes.saturating_sub(self.bytes);
        if content.metadata.size > room {
            return Err(too_large());
        }
        files::read(&content.path, room).map_err(|error| match error {
            // It grew since it was looked at.
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
        if size > LARGEST {
            return Err(refused(self.source, Refusal::Large));
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
