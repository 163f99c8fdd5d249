//! line type: a line or a marked block in a file that other programs or people edit, too.
//!
//! Owner, mode, encoding and line ends of the file are kept, and the whole file is replaced at once.
//! `edit` has the rules; they only work on bytes. A symbolic link is not followed.

mod edit;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests;

use std::path::Path;

use chrono::Local;

use super::{Host, Plan, ResourceError, check_reached, file};
use crate::model::TypeName;
use crate::model::resource::{Line, Resource};
use crate::model::state::{Detail, LineMetadata, State};
use crate::system::Digest;
use crate::system::files::{self, Attributes, Content, Durability};
pub use edit::{EditError, EditKind};

/// The only provider, always usable.
pub(super) const PROVIDER: &str = "posix";

/// The maximum size of a file in which lines are managed.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A line action: the new content of the file, or why there is none. A noop run can't tell whether an
/// earlier resource would create the file, or the line that marks the place, so it is an error of the
/// change only.
#[derive(Clone, PartialEq, Eq)]
pub struct Action {
    content: Result<Vec<u8>, NotEditable>,
}

/// Why a file can't be edited yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NotEditable {
    NoFile,
    NoPlace(EditError),
}

impl std::fmt::Debug for Action {
    /// Shows no content, which may be secret.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.content.as_ref().map(Vec::len).ok();
        out.debug_struct("Action").field("bytes", &bytes).finish()
    }
}

/// A failure to edit a file.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("{path}: {reason}")]
    Edit {
        path: String,
        #[source]
        reason: EditError,
    },
    #[error("{0} does not exist; create it first, for example with a file resource")]
    NoFile(String),
    #[error("{0} was changed by another program during the run; nothing was written")]
    Changed(String),
}

/// Reads the file. The state is `present` if the file has the wanted line or block.
pub(super) fn inspect(
    resource: &Resource,
    line: &Line,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let path = line.file(name);
    let mut metadata = LineMetadata {
        name: name.clone(),
        path: path.into(),
        provider: PROVIDER.into(),
        ..LineMetadata::default()
    };
    let mut ensure = "absent";
    if let Some((found, content)) = files::read_no_follow(Path::new(path), MAX_BYTES)? {
        metadata.owner = (*host.accounts.user_name(found.uid)).into();
        metadata.group = (*host.accounts.group_name(found.gid)).into();
        metadata.mode = format!("{:04o}", found.mode);
        metadata.mtime = Some(found.mtime.with_timezone(&Local).fixed_offset());
        metadata.size = found.size;
        metadata.checksum = Digest::of(&content).to_string();
        if contains(resource, line, &content)? {
            ensure = "present";
        }
        metadata.content = Some(content);
    }
    let detail = Detail::Line { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

/// Reports whether the content has the line or block. Without either, an existing file is enough: a
/// status request need not name them.
fn contains(resource: &Resource, line: &Line, content: &[u8]) -> Result<bool, ResourceError> {
    if line.line.is_none() && line.block.is_none() && line.pattern.is_empty() {
        return Ok(true);
    }
    let is_present = resource.common.ensure != "absent";
    let is_as_wanted = match edited(resource, line, content) {
        Err(LineError::Edit {
            reason: EditError::NoPlace(_),
            ..
        }) => false,
        edited => edited?.is_none(),
    };
    Ok(is_as_wanted == is_present)
}

fn edited(
    resource: &Resource,
    line: &Line,
    content: &[u8],
) -> Result<Option<(Vec<u8>, EditKind)>, LineError> {
    let name = &resource.common.name;
    let is_present = resource.common.ensure != "absent";
    edit::edit(content, name, line, is_present).map_err(|reason| LineError::Edit {
        path: line.file(name).into(),
        reason,
    })
}

fn seen(state: &State) -> Result<&LineMetadata, ResourceError> {
    match &state.detail {
        Detail::Line { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::Line, state)),
    }
}

/// Plans the edit of a file.
pub(super) fn plan(
    resource: &Resource,
    line: &Line,
    state: &State,
) -> Result<Plan<Action>, ResourceError> {
    let metadata = seen(state)?;
    let addition = match line.block {
        Some(_) => EditKind::AddBlock,
        None => EditKind::AddLine,
    };
    let (content, kind) = match &metadata.content {
        Some(content) => match edited(resource, line, content) {
            Ok(None) => return Ok(Plan::stable()),
            Ok(Some((content, kind))) => (Ok(content), kind),
            Err(LineError::Edit {
                reason: reason @ EditError::NoPlace(_),
                ..
            }) => (Err(NotEditable::NoPlace(reason)), addition),
            Err(err) => return Err(err.into()),
        },
        None if resource.common.ensure == "absent" => return Ok(Plan::stable()),
        None => (Err(NotEditable::NoFile), addition),
    };
    let message = match kind {
        EditKind::AddLine => "Would have added the line",
        EditKind::ReplaceLine => "Would have replaced the line",
        EditKind::RemoveLine => "Would have removed the line",
        EditKind::AddBlock => "Would have added the block",
        EditKind::UpdateBlock => "Would have updated the block",
        EditKind::RemoveBlock => "Would have removed the block",
    };
    Ok(Plan::with_actions(vec![Action { content }], message))
}

/// Writes the new content, unless the file is no longer the one that was planned for.
pub(super) fn change(
    resource: &Resource,
    line: &Line,
    state: &State,
    action: &Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let name = line.file(&resource.common.name);
    let path = Path::new(name);
    let metadata = seen(state)?;
    let content = match &action.content {
        Ok(content) => content,
        Err(NotEditable::NoFile) => return Err(LineError::NoFile(name.into()).into()),
        Err(NotEditable::NoPlace(reason)) => {
            let (path, reason) = (name.into(), reason.clone());
            return Err(LineError::Edit { path, reason }.into());
        }
    };
    match files::read_no_follow(path, MAX_BYTES)? {
        Some((found, now)) if Some(&now) == metadata.content.as_ref() => {
            let attributes = Attributes {
                uid: Some(found.uid),
                gid: Some(found.gid),
                mode: Some(found.mode),
            };
            let content = Content::Bytes(content);
            host.files
                .store(path, content, &attributes, Durability::Content)?;
            Ok(())
        }
        _ => Err(LineError::Changed(name.into()).into()),
    }
}

/// Reads the file again and checks it.
pub(super) fn verify(
    resource: &Resource,
    line: &Line,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, line, host)?;
    let (found, wanted) = (&state.common.ensure, &resource.common.ensure);
    let difference =
        (found != wanted).then(|| format!("ensure mismatch: state={found} requested={wanted}"));
    check_reached(resource, state, difference)
}

/// Writes the edit as a unified diff.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    line: &Line,
    state: &State,
    action: &Action,
) -> Result<(), ResourceError> {
    let text = |content: Option<&Vec<u8>>| {
        String::from_utf8_lossy(content.map_or(&[][..], Vec::as_slice)).into_owned()
    };
    let Ok(content) = &action.content else {
        return Ok(());
    };
    let (old, new) = (text(seen(state)?.content.as_ref()), text(Some(content)));
    let name = line.file(&resource.common.name);
    file::diff_content(out, name, Some(&old), Some(&new), resource.common.sensitive);
    Ok(())
}
