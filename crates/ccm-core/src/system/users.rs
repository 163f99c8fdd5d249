//! Users and groups: names to ids and back, asked once per run.
//!
//! A run looks at thousands of files owned by the same few accounts, and a lookup may cross the
//! network. Ids are remembered with or without a name. A name that is unknown is never
//! remembered: an earlier resource of the same run may be about to create it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User};

/// Why a name has no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    #[error("{0} name cannot be empty")]
    Empty(&'static str),
    #[error("could not lookup {database} \"{name}\": {reason}")]
    Lookup {
        /// `user` or `group`.
        database: &'static str,
        name: String,
        #[source]
        reason: Unresolved,
    },
}

/// Why the machine has no id for a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    #[error("id is out of range")]
    OutOfRange,
    #[error("name contains a null character")]
    Null,
    #[error("{}", .0.desc().to_lowercase())]
    Os(#[from] Errno),
    #[error("{database}: unknown {database} {name}")]
    Unknown {
        database: &'static str,
        name: String,
    },
}

/// The users and groups of this machine, as first seen.
#[derive(Debug, Default)]
pub struct Accounts {
    users: Mutex<Known>,
    groups: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ids: HashMap<String, u32>,
    names: HashMap<u32, Arc<str>>,
}

impl Accounts {
    /// Returns the id of a user: an all-digit name is the id itself.
    pub fn uid(&self, name: &str) -> Result<u32, AccountError> {
        id(&self.users, "user", name, |name| {
            Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
        })
    }

    /// Returns the id of a group: an all-digit name is the id itself.
    pub fn gid(&self, name: &str) -> Result<u32, AccountError> {
        id(&self.groups, "group", name, |name| {
            Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
        })
    }

    /// Returns the ids of the user and group this process acts as.
    pub fn current(&self) -> (u32, u32) {
        (Uid::effective().as_raw(), Gid::effective().as_raw())
    }

    /// Returns the name of a user, or the number when no name is found.
    pub fn user_name(&self, uid: u32) -> Arc<str> {
        name(&self.users, uid, |uid| {
            let user = User::from_uid(Uid::from_raw(uid)).ok()??;
            Some(user.name)
        })
    }

    /// Returns the name of a group, or the number when no name is found.
    pub fn group_name(&self, gid: u32) -> Arc<str> {
        name(&self.groups, gid, |gid| {
            let group = Group::from_gid(Gid::from_raw(gid)).ok()??;
            Some(group.name)
        })
    }

    /// Whether a wanted owner is the reported one: the same text, or the same id.
    pub fn same_user(&self, wanted: &str, reported: &str) -> bool {
        wanted == reported
            || matches!((self.uid(wanted), self.uid(reported)), (Ok(a), Ok(b)) if a == b)
    }

    /// Whether a wanted group is the reported one: the same text, or the same id.
    pub fn same_group(&self, wanted: &str, reported: &str) -> bool {
        wanted == reported
            || matches!((self.gid(wanted), self.gid(reported)), (Ok(a), Ok(b)) if a == b)
    }

    /// Forgets everything, for after a command that may have changed accounts.
    pub fn forget(&self) {
        *lock(&self.users) = Known::default();
        *lock(&self.groups) = Known::default();
    }
}

/// Returns the home directory that the user database has for the user we act as.
pub fn home() -> Option<PathBuf> {
    let user = User::from_uid(Uid::effective()).ok()??;
    Some(user.dir).filter(|home| !home.as_os_str().is_empty())
}

fn id(
    known: &Mutex<Known>,
    database: &'static str,
    name: &str,
    lookup: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, AccountError> {
    if name.is_empty() {
        return Err(AccountError::Empty(database));
    }
    let failed = |reason: Unresolved| AccountError::Lookup {
        database,
        name: name.to_owned(),
        reason,
    };
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        // The highest number means "leave it" to chown, which would then lie about success.
        return match name.parse() {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(failed(Unresolved::OutOfRange)),
        };
    }
    if name.contains('\0') {
        return Err(failed(Unresolved::Null));
    }
    if let Some(id) = lock(known).ids.get(name) {
        return Ok(*id);
    }
    let id = lookup(name)
        .map_err(|errno| failed(errno.into()))?
        .ok_or_else(|| {
            failed(Unresolved::Unknown {
                database,
                name: name.to_owned(),
            })
        })?;
    lock(known).ids.insert(name.to_owned(), id);
    Ok(id)
}

