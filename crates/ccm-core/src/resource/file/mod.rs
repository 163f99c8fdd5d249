//! file type: content, owner, group and mode of one path; copies of directory trees.
//!
//! `content` has the wanted content, `tree` the copies, `validate` the check of a new file.
//! Links are followed when reading and replaced when writing: the target of a link is never changed.

use std::fmt::Write as _;
use std::path::Path;

use chrono::{DateTime, FixedOffset, Local, Utc};

use super::{Host, Plan, ResourceError, check_reached};
use crate::model::TypeName;
use crate::model::resource::{File, FileEnsure, Resource, parse_mode};
use crate::model::state::{Detail, FileMetadata, State};
use crate::system::Digest;
use crate::system::files::{self, Attributes, Content, Durability, FileError, FileKind, Metadata};
pub use content::{Rendered, render};

mod content;
mod tree;
mod validate;

pub use tree::{TreeError, TreePlan};

/// The only provider, always usable.
pub(super) const PROVIDER: &str = "posix";

/// The maximum size of a file shown in a diff.
const DIFF_LIMIT: u64 = 1024 * 1024;

/// The setuid, setgid and sticky bits, which are kept on directories.
const SPECIAL_BITS: u32 = 0o7000;

/// A file action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    CreateDirectory,
    Remove {
        recursive: bool,
    },
    SetAttributes,
    Store,
    /// Copies what differs from the source of a directory.
    Copy(TreePlan),
}

/// Reads the state of a path. A dangling link counts as present if the path should be absent, otherwise
/// as absent.
pub(super) fn inspect(resource: &Resource, host: Host<'_>) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let mut metadata = FileMetadata {
        name: name.clone(),
        provider: PROVIDER.into(),
        ..FileMetadata::default()
    };
    let found = files::inspect_and_hash(Path::new(name))?;
    let ensure = match &found {
        None => FileEnsure::Absent,
        Some((seen, _)) if seen.kind == FileKind::Symlink => match wanted_ensure(resource) {
            FileEnsure::Absent => FileEnsure::Present,
            FileEnsure::Directory | FileEnsure::Present => FileEnsure::Absent,
        },
        Some((seen, _)) if seen.kind == FileKind::Directory => FileEnsure::Directory,
        Some(_) => FileEnsure::Present,
    };
    if let Some((seen, digest)) = found
        && ensure != FileEnsure::Absent
    {
        describe(&mut metadata, &seen, digest, host);
    }
    Ok(State::new(
        host.clock.now(),
        name,
        ensure.as_str(),
        Detail::File { metadata },
    ))
}

fn describe(metadata: &mut FileMetadata, seen: &Metadata, digest: Option<Digest>, host: Host<'_>) {
    metadata.owner = (*host.accounts.user_name(seen.uid)).into();
    metadata.group = (*host.accounts.group_name(seen.gid)).into();
    metadata.mode = format!("{:04o}", seen.mode);
    metadata.mtime = Some(local(seen.mtime));
    metadata.size = seen.size;
    if let Some(digest) = digest {
        metadata.checksum = digest.to_string();
    }
}

fn local(time: DateTime<Utc>) -> DateTime<FixedOffset> {
    time.with_timezone(&Local).fixed_offset()
}

/// Returns the mode of a directory: read or write permission implies the execute bit.
fn directory_mode(mode: u32) -> u32 {
    let execute = ((mode & 0o444) >> 2) | ((mode & 0o222) >> 1);
    mode | execute
}

fn wanted_mode(file: &File, ensure: FileEnsure) -> Result<u32, ResourceError> {
    let mode = parse_mode(&file.mode)?;
    Ok(match ensure {
        FileEnsure::Directory => directory_mode(mode),
        _ => mode,
    })
}

fn wanted_ensure(resource: &Resource) -> FileEnsure {
    FileEnsure::parse(&resource.common.ensure).unwrap_or(FileEnsure::Present)
}

/// Returns what differs from the source of a directory; nothing if it has no source.
fn tree_plan(
    resource: &Resource,
    file: &File,
    host: Host<'_>,
) -> Result<Option<TreePlan>, ResourceError> {
    if wanted_ensure(resource) != FileEnsure::Directory || file.source.is_empty() {
        return Ok(None);
    }
    let plan = tree::compare(Path::new(&resource.common.name), file, host)?;
    Ok((!plan.is_empty()).then_some(plan))
}

fn seen(state: &State) -> Result<&FileMetadata, ResourceError> {
    match &state.detail {
        Detail::File { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::File, state)),
    }
}

