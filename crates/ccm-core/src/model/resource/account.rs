//! Properties of users and groups of the local account files.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, check_path, check_present_or_absent, is_false, list,
    text,
};
use crate::model::secret::Secret;
use crate::model::text::quote;

/// Longest name of a user or group.
const MAX_NAME: usize = 32;

/// Highest id: the one above means "unchanged" to many system calls.
const MAX_ID: u32 = u32::MAX - 1;

/// Value of `expiry` for an account that does not expire.
pub const NEVER: &str = "never";

/// Properties of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Primary group, a name or a number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gid: String,
    /// Supplementary groups; unmanaged if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// `exact` or `minimum`: whether other supplementary groups are removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub membership: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub home: String,
    /// Creates, moves and removes the home directory with the user.
    #[serde(skip_serializing_if = "is_false")]
    pub managehome: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shell: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Uses an id of the system range when the user is created.
    #[serde(skip_serializing_if = "is_false")]
    pub system: bool,
    /// Password hash.
    #[serde(skip_serializing_if = "Secret::is_empty")]
    pub password: Secret,
    /// Whether the password is locked; unmanaged if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Day from which the account is disabled, as `YYYY-MM-DD`, or `never`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expiry: String,
}

/// Properties of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Uses an id of the system range when the group is created.
    #[serde(skip_serializing_if = "is_false")]
    pub system: bool,
}

impl User {
    /// Reports whether groups that are not listed are kept.
    pub(crate) fn keeps_other_groups(&self) -> bool {
        self.membership == "minimum"
    }

    /// Returns the day from which the account is disabled: `Some(None)` for never.
    pub(crate) fn expiry_day(&self) -> Option<Option<NaiveDate>> {
        match self.expiry.as_str() {
            "" => None,
            NEVER => Some(None),
            day => Some(NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()),
        }
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_present_or_absent(common)?;
        check_account_name("user", "name", &common.name)?;
        check_id("uid", self.uid)?;
        if !self.gid.is_empty() && !is_number(&self.gid) {
            check_account_name("group", "gid", &self.gid)?;
        }
        for group in self.groups.iter().flatten() {
            check_account_name("group", "groups", group)?;
        }
        if !matches!(self.membership.as_str(), "" | "exact" | "minimum") {
            let message = "membership must be one of \"exact\" or \"minimum\"";
            return Err(InvalidProperty::new("membership", message));
        }
        for (property, path) in [("home", &self.home), ("shell", &self.shell)] {
            if !path.is_empty() {
                let canonical = format!("{property} must be canonical");
                let absolute = format!("{property} must be absolute");
                check_path(property, path, &canonical, &absolute)?;
                check_field(property, path)?;
            }
        }
        check_field("comment", self.comment.as_deref().unwrap_or_default())?;
        self.validate_password()?;
        if self.expiry_day() == Some(None) && self.expiry != NEVER {
            let message = "expiry must be a day as YYYY-MM-DD, or \"never\"";
            return Err(InvalidProperty::new("expiry", message));
        }
        Ok(())
    }

    /// Rejects a password that is not a hash, because it would be stored as it is.
    fn validate_password(&self) -> Result<(), InvalidProperty> {
        let password = self.password.reveal();
        let is_valid = password
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':');
        let is_hash = password.is_empty() || password.starts_with('$') || password == "*";
        if password == "*" && self.locked == Some(false) {
            let message = "locked must not be false with password \"*\", which no password matches";
            return Err(InvalidProperty::new("locked", message));
        }
        match is_valid && is_hash {
            true => Ok(()),
            false => Err(InvalidProperty::new(
                "password",
                "password must be a hash, such as the output of \"openssl passwd -6\", or \"*\"",
            )),
        }
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("Gid", &mut self.gid, visit)?;
        if let Some(groups) = &mut self.groups {
            list("Groups", groups, visit)?;
        }
        text("Membership", &mut self.membership, visit)?;
        text("Home", &mut self.home, visit)?;
        text("Shell", &mut self.shell, visit)?;
        if let Some(comment) = &mut self.comment {
            text("Comment", comment, visit)?;
        }
        text("Password", self.password.reveal_mut(), visit)?;
        text("Expiry", &mut self.expiry, visit)
    }
}

impl Group {
    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_present_or_absent(common)?;
        check_account_name("group", "name", &common.name)?;
        check_id("gid", self.gid)
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn check_id(property: &'static str, id: Option<u32>) -> Result<(), InvalidProperty> {
    match id {
        Some(id) if id > MAX_ID => {
            let message = format!("{property} {id} is out of range");
            Err(InvalidProperty::new(property, message))
        }
        _ => Ok(()),
    }
}

/// Rejects names that an account file can't hold or that a program would take for an option, an id or
/// a path.
fn check_account_name(
    what: &str,
    property: &'static str,
    name: &str,
) -> Result<(), InvalidProperty> {
    let invalid = |problem: &str| {
        let message = format!("{what} name {} {problem}", quote(name));
        Err(InvalidProperty::new(property, message))
    };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.@+-$".contains(c);
    if name.is_empty() {
        invalid("cannot be empty")
    } else if !name.chars().all(is_allowed) {
        invalid("contains invalid characters (allowed: alphanumeric, _.@+-$)")
    } else if name.starts_with(['-', '+', '.']) {
        invalid("must not start with a hyphen, plus sign or dot")
    } else if is_number(name) {
        invalid("is a number")
    } else if name.len() > MAX_NAME {
        invalid("is longer than 32 characters")
    } else {
        Ok(())
    }
}

/// Rejects texts that would end a field or a line of an account file.
fn check_field(property: &'static str, text: &str) -> Result<(), InvalidProperty> {
    if text.contains(|c: char| c == ':' || c.is_control()) {
        let message = format!("{property} must not contain colons or control characters");
        return Err(InvalidProperty::new(property, message));
    }
    Ok(())
}
