//! User and group lookups, names to ids and back, cached for one run.
//!
//! A run inspects thousands of files of the same few accounts, and a lookup may cross the network.
//! Ids are cached with or without a name. Unknown names are not cached, because a resource of the
//! same run may create the account.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User};
use parking_lot::Mutex;

use super::files::FileError;

mod local;

pub use local::{LocalAccounts, LocalGroup, LocalUser, ShadowEntry};

/// A failed lookup of a user or group by name.
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

/// The cause of a failed lookup.
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

/// A cache over the system's user and group databases; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Accounts(Arc<Databases>);

#[derive(Debug, Default)]
struct Databases {
    users: Mutex<Cache>,
    groups: Mutex<Cache>,
    local: Mutex<Option<Arc<LocalAccounts>>>,
    /// The directory of the account files, `/etc` if not set.
    directory: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Cache {
    ids: HashMap<String, u32>,
    names: HashMap<u32, Arc<str>>,
}

impl Accounts {
    /// Returns accounts with the account files of another directory, for tests.
    pub fn of_directory(directory: PathBuf) -> Self {
        Self(Arc::new(Databases {
            directory: Some(directory),
            ..Databases::default()
        }))
    }

    /// Returns the local account files, which are read once until [`Accounts::forget`].
    pub fn local(&self) -> Result<Arc<LocalAccounts>, FileError> {
        let mut local = self.0.local.lock();
        if let Some(accounts) = &*local {
            return Ok(Arc::clone(accounts));
        }
        let directory = self.0.directory.as_deref().unwrap_or(Path::new("/etc"));
        let accounts = Arc::new(LocalAccounts::read(directory)?);
        *local = Some(Arc::clone(&accounts));
        Ok(accounts)
    }

    /// Returns a user that the system's resolver knows, from whatever source.
    pub fn find_user(&self, name: &str) -> Result<Option<LocalUser>, AccountError> {
        let found = User::from_name(name).map_err(|errno| lookup_failed("user", name, errno))?;
        Ok(found.map(|user| LocalUser {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            comment: user.gecos.to_string_lossy().into_owned(),
            home: user.dir.to_string_lossy().into_owned(),
            shell: user.shell.to_string_lossy().into_owned(),
            shadow: None,
        }))
    }

    /// Returns the id of a group that the system's resolver knows, from whatever source.
    pub fn find_group(&self, name: &str) -> Result<Option<u32>, AccountError> {
        let found = Group::from_name(name).map_err(|errno| lookup_failed("group", name, errno))?;
        Ok(found.map(|group| group.gid.as_raw()))
    }

    /// Reports whether the system's resolver, from whatever source, knows a user as a member of a group.
    pub fn is_member(&self, user: &str, primary: u32, group: u32) -> Result<bool, AccountError> {
        let failed = |reason| AccountError::Lookup {
            database: "user",
            name: user.to_owned(),
            reason,
        };
        let name = CString::new(user).map_err(|_| failed(Unresolved::Null))?;
        let groups = nix::unistd::getgrouplist(&name, Gid::from_raw(primary))
            .map_err(|errno| failed(errno.into()))?;
        Ok(groups.contains(&Gid::from_raw(group)))
    }

    /// Returns the id of a user. A name of digits only is the id itself.
    pub fn uid(&self, name: &str) -> Result<u32, AccountError> {
        id(&self.0.users, "user", name, |name| {
            Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
        })
    }

    /// Returns the id of a group. A name of digits only is the id itself.
    pub fn gid(&self, name: &str) -> Result<u32, AccountError> {
        id(&self.0.groups, "group", name, |name| {
            Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
        })
    }

    /// Returns the effective user and group id of this process.
    pub fn current(&self) -> (u32, u32) {
        (Uid::effective().as_raw(), Gid::effective().as_raw())
    }

    /// Returns the name of a user, or the id as text if it has none.
    pub fn user_name(&self, uid: u32) -> Arc<str> {
        name(&self.0.users, uid, |uid| {
            let user = User::from_uid(Uid::from_raw(uid)).ok()??;
            Some(user.name)
        })
    }

