//! group type: a group of the local account files.

use std::fmt::Write as _;

use super::account::{self, AccountChangeError};
use super::{Host, Plan, ResourceError, check_reached};
use crate::model::TypeName;
use crate::model::resource::{Group, Resource};
use crate::model::state::{Detail, GroupMetadata, State};

/// A group action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create,
    Change,
    Remove,
}

/// Reads the state of a group.
pub(super) fn inspect(resource: &Resource, host: Host<'_>) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let local = host.accounts.local()?;
    let mut metadata = GroupMetadata {
        name: name.clone(),
        provider: account::PROVIDER.into(),
        ..GroupMetadata::default()
    };
    let found = match local.group(name) {
        Some(group) => {
            metadata.members.clone_from(&group.members);
            Some(group.gid)
        }
        None => {
            metadata.foreign = true;
            host.accounts.find_group(name)?
        }
    };
    let ensure = match found {
        Some(gid) => {
            metadata.gid = Some(gid);
            "present"
        }
        None => {
            metadata.foreign = false;
            "absent"
        }
    };
    let detail = Detail::Group { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

fn seen(state: &State) -> Result<&GroupMetadata, ResourceError> {
    match &state.detail {
        Detail::Group { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::Group, state)),
    }
}

/// Returns the difference between a state and the wanted properties.
fn difference(
    resource: &Resource,
    group: &Group,
    state: &State,
) -> Result<Option<String>, ResourceError> {
    let metadata = seen(state)?;
    let (found, wanted) = (&state.common.ensure, &resource.common.ensure);
    if found != wanted {
        return Ok(Some(format!(
            "ensure mismatch: state={found} requested={wanted}"
        )));
    }
    Ok(match group.gid {
        Some(gid) if wanted == "present" && metadata.gid != Some(gid) => Some(format!(
            "gid mismatch: state={} requested={gid}",
            metadata.gid.unwrap_or_default()
        )),
        _ => None,
    })
}

/// Plans the actions for a group.
pub(super) fn plan(
    resource: &Resource,
    group: &Group,
    state: &State,
) -> Result<Plan<Action>, ResourceError> {
    if difference(resource, group, state)?.is_none() {
        return Ok(Plan::stable());
    }
    if seen(state)?.foreign {
        return Err(AccountChangeError::Foreign {
            what: "group",
            name: resource.common.name.clone(),
            file: "/etc/group",
        }
        .into());
    }
    let (action, message) = match (
        resource.common.ensure.as_str(),
        state.common.ensure.as_str(),
    ) {
        ("absent", _) => (Action::Remove, "Would have removed the group"),
        (_, "absent") => (Action::Create, "Would have created the group"),
        _ => (Action::Change, "Would have changed the group"),
    };
    Ok(Plan::with_actions(vec![action], message))
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    group: &Group,
    action: Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let name = &resource.common.name;
    let mut args: Vec<String> = Vec::new();
    if let Some(gid) = group.gid.filter(|_| action != Action::Remove) {
        args.extend(["-g".into(), gid.to_string()]);
    }
    if group.system && action == Action::Create {
        args.push("-r".into());
    }
    args.push(name.clone());
    let program = match action {
        Action::Create => "groupadd",
        Action::Change => "groupmod",
        Action::Remove => "groupdel",
    };
    account::run(program, args, Vec::new(), name, host)
}

/// Reads the state again and checks it.
pub(super) fn verify(
    resource: &Resource,
    group: &Group,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, host)?;
    let difference = difference(resource, group, &state)?;
    check_reached(resource, state, difference)
}

/// Writes the change as one line.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    group: &Group,
    state: &State,
) -> Result<(), ResourceError> {
    let (name, found) = (&resource.common.name, &state.common.ensure);
    let wanted = &resource.common.ensure;
    if found != wanted {
        let _ = writeln!(out, "group {name}: {found} -> {wanted}");
    } else if let (Some(old), Some(new)) = (seen(state)?.gid, group.gid) {
        let _ = writeln!(out, "group {name}: gid {old} -> {new}");
    }
    Ok(())
}
