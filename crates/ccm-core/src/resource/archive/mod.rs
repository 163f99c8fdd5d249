//! archive: a file from a server, checked, perhaps unpacked, perhaps removed again.
//!
//! What was unpacked is only known by the path that `creates` names; the archive itself by its
//! checksum and owner. How bytes get here and out of an archive is in `http`.

mod http;

use std::path::Path;

use chrono::Local;

use super::{Host, Plan, Progress, ProviderError, ResourceError};
use crate::model::TypeName;
use crate::model::resource::{Archive, Resource};
use crate::model::state::{ArchiveMetadata, Detail, State};
use crate::model::text::url_scheme;
use crate::system::files::{self, Attributes, FileError, FileKind};

pub use http::DownloadError;

/// The name of the one provider.
pub(super) const PROVIDER: &str = "http";

/// One thing to do about an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Download,
    SetOwner,
    /// `is_fresh` if it was downloaded just before.
    Extract {
        is_fresh: bool,
    },
    CleanUp,
    Remove,
}

impl Action {
    /// Returns what a noop run says.
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

/// Checks that the provider can get what an archive names; one without a URL is only looked at.
pub(super) fn check_provider(wanted: &str, archive: &Archive) -> Result<(), ProviderError> {
    let is_http = url_scheme(&archive.url).is_some_and(|(scheme, _)| {
        ["http", "https"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known))
    });
    match wanted {
        "" | PROVIDER if is_http || archive.url.is_empty() => Ok(()),
        "" => Err(ProviderError::NoneSuitable),
        PROVIDER => Err(ProviderError::NotManageable),
        _ => Err(ProviderError::NotFound),
    }
}

/// Reads the state of an archive and of what it creates. A link that leads nowhere is no archive,
/// but when none is wanted it is in the way.
pub(super) fn inspect(
    resource: &Resource,
    archive: &Archive,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let mut metadata = ArchiveMetadata {
        name: name.clone(),
        provider: PROVIDER.into(),
        creates_exists: creates_exists(archive)?,
        ..ArchiveMetadata::default()
    };
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

fn creates_exists(archive: &Archive) -> Result<bool, FileError> {
    if archive.creates.is_empty() {
        return Ok(false);
    }
    let found = files::inspect(Path::new(&archive.creates), true)?;
    Ok(found.is_some_and(|found| found.kind != FileKind::Symlink))
}

/// Returns the first difference between a state and what is wanted.
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
    if !seen.archive_exists {
        return (!archive.cleanup).then(|| "archive file missing".into());
    }
    let mismatch = |what: &str, found: &str, wanted: &str| {
        Some(format!("{what} mismatch: state={found} requested={wanted}"))
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

/// Whether the archive is there and known to be the right one.
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

/// Decides what to do about an archive.
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
        // Something is to be created, and nothing is to be unpacked.
        return Err(ResourceError::NotReached {
            ensure: resource.common.ensure.clone(),
            reason,
        });
    }
    let messages: Vec<&str> = actions.iter().map(|action| action.message()).collect();
    Ok(Plan {
        message: messages.join(". "),
        actions,
        refreshed: false,
        satisfied: false,
        settles: true,
        tentative: false,
    })
}

/// Returns the way to an archive that is not as wanted.
fn steps(archive: &Archive, seen: &ArchiveMetadata, host: Host<'_>) -> Vec<Action> {
    let mut steps = Vec::new();
    let is_fresh = !has_wanted_content(archive, seen);
    if is_fresh {
        steps.push(Action::Download);
    } else if !archive.cleanup && !is_owned(archive, seen, host) {
        steps.push(Action::SetOwner);
    }
    if !archive.extract_parent.is_empty() && (is_fresh || lacks_creation(archive, seen)) {
        steps.push(Action::Extract { is_fresh });
    }
    if archive.cleanup {
        steps.push(Action::CleanUp);
    }
    steps
}

/// Carries one action out.
pub(super) fn change(
    resource: &Resource,
    archive: &Archive,
    action: Action,
    host: Host<'_>,
    tell: &dyn Fn(Progress<'_>),
) -> Result<(), ResourceError> {
    let path = Path::new(&resource.common.name);
    match action {
        Action::Download => {
            http::download(path, archive, host, tell).map_err(ResourceError::Download)
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
            let result = http::extract(path, archive);
            if result.is_err() && is_fresh && archive.creates.is_empty() {
                // Nothing but the archive tells that it was unpacked: the next run must not
                // find it. What went wrong before is what people must hear about.
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
    match difference(resource, archive, seen(&state)?, host) {
        None => Ok(state),
        Some(reason) => Err(ResourceError::NotReached {
            ensure: resource.common.ensure.clone(),
            reason,
        }),
    }
}
