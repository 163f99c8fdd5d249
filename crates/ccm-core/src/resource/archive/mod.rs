//! archive type: downloads an archive, verifies its checksum, optionally unpacks and removes it.
//!
//! The `creates` path shows whether the archive was unpacked, unless `unpack_record` knows that it was
//! interrupted; the archive file itself is compared by checksum and owner. Download and unpacking are
//! in `http`.

mod http;
mod unpack_record;

use std::path::Path;

use chrono::Local;

use super::{
    Host, Plan, Progress, ProviderError, ResourceError, check_reached, creates_exists, is_http,
};
use crate::model::TypeName;
use crate::model::resource::{Archive, Resource};
use crate::model::state::{ArchiveMetadata, Detail, State, UnpackState};
use crate::model::text::url_scheme;
use crate::system::files::{self, Attributes, FileError, FileKind};

pub use http::DownloadError;
use unpack_record::UnpackRecord;

/// The only provider.
pub(super) const PROVIDER: &str = "http";

/// An archive action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Download,
    SetOwner,
    /// `is_fresh` if it was downloaded by this plan.
    Extract {
        is_fresh: bool,
    },
    CleanUp,
    Remove,
}

impl Action {
    /// Returns the message of a noop run.
    fn message(self) -> &'static str {
        match self {
            Self::Download => "Would have downloaded",
            Self::SetOwner => "Would have updated attributes",
            Self::Extract { .. } => "Would have extracted",
            Self::CleanUp => "Would have cleaned up",
            Self::Remove => "Would have removed",
        }
    }
}

/// Checks that the provider supports the URL. An archive without a URL can only be inspected.
pub(super) fn check_provider(wanted: &str, archive: &Archive) -> Result<(), ProviderError> {
    let is_http = url_scheme(&archive.url).is_some_and(|(scheme, _)| is_http(scheme));
    match wanted {
        "" | PROVIDER if is_http || archive.url.is_empty() => Ok(()),
        "" => Err(ProviderError::NoneSuitable),
        PROVIDER => Err(ProviderError::NotManageable),
        _ => Err(ProviderError::NotFound),
    }
}

/// Reads the state of an archive and of its `creates` path. A dangling link counts as an archive only if
/// the archive should be absent.
pub(super) fn inspect(
    resource: &Resource,
    archive: &Archive,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let mut metadata = ArchiveMetadata {
        name: name.clone(),
        provider: PROVIDER.into(),
        creates_exists: creates_exists(&archive.creates)?,
        ..ArchiveMetadata::default()
    };
    if let Some(record) = record(name, archive, host) {
        metadata.unpacked = record.read()?;
    }
    if let Some((seen, digest)) = files::inspect_and_hash(Path::new(name))?
        && (seen.kind != FileKind::Symlink || resource.common.ensure == "absent")
    {
        metadata.archive_exists = true;
        metadata.owner = (*host.accounts.user_name(seen.uid)).into();
        metadata.group = (*host.accounts.group_name(seen.gid)).into();
        metadata.mtime = Some(seen.mtime.with_timezone(&Local).fixed_offset());
        metadata.size = seen.size;
        metadata.checksum = digest.map(|digest| digest.to_string()).unwrap_or_default();
    }
    let ensure = if metadata.archive_exists {
        "present"
    } else {
        "absent"
    };
    let detail = Detail::Archive { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

/// Returns the unpack record of an archive that is to be unpacked.
fn record<'a>(name: &'a str, archive: &'a Archive, host: Host<'_>) -> Option<UnpackRecord<'a>> {
    let parent = archive.extract_parent.as_str();
    (!parent.is_empty()).then(|| UnpackRecord::new(name, parent, host))
}

/// Returns the first difference between a state and the wanted properties.
fn difference(
    resource: &Resource,
    archive: &Archive,
    seen: &ArchiveMetadata,
    host: Host<'_>,
) -> Option<String> {
    if resource.common.ensure == "absent" {
        return seen
            .archive_exists
            .then(|| "archive still exists (ensure=present)".into());
    }
    if lacks_creation(archive, seen) {
        return Some(format!("creates path missing: {}", archive.creates));
    }
    if is_incomplete(archive, seen) {
        let parent = &archive.extract_parent;
        return Some(match seen.unpacked {
            UnpackState::Complete(_) => format!("another archive was extracted: {parent}"),
            _ => format!("not completely extracted: {parent}"),
        });
    }
    if !seen.archive_exists {
        return (!archive.cleanup).then(|| "archive file missing".into());
    }
    let mismatch = |attribute: &str, found: &str, wanted: &str| {
        Some(format!(
            "{attribute} mismatch: state={found} requested={wanted}"
        ))
    };
    if !host.accounts.same_user(&archive.owner, &seen.owner) {
        return mismatch("owner", &seen.owner, &archive.owner);
    }
    if !host.accounts.same_group(&archive.group, &seen.group) {
        return mismatch("group", &seen.group, &archive.group);
    }
    if !archive.checksum.is_empty() && !has_wanted_content(archive, seen) {
        return mismatch("checksum", &seen.checksum, &archive.checksum);
    }
    None
}

