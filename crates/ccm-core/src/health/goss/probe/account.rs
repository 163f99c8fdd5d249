//! Types `user` and `group`, by the lookup of the C library (NSS).

use std::ffi::CString;

use nix::unistd::{Group, User, getgrouplist};

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};
use crate::model::Value;
use crate::system::Accounts;

pub(super) const USER: ResourceType = ResourceType {
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
    first: FirstAttribute::Prerequisite,
    inspect: inspect_user,
};

pub(super) const GROUP: ResourceType = ResourceType {
    key: "group",
    name: "Group",
    target: "groupname",
    settings: &[],
    attributes: &[Attribute::new("exists"), Attribute::new("gid")],
    first: FirstAttribute::Prerequisite,
    inspect: inspect_group,
};

fn inspect_user<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    let user = lookup("user", &name, User::from_name)?;
    Ok(Box::new(move |attribute| {
        let user = match (attribute, &user) {
            ("exists", user) => return Ok(user.is_some().into()),
            (_, Some(user)) => user,
            (_, None) => return Err(no_account("user", &name)),
        };
        Ok(match attribute {
            "uid" => i64::from(user.uid.as_raw()).into(),
            "gid" => i64::from(user.gid.as_raw()).into(),
            "home" => user.dir.to_string_lossy().as_ref().into(),
            "groups" => groups(user, context.probes.accounts)?,
            "shell" => user.shell.to_string_lossy().as_ref().into(),
            other => return not_implemented(other),
        })
    }))
}

/// Returns the names of all groups of a user, including the primary one, sorted.
fn groups(user: &User, accounts: &Accounts) -> Result<Value, InspectError> {
    let name = CString::new(user.name.as_str()).map_err(|_| invalid("user", &user.name))?;
    let ids = getgrouplist(&name, user.gid).map_err(|cause| InspectError::Groups {
        user: user.name.clone(),
        cause,
    })?;
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

fn inspect_group<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    let group = lookup("group", &name, Group::from_name)?;
    Ok(Box::new(move |attribute| match (attribute, &group) {
        ("exists", group) => Ok(group.is_some().into()),
        ("gid", Some(group)) => Ok(i64::from(group.gid.as_raw()).into()),
        (_, None) => Err(no_account("group", &name)),
        (other, _) => not_implemented(other),
    }))
}

fn lookup<T>(
    database: &'static str,
    name: &str,
    find: impl Fn(&str) -> nix::Result<Option<T>>,
) -> Result<Option<T>, InspectError> {
    if name.contains('\0') {
        return Err(invalid(database, name));
    }
    find(name).map_err(|cause| InspectError::Account {
        database,
        name: name.to_owned(),
        cause,
    })
}

fn invalid(what: &'static str, name: &str) -> InspectError {
    let name = name.to_owned();
    InspectError::Name { what, name }
}

fn no_account(database: &'static str, name: &str) -> InspectError {
    let name = name.to_owned();
    InspectError::NoAccount { database, name }
}
