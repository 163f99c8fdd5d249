//! Where templates come from: a directory as it is, or an archive, on disk or on a server.
//!
//! An archive is fetched and unpacked once per run, into a directory of our own that goes with the
//! run. So a scaffold is inspected, written and verified from the very same templates, whatever
//! the server does meanwhile. What the files say is not known here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::Host;
use super::ScaffoldError;
use crate::model::resource::ArchiveFormat;
use crate::model::secret::redact_url;
use crate::model::text::{clean_path, url_scheme};
use crate::system::files::{self, Attributes, Durability, FileKind, PrivateDir};
use crate::system::http::{self, Request};
use crate::system::unpack::{self, Limits, Rules};

/// How long getting an archive may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How large an archive may be.
const SIZE_LIMIT: u64 = 256 << 20;

/// The archives that the scaffolds of one run have unpacked.
#[derive(Debug)]
pub struct SourceCache {
    /// By what tells one archive from another.
    unpacked: RefCell<BTreeMap<String, PrivateDir>>,
    /// Where they are unpacked.
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
    /// Returns the directory of a source's templates.
    pub(super) fn directory(&self, source: &str, host: Host<'_>) -> Result<PathBuf, ScaffoldError> {
        match url_scheme(source).filter(|(_, rest)| rest.starts_with("//")) {
            Some((scheme, _)) => {
                let is_http = ["http", "https"]
                    .iter()
                    .any(|known| scheme.eq_ignore_ascii_case(known));
                let kind = ArchiveFormat::from_url(source).filter(|_| is_http);
                let unsupported =
                    || ScaffoldError::UnsupportedSource(redact_url(source).into_owned());
                self.remote(source, kind.ok_or_else(unsupported)?, host)
            }
            None => {
                let path = host.working_dir.join(clean_path(source));
                let may_read = host.env.check_read(&path);
                may_read.map_err(ScaffoldError::MayNotRead)?;
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
        self.once(url, |directory| {
            let archive = directory.join("download");
            let request = Request::new(url, TIME_LIMIT, SIZE_LIMIT);
            let attributes = Attributes::default();
            files::store_with(&archive, &attributes, Durability::Cached, |mut file| {
                let reply = http::get(&request, host.clock, &mut file);
                reply.map(drop).map_err(ScaffoldError::from)
            })?;
            unpack_below(directory, &archive, kind)?;
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
        // An earlier resource may have made it another one.
        let key = format!("{} {} {}", path.display(), seen.size, seen.mtime);
        self.once(&key, |directory| unpack_below(directory, path, kind))
    }

    /// Returns where an archive was unpacked, by `fill` if no one did so before.
    fn once(
        &self,
        key: &str,
        fill: impl FnOnce(&Path) -> Result<(), ScaffoldError>,
    ) -> Result<PathBuf, ScaffoldError> {
        if let Some(directory) = self.unpacked.borrow().get(key) {
            return Ok(templates(directory.path()));
        }
        let directory = PrivateDir::create(&self.temporary, "scaffold-")?;
        fill(directory.path())?;
        let templates = templates(directory.path());
        self.unpacked.borrow_mut().insert(key.into(), directory);
        Ok(templates)
    }
}

fn templates(directory: &Path) -> PathBuf {
    directory.join("templates")
}

fn unpack_below(
    directory: &Path,
    archive: &Path,
    kind: ArchiveFormat,
) -> Result<(), ScaffoldError> {
    let into = templates(directory);
    files::create_private_dir(&into)?;
    unpack::unpack(archive, kind, &into, Rules::Bundle, Limits::BUNDLE)?;
    Ok(())
}
