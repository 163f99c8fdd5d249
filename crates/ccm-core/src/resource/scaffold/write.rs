//! Writing and removing the files of a scaffold.
//!
//! Each file is replaced atomically with its mode; owner and group are those of the process. Existing
//! directories are not changed. Links below the target are not followed: a link in place of a directory
//! is replaced by it.

use std::path::{Path, PathBuf};

use super::ScaffoldError;
use super::compare::TargetFile;
use super::post::PostCommands;
use super::render::Rendered;
use crate::resource::{Host, ResourceError};
use crate::system::files::{self, Attributes, Content, Durability, FileError, FileKind};

/// The mode of created directories.
const DIRECTORY_MODE: u32 = 0o755;

/// Creates all directories, then writes the given files and runs their post commands. Returns the files
/// that post commands changed and that the next run can't recognize as stable. The output of failed
/// commands is hidden if `sensitive` is set.
pub fn write<'a>(
    target: &Path,
    rendered: &Rendered,
    items: impl Iterator<Item = &'a TargetFile>,
    posts: &PostCommands,
    sensitive: bool,
    host: Host<'_>,
) -> Result<Vec<PathBuf>, ResourceError> {
    create_directory(target, true)?;
    for directory in &rendered.directories {
        create_directory(&target.join(directory), false)?;
    }
    let mut untracked = Vec::new();
    for item in items {
        let name = item.path.to_str().unwrap_or_default();
        let Some(file) = rendered.files.get(name) else {
            continue;
        };
        let path = target.join(name);
        let posts = posts.of(&path);
        let content = Content::Bytes(&file.content);
        let wanted = Attributes {
            mode: Some(file.mode),
            ..Attributes::default()
        };
        let durability = Durability::Content;
        if posts.is_empty() {
            host.files.store(&path, content, &wanted, durability)?;
            continue;
        }
        let pending = posts.pending();
        host.files
            .store_with_xattr(&path, content, &wanted, durability, pending)?;
        if !posts.run(&path, file, sensitive, host)? {
            untracked.push(path);
        }
    }
    Ok(untracked)
}

/// Creates a directory unless it exists.
fn create_directory(path: &Path, follow: bool) -> Result<(), FileError> {
    match files::inspect(path, follow)?.map(|seen| seen.kind) {
        Some(FileKind::Directory) => Ok(()),
        Some(FileKind::Regular | FileKind::Special) => {
            Err(FileError::NotADirectory(path.to_owned()))
        }
        None | Some(FileKind::Symlink) => {
            let wanted = Attributes {
                mode: Some(DIRECTORY_MODE),
                ..Attributes::default()
            };
            files::create_directory(path, &wanted)
        }
    }
}

/// Removes all files it can, and returns the first failure.
pub(super) fn remove<'a>(
    target: &Path,
    items: impl Iterator<Item = &'a TargetFile>,
) -> Result<(), ScaffoldError> {
    let mut first = Ok(());
    for item in items {
        let path = target.join(&item.path);
        let removed = files::remove(&path).map_err(|cause| ScaffoldError::Remove { path, cause });
        first = first.and(removed);
    }
    first
}

/// Removes the empty ones of these directories in reverse order, then the target if it is empty.
pub(super) fn remove_empty(target: &Path, directories: &[PathBuf]) -> Result<(), FileError> {
    for directory in directories.iter().rev() {
        match files::remove(&target.join(directory)) {
            Ok(()) | Err(FileError::NotEmpty { .. }) => {}
            Err(err) => return Err(err),
        }
    }
    let seen = files::inspect(target, false)?;
    if seen.is_some_and(|seen| seen.kind == FileKind::Directory) {
        // A target that is not empty or a mount point stays; that is not an error.
        let _ = files::remove(target);
    }
    Ok(())
}