/// Returns the first difference between a state and the wanted properties. Trees are compared by
/// [`tree_plan`].
fn difference(
    resource: &Resource,
    file: &File,
    rendered: &Rendered,
    state: &State,
    host: Host<'_>,
) -> Result<Option<String>, ResourceError> {
    let metadata = seen(state)?;
    let found = state.common.ensure.as_str();
    let ensure = wanted_ensure(resource);
    if ensure == FileEnsure::Absent {
        let is_absent = found == "absent";
        return Ok((!is_absent).then(|| format!("file still exists (ensure={found})")));
    }
    if found != ensure.as_str() {
        let wanted = ensure.as_str();
        return Ok(Some(format!(
            "ensure mismatch: state={found} requested={wanted}"
        )));
    }
    if ensure == FileEnsure::Present
        && let Some(content) = content::wanted(file, rendered, host)?
        && let wanted = content.digest()?
        && wanted.to_string() != metadata.checksum
    {
        if resource.common.sensitive {
            return Ok(Some("content mismatch (sensitive)".into()));
        }
        return Ok(Some(format!(
            "content checksum mismatch: state={} requested={wanted}",
            metadata.checksum
        )));
    }
    let mismatch = |attribute: &str, found: &str, wanted: &str| {
        Ok(Some(format!(
            "{attribute} mismatch: state={found} requested={wanted}"
        )))
    };
    if !host.accounts.same_user(&file.owner, &metadata.owner) {
        return mismatch("owner", &metadata.owner, &file.owner);
    }
    if !host.accounts.same_group(&file.group, &metadata.group) {
        return mismatch("group", &metadata.group, &file.group);
    }
    let mode = wanted_mode(file, ensure)?;
    if compared_mode(metadata, ensure) != mode {
        return mismatch("mode", &metadata.mode, &format!("{mode:04o}"));
    }
    Ok(None)
}

/// Returns the mode to compare. The special bits of a directory can't be requested, so they are ignored
/// there; on a file they are a difference.
fn compared_mode(metadata: &FileMetadata, ensure: FileEnsure) -> u32 {
    let mode = seen_mode(metadata);
    match ensure {
        FileEnsure::Directory => mode & !SPECIAL_BITS,
        _ => mode,
    }
}

fn seen_mode(metadata: &FileMetadata) -> u32 {
    u32::from_str_radix(&metadata.mode, 8).unwrap_or_default()
}

/// Reports whether a path is a device, a socket or a FIFO. A link to one is not.
fn is_special(resource: &Resource) -> Result<bool, ResourceError> {
    let found = files::inspect(Path::new(&resource.common.name), false)?;
    Ok(found.is_some_and(|found| found.kind == FileKind::Special))
}

/// Plans the actions for a path.
pub(super) fn plan(
    resource: &Resource,
    file: &File,
    rendered: &Rendered,
    state: &State,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let differs = difference(resource, file, rendered, state, host)?.is_some();
    if let Some(tree) = tree_plan(resource, file, host)? {
        let count = tree.count();
        let mut actions = vec![Action::Copy(tree)];
        if differs {
            actions.insert(0, Action::CreateDirectory);
        }
        let message = format!("Would have changed {count} files and directories of the tree");
        return Ok(Plan::with_actions(actions, message));
    }
    if !differs {
        return Ok(Plan::stable());
    }
    let is_directory = state.common.ensure == "directory";
    let is_absent = state.common.ensure == "absent";
    let (action, message) = match wanted_ensure(resource) {
        FileEnsure::Directory => (Action::CreateDirectory, "Would have created directory"),
        FileEnsure::Absent => {
            let message = if !is_directory {
                "Would have removed the file"
            } else if file.force {
                "Would have recursively removed the directory"
            } else {
                "Would have removed the directory"
            };
            let recursive = file.force;
            (Action::Remove { recursive }, message)
        }
        FileEnsure::Present if is_directory => {
            return Err(ResourceError::IsDirectory(resource.common.name.clone()));
        }
        FileEnsure::Present if !file.manages_content() && !is_absent => {
            (Action::SetAttributes, "Would have updated attributes")
        }
        FileEnsure::Present if !is_absent && is_special(resource)? => {
            return Err(ResourceError::SpecialFile(resource.common.name.clone()));
        }
        FileEnsure::Present if file.manages_content() => {
            (Action::Store, "Would have created the file")
        }
        FileEnsure::Present => (
            Action::Store,
            "Would have created an empty file with requested attributes",
        ),
    };
    Ok(Plan::with_actions(vec![action], message))
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    file: &File,
    rendered: &Rendered,
    state: &State,
    action: &Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let path = Path::new(&resource.common.name);
    match action {
        Action::Remove { recursive: true } => files::remove_recursive(path)?,
        Action::Remove { recursive: false } => files::remove(path)?,
        Action::SetAttributes => files::set_attributes(path, &attributes(resource, file, host)?)?,
        Action::CreateDirectory => {
            let mut wanted = attributes(resource, file, host)?;
            if state.common.ensure == "directory" {
                let kept = seen_mode(seen(state)?) & SPECIAL_BITS;
                wanted.mode = wanted.mode.map(|mode| mode | kept);
            }
            files::create_directory(path, &wanted)?;
        }
        Action::Copy(plan) => {
            tree::copy(path, file, plan, &tree::attributes(file, host)?, host)?;
        }
        Action::Store => {
            let wanted = attributes(resource, file, host)?;
            let source = content::wanted(file, rendered, host)?;
            let content = match &source {
                Some(source) => source.content(),
                None => Content::Bytes(b""),
            };
            let durability = Durability::Content;
            if file.validate.is_empty() {
                host.files.store(path, content, &wanted, durability)?;
            } else {
                let check = |new: &Path| {
                    validate::validate(&file.validate, new, resource.common.sensitive, host)
                };
                host.files
                    .store_checked(path, content, &wanted, durability, check)?;
            }
        }
    }
    Ok(())
}

