//! Copies of a directory tree: what differs from the source, and how it is written.
//!
//! Owner and group are those of the resource. Files get the read and write bits of its mode, and the
//! execute bits wherever the source file may be executed. Links in the source are refused; in the
//! target they are replaced, never followed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::walk::{Tree, WalkError, walk};
use super::super::{Host, ResourceError};
use super::content::{check_read, readable};
use super::{content_of, diff_content, directory_mode, wanted_mode};
use crate::model::resource::{File, FileEnsure};
use crate::system::files::{self, Attributes, Content, Durability, FileKind, Metadata};

/// The maximum number of files and directories of a tree.
const MAX_ENTRIES: usize = 100_000;

/// What must be done to make a directory a copy of its source. Paths are relative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePlan {
    /// Directories to create, or whose owner or mode differs; parents first.
    directories: Vec<PathBuf>,
    /// Files to write, with their modes.
    files: Vec<(PathBuf, u32)>,
    /// Entries that are not in the source; parents first.
    purged: Vec<PathBuf>,
}

/// A tree that can't be copied.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{} is a link or special file; a source tree has files and directories only", .0.display())]
    InvalidSource(PathBuf),
    #[error("source {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} contains more than {limit} files and directories", directory.display())]
    TooMany { directory: PathBuf, limit: usize },
    #[error("{} is a directory, and a file in the source", .0.display())]
    DirectoryInTheWay(PathBuf),
    #[error("{} is a file, and a directory in the source", .0.display())]
    FileInTheWay(PathBuf),
}

impl TreePlan {
    pub(super) fn is_empty(&self) -> bool {
        self.directories.is_empty() && self.files.is_empty() && self.purged.is_empty()
    }

    /// Returns the number of files and directories that differ.
    pub(super) fn count(&self) -> usize {
        self.directories.len() + self.files.len() + self.purged.len()
    }
}

/// Returns the mode of a copied file.
fn file_mode(mode: u32, source: &Metadata) -> u32 {
    match source.mode & 0o100 {
        0 => mode & !0o111,
        _ => directory_mode(mode),
    }
}

fn list(directory: &Path, file: &File) -> Result<Tree, ResourceError> {
    let is_deep = file.recurse.unwrap_or(true);
    walk(directory, MAX_ENTRIES, is_deep).map_err(|err| match err {
        WalkError::File(err) => err.into(),
        WalkError::TooMany => ResourceError::Tree(TreeError::TooMany {
            directory: directory.to_owned(),
            limit: MAX_ENTRIES,
        }),
    })
}

