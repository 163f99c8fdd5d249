//! Differences between a user and the wanted properties.

use super::super::{Host, ResourceError};
use crate::model::resource::{NEVER, Resource, User};
use crate::model::secret::Secret;
use crate::model::state::{State, UserMetadata};

/// One attribute that differs.
pub(super) struct Difference {
    /// Name of the property, `ensure` for the user itself.
    pub(super) attribute: &'static str,
    pub(super) seen: String,
    pub(super) wanted: String,
}

impl Difference {
    fn new(attribute: &'static str, seen: impl Into<String>, wanted: impl Into<String>) -> Self {
        Self {
            attribute,
            seen: seen.into(),
            wanted: wanted.into(),
        }
    }

    /// Returns the reason why the wanted state is not reached.
    pub(super) fn reason(&self) -> String {
        match self.attribute {
            "password" => "password differs".into(),
            attribute => format!(
                "{attribute} mismatch: state={} requested={}",
                self.seen, self.wanted
            ),
        }
    }
}

/// Returns the text of `/etc/shadow` for the wanted password: a locked one has a prefix.
pub(super) fn stored_hash(user: &User, metadata: &UserMetadata) -> Secret {
    let is_locked = match user.locked {
        Some(locked) => locked,
        // Unmanaged: a lock stays.
        None => metadata.password.reveal().starts_with('!') && metadata.password.reveal().len() > 1,
    };
    let hash = user.password.reveal();
    match is_locked && !hash.starts_with(['!', '*']) {
        true => Secret::new(format!("!{hash}")),
        false => user.password.clone(),
    }
}

/// Returns everything that differs; the user itself comes alone.
pub(super) fn differences(
    resource: &Resource,
    user: &User,
    state: &State,
    metadata: &UserMetadata,
    host: Host<'_>,
) -> Vec<Difference> {
    let (found, wanted) = (&state.common.ensure, &resource.common.ensure);
    if found != wanted {
        return vec![Difference::new("ensure", found, wanted)];
    }
    if wanted == "absent" {
        return Vec::new();
    }
    let mut all = Vec::new();
    let number = |id: Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
    if let Some(uid) = user.uid.filter(|uid| metadata.uid != Some(*uid)) {
        all.push(Difference::new(
            "uid",
            number(metadata.uid),
            uid.to_string(),
        ));
    }
    // A group that does not exist yet is a difference: an earlier resource may create it.
    if !user.gid.is_empty() && host.accounts.gid(&user.gid).ok() != metadata.gid {
        all.push(Difference::new("gid", number(metadata.gid), &user.gid));
    }
    if let Some(groups) = &user.groups
        && !has_groups(user, groups, metadata, host)
    {
        all.push(Difference::new(
            "groups",
            metadata.groups.join(","),
            groups.join(","),
        ));
    }
    let mut text = |attribute: &'static str, seen: &str, wanted: &str| {
        if seen != wanted {
            all.push(Difference::new(attribute, seen, wanted));
        }
    };
    if !user.home.is_empty() {
        text("home", &metadata.home, &user.home);
    }
    if !user.shell.is_empty() {
        text("shell", &metadata.shell, &user.shell);
    }
    if let Some(comment) = &user.comment {
        text("comment", &metadata.comment, comment);
    }
    if let Some(day) = user.expiry_day() {
        let wanted = day.map(|day| day.to_string());
        let seen = match metadata.expiry.as_str() {
            "" => NEVER,
            day => day,
        };
        text("expiry", seen, wanted.as_deref().unwrap_or(NEVER));
    }
    if !user.password.is_empty() && metadata.password != stored_hash(user, metadata) {
        all.push(Difference::new("password", "", ""));
    }
    if let Some(locked) = user.locked
        && metadata.locked != Some(locked)
    {
        let seen = metadata.locked.map(|locked| locked.to_string());
        all.push(Difference::new(
            "locked",
            seen.unwrap_or_default(),
            locked.to_string(),
        ));
    }
    all
}

/// Reports whether the supplementary groups are as wanted. The primary group does not count.
fn has_groups(user: &User, groups: &[String], metadata: &UserMetadata, host: Host<'_>) -> bool {
    let is_wanted = |name: &String| groups.contains(name);
    let is_seen = |name: &String| {
        metadata.groups.contains(name)
            || *name == metadata.group
            // A failed lookup is reported by the plan.
            || matches!(foreign_membership(name, metadata, host), Ok(Some(true)))
    };
    let has_all = groups.iter().all(is_seen);
    let has_others = metadata
        .groups
        .iter()
        .any(|name| !is_wanted(name) && *name != metadata.group);
    has_all && (user.keeps_other_groups() || !has_others)
}

/// Reports whether a user is a member of a group that comes from another source than the local files,
/// such as LDAP; nothing for a local group and for one that does not exist.
pub(super) fn foreign_membership(
    group: &str,
    metadata: &UserMetadata,
    host: Host<'_>,
) -> Result<Option<bool>, ResourceError> {
    let accounts = host.accounts;
    if accounts.local()?.group(group).is_some() {
        return Ok(None);
    }
    let Some(gid) = accounts.find_group(group)? else {
        return Ok(None);
    };
    let primary = metadata.gid.unwrap_or_default();
    Ok(Some(accounts.is_member(&metadata.name, primary, gid)?))
}
