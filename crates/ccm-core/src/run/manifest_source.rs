//! Manifest sources: inline text, a file, a directory, or a bundle on disk, on an HTTP server or in a
//! NATS object store.
//!
//! A bundle is a compressed tar archive with a `manifest.yaml` and the files it needs. It is unpacked
//! into a private temporary directory that is removed after the run. Manifests are not parsed here.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::nats_client::{NatsClient, NatsClientError, NatsClientErrorKind};
use crate::engine::{Level, Line, directory_of};
use crate::manifest;
use crate::model::resource::ArchiveFormat;
use crate::model::secret::{redact_url, url_identity};
use crate::model::text::{unescape, url_scheme};
use crate::system::files::{self, Attributes, Durability, FileKind, PrivateDir};
use crate::system::http::{self, Request};
use crate::system::unpack::{self, Limits, Rules};
use crate::system::{Clock, Digest, FileError, HttpError, UnpackError};

/// The file name of the manifest in a directory or bundle.
const MANIFEST: &str = "manifest.yaml";

/// The timeout of a bundle download.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The maximum size of a bundle.
pub const SIZE_LIMIT: u64 = 256 << 20;

/// The manifest that a run applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestSource {
    /// A source as users write it: a path or a URL.
    Source(String),
    /// A manifest in the local bundle cache.
    Copy {
        manifest: PathBuf,
        #[serde(rename = "shown")]
        display_name: String,
    },
    /// An inline manifest.
    Text(String),
}

impl ManifestSource {
    /// Returns the name of the manifest for users, without credentials.
    pub fn display_name(&self) -> String {
        match self {
            Self::Source(source) => redact_url(source).into_owned(),
            Self::Copy { display_name, .. } => display_name.clone(),
            Self::Text(_) => "inline".into(),
        }
    }

    /// Returns the key of the manifest's pending refreshes: the digest of its source, or of an inline
    /// manifest's text. Relative paths start at `base`.
    pub(super) fn key(&self, base: &Path) -> Digest {
        match self {
            Self::Text(text) => Digest::of(text.as_bytes()),
            Self::Source(source) if remote(source).is_some() => {
                Digest::of(url_identity(source).as_bytes())
            }
            Self::Source(source) => {
                let path = without_parent_parts(&local(base, source));
                Digest::of(path.as_os_str().as_bytes())
            }
            Self::Copy { display_name, .. } => Digest::of(display_name.as_bytes()),
        }
    }

    /// Fetches the manifest if needed and returns its text and directory.
    pub(super) fn open(
        &self,
        base: &Path,
        clock: &dyn Clock,
        nats: &dyn NatsClient,
    ) -> Result<OpenedManifest, SourceError> {
        let read = |path: &Path| files::read_to_string(path, manifest::MAX_BYTES);
        match self {
            Self::Text(text) => Ok(OpenedManifest {
                text: text.clone(),
                directory: base.to_owned(),
                display_name: self.display_name(),
                fetched: None,
            }),
            Self::Copy {
                manifest,
                display_name,
            } => Ok(OpenedManifest {
                text: read(manifest)?,
                directory: directory_of(manifest),
                display_name: display_name.clone(),
                fetched: None,
            }),
            Self::Source(source) => {
                let fetched = fetch(source, base, &std::env::temp_dir(), clock, nats)?;
                Ok(OpenedManifest {
                    text: read(&fetched.manifest_path)?,
                    directory: fetched.directory.clone(),
                    display_name: fetched.display_name.clone(),
                    fetched: Some(fetched),
                })
            }
        }
    }
}

/// The text of a manifest, with its origin.
pub(super) struct OpenedManifest {
    pub text: String,
    /// The directory that relative paths start from.
    pub directory: PathBuf,
    /// The name for users, without credentials.
    pub display_name: String,
    /// The fetched source, for sources that are fetched.
    pub fetched: Option<FetchedManifest>,
}

