//! The `http` provider: downloads beside the target and unpacks in this process.
//!
//! Decides nothing: when to do either is the type's.

use std::path::Path;
use std::time::Duration;

use super::super::{Host, Progress, ResourceError};
use crate::model::resource::{Archive, ArchiveFormat};
use crate::system::files::{self, Attributes, Durability};
use crate::system::http::{self, OnProgress, Reply, Request};
use crate::system::unpack::{self, Limits, Rules};
use crate::system::{AccountError, FileError, HttpError};

/// How long a download may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How large an archive may be.
const SIZE_LIMIT: u64 = 8 << 30;

/// Who may read an archive: its owner.
const MODE: u32 = 0o600;

/// Why an archive could not be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("checksum mismatch, expected \"{expected}\" got \"{got}\"")]
    Checksum { expected: String, got: String },
}

/// Downloads an archive. It takes its place whole, checked and owned, or not at all.
pub(super) fn download(
    path: &Path,
    archive: &Archive,
    host: Host<'_>,
    tell: &dyn Fn(Progress<'_>),
) -> Result<(), DownloadError> {
    let attributes = Attributes {
        uid: Some(host.accounts.uid(&archive.owner)?),
        gid: Some(host.accounts.gid(&archive.group)?),
        mode: Some(MODE),
    };
    let watch = |bytes, of| tell(Progress::Received { bytes, of });
    let mut request = Request::new(&archive.url, TIME_LIMIT, SIZE_LIMIT);
    request.progress = Some(OnProgress(&watch));
    let headers = archive.headers.iter();
    request.headers = headers
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    if !archive.username.is_empty() && !archive.password.is_empty() {
        request.credentials = Some((&archive.username, &archive.password));
    }
    files::store_with(path, &attributes, Durability::Content, |mut file| {
        let reply = http::get(&request, host.clock, &mut file)?;
        match reply {
            Reply::Complete(received) => check(archive, &received.digest.to_string()),
            // Only who names a version is told that it is still the one.
            Reply::NotModified => Ok(()),
        }
    })
}

fn check(archive: &Archive, got: &str) -> Result<(), DownloadError> {
    let expected = &archive.checksum;
    if expected.is_empty() || expected.eq_ignore_ascii_case(got) {
        return Ok(());
    }
    Err(DownloadError::Checksum {
        expected: expected.clone(),
        got: got.into(),
    })
}

/// Unpacks an archive into its directory, made if it is missing.
pub(super) fn extract(path: &Path, archive: &Archive) -> Result<(), ResourceError> {
    let kind = path
        .to_str()
        .and_then(ArchiveFormat::from_name)
        .ok_or(ResourceError::ArchiveType)?;
    let parent = Path::new(&archive.extract_parent);
    if files::inspect(parent, true)?.is_none() {
        let attributes = Attributes {
            mode: Some(0o755),
            ..Attributes::default()
        };
        files::create_directory(parent, &attributes)?;
    }
    let (sum, rules, limits) = (&archive.checksum, Rules::Archive, Limits::ARCHIVE);
    if sum.is_empty() {
        unpack::unpack(path, kind, parent, rules, limits)?;
    } else {
        unpack::unpack_checked(path, sum, kind, parent, rules, limits)?;
    }
    Ok(())
}
