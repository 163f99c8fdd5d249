//! Bundle cache: unpacked bundles on disk, so that they can be applied while their source is
//! unreachable.
//!
//! A bundle counts as cached once its record is written, after everything was unpacked and flushed
//! to disk. The record has a digest of the unpacked files, which is compared at each use: incomplete
//! and altered bundles are not used, so that they are fetched again. The previous bundle of a source
//! stays, because a run may still read it. Fetching is done elsewhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use ccm_core::model::signature::BundleSignature;
use ccm_core::run::manifest_source::{self, SourceError};
use ccm_core::system::Digest;
use ccm_core::system::files::{self, Durability, FileError};
use ccm_core::system::http::Validators;
use ccm_value::json;
use ccm_value::secret::{redact_url, url_identity};

/// Longest record file.
const MAX_BYTES: u64 = 64 * 1024;

/// Longest part of the source name in a directory name.
const MAX_NAME: usize = 48;

const RECORD: &str = "copy.json";

/// Bundle cache of an agent.
#[derive(Clone, Debug)]
pub(crate) struct BundleCache {
    root: PathBuf,
    /// Held while fetching, so that concurrent users of a bundle share one download.
    pub(super) fetching: Arc<tokio::sync::Mutex<()>>,
}

/// A fetched and unpacked bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedBundle {
    pub(crate) manifest: PathBuf,
    /// SHA-256 of the bundle.
    pub(crate) digest: String,
    /// HTTP validators for conditional requests.
    pub(crate) validators: Validators,
    /// Signature, where sources must be signed.
    pub(crate) signature: Option<BundleSignature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    source: String,
    digest: String,
    /// Path of the manifest below the directory of the bundle.
    manifest: PathBuf,
    /// Digest of the unpacked files.
    #[serde(default)]
    tree: String,
    #[serde(default)]
    etag: Option<String>,
    #[serde(default)]
    last_modified: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<BundleSignature>,
}

impl BundleCache {
    /// Opens the cache and creates its directory.
    pub(crate) fn open(root: &Path) -> Result<Self, FileError> {
        files::create_private_dir(root)?;
        Ok(Self {
            root: root.to_owned(),
            fetching: Arc::default(),
        })
    }

    /// Returns the cached bundle of a source, if it is complete and unaltered. Reads all its files.
    pub(crate) fn find(&self, source: &str) -> Option<CachedBundle> {
        let directory = self.directory(source);
        let text = files::read_to_string(&directory.join(RECORD), MAX_BYTES).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let unpacked = directory.join(&record.digest);
        let tree = files::tree_digest(&unpacked).ok()?;
        (tree.to_string() == record.tree).then_some(CachedBundle {
            manifest: unpacked.join(&record.manifest),
            digest: record.digest,
            validators: Validators {
                etag: record.etag,
                last_modified: record.last_modified,
            },
            signature: record.signature,
        })
    }

    /// Reports whether a bundle was stored that can't be used.
    pub(crate) fn is_damaged(&self, source: &str) -> bool {
        let record = self.directory(source).join(RECORD);
        let is_stored = matches!(files::inspect(&record, false), Ok(Some(_)));
        is_stored && self.find(source).is_none()
    }

    /// Unpacks a bundle file and stores it as the bundle of a source.
    pub(crate) fn store(
        &self,
        source: &str,
        bundle: &Path,
        digest: &Digest,
        validators: Validators,
        signature: Option<BundleSignature>,
    ) -> Result<CachedBundle, SourceError> {
        let directory = self.directory(source);
        files::create_private_dir(&directory)?;
        let before = self.find(source);
        let digest = digest.to_string();
        let unpacked = directory.join(&digest);
        let manifest = match &before {
            Some(copy) if copy.digest == digest => copy.manifest.clone(),
            _ => {
                files::remove_recursive(&unpacked)?;
                let manifest = manifest_source::unpack_bundle(bundle, &unpacked)?;
                // The record must not reach the disk before the files do.
                files::Tree::open(&unpacked)?.sync()?;
                manifest
            }
        };
        let relative = manifest.strip_prefix(&unpacked).unwrap_or(&manifest);
        let record = Record {
            source: redact_url(source).into_owned(),
            digest: digest.clone(),
            manifest: relative.to_owned(),
            tree: files::tree_digest(&unpacked)?.to_string(),
            etag: validators.etag.clone(),
            last_modified: validators.last_modified.clone(),
            signature: signature.clone(),
        };
        let text = json::pretty(&record).map_err(SourceError::Record)?;
        files::write_private(
            &directory.join(RECORD),
            text.as_bytes(),
            Durability::Content,
        )?;
        self.remove_old(
            &directory,
            &[Some(&digest), before.as_ref().map(|copy| &copy.digest)],
        );
        Ok(CachedBundle {
            manifest,
            digest,
            validators,
            signature,
        })
    }

