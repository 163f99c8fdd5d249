//! Backup and restoration of the fleet's streams and buckets.
//!
//! A backup is a directory with one snapshot file per stream and `backup.json`, which has their sizes
//! and SHA-256 digests. Each snapshot is one point in time; the streams are copied one after the
//! other, in an order in which everything that a record refers to is in the backup as well, see
//! [`streams::ALL`]. Restored streams have the same sequences, so revisions and generations go on
//! where they were, in the same incarnation.
//!
//! The directory is written beside its place and moved there when it is complete. Snapshots contain
//! everything in the streams, including data of assignments: files have mode 0600.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use ccm_core::model::incarnation::Incarnation;
use ccm_core::system::files::{self, Durability, PrivateDir, RandomAccessFile};
use ccm_core::system::{Digester, FileError};
use ccm_nats::stream_snapshot::{CHUNK, SnapshotInfo};
use ccm_nats::streams::{self, EVENTS};
use ccm_nats::{Bytes, Connection, NatsError};
use ccm_value::text::timestamp;

/// File with the list of streams; a directory without it is no backup.
const LIST: &str = "backup.json";

/// Version of the format.
const VERSION: u32 = 1;

/// Maximum size of the list.
const MAX_LIST: u64 = 16 << 20;

/// Why a backup or restoration failed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a backup: {LIST} does not exist", .0.display())]
    NoBackup(PathBuf),
    #[error("{} is invalid", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} has version {version}; this program reads version {VERSION}", path.display())]
    Version { path: PathBuf, version: u32 },
    #[error("{} is damaged: it differs from its digest in {LIST}", .0.display())]
    Damaged(PathBuf),
    #[error("the fleet has no streams")]
    NoStreams,
    /// Streams that a restoration would replace, with their number of messages.
    #[error("the fleet has data: {}", list(.0))]
    HasData(Vec<(String, u64)>),
}

