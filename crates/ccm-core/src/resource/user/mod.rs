//! user type: a user of the local account files, with groups, home directory and password hash.
//!
//! A user that only the name service knows (LDAP) counts as present and is never created or changed.
//! The password hash goes to `chpasswd` by its standard input: arguments are visible to every user.

mod difference;

use std::fmt::Write as _;

use chrono::NaiveDate;

use self::difference::{Difference, differences, foreign_membership};
use super::account::{self, AccountChangeError};
use super::{Host, Plan, ResourceError, check_reached};
use crate::model::TypeName;
use crate::model::resource::{Resource, User};
use crate::model::secret::Secret;
use crate::model::state::{Detail, State, UserMetadata};

/// A user action. Each is one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs `useradd` with these arguments.
    Create(Vec<String>),
    /// Runs `usermod` with these arguments.
    Change(Vec<String>),
    /// Runs `chpasswd` with this hash.
    SetPassword(Secret),
    Lock,
    Unlock,
    Remove {
        with_home: bool,
    },
}

/// Reads the state of a user.
pub(super) fn inspect(resource: &Resource, host: Host<'_>) -> Result<State, ResourceError> {
    let name = &resource.common.name;
    let local = host.accounts.local()?;
    let mut metadata = UserMetadata {
        name: name.clone(),
        provider: account::PROVIDER.into(),
        ..UserMetadata::default()
    };
    let mut ensure = "absent";
    if let Some(user) = local.user(name) {
        ensure = "present";
        metadata.uid = Some(user.uid);
        metadata.gid = Some(user.gid);
        metadata.comment.clone_from(&user.comment);
        metadata.home.clone_from(&user.home);
        metadata.shell.clone_from(&user.shell);
        metadata.groups = local.groups_of(name);
        if let Some(shadow) = &user.shadow {
            metadata.locked = Some(shadow.is_locked());
            metadata.expiry = shadow.expiry.map(day_text).unwrap_or_default();
            metadata.password = Secret::new(&shadow.hash);
        }
    } else if let Some(user) = host.accounts.find_user(name)? {
        ensure = "present";
        metadata.foreign = true;
        metadata.uid = Some(user.uid);
        metadata.gid = Some(user.gid);
        metadata.comment = user.comment;
        metadata.home = user.home;
        metadata.shell = user.shell;
    }
    metadata.has_own_group = local.group(name).is_some();
    if let Some(gid) = metadata.gid {
        metadata.group = (*host.accounts.group_name(gid)).into();
    }
    let detail = Detail::User { metadata };
    Ok(State::new(host.clock.now(), name, ensure, detail))
}

/// Returns the day that is so many days after 1970-01-01, as `YYYY-MM-DD`.
fn day_text(days: i64) -> String {
    let day = chrono::TimeDelta::try_days(days)
        .and_then(|days| NaiveDate::default().checked_add_signed(days));
    day.map(|day| day.to_string()).unwrap_or_default()
}

fn seen(state: &State) -> Result<&UserMetadata, ResourceError> {
    match &state.detail {
        Detail::User { metadata } => Ok(metadata),
        _ => Err(ResourceError::other_state(TypeName::User, state)),
    }
}

/// Plans the actions for a user.
pub(super) fn plan(
    resource: &Resource,
    user: &User,
    state: &State,
    host: Host<'_>,
) -> Result<Plan<Action>, ResourceError> {
    let metadata = seen(state)?;
    let name = &resource.common.name;
    let found = differences(resource, user, state, metadata, host);
    if found.is_empty() {
        return Ok(Plan::stable());
    }
    if metadata.foreign {
        return Err(AccountChangeError::Foreign {
            what: "user",
            name: name.clone(),
            file: "/etc/passwd",
        }
        .into());
    }
    if resource.common.ensure == "absent" {
        let with_home = user.managehome;
        let actions = vec![Action::Remove { with_home }];
        return Ok(Plan::with_actions(actions, "Would have removed the user"));
    }
    check_groups(user, metadata, host)?;
    let is_new = state.common.ensure == "absent";
    let manages_shadow = !user.password.is_empty() || user.locked.is_some();
    if !is_new && manages_shadow && metadata.locked.is_none() {
        return Err(AccountChangeError::NoShadow(name.clone()).into());
    }
    let mut actions = Vec::new();
    if is_new {
        actions.push(Action::Create(create_arguments(name, user, metadata)));
    } else {
        let args = change_arguments(name, user, &found);
        actions.extend(args.map(Action::Change));
    }
    actions.extend(password_action(user, metadata, is_new));
    let message = match is_new {
        true => "Would have created the user",
        false => "Would have changed the user",
    };
    Ok(Plan::with_actions(actions, message))
}

