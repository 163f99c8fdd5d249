//! Resource states: what was observed of a resource, in upstream's format.

use std::collections::BTreeMap;

use chrono::{DateTime, FixedOffset, Utc};
use serde::{Deserialize, Serialize};

use super::TypeName;
use super::health::HealthResult;
use super::secret::{Secret, serialize_text};
use super::text::{mtime, timestamp};
use super::value::Value;

/// Returns the protocol of the state of a type.
pub fn protocol(type_name: TypeName) -> String {
    format!("io.choria.ccm.v1.resource.{type_name}.state")
}

/// Observed state of one resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    #[serde(flatten)]
    pub common: CommonState,
    #[serde(flatten)]
    pub detail: Detail,
}

/// Fields that every state has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommonState {
    #[serde(with = "timestamp")]
    pub timestamp: DateTime<Utc>,
    pub protocol: String,
    #[serde(rename = "type")]
    pub type_name: TypeName,
    #[serde(serialize_with = "serialize_text")]
    pub name: String,
    pub ensure: String,
    pub changed: bool,
    pub refreshed: bool,
    pub stable: bool,
    pub noop: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub noop_message: String,
    /// Part of the protocol; results are in the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthResult>,
}

/// Fields of the state that depend on the type.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Detail {
    Package { metadata: PackageMetadata },
    Service { metadata: ServiceMetadata },
    File { metadata: FileMetadata },
    Exec(ExecDetail),
    Group { metadata: GroupMetadata },
    Line { metadata: LineMetadata },
    Link { metadata: LinkMetadata },
    Archive { metadata: ArchiveMetadata },
    Scaffold { metadata: ScaffoldMetadata },
    User { metadata: UserMetadata },
    Apply(ApplyDetail),
}

impl State {
    /// Returns a state observed at `timestamp`, with all flags false.
    pub fn new(
        timestamp: DateTime<Utc>,
        name: impl Into<String>,
        ensure: impl Into<String>,
        detail: Detail,
    ) -> Self {
        let type_name = detail.type_name();
        Self {
            common: CommonState {
                timestamp,
                protocol: protocol(type_name),
                type_name,
                name: name.into(),
                ensure: ensure.into(),
                changed: false,
                refreshed: false,
                stable: false,
                noop: false,
                noop_message: String::new(),
                health_check: None,
            },
            detail,
        }
    }
}

impl State {
    /// Removes checksums, by which a guess of the content could be confirmed.
    pub(crate) fn redact_checksums(&mut self) {
        match &mut self.detail {
            Detail::File { metadata } => metadata.checksum.clear(),
            Detail::Line { metadata } => metadata.checksum.clear(),
            Detail::Archive { metadata } => metadata.checksum.clear(),
            Detail::Package { .. }
            | Detail::Service { .. }
            | Detail::Exec(_)
            | Detail::Group { .. }
            | Detail::Link { .. }
            | Detail::Scaffold { .. }
            | Detail::User { .. }
            | Detail::Apply(_) => {}
        }
    }
}

/// Parts of a state before a change that show what has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousState {
    /// `absent`, the version of a package, `running` and so on.
    pub ensure: String,
    /// Owner, group, mode and checksum of a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Attributes of a user or group by property; never the password.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
    /// Whether a service was enabled at boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

impl From<&State> for PreviousState {
    fn from(state: &State) -> Self {
        let ensure = state.common.ensure.clone();
        let previous = Self {
            ensure,
            ..Self::default()
        };
        match &state.detail {
            Detail::File { metadata } => Self {
                owner: metadata.owner.clone(),
                group: metadata.group.clone(),
                mode: metadata.mode.clone(),
                checksum: metadata.checksum.clone(),
                ..previous
            },
            Detail::Line { metadata } => Self {
                owner: metadata.owner.clone(),
                group: metadata.group.clone(),
                mode: metadata.mode.clone(),
                checksum: metadata.checksum.clone(),
                ..previous
            },
            Detail::Group { metadata } => Self {
                attributes: metadata.attributes(),
                ..previous
            },
            Detail::User { metadata } => Self {
                attributes: metadata.attributes(),
                ..previous
            },
            Detail::Link { metadata } => Self {
                target: metadata.target.clone(),
                ..previous
            },
            Detail::Service { metadata } => Self {
                enabled: Some(metadata.enabled),
                ..previous
            },
            Detail::Package { .. }
            | Detail::Exec(_)
            | Detail::Archive { .. }
            | Detail::Scaffold { .. }
            | Detail::Apply(_) => previous,
        }
    }
}

