//! Local account files: users of `/etc/passwd` and `/etc/shadow`, groups of `/etc/group`.
//!
//! Read as a whole, because most runs need many accounts. Users and groups of other sources (LDAP,
//! systemd) are not in these files; [`super::Accounts`] finds them by the system's resolver.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::super::files::{self, FileError};

/// Largest account file that is read.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The local account files.
#[derive(Debug, Default)]
pub struct LocalAccounts {
    users: HashMap<String, LocalUser>,
    groups: HashMap<String, LocalGroup>,
}

/// A user of `/etc/passwd`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUser {
    pub uid: u32,
    pub gid: u32,
    pub comment: String,
    pub home: String,
    pub shell: String,
    /// The entry in `/etc/shadow`; `None` if there is none or it may not be read.
    pub shadow: Option<ShadowEntry>,
}

/// A user's entry in `/etc/shadow`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ShadowEntry {
    pub hash: String,
    /// Days from 1970-01-01 to the day from which the account is disabled.
    pub expiry: Option<i64>,
}

impl fmt::Debug for ShadowEntry {
    /// Shows no hash.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ShadowEntry {{ expiry: {:?} }}", self.expiry)
    }
}

impl ShadowEntry {
    /// Reports whether no password is accepted.
    pub fn is_locked(&self) -> bool {
        self.hash.starts_with(['!', '*'])
    }
}

/// A group of `/etc/group`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalGroup {
    pub gid: u32,
    pub members: Vec<String>,
}

impl LocalAccounts {
    /// Reads the account files below a directory, `/etc` on every real system.
    pub(super) fn read(directory: &Path) -> Result<Self, FileError> {
        let read = |name: &str| match files::read(&directory.join(name), MAX_BYTES) {
            Err(err) if err.is_not_found() => Ok(Vec::new()),
            content => content,
        };
        let (passwd, group) = (read("passwd")?, read("group")?);
        let shadow = match read("shadow") {
            // Only root may read it; everything else is known without it.
            Err(err) if err.is_permission_denied() => Vec::new(),
            shadow => shadow?,
        };
        Ok(Self::parse(&passwd, &shadow, &group))
    }

    fn parse(passwd: &[u8], shadow: &[u8], group: &[u8]) -> Self {
        let mut accounts = Self::default();
        let mut shadows: HashMap<String, ShadowEntry> = HashMap::new();
        for line in lines(shadow) {
            let mut fields = line.split(':');
            if let (Some(name), Some(hash)) = (fields.next(), fields.next()) {
                let expiry = fields.nth(5).and_then(|days| days.parse().ok());
                let hash = hash.into();
                shadows
                    .entry(name.into())
                    .or_insert(ShadowEntry { hash, expiry });
            }
        }
        for line in lines(passwd) {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, uid, gid, comment, home, shell] = fields.as_slice()
                && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
            {
                let user = LocalUser {
                    uid,
                    gid,
                    comment: (*comment).into(),
                    home: (*home).into(),
                    shell: (*shell).into(),
                    shadow: shadows.remove(*name),
                };
                // The first of two equal names counts, as in the system's resolver.
                accounts.users.entry((*name).into()).or_insert(user);
            }
        }
        for line in lines(group) {
            let fields: Vec<&str> = line.split(':').collect();
            if let [name, _, gid, members] = fields.as_slice()
                && let Ok(gid) = gid.parse()
            {
                let members = members.split(',').filter(|member| !member.is_empty());
                let members = members.map(str::to_owned).collect();
                accounts
                    .groups
                    .entry((*name).into())
                    .or_insert(LocalGroup { gid, members });
            }
        }
        accounts
    }

    pub fn user(&self, name: &str) -> Option<&LocalUser> {
        self.users.get(name)
    }

    pub fn group(&self, name: &str) -> Option<&LocalGroup> {
        self.groups.get(name)
    }

    /// Returns the names of the groups that list a user as a member, sorted.
    pub fn groups_of(&self, user: &str) -> Vec<String> {
        let is_member = |group: &LocalGroup| group.members.iter().any(|member| member == user);
        let groups = self.groups.iter().filter(|(_, group)| is_member(group));
        let mut names: Vec<String> = groups.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}

/// Returns the lines of an account file; invalid UTF-8 is replaced.
fn lines(content: &[u8]) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
    content
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(String::from_utf8_lossy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_joined_by_name_and_damaged_lines_are_left_out() {
        let accounts = LocalAccounts::parse(
            b"root:x:0:0:root:/root:/bin/bash\napp:x:1001:1002:J\xf6rg,,,:/srv/app:/bin/sh\nbad:x:a:b\n+::::::\n",
            b"root:*:19000:0:99999:7:::\napp:$6$salt$hash:19000:0:99999:7::20000:\n",
            b"root:x:0:\nwww:x:33:app,other\nadm:x:4:app\nbroken\n",
        );
        let app = accounts.user("app").unwrap();
        assert_eq!(
            (app.uid, app.gid, app.home.as_str()),
            (1001, 1002, "/srv/app")
        );
        let shadow = app.shadow.as_ref().unwrap();
        assert_eq!((shadow.expiry, shadow.is_locked()), (Some(20000), false));
        assert!(
            accounts
                .user("root")
                .unwrap()
                .shadow
                .as_ref()
                .unwrap()
                .is_locked()
        );
        assert!(accounts.user("bad").is_none() && accounts.user("+").is_none());
        assert_eq!(accounts.groups_of("app"), ["adm", "www"]);
        assert_eq!(accounts.group("www").unwrap().gid, 33);
    }

    #[test]
    fn a_hash_is_not_shown() {
        let entry = ShadowEntry {
            hash: "$6$salt$hash".into(),
            expiry: None,
        };
        assert!(!format!("{entry:?}").contains("hash"));
    }
}
