//! Recursive directory listing: every path below a directory with its metadata.
//!
//! Links below the root are not followed. Paths are sorted: parents first, siblings by bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::system::FileError;
use crate::system::files::{self, FileKind, Metadata};

/// The entries below a directory, by relative path.
pub(super) type Tree = BTreeMap<PathBuf, Metadata>;

/// A directory that can't be listed.
pub(super) enum WalkError {
    File(FileError),
    /// More entries than the limit.
    TooMany,
}

/// Returns the entries below a directory, which may itself be a link. Entries removed during the walk are
/// left out. Subdirectories are listed if `is_deep`.
pub(super) fn walk(root: &Path, limit: usize, is_deep: bool) -> Result<Tree, WalkError> {
    let mut tree = Tree::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(directory) = queue.pop() {
        let names = files::list(&root.join(&directory)).map_err(WalkError::File)?;
        for name in names {
            let path = directory.join(name);
            let seen = files::inspect(&root.join(&path), false).map_err(WalkError::File)?;
            let Some(seen) = seen else { continue };
            if tree.len() >= limit {
                return Err(WalkError::TooMany);
            }
            if is_deep && seen.kind == FileKind::Directory {
                queue.push(path.clone());
            }
            tree.insert(path, seen);
        }
    }
    Ok(tree)
}