/// A manifest that can't be fetched. Texts contain no credentials.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("source is required")]
    Empty,
    #[error("unsupported manifest source: {0}")]
    Unsupported(String),
    #[error("{0} is required for object store manifest source")]
    Object(&'static str),
    #[error("{MANIFEST} not found in archive")]
    NoManifest,
    #[error("{0} is not a .tar.gz bundle")]
    NotABundle(String),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    NatsClient(#[from] NatsClientError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("could not store a bundle: {0}")]
    Store(#[source] std::io::Error),
    #[error("could not write the cache entry of a bundle: {0}")]
    Record(#[source] serde_json::Error),
}

/// A manifest on the local file system.
#[derive(Debug)]
pub struct FetchedManifest {
    pub manifest_path: PathBuf,
    /// The directory that relative paths start from.
    pub directory: PathBuf,
    /// The source for users, without credentials.
    pub display_name: String,
    /// The object it was fetched from.
    pub object: Option<ObjectName>,
    /// The temporary directory of an unpacked bundle, removed on drop.
    pub temp: Option<PrivateDir>,
}

impl FetchedManifest {
    /// Returns the log line for a manifest from a remote source.
    pub(super) fn line(&self) -> Option<Line> {
        self.temp.as_ref()?;
        let line = |origin: &str| {
            let text = format!("Using manifest from {origin} in temporary directory");
            Line::new(Level::Info, text).with("manifest", self.manifest_path.display())
        };
        match &self.object {
            Some(object) => Some(
                line("Object Store")
                    .with("bucket", &object.bucket)
                    .with("file", &object.name),
            ),
            None if url_scheme(&self.display_name).is_some() => {
                Some(line("HTTP URL").with("url", &self.display_name))
            }
            None => None,
        }
    }
}

/// An object in a bucket: `obj://BUCKET/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    pub bucket: String,
    pub name: String,
}

impl SourceError {
    /// Reports whether the source itself is invalid, so that a retry would fail again.
    pub(super) fn is_invalid(&self) -> bool {
        match self {
            Self::Http(_) | Self::Store(_) | Self::Record(_) => false,
            Self::NatsClient(err) => err.kind == NatsClientErrorKind::Settings,
            Self::Empty
            | Self::Unsupported(_)
            | Self::Object(_)
            | Self::NoManifest
            | Self::NotABundle(_)
            | Self::Unpack(_)
            | Self::File(_) => true,
        }
    }
}

impl ObjectName {
    /// Parses the part after `obj:`. Object names may contain slashes.
    fn parse(rest: &str) -> Result<Self, SourceError> {
        let (bucket, name) = match rest.trim_start_matches('/').split_once('/') {
            Some(parts) => parts,
            None => (rest.trim_start_matches('/'), ""),
        };
        if bucket.is_empty() || rest.starts_with("///") {
            return Err(SourceError::Object("bucket name"));
        }
        match unescape(name).filter(|name| !name.is_empty()) {
            Some(name) => Ok(Self {
                bucket: bucket.into(),
                name,
            }),
            None => Err(SourceError::Object("key")),
        }
    }
}

/// Fetches the manifest of a source. Relative paths start at `base`; bundles are unpacked below
/// `temporary`.
pub fn fetch(
    source: &str,
    base: &Path,
    temporary: &Path,
    clock: &dyn Clock,
    nats: &dyn NatsClient,
) -> Result<FetchedManifest, SourceError> {
    if source.is_empty() {
        return Err(SourceError::Empty);
    }
    let display_name = redact_url(source).into_owned();
    match remote(source) {
        None => open_local(&local(base, source), display_name, temporary),
        Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => fetch_http(source, display_name, temporary, clock),
            "obj" => fetch_object(&ObjectName::parse(rest)?, display_name, temporary, nats),
            _ => Err(SourceError::Unsupported(display_name)),
        },
    }
}

/// Returns the scheme of a URL and what follows it; `None` for a path.
fn remote(source: &str) -> Option<(&str, &str)> {
    url_scheme(source).filter(|(_, rest)| rest.starts_with("//"))
}

/// Returns the path of a local source, without `.` parts.
fn local(base: &Path, source: &str) -> PathBuf {
    base.join(source).components().collect()
}

/// Returns a path without `..` parts. Symlinks are not resolved, so that the manifest behind a link
/// keeps its key when the link is changed.
fn without_parent_parts(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    plain
}

fn open_local(
    path: &Path,
    display_name: String,
    temporary: &Path,
) -> Result<FetchedManifest, SourceError> {
    let found = files::inspect(path, true)?;
    let is_directory = found.is_some_and(|found| found.kind == FileKind::Directory);
    let is_bundle = path.to_str().and_then(ArchiveFormat::from_name) == Some(ArchiveFormat::TarGz);
    if is_bundle && !is_directory {
        return fetched_bundle(
            path,
            display_name,
            PrivateDir::create(temporary, "manifest-")?,
        );
    }
    let (manifest_path, display_name) = if is_directory {
        (
            path.join(MANIFEST),
            format!("{}/{MANIFEST}", display_name.trim_end_matches('/')),
        )
    } else {
        (path.to_owned(), display_name)
    };
    Ok(FetchedManifest {
        directory: directory_of(&manifest_path),
        manifest_path,
        display_name,
        object: None,
        temp: None,
    })
}

fn fetch_http(
    url: &str,
    display_name: String,
    temporary: &Path,
    clock: &dyn Clock,
) -> Result<FetchedManifest, SourceError> {
    let temp = PrivateDir::create(temporary, "manifest-")?;
    let bundle = temp.path().join("download");
    let request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
    let attributes = Attributes::default();
    files::store_with(&bundle, &attributes, Durability::Cached, |mut file| {
        http::get(&request, clock, &mut file)
            .map(drop)
            .map_err(SourceError::from)
    })?;
    fetched_bundle(&bundle, display_name, temp)
}

fn fetch_object(
    object: &ObjectName,
    display_name: String,
    temporary: &Path,
    nats: &dyn NatsClient,
) -> Result<FetchedManifest, SourceError> {
    let temp = PrivateDir::create(temporary, "manifest-")?;
    let bundle = temp.path().join("download");
    let attributes = Attributes::default();
    files::store_with(&bundle, &attributes, Durability::Cached, |file| {
        let file = file.try_clone().map_err(SourceError::Store)?;
        nats.object(&object.bucket, &object.name, SIZE_LIMIT, file)
            .map_err(SourceError::from)
    })?;
    let fetched = fetched_bundle(&bundle, display_name, temp)?;
    Ok(FetchedManifest {
        object: Some(object.clone()),
        ..fetched
    })
}

/// Unpacks a bundle into the temporary directory of the manifest.
fn fetched_bundle(
    bundle: &Path,
    display_name: String,
    temp: PrivateDir,
) -> Result<FetchedManifest, SourceError> {
    let unpacked = unpack_bundle(bundle, &temp.path().join("bundle"));
    let manifest_path = unpacked.map_err(|err| match err {
        // The path of a download tells nothing.
        SourceError::Unpack(UnpackError::NotGzip(_)) => {
            SourceError::NotABundle(display_name.clone())
        }
        err => err,
    })?;
    Ok(FetchedManifest {
        directory: directory_of(&manifest_path),
        manifest_path,
        display_name,
        object: None,
        temp: Some(temp),
    })
}

/// Unpacks a bundle into a new directory and returns the path of its manifest: the first file of that
/// name, at any depth.
pub fn unpack_bundle(bundle: &Path, directory: &Path) -> Result<PathBuf, SourceError> {
    files::create_private_dir(directory)?;
    let kind = ArchiveFormat::TarGz;
    let unpacked = unpack::unpack(bundle, kind, directory, Rules::Bundle, Limits::BUNDLE)?;
    let manifest = unpacked
        .iter()
        .find(|path| path.file_name().is_some_and(|name| name == MANIFEST))
        .ok_or(SourceError::NoManifest)?;
    Ok(directory.join(manifest))
}
