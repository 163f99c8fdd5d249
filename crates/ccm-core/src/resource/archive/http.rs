//! `http` provider of archives: downloads next to the target and unpacks in this process. Planning is in
//! the parent module.

use std::path::Path;
use std::time::Duration;

use super::super::{Host, Progress, ResourceError};
use super::unpack_record::UnpackRecord;
use crate::model::resource::{Archive, ArchiveFormat};
use crate::system::files::{self, Attributes, Durability};
use crate::system::http::{self, OnProgress, Reply, Request};
use crate::system::unpack;
use crate::system::{AccountError, FileError, HttpError};

/// The timeout of a download.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The maximum size of an archive.
const SIZE_LIMIT: u64 = 8 << 30;

/// The mode of a downloaded archive.
const MODE: u32 = 0o600;

/// A failed download.
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

/// Downloads an archive. The file is replaced atomically, after the checksum was verified and `record`
/// says that the archive is to be unpacked.
pub(super) fn download(
    path: &Path,
    archive: &Archive,
    record: Option<&UnpackRecord<'_>>,
    host: Host<'_>,
    on_progress: &dyn Fn(Progress<'_>),
) -> Result<(), DownloadError> {
    let attributes = Attributes {
        uid: Some(host.accounts.uid(&archive.owner)?),
        gid: Some(host.accounts.gid(&archive.group)?),
        mode: Some(MODE),
    };
    let watch = |bytes, of| on_progress(Progress::Received { bytes, of });
    let mut request = Request::new(&archive.url, TIME_LIMIT, SIZE_LIMIT);
    request.progress = Some(OnProgress(&watch));
    let headers = archive.headers.iter();
    request.headers = headers
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    if !archive.username.is_empty() && !archive.password.is_empty() {
        request.credentials = Some((&archive.username, &archive.password));
    }
    let durability = Durability::Content;
    host.files
        .store_with(path, &attributes, durability, |mut file| {
            let Reply::Complete(received) = http::get(&request, host.clock, &mut file)? else {
                // Not sent for a request without an ETag.
                return Ok(());
            };
            let digest = received.digest.to_string();
            verify_checksum(archive, &digest)?;
            match record {
                Some(record) => Ok(record.begin(&digest)?),
                None => Ok(()),
            }
        })
}

fn verify_checksum(archive: &Archive, got: &str) -> Result<(), DownloadError> {
    let expected = &archive.checksum;
    if expected.is_empty() || expected.eq_ignore_ascii_case(got) {
        return Ok(());
    }
    Err(DownloadError::Checksum {
        expected: expected.clone(),
        got: got.into(),
    })
}

/// Unpacks an archive into its directory, which is created if missing.
pub(super) fn extract(
    path: &Path,
    archive: &Archive,
    record: &UnpackRecord<'_>,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let kind = path
        .to_str()
        .and_then(ArchiveFormat::from_name)
        .ok_or(ResourceError::ArchiveType)?;
    let _lock = record.lock(host)?;
    let digest = match archive.checksum.as_str() {
        "" => files::sha256(path)?.to_string(),
        checksum => checksum.to_ascii_lowercase(),
    };
    record.begin(&digest)?;
    let parent = Path::new(&archive.extract_parent);
    if files::inspect(parent, true)?.is_none() {
        let attributes = Attributes {
            mode: Some(0o755),
            ..Attributes::default()
        };
        files::create_directory(parent, &attributes)?;
    }
    let staging = record.staging();
    unpack::unpack_staged(path, &digest, kind, parent, &staging, host.files)?;
    Ok(record.complete(&digest)?)
}
