//! Comparison of the rendered files with the target. Changes nothing.
//!
//! The target itself may be a link to a directory; links to directories below it are not followed, so
//! that no file is written outside the target. A link in place of a file is followed for reading, as in
//! the file type, and replaced if the content differs.

use std::path::{Path, PathBuf};

use super::ScaffoldError;
use super::post::PostCommands;
use super::render::{Rendered, RenderedFile};
use crate::resource::ResourceError;
use crate::resource::walk::{Tree, WalkError, walk};
use crate::system::FileError;
use crate::system::files::{self, FileKind, Metadata};

/// The maximum number of files in a target.
const MAX_FILES: usize = 1_000_000;

/// The content of a file, compared with the rendered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStatus {
    Add,
    Update,
    Equal,
    /// Exists in the target and was not rendered.
    Remove,
}

/// A file of the target, existing or to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFile {
    /// Relative to the target.
    pub path: PathBuf,
    pub status: FileStatus,
    /// The content is equal and the mode differs.
    pub mode_drifts: bool,
}

impl TargetFile {
    pub(super) fn is_stable(&self) -> bool {
        self.status == FileStatus::Equal && !self.mode_drifts
    }
}

/// The result of comparing a target with the rendered files.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Sorted by path bytes.
    pub items: Vec<TargetFile>,
    pub target_exists: bool,
    /// The existing directories of the scaffold, parents first.
    pub directories: Vec<PathBuf>,
    /// An existing file or directory that can't be replaced.
    pub conflict: Option<ResourceError>,
}

/// Compares a target with the rendered files.
pub fn compare(
    target: &Path,
    rendered: &Rendered,
    posts: &PostCommands,
) -> Result<Comparison, ResourceError> {
    let mut comparison = Comparison::default();
    let seen = files::inspect(target, true)?;
    comparison.target_exists = seen.is_some();
    let tree = match seen.map(|seen| seen.kind) {
        Some(FileKind::Directory) => walk(target, MAX_FILES, true).map_err(|err| match err {
            WalkError::File(err) => ResourceError::File(err),
            WalkError::TooMany => {
                ResourceError::Scaffold(ScaffoldError::too_many(target, MAX_FILES))
            }
        })?,
        // A dangling link is replaced by a directory.
        None | Some(FileKind::Symlink) => Tree::new(),
        Some(_) => {
            comparison.conflict = Some(FileError::NotADirectory(target.into()).into());
            Tree::new()
        }
    };
    for directory in &rendered.directories {
        match tree.get(Path::new(directory)).map(|seen| seen.kind) {
            Some(FileKind::Directory) => comparison.directories.push(directory.into()),
            Some(FileKind::Regular | FileKind::Special) => {
                let conflict = FileError::NotADirectory(target.join(directory));
                comparison.conflict.get_or_insert(conflict.into());
            }
            None | Some(FileKind::Symlink) => {}
        }
    }
    for (name, file) in &rendered.files {
        let (status, mode_drifts) = match tree.get(Path::new(name)) {
            None => (FileStatus::Add, false),
            Some(seen) if seen.kind == FileKind::Directory => {
                let path = target.join(name).to_string_lossy().into_owned();
                comparison
                    .conflict
                    .get_or_insert(ResourceError::IsDirectory(path));
                (FileStatus::Add, false)
            }
            Some(seen) => compare_file(&target.join(name), *seen, file, posts)?,
        };
        comparison.items.push(TargetFile {
            path: name.into(),
            status,
            mode_drifts,
        });
    }
    let unmanaged = tree
        .into_iter()
        .filter(|(path, seen)| is_unmanaged(path, seen, rendered));
    comparison
        .items
        .extend(unmanaged.map(|(path, _)| TargetFile {
            path,
            status: FileStatus::Remove,
            mode_drifts: false,
        }));
    comparison
        .items
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(comparison)
}

/// Reports whether a file of the target does not belong to the scaffold. A link in place of a directory
/// is replaced by that directory.
fn is_unmanaged(path: &Path, seen: &Metadata, rendered: &Rendered) -> bool {
    let name = path.to_str().unwrap_or_default();
    match seen.kind {
        FileKind::Directory => false,
        FileKind::Symlink if rendered.directories.contains(name) => false,
        _ => !rendered.files.contains_key(name),
    }
}

fn compare_file(
    path: &Path,
    mut seen: Metadata,
    file: &RenderedFile,
    posts: &PostCommands,
) -> Result<(FileStatus, bool), ResourceError> {
    if seen.kind == FileKind::Symlink {
        match files::inspect(path, true)? {
            Some(behind) => seen = behind,
            None => return Ok((FileStatus::Add, false)),
        }
    }
    if seen.kind != FileKind::Regular {
        return Ok((FileStatus::Update, false));
    }
    Ok(match posts.of(path).matches_fingerprint(path, file)? {
        Some(true) => (FileStatus::Equal, false),
        Some(false) => (FileStatus::Update, false),
        None if has_content(path, seen.size, &file.content)? => {
            (FileStatus::Equal, seen.mode != file.mode)
        }
        None => (FileStatus::Update, false),
    })
}

fn has_content(path: &Path, size: u64, content: &[u8]) -> Result<bool, FileError> {
    let wanted = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if size != wanted {
        return Ok(false);
    }
    match files::read(path, wanted) {
        Ok(found) => Ok(found == content),
        Err(FileError::TooLarge { .. }) => Ok(false),
        Err(err) if err.is_not_found() => Ok(false),
        Err(err) => Err(err),
    }
}
