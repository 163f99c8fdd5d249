//! link type: a symbolic link and its target.
//!
//! The link itself is managed, never what it leads to; a target need not exist. What is not a link is
//! replaced or removed only if the author forces it.

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

use super::{Host, Plan, ResourceError, check_reached};
use crate::model::TypeName;
use crate::model::resource::{Link, Resource};
use crate::model::state::{Detail, LinkMetadata, State};
use crate::system::files::{self, FileError, FileKind, Replace};

/// The only provider, always usable.
pub(super) const PROVIDER: &str = "posix";

/// A link action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create(Replace),
    Remove,
    RemoveForced,
}

/// Reads the state of a path: `present` for a link, `absent`, or what else is there.
pub(super) fn inspect(resource: &Resource, host: Host<'_>) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let path = Path::new(name);
    let found = files::inspect(path, false)?;
    let mut metadata = LinkMetadata {
        name: name.clone(),
        provider: PROVIDER.into(),
        ..LinkMetadata::default()
    };
    let ensure = match found.map(|found| found.kind) {
        None => "absent",
        Some(FileKind::Regular) => "file",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Special) => "special",
        Some(FileKind::Symlink) => match files::read_link(path)? {
            Some(target) => {
                metadata.target = target.to_string_lossy().into_owned();
                metadata.is_exact = target.to_str().is_some();
                "present"
            }
            // Removed or replaced meanwhile.
            None => "absent",
        },
    };
    let detail = Detail::Link { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

fn seen(state: &State) -> Result<&LinkMetadata, ResourceError> {
    match &state.detail {
        Detail::Link { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::Link, state)),
    }
}

/// Returns the difference between a state and the wanted properties.
fn difference(
    resource: &Resource,
    link: &Link,
    state: &State,
) -> Result<Option<String>, ResourceError> {
    let metadata = seen(state)?;
    let (found, wanted) = (&state.common.ensure, &resource.common.ensure);
    Ok(if found != wanted {
        Some(format!("ensure mismatch: state={found} requested={wanted}"))
    } else if wanted == "present" && !(metadata.is_exact && metadata.target == link.target) {
        let (found, wanted) = (&metadata.target, &link.target);
        Some(format!("target mismatch: state={found} requested={wanted}"))
    } else {
        None
    })
}

/// Plans the actions for a link.
pub(super) fn plan(
    resource: &Resource,
    link: &Link,
    state: &State,
) -> Result<Plan<Action>, ResourceError> {
    if difference(resource, link, state)?.is_none() {
        return Ok(Plan::stable());
    }
    let found = state.common.ensure.as_str();
    let is_other = !matches!(found, "present" | "absent");
    if is_other && !link.force {
        let path = resource.common.name.clone().into();
        return Err(FileError::InTheWay(path).into());
    }
    let (action, message) = match (resource.common.ensure.as_str(), found) {
        ("absent", "present") => (Action::Remove, "Would have removed the link"),
        ("absent", _) => (
            Action::RemoveForced,
            "Would have removed what is at the path",
        ),
        (_, "absent") => (
            Action::Create(Replace::Nothing),
            "Would have created the link",
        ),
        (_, "present") => (
            Action::Create(Replace::Link),
            "Would have changed the target",
        ),
        _ => (
            Action::Create(Replace::Anything),
            "Would have replaced what is at the path by the link",
        ),
    };
    Ok(Plan::with_actions(vec![action], message))
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    link: &Link,
    action: Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let path = Path::new(&resource.common.name);
    match action {
        Action::Create(replace) => host
            .files
            .symlink(path, OsStr::new(&link.target), replace)?,
        Action::Remove => match files::read_link(path)? {
            Some(_) => files::remove(path)?,
            None if files::inspect(path, false)?.is_none() => {}
            None => return Err(FileError::InTheWay(path.to_owned()).into()),
        },
        Action::RemoveForced => files::remove_recursive(path)?,
    }
    Ok(())
}

/// Reads the state again and checks it.
pub(super) fn verify(
    resource: &Resource,
    link: &Link,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, host)?;
    let difference = difference(resource, link, &state)?;
    check_reached(resource, state, difference)
}

/// Writes the change of the target as one line.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    link: &Link,
    state: &State,
) -> Result<(), ResourceError> {
    let metadata = seen(state)?;
    let old = match state.common.ensure.as_str() {
        "present" => metadata.target.as_str(),
        other => other,
    };
    let new = match resource.common.ensure.as_str() {
        "present" => link.target.as_str(),
        other => other,
    };
    let _ = writeln!(out, "{}: target {old} -> {new}", resource.common.name);
    Ok(())
}
