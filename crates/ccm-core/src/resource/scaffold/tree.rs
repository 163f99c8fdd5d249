//! What is below a directory: every name, and what a look at it shows.
//!
//! No link below the root is followed. Names order as a walk meets them: parents first, siblings
//! by their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::ScaffoldError;
use crate::system::FileError;
use crate::system::files::{self, FileKind, Metadata};

/// Everything below a directory, by its path from there.
pub(super) type Tree = BTreeMap<PathBuf, Metadata>;

/// Why a directory can't be walked.
pub(super) enum WalkError {
    File(FileError),
    TooMany(ScaffoldError),
}

/// Returns what is below a directory, which may itself be a link. What vanishes meanwhile is not
/// there.
pub(super) fn walk(root: &Path, limit: usize) -> Result<Tree, WalkError> {
    let mut tree = Tree::new();
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        let names = files::list(&root.join(&directory)).map_err(WalkError::File)?;
        for name in names {
            let path = directory.join(name);
            let seen = files::inspect(&root.join(&path), false).map_err(WalkError::File)?;
            let Some(seen) = seen else { continue };
            if tree.len() >= limit {
                return Err(WalkError::TooMany(ScaffoldError::TooManyFiles {
                    directory: root.to_owned(),
                    limit,
                }));
            }
            if seen.kind == FileKind::Directory {
                open.push(path.clone());
            }
            tree.insert(path, seen);
        }
    }
    Ok(tree)
}