impl Detail {
    pub fn type_name(&self) -> TypeName {
        match self {
            Self::Package { .. } => TypeName::Package,
            Self::Service { .. } => TypeName::Service,
            Self::File { .. } => TypeName::File,
            Self::Exec(_) => TypeName::Exec,
            Self::Group { .. } => TypeName::Group,
            Self::Line { .. } => TypeName::Line,
            Self::Link { .. } => TypeName::Link,
            Self::Archive { .. } => TypeName::Archive,
            Self::Scaffold { .. } => TypeName::Scaffold,
            Self::User { .. } => TypeName::User,
            Self::Apply(_) => TypeName::Apply,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PackageMetadata {
    pub name: String,
    pub version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arch: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub license: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    pub enabled: bool,
    pub running: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    pub owner: String,
    pub group: String,
    pub mode: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(with = "mtime")]
    pub mtime: Option<DateTime<FixedOffset>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecDetail {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exitcode: Option<i32>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub creates_satisfied: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub onlyif_satisfied: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub unless_satisfied: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkMetadata {
    pub name: String,
    /// Text of the link; invalid UTF-8 is replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Whether `target` is the complete text.
    #[serde(skip)]
    pub is_exact: bool,
}

#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LineMetadata {
    pub name: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    pub owner: String,
    pub group: String,
    pub mode: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(with = "mtime")]
    pub mtime: Option<DateTime<FixedOffset>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// Content of the file, which is not part of the published state; `None` if there is no file.
    #[serde(skip)]
    pub content: Option<Vec<u8>>,
}

impl std::fmt::Debug for LineMetadata {
    /// Shows no content, which may be secret.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = out.debug_struct("LineMetadata");
        fields.field("name", &self.name).field("path", &self.path);
        fields.field("size", &self.size).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Whether only another source of the name service knows the group.
    #[serde(default, skip_serializing_if = "is_false")]
    pub foreign: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
}

impl GroupMetadata {
    fn attributes(&self) -> BTreeMap<String, String> {
        let gid = self.gid.map(|gid| ("gid".into(), gid.to_string()));
        gid.into_iter().collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Name of the primary group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Supplementary groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub home: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shell: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Whether no password is accepted; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Day from which the account is disabled; empty for never.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expiry: String,
    /// Whether only another source of the name service knows the user.
    #[serde(default, skip_serializing_if = "is_false")]
    pub foreign: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// Stored password hash; not part of the published state.
    #[serde(skip)]
    pub password: Secret,
    /// Whether a group has the name of the user.
    #[serde(skip)]
    pub has_own_group: bool,
}

impl UserMetadata {
    fn attributes(&self) -> BTreeMap<String, String> {
        let number = |id: Option<u32>| id.map(|id| id.to_string()).unwrap_or_default();
        let locked = self.locked.map(|locked| locked.to_string());
        let all = [
            ("uid", number(self.uid)),
            ("gid", number(self.gid)),
            ("groups", self.groups.join(",")),
            ("home", self.home.clone()),
            ("shell", self.shell.clone()),
            ("comment", self.comment.clone()),
            ("locked", locked.unwrap_or_default()),
            ("expiry", self.expiry.clone()),
        ];
        let set = all.into_iter().filter(|(_, value)| !value.is_empty());
        set.map(|(name, value)| (name.into(), value)).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArchiveMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub archive_exists: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub creates_exists: bool,
    pub owner: String,
    pub group: String,
    #[serde(with = "mtime")]
    pub mtime: Option<DateTime<FixedOffset>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// What this node recorded about unpacking; not part of the published state.
    #[serde(skip)]
    pub unpacked: UnpackState,
}

/// The record of the last unpack of an archive, with the digest of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnpackState {
    /// There is no record: it was unpacked by another program, or never.
    #[default]
    Unknown,
    Interrupted(String),
    Complete(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScaffoldMetadata {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub target_exists: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub purged: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stable: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApplyDetail {
    pub resource_count: usize,
    pub changed_count: usize,
    pub failed_count: usize,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::json;

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[test]
    fn a_file_state_is_serialized_as_upstream_does() {
        let metadata = FileMetadata {
            name: "/srv/motd".into(),
            checksum: "ab".into(),
            owner: "root".into(),
            group: "root".into(),
            mode: "0644".into(),
            provider: "posix".into(),
            mtime: Some(DateTime::parse_from_rfc3339("2026-05-01T11:08:07.12+02:00").unwrap()),
            size: 3,
            ..FileMetadata::default()
        };
        let mut state = State::new(
            at("2026-05-01T09:08:07.120Z"),
            "/srv/motd",
            "present",
            Detail::File { metadata },
        );
        state.common.changed = true;
        state.common.stable = true;
        assert_eq!(
            json::pretty(&state).unwrap(),
            r#"{
  "timestamp": "2026-05-01T09:08:07.12Z",
  "protocol": "io.choria.ccm.v1.resource.file.state",
  "type": "file",
  "name": "/srv/motd",
  "ensure": "present",
  "changed": true,
  "refreshed": false,
  "stable": true,
  "noop": false,
  "metadata": {
    "name": "/srv/motd",
    "checksum": "ab",
    "owner": "root",
    "group": "root",
    "mode": "0644",
    "provider": "posix",
    "mtime": "2026-05-01T11:08:07.12+02:00",
    "size": 3
  }
}"#
        );
    }

    #[test]
    fn an_absent_file_has_empty_attributes_and_the_zero_time() {
        let metadata = FileMetadata {
            name: "/x".into(),
            provider: "posix".into(),
            ..FileMetadata::default()
        };
        assert_eq!(
            json::compact(&metadata).unwrap(),
            r#"{"name":"/x","owner":"","group":"","mode":"","provider":"posix","mtime":"0001-01-01T00:00:00Z"}"#
        );
    }

    #[test]
    fn an_exec_state_has_its_own_keys_and_the_common_ones() {
        let detail = ExecDetail {
            exitcode: Some(0),
            creates_satisfied: true,
            ..ExecDetail::default()
        };
        let time = at("2026-05-01T09:08:07Z");
        let state = State::new(time, "/bin/true", "present", Detail::Exec(detail));
        assert_eq!(
            json::compact(&state).unwrap(),
            r#"{"timestamp":"2026-05-01T09:08:07Z","protocol":"io.choria.ccm.v1.resource.exec.state","type":"exec","name":"/bin/true","ensure":"present","changed":false,"refreshed":false,"stable":false,"noop":false,"exitcode":0,"creates_satisfied":true}"#
        );
    }

    #[test]
    fn the_other_types_keep_their_mandatory_keys() {
        for (json, text) in [
            (
                json::compact(&PackageMetadata::default()).unwrap(),
                r#"{"name":"","version":""}"#,
            ),
            (
                json::compact(&ServiceMetadata::default()).unwrap(),
                r#"{"name":"","enabled":false,"running":false}"#,
            ),
            (
                json::compact(&ArchiveMetadata::default()).unwrap(),
                r#"{"name":"","owner":"","group":"","mtime":"0001-01-01T00:00:00Z"}"#,
            ),
            (
                json::compact(&ScaffoldMetadata::default()).unwrap(),
                r#"{"name":""}"#,
            ),
            (
                json::compact(&ApplyDetail::default()).unwrap(),
                r#"{"resource_count":0,"changed_count":0,"failed_count":0}"#,
            ),
        ] {
            assert_eq!(json, text);
        }
    }
}
