//! Where manifests come from: a text, a file, a directory, a bundle on disk, on a server or in an
//! object store.
//!
//! A bundle is a compressed tar with a `manifest.yaml` and the files it needs. It is unpacked
//! into a directory of its own that only we can enter and that goes when the run is over. What a
//! manifest says is not read here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bus::{Bus, BusError, BusErrorKind};
use crate::engine::{Level, Line, directory_of};
use crate::manifest;
use crate::model::resource::ArchiveKind;
use crate::model::secret::{redact_url, url_identity};
use crate::model::text::{unescape, url_scheme};
use crate::system::files::{self, Attributes, Durability, FileKind, PrivateDir};
use crate::system::http::{self, Request};
use crate::system::unpack::{self, Limits, Rules};
use crate::system::{Clock, Digest, FileError, HttpError, UnpackError};

/// The name of a manifest in a directory or bundle.
const MANIFEST: &str = "manifest.yaml";

/// How long getting a bundle may take.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How large a bundle may be.
pub const SIZE_LIMIT: u64 = 256 << 20;

/// Which manifest a run applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManifestSource {
    /// A source as people write it: a path, a bundle, a URL.
    Source(String),
    /// A manifest that was fetched before.
    Copy { manifest: PathBuf, shown: String },
    /// The manifest itself.
    Text(String),
}

impl ManifestSource {
    /// Returns the manifest's name as people may see it.
    pub fn shown(&self) -> String {
        match self {
            Self::Source(source) => redact_url(source).into_owned(),
            Self::Copy { shown, .. } => shown.clone(),
            Self::Text(_) => "inline".into(),
        }
    }

    /// Returns what tells runs of one manifest from those of another: its name, or the text of one
    /// that has none.
    pub(super) fn key(&self) -> Digest {
        match self {
            Self::Text(text) => Digest::of(text.as_bytes()),
            Self::Source(source) => Digest::of(url_identity(source).as_bytes()),
            Self::Copy { shown, .. } => Digest::of(shown.as_bytes()),
        }
    }

    /// Returns the text of the manifest and where its relative paths start.
    pub(super) fn open(
        &self,
        base: &Path,
        clock: &dyn Clock,
        bus: &dyn Bus,
    ) -> Result<Opened, SourceError> {
        let read = |path: &Path| files::read_to_string(path, manifest::MAX_BYTES);
        match self {
            Self::Text(text) => Ok(Opened {
                text: text.clone(),
                directory: base.to_owned(),
                shown: self.shown(),
                fetched: None,
            }),
            Self::Copy { manifest, shown } => Ok(Opened {
                text: read(manifest)?,
                directory: directory_of(manifest),
                shown: shown.clone(),
                fetched: None,
            }),
            Self::Source(source) => {
                let fetched = fetch(source, base, &std::env::temp_dir(), clock, bus)?;
                Ok(Opened {
                    text: read(&fetched.manifest_path)?,
                    directory: fetched.directory.clone(),
                    shown: fetched.shown.clone(),
                    fetched: Some(fetched),
                })
            }
        }
    }
}

/// The text of a manifest, and what belongs to it.
pub(super) struct Opened {
    pub text: String,
    /// Where relative paths start.
    pub directory: PathBuf,
    /// Its name as people may see it.
    pub shown: String,
    /// What was brought here for it.
    pub fetched: Option<Fetched>,
}