fn list(streams: &[(String, u64)]) -> String {
    let texts = streams
        .iter()
        .map(|(name, count)| format!("{name} ({})", counted(*count)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns a number of messages as text.
fn counted(messages: u64) -> String {
    match messages {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}

/// The content of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backup {
    version: u32,
    #[serde(with = "timestamp")]
    pub created: DateTime<Utc>,
    /// Version of the program that made it.
    pub program: String,
    pub incarnation: Option<Incarnation>,
    pub streams: Vec<StreamCopy>,
}

/// The snapshot of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamCopy {
    pub name: String,
    /// Name of its file in the directory.
    file: String,
    pub bytes: u64,
    sha256: String,
    #[serde(flatten)]
    info: SnapshotInfo,
}

impl StreamCopy {
    /// Returns the number of messages as text.
    pub fn messages(&self) -> String {
        counted(self.info.messages())
    }
}

/// Copies the streams of the fleet into a new directory. `progress` is called for every stream.
pub async fn create(
    connection: &Connection,
    directory: &Path,
    with_events: bool,
    now: DateTime<Utc>,
    mut progress: impl FnMut(&StreamCopy),
) -> Result<Backup, BackupError> {
    if files::inspect(directory, false)?.is_some() {
        return Err(BackupError::Exists(directory.to_owned()));
    }
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let parent = directory.parent().unwrap_or(Path::new("/"));
    let temporary = PrivateDir::create(parent, ".ccm-backup-")?;
    let mut backup = Backup {
        version: VERSION,
        created: now,
        program: env!("CARGO_PKG_VERSION").into(),
        incarnation: match connection.incarnation().await {
            Err(err) if err.is_not_found() => None,
            incarnation => incarnation?,
        },
        streams: Vec::new(),
    };
    for name in streams::ALL {
        // A fleet of an older version has fewer streams.
        let is_wanted = with_events || name != EVENTS;
        if is_wanted && connection.message_count(name).await?.is_some() {
            let copy = copy_stream(connection, name, temporary.path()).await?;
            progress(&copy);
            backup.streams.push(copy);
        }
    }
    if backup.streams.is_empty() {
        return Err(BackupError::NoStreams);
    }
    let path = temporary.path().join(LIST);
    let text = serde_json::to_vec_pretty(&backup).map_err(|source| BackupError::Invalid {
        path: path.clone(),
        source,
    })?;
    files::write_private(&path, &text, Durability::Complete)?;
    temporary.persist(&directory)?;
    Ok(backup)
}

async fn copy_stream(
    connection: &Connection,
    name: &str,
    directory: &Path,
) -> Result<StreamCopy, BackupError> {
    let file = format!("{name}.snapshot");
    let out = RandomAccessFile::create(&directory.join(&file))?;
    let (mut bytes, mut digest) = (0, Digester::default());
    let copying = connection.snapshot_stream(name, |chunk| {
        out.write_at(bytes, chunk)?;
        digest.update(chunk);
        bytes += u64::try_from(chunk.len()).unwrap_or_default();
        Ok::<_, BackupError>(())
    });
    let info = copying.await?;
    out.sync()?;
    Ok(StreamCopy {
        name: name.into(),
        file,
        bytes,
        sha256: digest.finish().to_string(),
        info,
    })
}

impl Backup {
    /// Reads the list of a backup and verifies the digests of all its files.
    pub fn open(directory: &Path) -> Result<Self, BackupError> {
        let path = directory.join(LIST);
        let text = match files::read_to_string(&path, MAX_LIST) {
            Err(err) if err.is_not_found() => {
                return Err(BackupError::NoBackup(directory.to_owned()));
            }
            text => text?,
        };
        let invalid = |source| BackupError::Invalid {
            path: path.clone(),
            source,
        };
        let backup: Self = serde_json::from_str(&text).map_err(invalid)?;
        if backup.version != VERSION {
            let version = backup.version;
            return Err(BackupError::Version { path, version });
        }
        for copy in &backup.streams {
            let file = copy.path(directory);
            if files::sha256(&file)?.to_string() != copy.sha256 {
                return Err(BackupError::Damaged(file));
            }
        }
        Ok(backup)
    }

    /// Creates the streams again. Streams that exist are replaced if they are empty, or with
    /// `force`. Nothing is changed if that is refused.
    pub async fn restore(
        &self,
        connection: &Connection,
        directory: &Path,
        force: bool,
        replicas: Option<u8>,
        mut progress: impl FnMut(&StreamCopy),
    ) -> Result<(), BackupError> {
        let mut existing = Vec::new();
        for copy in &self.streams {
            if let Some(count) = connection.message_count(&copy.name).await? {
                existing.push((copy.name.clone(), count));
            }
        }
        let full = existing.iter().filter(|(_, count)| *count > 0);
        let full: Vec<_> = full.cloned().collect();
        if !force && !full.is_empty() {
            return Err(BackupError::HasData(full));
        }
        // Bundles before the assignments that name them.
        for copy in self.streams.iter().rev() {
            if existing.iter().any(|(name, _)| *name == copy.name) {
                connection.delete_stream(&copy.name).await?;
            }
            copy.restore(connection, directory, replicas).await?;
            progress(copy);
        }
        Ok(())
    }
}

impl StreamCopy {
    fn path(&self, directory: &Path) -> PathBuf {
        // The list may come from anywhere; the file is always beside it.
        let name = Path::new(&self.file).file_name();
        directory.join(name.unwrap_or_default())
    }

    async fn restore(
        &self,
        connection: &Connection,
        directory: &Path,
        replicas: Option<u8>,
    ) -> Result<(), BackupError> {
        let file = RandomAccessFile::open(&self.path(directory))?;
        let mut info = self.info.clone();
        if let (Some(replicas), Some(config)) = (replicas, info.config.as_object_mut()) {
            config.insert("num_replicas".into(), replicas.into());
        }
        let mut offset = 0;
        let next = || {
            let left = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
            if left == 0 {
                return Ok(None);
            }
            let chunk = file.read_at(offset, left.min(CHUNK))?;
            offset += u64::try_from(chunk.len()).unwrap_or_default();
            Ok::<_, BackupError>(Some(Bytes::from(chunk)))
        };
        connection.restore_stream(&self.name, &info, next).await
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;

    fn write(directory: &Path, version: u32, content: &[u8]) {
        let backup = Backup {
            version,
            created: DateTime::UNIX_EPOCH,
            program: "1.0.0".into(),
            incarnation: None,
            streams: vec![StreamCopy {
                name: "S".into(),
                file: "S.snapshot".into(),
                bytes: 3,
                sha256: ccm_core::system::Digest::of(b"abc").to_string(),
                info: SnapshotInfo {
                    config: serde_json::json!({ "name": "S" }),
                    state: serde_json::json!({ "messages": 2 }),
                },
            }],
        };
        let text = serde_json::to_string(&backup).unwrap();
        std::fs::write(directory.join(LIST), text).unwrap();
        std::fs::write(directory.join("S.snapshot"), content).unwrap();
    }

    #[test]
    fn a_backup_is_read_if_all_files_are_as_written() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), VERSION, b"abc");
        let backup = Backup::open(directory.path()).unwrap();
        assert_eq!(backup.streams[0].messages(), "2 messages");
        write(directory.path(), VERSION, b"abd");
        let error = Backup::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("S.snapshot is damaged"), "{error}");
        std::fs::remove_file(directory.path().join("S.snapshot")).unwrap();
        assert!(Backup::open(directory.path()).is_err());
    }

    #[test]
    fn other_versions_and_other_directories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Backup::open(directory.path()).unwrap_err();
        assert!(matches!(error, BackupError::NoBackup(_)), "{error}");
        write(directory.path(), 2, b"abc");
        let error = Backup::open(directory.path()).unwrap_err();
        assert!(error.to_string().contains("has version 2"), "{error}");
    }
}