fn lacks_creation(archive: &Archive, seen: &ArchiveMetadata) -> bool {
    !archive.creates.is_empty() && !seen.creates_exists
}

/// Reports whether unpacking was interrupted, or another archive was unpacked than the wanted one.
fn is_incomplete(archive: &Archive, seen: &ArchiveMetadata) -> bool {
    match &seen.unpacked {
        UnpackState::Unknown => false,
        UnpackState::Interrupted(_) => true,
        // An archive that was removed after it was unpacked is compared by its record.
        UnpackState::Complete(digest) => {
            !archive.checksum.is_empty()
                && (has_wanted_content(archive, seen) || !seen.archive_exists)
                && !digest.eq_ignore_ascii_case(&archive.checksum)
        }
    }
}

/// Reports whether the archive exists and was downloaded completely, but not unpacked.
fn is_downloaded(archive: &Archive, seen: &ArchiveMetadata) -> bool {
    match &seen.unpacked {
        UnpackState::Interrupted(digest) if archive.checksum.is_empty() => {
            !digest.is_empty() && *digest == seen.checksum
        }
        _ => has_wanted_content(archive, seen),
    }
}

/// Reports whether the archive exists with the wanted checksum.
fn has_wanted_content(archive: &Archive, seen: &ArchiveMetadata) -> bool {
    !seen.checksum.is_empty() && seen.checksum.eq_ignore_ascii_case(&archive.checksum)
}

fn is_owned(archive: &Archive, seen: &ArchiveMetadata, host: Host<'_>) -> bool {
    host.accounts.same_user(&archive.owner, &seen.owner)
        && host.accounts.same_group(&archive.group, &seen.group)
}

fn seen(state: &State) -> Result<&ArchiveMetadata, ResourceError> {
    match &state.detail {
        Detail::Archive { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::Archive, state)),
    }
}

/// Plans the actions for an archive.
pub(super) fn plan(
    resource: &Resource,
    archive: &Archive,
    state: &State,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let seen = seen(state)?;
    let is_wanted = resource.common.ensure != "absent";
    if is_wanted && seen.archive_exists && seen.checksum.is_empty() {
        // Only regular files have a checksum.
        let path = Path::new(&resource.common.name).to_owned();
        return Err(FileError::NotRegular(path).into());
    }
    let Some(reason) = difference(resource, archive, seen, host) else {
        return Ok(Plan::stable());
    };
    let actions = if is_wanted {
        steps(archive, seen, host)
    } else {
        vec![Action::Remove]
    };
    if actions.is_empty() {
        // `creates` is missing, but the archive is not to be unpacked.
        return Err(ResourceError::not_reached(resource, reason));
    }
    let messages: Vec<&str> = actions.iter().map(|action| action.message()).collect();
    let message = messages.join(". ");
    Ok(Plan::with_actions(actions, message))
}

/// Returns the actions for an archive that differs from its wanted state.
fn steps(archive: &Archive, seen: &ArchiveMetadata, host: Host<'_>) -> Vec<Action> {
    let mut steps = Vec::new();
    let is_fresh = !is_downloaded(archive, seen);
    if is_fresh {
        steps.push(Action::Download);
    } else if !archive.cleanup && !is_owned(archive, seen, host) {
        steps.push(Action::SetOwner);
    }
    let is_unpacked = !is_fresh && !lacks_creation(archive, seen) && !is_incomplete(archive, seen);
    if !archive.extract_parent.is_empty() && !is_unpacked {
        steps.push(Action::Extract { is_fresh });
    }
    if archive.cleanup {
        steps.push(Action::CleanUp);
    }
    steps
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    archive: &Archive,
    action: Action,
    host: Host<'_>,
    on_progress: &dyn Fn(Progress<'_>),
) -> Result<(), ResourceError> {
    let path = Path::new(&resource.common.name);
    match action {
        Action::Download => {
            let record = record(&resource.common.name, archive, host);
            http::download(path, archive, record.as_ref(), host, on_progress)
                .map_err(ResourceError::Download)
        }
        Action::SetOwner => {
            let attributes = Attributes {
                uid: Some(host.accounts.uid(&archive.owner)?),
                gid: Some(host.accounts.gid(&archive.group)?),
                mode: None,
            };
            Ok(files::set_attributes(path, &attributes)?)
        }
        Action::Extract { is_fresh } => {
            let record = UnpackRecord::new(&resource.common.name, &archive.extract_parent, host);
            let result = http::extract(path, archive, &record, host);
            if result.is_err() && is_fresh && archive.creates.is_empty() {
                // Without `creates`, an existing archive counts as unpacked, so it is removed for the
                // next run to retry. The error of unpacking is reported, not that of the removal.
                let _ = files::remove(path);
            }
            result
        }
        Action::CleanUp | Action::Remove => Ok(files::remove(path)?),
    }
}

/// Reads the state again and checks it.
pub(super) fn verify(
    resource: &Resource,
    archive: &Archive,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, archive, host)?;
    let difference = difference(resource, archive, seen(&state)?, host);
    check_reached(resource, state, difference)
}