fn name(known: &Mutex<Known>, id: u32, lookup: impl FnOnce(u32) -> Option<String>) -> Arc<str> {
    if let Some(name) = lock(known).names.get(&id) {
        return Arc::clone(name);
    }
    let name: Arc<str> = lookup(id).unwrap_or_else(|| id.to_string()).into();
    lock(known).names.insert(id, Arc::clone(&name));
    name
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_of_root_translate_both_ways() {
        let accounts = Accounts::default();
        assert_eq!(accounts.uid("root"), Ok(0));
        assert_eq!(accounts.gid("root"), Ok(0));
        assert_eq!(&*accounts.user_name(0), "root");
        assert_eq!(&*accounts.group_name(0), "root");
    }

    #[test]
    fn digits_are_an_id_without_a_lookup() {
        let accounts = Accounts::default();
        assert_eq!(accounts.uid("3999999999"), Ok(3_999_999_999));
        assert_eq!(accounts.gid("0007"), Ok(7));
    }

    #[test]
    fn an_id_without_a_name_is_reported_as_its_number() {
        let accounts = Accounts::default();
        assert_eq!(&*accounts.user_name(3_999_999_999), "3999999999");
        assert_eq!(&*accounts.group_name(3_999_999_999), "3999999999");
    }

    #[test]
    fn the_number_that_means_leave_it_to_chown_is_refused() {
        let accounts = Accounts::default();
        for id in ["4294967295", "4294967296", "99999999999999999999999"] {
            assert_eq!(
                accounts.uid(id).unwrap_err().to_string(),
                format!("could not lookup user \"{id}\": id is out of range")
            );
        }
    }

    #[test]
    fn empty_and_unknown_names_are_errors_that_say_which_database() {
        let accounts = Accounts::default();
        let text = |result: Result<u32, AccountError>| result.unwrap_err().to_string();
        assert_eq!(text(accounts.uid("")), "user name cannot be empty");
        assert_eq!(text(accounts.gid("")), "group name cannot be empty");
        assert_eq!(
            text(accounts.uid("no-such-user")),
            "could not lookup user \"no-such-user\": user: unknown user no-such-user"
        );
        assert_eq!(
            text(accounts.gid("no-such-group")),
            "could not lookup group \"no-such-group\": group: unknown group no-such-group"
        );
        assert_eq!(
            text(accounts.uid("a\0b")),
            "could not lookup user \"a\0b\": name contains a null character"
        );
    }

    #[test]
    fn owners_compare_by_text_or_by_id() {
        let accounts = Accounts::default();
        assert!(accounts.same_user("root", "root"));
        assert!(accounts.same_user("0", "root"));
        assert!(accounts.same_group("root", "00"));
        assert!(accounts.same_user("ghost", "ghost"));
        assert!(!accounts.same_user("ghost", "root"));
        assert!(!accounts.same_user("1", "root"));
    }

    #[test]
    fn a_known_name_is_asked_once_and_an_unknown_one_each_time() {
        let known = Mutex::default();
        let found = |_: &str| Ok(Some(7));
        let missing = |_: &str| Ok(None);
        assert!(id(&known, "user", "late", missing).is_err());
        assert_eq!(id(&known, "user", "late", found), Ok(7));
        assert_eq!(id(&known, "user", "late", missing), Ok(7));
    }

    #[test]
    fn a_numbers_name_is_asked_once_until_forgotten() {
        let accounts = Accounts::default();
        let ask = |answer: &str| name(&accounts.users, 7, |_| Some(answer.into()));
        assert_eq!(&*ask("before"), "before");
        assert_eq!(&*ask("after"), "before");
        accounts.forget();
        assert_eq!(&*ask("after"), "after");
    }
}
