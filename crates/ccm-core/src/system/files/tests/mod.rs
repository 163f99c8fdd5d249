//! Tests with real files in a temporary directory. Changing owners needs root.

use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::CWD;

use super::super::Digest;
use super::*;

mod atomic_write;
mod attributes;
mod directory;
mod inspect;
mod remove;
mod safe_open;
mod trusted_read;

const EVERYTHING: Attributes = Attributes {
    uid: Some(1234),
    gid: Some(2345),
    mode: Some(0o4750),
};

/// A temporary directory with helpers to create and read files.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.at(name);
        #[expect(clippy::disallowed_methods, reason = "a test prepares a file")]
        std::fs::write(&path, content).unwrap();
        path
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        #[expect(clippy::disallowed_methods, reason = "a test prepares a directory")]
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn link(&self, name: &str, to: &str) -> PathBuf {
        let path = self.at(name);
        symlink(to, &path).unwrap();
        path
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Returns owner, group and mode; symlinks are not followed.
fn attributes_of(path: &Path) -> (u32, u32, u32) {
    let found = std::fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn store_text(target: &Path, content: &str, attributes: &Attributes) -> Result<(), FileError> {
    let content = Content::Bytes(content.as_bytes());
    store(target, content, attributes, Durability::Content)
}