/// Why there is no manifest. No text holds a password.
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
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("could not store a bundle: {0}")]
    Store(#[source] std::io::Error),
    #[error("could not record the copy of a bundle: {0}")]
    Record(#[source] serde_json::Error),
}

/// A manifest that can be read now.
#[derive(Debug)]
pub struct Fetched {
    pub manifest_path: PathBuf,
    /// Where its relative paths start.
    pub directory: PathBuf,
    /// The source as people may see it.
    pub shown: String,
    /// Which object it came from.
    pub object: Option<ObjectName>,
    /// Holds what was unpacked; the manifest is gone with it.
    pub temp: Option<PrivateDir>,
}

impl Fetched {
    /// Returns where a manifest from elsewhere was put, as people read it.
    pub(super) fn line(&self) -> Option<Line> {
        self.temp.as_ref()?;
        let told = |place: &str| {
            let text = format!("Using manifest from {place} in temporary directory");
            Line::new(Level::Info, text).with("manifest", self.manifest_path.display())
        };
        match &self.object {
            Some(object) => Some(
                told("Object Store")
                    .with("bucket", &object.bucket)
                    .with("file", &object.name),
            ),
            None if url_scheme(&self.shown).is_some() => {
                Some(told("HTTP URL").with("url", &self.shown))
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
    /// Reports whether the source itself is wrong, so that asking again is no use.
    pub(super) fn is_invalid(&self) -> bool {
        match self {
            Self::Http(_) | Self::Store(_) | Self::Record(_) => false,
            Self::Bus(err) => err.kind == BusErrorKind::Settings,
            Self::Empty
            | Self::Unsupported(_)
            | Self::Object(_)
            | Self::NoManifest
            | Self::Unpack(_)
            | Self::File(_) => true,
        }
    }
}

impl ObjectName {
    /// Reads what follows `obj:`. Names may hold slashes.
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

/// Brings the manifest of a source within reach. Relative paths start at `base`; bundles are
/// unpacked below `temporary`.
pub fn fetch(
    source: &str,
    base: &Path,
    temporary: &Path,
    clock: &dyn Clock,
    bus: &dyn Bus,
) -> Result<Fetched, SourceError> {
    if source.is_empty() {
        return Err(SourceError::Empty);
    }
    let shown = redact_url(source).into_owned();
    match url_scheme(source).filter(|(_, rest)| rest.starts_with("//")) {
        // Taken apart and put together it loses its `.` parts.
        None => local(
            &base.join(source).components().collect::<PathBuf>(),
            shown,
            temporary,
        ),
        Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => remote(source, shown, temporary, clock),
            "obj" => stored(&ObjectName::parse(rest)?, shown, temporary, bus),
            _ => Err(SourceError::Unsupported(shown)),
        },
    }
}

fn local(path: &Path, shown: String, temporary: &Path) -> Result<Fetched, SourceError> {
    let found = files::inspect(path, true)?;
    let is_directory = found.is_some_and(|found| found.kind == FileKind::Directory);
    let is_bundle = path.to_str().and_then(ArchiveKind::of) == Some(ArchiveKind::TarGz);
    if is_bundle && !is_directory {
        return unbundled(path, shown, PrivateDir::create(temporary, "manifest-")?);
    }
    let (manifest_path, shown) = if is_directory {
        (
            path.join(MANIFEST),
            format!("{}/{MANIFEST}", shown.trim_end_matches('/')),
        )
    } else {
        (path.to_owned(), shown)
    };
    Ok(Fetched {
        directory: parent(&manifest_path),
        manifest_path,
        shown,
        object: None,
        temp: None,
    })
}

fn remote(
    url: &str,
    shown: String,
    temporary: &Path,
    clock: &dyn Clock,
) -> Result<Fetched, SourceError> {
    let temp = PrivateDir::create(temporary, "manifest-")?;
    let bundle = temp.path().join("download");
    let request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
    let attributes = Attributes::default();
    files::store_with(&bundle, &attributes, Durability::Cached, |mut file| {
        http::get(&request, clock, &mut file)
            .map(drop)
            .map_err(SourceError::from)
    })?;
    unbundled(&bundle, shown, temp)
}

fn stored(
    object: &ObjectName,
    shown: String,
    temporary: &Path,
    bus: &dyn Bus,
) -> Result<Fetched, SourceError> {
    let temp = PrivateDir::create(temporary, "manifest-")?;
    let bundle = temp.path().join("download");
    let attributes = Attributes::default();
    files::store_with(&bundle, &attributes, Durability::Cached, |file| {
        let file = file.try_clone().map_err(SourceError::Store)?;
        bus.object(&object.bucket, &object.name, SIZE_LIMIT, file)
            .map_err(SourceError::from)
    })?;
    let fetched = unbundled(&bundle, shown, temp)?;
    Ok(Fetched {
        object: Some(object.clone()),
        ..fetched
    })
}

/// Unpacks a bundle into a directory that goes with the manifest.
fn unbundled(bundle: &Path, shown: String, temp: PrivateDir) -> Result<Fetched, SourceError> {
    let manifest_path = unbundle(bundle, &temp.path().join("bundle"))?;
    Ok(Fetched {
        directory: parent(&manifest_path),
        manifest_path,
        shown,
        object: None,
        temp: Some(temp),
    })
}

/// Unpacks a bundle into a new directory and returns the manifest in it: the first by that name,
/// at any depth.
pub fn unbundle(bundle: &Path, directory: &Path) -> Result<PathBuf, SourceError> {
    files::create_private_dir(directory)?;
    let kind = ArchiveKind::TarGz;
    let unpacked = unpack::unpack(bundle, kind, directory, Rules::Bundle, Limits::BUNDLE)?;
    let manifest = unpacked
        .iter()
        .find(|path| path.file_name().is_some_and(|name| name == MANIFEST))
        .ok_or(SourceError::NoManifest)?;
    Ok(directory.join(manifest))
}

fn parent(file: &Path) -> PathBuf {
    file.parent().unwrap_or(file).to_owned()
}
