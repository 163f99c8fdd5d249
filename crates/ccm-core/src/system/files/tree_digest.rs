//! Digest of a directory tree: names, types and contents of everything below it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{FileError, FileKind, inspect, list, sha256};
use crate::system::{Digest, Digester};

/// Returns a digest that differs if a file was added, removed or altered. Modes and times don't count.
pub fn tree_digest(root: &Path) -> Result<Digest, FileError> {
    let mut digester = Digester::default();
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        for name in list(&root.join(&directory))? {
            let relative = directory.join(name);
            let path = root.join(&relative);
            let kind = inspect(&path, false)?.map(|found| found.kind);
            let content = match kind {
                Some(FileKind::Regular) => sha256(&path)?.to_string(),
                Some(FileKind::Directory) => {
                    pending.push(relative.clone());
                    "directory".into()
                }
                _ => "other".into(),
            };
            digester.update(relative.as_os_str().as_bytes());
            // No name contains this byte.
            digester.update(b"\0");
            digester.update(content.as_bytes());
            digester.update(b"\0");
        }
    }
    Ok(digester.finish())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_a_tree_changes_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/c"), "one").unwrap();
        let mut seen = vec![tree_digest(dir.path()).unwrap()];
        assert_eq!(tree_digest(dir.path()).unwrap(), seen[0]);
        let mut changed = |what: &str| {
            let digest = tree_digest(dir.path()).unwrap();
            assert!(!seen.contains(&digest), "{what}");
            seen.push(digest);
        };
        std::fs::write(at("a/b/c"), "two").unwrap();
        changed("altered");
        std::fs::write(at("d"), "").unwrap();
        changed("added");
        std::fs::rename(at("d"), at("a/d")).unwrap();
        changed("moved");
        std::fs::remove_file(at("a/b/c")).unwrap();
        changed("removed");
    }
}