    /// Creates a directory for a download.
    pub(crate) fn download(&self) -> Result<files::PrivateDir, FileError> {
        files::PrivateDir::create(&self.root, "download-")
    }

    /// Removes old bundles of a source. Failures only cost disk space.
    fn remove_old(&self, directory: &Path, stored: &[Option<&String>]) {
        for name in files::list(directory).unwrap_or_default() {
            let text = name.to_string_lossy();
            let is_kept = stored.iter().flatten().any(|stored| **stored == *text);
            if text != RECORD && !is_kept {
                let _ = files::remove_recursive(&directory.join(&name));
            }
        }
    }

    /// Returns the directory of a source. Credentials are not part of the name: a new password does
    /// not make it another source.
    fn directory(&self, source: &str) -> PathBuf {
        let shown = url_identity(source);
        let plain: String = shown
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .take(MAX_NAME)
            .collect();
        let digest = Digest::of(shown.as_bytes()).to_string();
        let short: String = digest.chars().take(12).collect();
        self.root.join(format!("{plain}-{short}"))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;

    fn bundle(directory: &Path, text: &str) -> (PathBuf, Digest) {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(
            Vec::new(),
            flate2::Compression::fast(),
        ));
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, "site/manifest.yaml", text.as_bytes())
            .unwrap();
        let bytes = tar.into_inner().unwrap().finish().unwrap();
        let file = directory.join("bundle");
        std::fs::write(&file, &bytes).unwrap();
        (file, Digest::of(&bytes))
    }

    #[test]
    fn a_bundle_is_found_by_its_source_whatever_the_password() {
        let directory = tempfile::tempdir().unwrap();
        let cache = BundleCache::open(&directory.path().join("cache")).unwrap();
        let (file, digest) = bundle(directory.path(), "a: 1\n");
        let known = Validators {
            etag: Some("\"1\"".into()),
            last_modified: None,
        };
        let stored = cache
            .store("https://u:old@h/site.tgz", &file, &digest, known, None)
            .unwrap();
        let again = BundleCache::open(&directory.path().join("cache")).unwrap();
        assert_eq!(again.find("https://u:new@h/site.tgz"), Some(stored.clone()));
        assert_eq!(again.find("https://h/other.tgz"), None);
        assert_eq!(std::fs::read_to_string(stored.manifest).unwrap(), "a: 1\n");
    }

    #[test]
    fn the_previous_bundle_stays_and_older_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = BundleCache::open(&directory.path().join("cache")).unwrap();
        let mut stored = Vec::new();
        for text in ["a: 1\n", "a: 2\n", "a: 3\n"] {
            let (file, digest) = bundle(directory.path(), text);
            let copy = cache.store("obj://b/k", &file, &digest, Validators::default(), None);
            stored.push(copy.unwrap().manifest);
        }
        let there: Vec<bool> = stored.iter().map(|path| path.exists()).collect();
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn an_altered_bundle_is_not_found_until_it_is_stored_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = BundleCache::open(&directory.path().join("cache")).unwrap();
        let (file, digest) = bundle(directory.path(), "a: 1\n");
        let store = || cache.store("obj://b/k", &file, &digest, Validators::default(), None);
        let stored = store().unwrap();
        assert!(!cache.is_damaged("obj://b/k") && !cache.is_damaged("obj://b/other"));
        std::fs::write(&stored.manifest, "").unwrap();
        assert_eq!(cache.find("obj://b/k"), None);
        assert!(cache.is_damaged("obj://b/k"));
        assert_eq!(store().unwrap(), stored);
        assert_eq!(std::fs::read_to_string(&stored.manifest).unwrap(), "a: 1\n");
        assert_eq!(cache.find("obj://b/k"), Some(stored));
    }

    #[test]
    fn a_bundle_that_can_not_be_unpacked_leaves_the_last_one() {
        let directory = tempfile::tempdir().unwrap();
        let cache = BundleCache::open(&directory.path().join("cache")).unwrap();
        let (file, digest) = bundle(directory.path(), "a: 1\n");
        let stored = cache
            .store("obj://b/a/k", &file, &digest, Validators::default(), None)
            .unwrap();
        std::fs::write(&file, "no archive").unwrap();
        let digest = Digest::of(b"no archive");
        let broken = cache.store("obj://b/a/k", &file, &digest, Validators::default(), None);
        assert!(broken.is_err());
        assert_eq!(cache.find("obj://b/a/k"), Some(stored));
    }
}