/// Rejects groups of another source that the user is not a member of: the programs change local files
/// only, so the membership would differ for ever.
fn check_groups(user: &User, metadata: &UserMetadata, host: Host<'_>) -> Result<(), ResourceError> {
    for name in user.groups.iter().flatten() {
        if foreign_membership(name, metadata, host)? == Some(false) {
            return Err(AccountChangeError::Foreign {
                what: "group",
                name: name.clone(),
                file: "/etc/group",
            }
            .into());
        }
    }
    Ok(())
}

/// Returns the arguments of `useradd`.
fn create_arguments(name: &str, user: &User, metadata: &UserMetadata) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut option = |option: &str, value: &str| args.extend([option.to_owned(), value.to_owned()]);
    if let Some(uid) = user.uid {
        option("-u", &uid.to_string());
    }
    match user.gid.as_str() {
        // useradd would create a group of this name.
        "" if metadata.has_own_group => option("-g", name),
        "" => {}
        gid => option("-g", gid),
    }
    if let Some(groups) = user.groups.as_ref().filter(|groups| !groups.is_empty()) {
        option("-G", &groups.join(","));
    }
    if !user.home.is_empty() {
        option("-d", &user.home);
    }
    if !user.shell.is_empty() {
        option("-s", &user.shell);
    }
    if let Some(comment) = &user.comment {
        option("-c", comment);
    }
    if let Some(Some(day)) = user.expiry_day() {
        option("-e", &day.to_string());
    }
    if user.system {
        args.push("-r".into());
    }
    args.push(if user.managehome { "-m" } else { "-M" }.into());
    args.push(name.into());
    args
}

/// Returns the arguments of `usermod`; nothing if it has nothing to change.
fn change_arguments(name: &str, user: &User, found: &[Difference]) -> Option<Vec<String>> {
    let mut args: Vec<String> = Vec::new();
    for difference in found {
        let mut option =
            |option: &str, value: &str| args.extend([option.to_owned(), value.to_owned()]);
        match difference.attribute {
            "uid" => option("-u", &difference.wanted),
            "gid" => option("-g", &user.gid),
            "groups" => {
                let groups = user.groups.clone().unwrap_or_default();
                option("-G", &groups.join(","));
                if user.keeps_other_groups() {
                    args.push("-a".into());
                }
            }
            "home" => {
                option("-d", &user.home);
                if user.managehome {
                    args.push("-m".into());
                }
            }
            "shell" => option("-s", &user.shell),
            "comment" => option("-c", &difference.wanted),
            "expiry" => {
                let day = user.expiry_day().flatten();
                option("-e", &day.map(|day| day.to_string()).unwrap_or_default());
            }
            _ => {}
        }
    }
    if args.is_empty() {
        return None;
    }
    args.push(name.into());
    Some(args)
}

/// Returns the action for the password and its lock.
fn password_action(user: &User, metadata: &UserMetadata, is_new: bool) -> Option<Action> {
    let is_locked = is_new || metadata.locked == Some(true);
    if user.password.is_empty() {
        return match user.locked {
            Some(true) if !is_locked => Some(Action::Lock),
            Some(false) if is_locked => Some(Action::Unlock),
            _ => None,
        };
    }
    let wanted = difference::stored_hash(user, metadata);
    (is_new || metadata.password != wanted).then_some(Action::SetPassword(wanted))
}

/// Performs one action.
pub(super) fn change(
    resource: &Resource,
    action: &Action,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let name = &resource.common.name;
    let (program, args, input) = match action {
        Action::Create(args) => ("useradd", args.clone(), Vec::new()),
        Action::Change(args) => ("usermod", args.clone(), Vec::new()),
        Action::SetPassword(hash) => {
            let input = format!("{name}:{}\n", hash.reveal()).into_bytes();
            ("chpasswd", vec!["-e".into()], input)
        }
        Action::Lock => ("usermod", vec!["-L".into(), name.clone()], Vec::new()),
        Action::Unlock => ("usermod", vec!["-U".into(), name.clone()], Vec::new()),
        Action::Remove { with_home: true } => {
            ("userdel", vec!["-r".into(), name.clone()], Vec::new())
        }
        Action::Remove { with_home: false } => ("userdel", vec![name.clone()], Vec::new()),
    };
    account::run(program, args, input, name, host)
}

/// Reads the state again and checks it.
pub(super) fn verify(
    resource: &Resource,
    user: &User,
    host: Host<'_>,
) -> Result<State, ResourceError> {
    let state = inspect(resource, host)?;
    let found = differences(resource, user, &state, seen(&state)?, host);
    let difference = found.first().map(Difference::reason);
    check_reached(resource, state, difference)
}

/// Writes one line for each attribute that changes. Hashes are not shown.
pub(super) fn diff(
    out: &mut String,
    resource: &Resource,
    user: &User,
    state: &State,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let name = &resource.common.name;
    for found in differences(resource, user, state, seen(state)?, host) {
        let _ = match found.attribute {
            "password" => writeln!(out, "user {name}: password changes"),
            attribute => writeln!(
                out,
                "user {name}: {attribute} {} -> {}",
                found.seen, found.wanted
            ),
        };
    }
    Ok(())
}