    /// Returns the name of a group, or the id as text if it has none.
    pub fn group_name(&self, gid: u32) -> Arc<str> {
        name(&self.0.groups, gid, |gid| {
            let group = Group::from_gid(Gid::from_raw(gid)).ok()??;
            Some(group.name)
        })
    }

    /// Whether two users are equal, as text or by id.
    pub(crate) fn same_user(&self, wanted: &str, reported: &str) -> bool {
        wanted == reported
            || matches!((self.uid(wanted), self.uid(reported)), (Ok(a), Ok(b)) if a == b)
    }

    /// Whether two groups are equal, as text or by id.
    pub(crate) fn same_group(&self, wanted: &str, reported: &str) -> bool {
        wanted == reported
            || matches!((self.gid(wanted), self.gid(reported)), (Ok(a), Ok(b)) if a == b)
    }

    /// Empties the cache. Call it after a command that may have changed accounts.
    pub fn forget(&self) {
        *self.0.users.lock() = Cache::default();
        *self.0.groups.lock() = Cache::default();
        *self.0.local.lock() = None;
    }
}

fn lookup_failed(database: &'static str, name: &str, errno: Errno) -> AccountError {
    AccountError::Lookup {
        database,
        name: name.to_owned(),
        reason: errno.into(),
    }
}

/// Returns the home directory of the effective user, from the user database.
pub fn home() -> Option<PathBuf> {
    let user = User::from_uid(Uid::effective()).ok()??;
    Some(user.dir).filter(|home| !home.as_os_str().is_empty())
}

fn id(
    cache: &Mutex<Cache>,
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
        // chown takes u32::MAX as "leave unchanged" and would report success.
        return match name.parse() {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(failed(Unresolved::OutOfRange)),
        };
    }
    if name.contains('\0') {
        return Err(failed(Unresolved::Null));
    }
    if let Some(id) = cache.lock().ids.get(name) {
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
    cache.lock().ids.insert(name.to_owned(), id);
    Ok(id)
}

fn name(cache: &Mutex<Cache>, id: u32, lookup: impl FnOnce(u32) -> Option<String>) -> Arc<str> {
    if let Some(name) = cache.lock().names.get(&id) {
        return Arc::clone(name);
    }
    let name: Arc<str> = lookup(id).unwrap_or_else(|| id.to_string()).into();
    cache.lock().names.insert(id, Arc::clone(&name));
    name
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
    fn the_id_that_chown_ignores_is_refused() {
        let accounts = Accounts::default();
        for id in ["4294967295", "4294967296", "99999999999999999999999"] {
            assert_eq!(
                accounts.uid(id).unwrap_err().to_string(),
                format!("could not lookup user \"{id}\": id is out of range")
            );
        }
    }

    #[test]
    fn errors_of_empty_and_unknown_names_name_the_database() {
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
    fn known_names_are_cached_and_unknown_ones_are_not() {
        let cache = Mutex::default();
        let found = |_: &str| Ok(Some(7));
        let missing = |_: &str| Ok(None);
        assert!(id(&cache, "user", "late", missing).is_err());
        assert_eq!(id(&cache, "user", "late", found), Ok(7));
        assert_eq!(id(&cache, "user", "late", missing), Ok(7));
    }

    #[test]
    fn names_of_ids_are_cached_until_forget() {
        let accounts = Accounts::default();
        let lookup = |result: &str| name(&accounts.0.users, 7, |_| Some(result.into()));
        assert_eq!(&*lookup("before"), "before");
        assert_eq!(&*lookup("after"), "before");
        accounts.forget();
        assert_eq!(&*lookup("after"), "after");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test writes account files")]
    fn the_local_files_are_read_once_until_forget() {
        let directory = tempfile::tempdir().unwrap();
        let accounts = Accounts::of_directory(directory.path().into());
        let write = |name: &str| {
            let line = format!("{name}:x:1:1::/:/bin/sh\n");
            std::fs::write(directory.path().join("passwd"), line).unwrap();
        };
        let has = |name: &str| accounts.local().unwrap().user(name).is_some();
        write("before");
        assert!(has("before"));
        write("after");
        assert!(has("before") && !has("after"));
        accounts.forget();
        assert!(!has("before") && has("after"));
    }
}
