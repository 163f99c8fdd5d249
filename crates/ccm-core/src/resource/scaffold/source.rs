//! Scaffold sources: a directory, or an archive on disk or on an HTTP server.
//!
//! An archive is fetched and unpacked once per run, into a temporary directory that is removed after the
//! run, so that a scaffold is inspected, written and verified with the same templates. Template contents
//! are not read here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{Host, is_http};
use super::ScaffoldError;
use crate::model::resource::ArchiveFormat;
use crate::model::secret::redact_url;
use crate::model::text::{clean_path, url_scheme};
use crate::system::files::{self, Attributes, Durability, FileKind, PrivateDir};
use crate::system::http::{self, Request};
use crate::system::unpack::{self, Limits, Rules};

/// The timeout of a download.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The maximum size of an archive.
const SIZE_LIMIT: u64 = 256 << 20;

/// The unpacked archives of one run.
#[derive(Debug)]
pub struct SourceCache {
    /// By URL, or by path, size and modification time.
    unpacked: RefCell<BTreeMap<String, PrivateDir>>,
    /// The parent directory for unpacked archives.
    temporary: PathBuf,
}

impl Default for SourceCache {
    fn default() -> Self {
        Self {
            unpacked: RefCell::default(),
            temporary: std::env::temp_dir(),
        }
    }
}

impl SourceCache {
    /// Returns the template directory of a source, fetching and unpacking it if needed.
    pub(super) fn directory(&self, source: &str, host: Host<'_>) -> Result<PathBuf, ScaffoldError> {
        match url_scheme(source).filter(|(_, rest)| rest.starts_with("//")) {
            Some((scheme, _)) => {
                let kind = ArchiveFormat::from_url(source).filter(|_| is_http(scheme));
                let unsupported =
                    || ScaffoldError::UnsupportedSource(redact_url(source).into_owned());
                self.remote(source, kind.ok_or_else(unsupported)?, host)
            }
            None => {
                let path = host.working_dir.join(clean_path(source));
                let may_read = host.env.check_read(&path);
                may_read.map_err(ScaffoldError::SourceDenied)?;
                self.local(&path)
            }
        }
    }

    fn remote(
        &self,
        url: &str,
        kind: ArchiveFormat,
        host: Host<'_>,
    ) -> Result<PathBuf, ScaffoldError> {
        self.unpacked_once(url, |directory| {
            let archive = directory.join("download");
            let request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
            let attributes = Attributes::default();
            files::store_with(&archive, &attributes, Durability::Cached, |mut file| {
                let reply = http::get(&request, host.clock, &mut file);
                reply.map(drop).map_err(ScaffoldError::from)
            })?;
            unpack_into(directory, &archive, kind)?;
            Ok(files::remove(&archive)?)
        })
    }

    fn local(&self, path: &Path) -> Result<PathBuf, ScaffoldError> {
        let seen = files::inspect(path, true).map_err(ScaffoldError::Source)?;
        let seen = seen.filter(|seen| seen.kind == FileKind::Regular);
        let kind = path.to_str().and_then(ArchiveFormat::from_name);
        let (Some(seen), Some(kind)) = (seen, kind) else {
            return Ok(path.to_owned());
        };
        // An earlier resource may have replaced the file, so size and time are part of the key.
        let key = format!("{} {} {}", path.display(), seen.size, seen.mtime);
        self.unpacked_once(&key, |directory| unpack_into(directory, path, kind))
    }

    /// Returns the unpacked directory of an archive, calling `fill` on first use.
    fn unpacked_once(
        &self,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<(), ScaffoldError>,
    ) -> Result<PathBuf, ScaffoldError> {
        if let Some(directory) = self.unpacked.borrow().get(key) {
            return Ok(templates_dir(directory.path()));
        }
        let directory = PrivateDir::create(&self.temporary, "scaffold-")?;
        fill(directory.path())?;
        let templates = templates_dir(directory.path());
        self.unpacked.borrow_mut().insert(key.into(), directory);
        Ok(templates)
    }
}

fn templates_dir(directory: &Path) -> PathBuf {
    directory.join("templates")
}

fn unpack_into(directory: &Path, archive: &Path, kind: ArchiveFormat) -> Result<(), ScaffoldError> {
    let into = templates_dir(directory);
    files::create_private_dir(&into)?;
    unpack::unpack(archive, kind, &into, Rules::Bundle, Limits::BUNDLE)?;
    Ok(())
}
