//! Users and groups, as the system's own lookup knows them: from files or over the network.

use std::ffi::CString;

use nix::unistd::{Group, User, getgrouplist};

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, World, unanswered};
use crate::model::Value;
use crate::system::Accounts;

pub(super) const USER: Family = Family {
    key: "user",
    name: "User",
    target: "username",
    settings: &[],
    attributes: &[
        Attribute::new("exists"),
        Attribute::new("uid"),
        Attribute::new("gid"),
        Attribute::new("home"),
        Attribute::new("groups"),
        Attribute::new("shell"),
    ],
    first: First::Gate,
    look: look_at_user,
};

pub(super) const GROUP: Family = Family {
    key: "group",
    name: "Group",
    target: "groupname",
    settings: &[],
    attributes: &[Attribute::new("exists"), Attribute::new("gid")],
    first: First::Gate,
    look: look_at_group,
};

fn look_at_user<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, String> {
    let name = entry.target();
    let user = lookup("user", &name, User::from_name)?;
    Ok(Box::new(move |attribute| {
        let user = match (attribute, &user) {
            ("exists", user) => return Ok(user.is_some().into()),
            (_, Some(user)) => user,
            (_, None) => return Err(format!("unknown user {name}")),
        };
        Ok(match attribute {
            "uid" => i64::from(user.uid.as_raw()).into(),
            "gid" => i64::from(user.gid.as_raw()).into(),
            "home" => user.dir.to_string_lossy().as_ref().into(),
            "groups" => groups(user, world.probes.accounts)?,
            "shell" => user.shell.to_string_lossy().as_ref().into(),
            other => return unanswered(other),
        })
    }))
}

/// Returns the names of all groups of a user, the first one included, sorted.
fn groups(user: &User, accounts: &Accounts) -> Result<Value, String> {
    let odd = |_| format!("invalid user name {:?}", user.name);
    let name = CString::new(user.name.as_str()).map_err(odd)?;
    let ids = getgrouplist(&name, user.gid)
        .map_err(|errno| format!("could not list the groups of {}: {errno}", user.name))?;
    let mut names: Vec<_> = ids
        .into_iter()
        .map(|gid| accounts.group_name(gid.as_raw()))
        .collect();
    names.sort();
    names.dedup();
    Ok(names
        .iter()
        .map(|name| Value::from(name.as_ref()))
        .collect())
}

fn look_at_group<'a>(entry: &'a Entry, _: &'a World<'a>) -> Result<Look<'a>, String> {
    let name = entry.target();
    let group = lookup("group", &name, Group::from_name)?;
    Ok(Box::new(move |attribute| match (attribute, &group) {
        ("exists", group) => Ok(group.is_some().into()),
        ("gid", Some(group)) => Ok(i64::from(group.gid.as_raw()).into()),
        (_, None) => Err(format!("unknown group {name}")),
        (other, _) => unanswered(other),
    }))
}

fn lookup<T>(
    database: &str,
    name: &str,
    find: impl Fn(&str) -> nix::Result<Option<T>>,
) -> Result<Option<T>, String> {
    if name.contains('\0') {
        return Err(format!("invalid {database} name {name:?}"));
    }
    find(name).map_err(|errno| format!("could not lookup {database} {name}: {errno}"))
}