/// Compares a directory with its source. An owner or group that does not exist yet is a difference: an
/// earlier resource may create it.
pub(super) fn compare(
    target: &Path,
    file: &File,
    host: Host<'_>,
) -> Result<TreePlan, ResourceError> {
    let source = readable(&file.source, host)?;
    let kind = files::inspect(&source, true)?.map(|seen| seen.kind);
    if kind != Some(FileKind::Directory) {
        return Err(TreeError::NotADirectory(source).into());
    }
    let mode = wanted_mode(file, FileEnsure::Present)?;
    let is_deep = file.recurse.unwrap_or(true);
    let wanted_tree = list(&source, file)?;
    // A link in place of the directory is replaced, so nothing below it counts.
    let found = match files::inspect(target, false)?.map(|seen| seen.kind) {
        Some(FileKind::Directory) => list(target, file)?,
        _ => Tree::new(),
    };
    let mut plan = TreePlan::default();
    let accounts = host.accounts;
    let (uid, gid) = (accounts.uid(&file.owner), accounts.gid(&file.group));
    let is_owned = |seen: &Metadata| uid == Ok(seen.uid) && gid == Ok(seen.gid);
    for (path, seen) in &wanted_tree {
        let from = source.join(path);
        check_read(&from, host)?;
        let there = found.get(path);
        let in_the_way = there.map(|there| there.kind);
        match (seen.kind, in_the_way) {
            (FileKind::Directory, _) if !is_deep => {}
            (FileKind::Directory, Some(FileKind::Regular | FileKind::Special)) => {
                return Err(TreeError::FileInTheWay(target.join(path)).into());
            }
            (FileKind::Directory, Some(FileKind::Directory)) => {
                let is_same =
                    there.is_some_and(|it| is_owned(it) && it.mode & 0o777 == directory_mode(mode));
                if !is_same {
                    plan.directories.push(path.clone());
                }
            }
            (FileKind::Directory, None | Some(FileKind::Symlink)) => {
                plan.directories.push(path.clone());
            }
            (FileKind::Regular, Some(FileKind::Directory)) => {
                return Err(TreeError::DirectoryInTheWay(target.join(path)).into());
            }
            (FileKind::Regular, Some(FileKind::Special)) => {
                let path = target.join(path).to_string_lossy().into_owned();
                return Err(ResourceError::SpecialFile(path));
            }
            (FileKind::Regular, _) => {
                let mode = file_mode(mode, seen);
                let is_same = match there {
                    Some(it) if it.kind == FileKind::Regular => {
                        is_owned(it)
                            && it.mode == mode
                            && it.size == seen.size
                            && files::sha256(&from)? == files::sha256(&target.join(path))?
                    }
                    _ => false,
                };
                if !is_same {
                    plan.files.push((path.clone(), mode));
                }
            }
            (FileKind::Symlink | FileKind::Special, _) => {
                return Err(TreeError::InvalidSource(from).into());
            }
        }
    }
    if file.purge {
        let is_foreign = |path: &&PathBuf| !wanted_tree.contains_key(*path);
        plan.purged = found.keys().filter(is_foreign).cloned().collect();
        if !is_deep {
            let is_directory = |path: &PathBuf| {
                found
                    .get(path)
                    .is_some_and(|it| it.kind == FileKind::Directory)
            };
            plan.purged.retain(|path| !is_directory(path));
        }
    }
    Ok(plan)
}

/// Writes what a plan names below the target, which exists.
pub(super) fn copy(
    target: &Path,
    file: &File,
    plan: &TreePlan,
    wanted: &Attributes,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let source = readable(&file.source, host)?;
    let mut tree = files::Tree::with_writer(target, host.files)?;
    // Children first: a directory is empty when it is removed.
    for path in plan.purged.iter().rev() {
        tree.remove(path)?;
    }
    let of_directory = Attributes {
        mode: wanted.mode.map(directory_mode),
        ..*wanted
    };
    for path in &plan.directories {
        tree.directory(path)?;
        tree.set_directory_attributes(path, &of_directory)?;
    }
    for (path, mode) in &plan.files {
        let from = source.join(path);
        check_read(&from, host)?;
        let wanted = Attributes {
            mode: Some(*mode),
            ..*wanted
        };
        tree.store(path, Content::File(&from), &wanted, Durability::Content)?;
    }
    Ok(())
}

/// Writes the differences of the files as unified diffs, and one line for each removal.
pub(super) fn diff(
    out: &mut String,
    target: &Path,
    file: &File,
    plan: &TreePlan,
    sensitive: bool,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let source = readable(&file.source, host)?;
    for (path, _) in &plan.files {
        let at = target.join(path);
        let is_file = |seen: Metadata| seen.kind == FileKind::Regular;
        let exists = files::inspect(&at, false)?.is_some_and(is_file);
        let (old, new) = (
            content_of(&at, exists)?,
            content_of(&source.join(path), true)?,
        );
        if old != new || old.is_none() {
            diff_content(
                out,
                &at.to_string_lossy(),
                old.as_deref(),
                new.as_deref(),
                sensitive,
            );
        }
    }
    for path in &plan.purged {
        let _ = writeln!(out, "{}: removed", target.join(path).display());
    }
    Ok(())
}

/// Returns the attributes of a tree's directories.
pub(super) fn attributes(file: &File, host: Host<'_>) -> Result<Attributes, ResourceError> {
    Ok(Attributes {
        uid: Some(host.accounts.uid(&file.owner)?),
        gid: Some(host.accounts.gid(&file.group)?),
        mode: Some(wanted_mode(file, FileEnsure::Present)?),
    })
}

impl From<TreeError> for ResourceError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}
