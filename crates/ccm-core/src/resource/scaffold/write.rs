//! Puts files in place and takes them away.
//!
//! Each file appears whole and with its permissions, in place of whatever had its name; owner and
//! group are ours. Directories that are there stay as they are. Nothing below the target is ever
//! reached through a link: a link in the way of a directory gives way to it.

use std::path::{Path, PathBuf};

use super::ScaffoldError;
use super::compare::Item;
use super::post::Posts;
use super::render::Rendered;
use crate::resource::{Host, ResourceError};
use crate::system::files::{self, Attributes, Content, Durability, FileError, FileKind};

/// The mode of directories that are made.
const DIRECTORY_MODE: u32 = 0o755;

/// Writes these of the rendered files, each followed by its post commands, after all directories.
/// Returns the files that post commands rewrote and the next run will not know again. What a
/// failing command of a sensitive scaffold says is not shown.
pub fn write<'a>(
    target: &Path,
    rendered: &Rendered,
    items: impl Iterator<Item = &'a Item>,
    posts: &Posts,
    sensitive: bool,
    host: Host<'_>,
) -> Result<Vec<PathBuf>, ResourceError> {
    make_directory(target, true)?;
    for directory in &rendered.directories {
        make_directory(&target.join(directory), false)?;
    }
    let mut forgotten = Vec::new();
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
            files::store(&path, content, &wanted, durability)?;
            continue;
        }
        files::store_with_note(&path, content, &wanted, durability, posts.pending())?;
        if !posts.run(&path, file, sensitive, host)? {
            forgotten.push(path);
        }
    }
    Ok(forgotten)
}

/// Makes a directory unless it is there.
fn make_directory(path: &Path, follow: bool) -> Result<(), FileError> {
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

/// Removes as many files as can be, and returns the first failure.
pub(super) fn remove<'a>(
    target: &Path,
    items: impl Iterator<Item = &'a Item>,
) -> Result<(), ScaffoldError> {
    let mut first = Ok(());
    for item in items {
        let path = target.join(&item.path);
        let removed = files::remove(&path).map_err(|cause| ScaffoldError::Remove { path, cause });
        first = first.and(removed);
    }
    first
}

/// Removes those of these directories that are empty, the last first, then the target if it is.
pub(super) fn remove_empty(target: &Path, directories: &[PathBuf]) -> Result<(), FileError> {
    for directory in directories.iter().rev() {
        match files::remove(&target.join(directory)) {
            Ok(()) | Err(FileError::NotEmpty { .. }) => {}
            Err(err) => return Err(err),
        }
    }
    let seen = files::inspect(target, false)?;
    if seen.is_some_and(|seen| seen.kind == FileKind::Directory) {
        // A target that stays, because it is not empty or a mount point, is no failure.
        let _ = files::remove(target);
    }
    Ok(())
}
