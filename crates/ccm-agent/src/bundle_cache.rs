//! Bundles on disk: what was fetched once can be applied again while nobody can be asked.
//!
//! A copy counts only once its record is written, after everything was unpacked; a torn one is
//! thrown away and fetched anew. The copy before the last stays, because a run may still read it.
//! Where bundles come from is not known here.

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

/// No record is larger.
const MAX_BYTES: u64 = 64 * 1024;

/// How much of a source's name a directory shows.
const MAX_SHOWN: usize = 48;

const RECORD: &str = "copy.json";

/// The bundles of an agent.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    /// Held by whoever fetches: many that want the same bundle need one download.
    pub(super) fetching: Arc<tokio::sync::Mutex<()>>,
}

/// A bundle that was fetched and unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub manifest: PathBuf,
    /// The SHA-256 of the bundle.
    pub digest: String,
    /// By what the server knows it again.
    pub validators: Validators,
    /// Who stands for it, where that is asked.
    pub signature: Option<BundleSignature>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    source: String,
    digest: String,
    /// The manifest's path below the copy's own directory.
    manifest: PathBuf,
    #[serde(default)]
    etag: Option<String>,
    #[serde(default)]
    last_modified: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<BundleSignature>,
}

impl Cache {
    /// Opens the cache and makes its directory.
    pub fn open(root: &Path) -> Result<Self, FileError> {
        files::create_private_dir(root)?;
        Ok(Self {
            root: root.to_owned(),
            fetching: Arc::default(),
        })
    }

    /// Returns the copy of a source, if a whole one is there.
    pub fn copy(&self, source: &str) -> Option<Copy> {
        let directory = self.directory(source);
        let text = files::read_to_string(&directory.join(RECORD), MAX_BYTES).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let manifest = directory.join(&record.digest).join(&record.manifest);
        let is_there = files::inspect(&manifest, true).ok()?.is_some();
        is_there.then_some(Copy {
            manifest,
            digest: record.digest,
            validators: Validators {
                etag: record.etag,
                last_modified: record.last_modified,
            },
            signature: record.signature,
        })
    }

    /// Unpacks a bundle file and keeps it as the copy of a source.
    pub fn keep(
        &self,
        source: &str,
        bundle: &Path,
        digest: &Digest,
        validators: Validators,
        signature: Option<BundleSignature>,
    ) -> Result<Copy, SourceError> {
        let directory = self.directory(source);
        files::create_private_dir(&directory)?;
        let before = self.copy(source);
        let digest = digest.to_string();
        let unpacked = directory.join(&digest);
        let manifest = match &before {
            Some(copy) if copy.digest == digest => copy.manifest.clone(),
            _ => {
                files::remove_recursive(&unpacked)?;
                manifest_source::unpack_bundle(bundle, &unpacked)?
            }
        };
        let relative = manifest.strip_prefix(&unpacked).unwrap_or(&manifest);
        let record = Record {
            source: redact_url(source).into_owned(),
            digest: digest.clone(),
            manifest: relative.to_owned(),
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
        self.sweep(
            &directory,
            &[Some(&digest), before.as_ref().map(|copy| &copy.digest)],
        );
        Ok(Copy {
            manifest,
            digest,
            validators,
            signature,
        })
    }

    /// Returns a new place for a bundle that is being fetched.
    pub fn download(&self) -> Result<files::PrivateDir, FileError> {
        files::PrivateDir::create(&self.root, "download-")
    }

    /// Removes copies that nobody needs any more; one that stays only takes room.
    fn sweep(&self, directory: &Path, kept: &[Option<&String>]) {
        for name in files::list(directory).unwrap_or_default() {
            let text = name.to_string_lossy();
            let is_kept = kept.iter().flatten().any(|kept| **kept == *text);
            if text != RECORD && !is_kept {
                let _ = files::remove_recursive(&directory.join(&name));
            }
        }
    }

    /// Returns a directory that no other source has. Credentials are not part of the name: a
    /// new password does not make it another source.
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
            .take(MAX_SHOWN)
            .collect();
        let digest = Digest::of(shown.as_bytes()).to_string();
        let short: String = digest.chars().take(12).collect();
        self.root.join(format!("{plain}-{short}"))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
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
    fn a_copy_is_found_again_by_its_source_whatever_the_password() {
        let room = tempfile::tempdir().unwrap();
        let cache = Cache::open(&room.path().join("cache")).unwrap();
        let (file, digest) = bundle(room.path(), "a: 1\n");
        let known = Validators {
            etag: Some("\"1\"".into()),
            last_modified: None,
        };
        let kept = cache
            .keep("https://u:old@h/site.tgz", &file, &digest, known, None)
            .unwrap();
        let again = Cache::open(&room.path().join("cache")).unwrap();
        assert_eq!(again.copy("https://u:new@h/site.tgz"), Some(kept.clone()));
        assert_eq!(again.copy("https://h/other.tgz"), None);
        assert_eq!(std::fs::read_to_string(kept.manifest).unwrap(), "a: 1\n");
    }

    #[test]
    fn the_copy_before_the_last_stays_and_older_ones_go() {
        let room = tempfile::tempdir().unwrap();
        let cache = Cache::open(&room.path().join("cache")).unwrap();
        let mut kept = Vec::new();
        for text in ["a: 1\n", "a: 2\n", "a: 3\n"] {
            let (file, digest) = bundle(room.path(), text);
            let copy = cache.keep("obj://b/k", &file, &digest, Validators::default(), None);
            kept.push(copy.unwrap().manifest);
        }
        let there: Vec<bool> = kept.iter().map(|path| path.exists()).collect();
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn a_bundle_that_can_not_be_unpacked_leaves_the_last_copy() {
        let room = tempfile::tempdir().unwrap();
        let cache = Cache::open(&room.path().join("cache")).unwrap();
        let (file, digest) = bundle(room.path(), "a: 1\n");
        let kept = cache
            .keep("obj://b/a/k", &file, &digest, Validators::default(), None)
            .unwrap();
        std::fs::write(&file, "no archive").unwrap();
        let digest = Digest::of(b"no archive");
        let broken = cache.keep("obj://b/a/k", &file, &digest, Validators::default(), None);
        assert!(broken.is_err());
        assert_eq!(cache.copy("obj://b/a/k"), Some(kept));
    }
}