fn attributes(
    resource: &Resource,
    file: &File,
    host: Host<'_>,
) -> Result<Attributes, ResourceError> {
    Ok(Attributes {
        uid: Some(host.accounts.uid(&file.owner)?),
        gid: Some(host.accounts.gid(&file.group)?),
        mode: Some(wanted_mode(file, wanted_ensure(resource))?),
    })
}

/// Reads the state again and checks it.
pub(super) fn verify(
    resource: &Resource,
    file: &File,
    rendered: &Rendered,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, host)?;
    let mut difference = difference(resource, file, rendered, &state, host)?;
    if difference.is_none() && tree_plan(resource, file, host)?.is_some() {
        difference = Some("the tree differs from its source".into());
    }
    check_reached(resource, state, difference)
}

/// Writes the changes of an action as a unified diff and one line per attribute.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    file: &File,
    rendered: &Rendered,
    state: &State,
    action: &Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let metadata = seen(state)?;
    let name = &resource.common.name;
    let sensitive = resource.common.sensitive;
    if let Action::Copy(plan) = action {
        return tree::diff(out, Path::new(name), file, plan, sensitive, host);
    }
    if *action == Action::Store
        && let Some(content) = content::wanted(file, rendered, host)?
    {
        let old = content_of(Path::new(name), state.common.ensure == "present")?;
        let new = content.text()?;
        diff_content(out, name, old.as_deref(), new.as_deref(), sensitive);
    }
    let ensure = wanted_ensure(resource);
    if ensure != FileEnsure::Absent && state.common.ensure == ensure.as_str() {
        let found = format!("{:04o}", compared_mode(metadata, ensure));
        let mode = format!("{:04o}", wanted_mode(file, ensure)?);
        for (attribute, old, new, same) in [
            (
                "owner",
                &metadata.owner,
                &file.owner,
                host.accounts.same_user(&file.owner, &metadata.owner),
            ),
            (
                "group",
                &metadata.group,
                &file.group,
                host.accounts.same_group(&file.group, &metadata.group),
            ),
            ("mode", &found, &mode, found == mode),
        ] {
            if !same {
                let _ = writeln!(out, "{}: {attribute} {old} -> {new}", resource.common.name);
            }
        }
    }
    Ok(())
}

/// Writes the unified diff of two texts; content that is sensitive or not text is only mentioned.
pub(super) fn diff_content(
    out: &mut String,
    name: &str,
    old: Option<&str>,
    new: Option<&str>,
    sensitive: bool,
) {
    let _ = match (old, new) {
        _ if sensitive => writeln!(out, "Content of {name} differs (sensitive)"),
        (Some(old), Some(new)) => {
            let diff = similar::TextDiff::from_lines(old, new);
            write!(out, "{}", diff.unified_diff().header(name, name))
        }
        _ => writeln!(out, "Content of {name} differs (not text)"),
    };
}

/// Returns the text of a file for a diff; nothing if it is too large or not text.
pub(super) fn content_of(path: &Path, exists: bool) -> Result<Option<String>, FileError> {
    if !exists {
        return Ok(Some(String::new()));
    }
    match files::read_to_string(path, DIFF_LIMIT) {
        Ok(text) => Ok(Some(text)),
        Err(FileError::TooLarge { .. } | FileError::NotText(_) | FileError::NotRegular(_)) => {
            Ok(None)
        }
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_or_write_permission_on_a_directory_implies_execute() {
        for (mode, widened) in [
            (0o600, 0o700),
            (0o644, 0o755),
            (0o640, 0o750),
            (0o400, 0o500),
            (0o200, 0o300),
            (0o020, 0o030),
            (0o002, 0o003),
            (0o000, 0o000),
        ] {
            assert_eq!(directory_mode(mode), widened);
        }
    }
}
