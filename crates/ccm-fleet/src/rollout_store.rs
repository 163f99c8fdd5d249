//! Rollout store: one key per rollout in a bucket, changed only by compare-and-set, and keys below it
//! for the nodes of large rollouts.
//!
//! Every update names the revision that was read, so that of two concurrent updates only one
//! succeeds. Changes are decided by [`super::planner`] and [`super::controls`]; the encoding is in
//! [`super::rollout_encoding`] and `rollout_chunks`; `chunk_store` reads and writes chunks.

mod chunk_store;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::controls::ControlError;
use super::rollout_chunks::{self, Chunk, Head, Layout};
use super::rollout_encoding::{self, EncodingError};
use ccm_core::model::node::{NameError, NodeName, Token};
use ccm_core::model::rollout::{ControlRecord, Rollout, Tally};
use ccm_core::system::{Clock as _, RandomError, SystemClock, random};
use ccm_nats::backoff;
use ccm_nats::kv::{Bucket, Change, Entry, Watch};
use ccm_nats::streams::ROLLOUTS;
use ccm_nats::subject::DEFAULT_PREFIX;
use ccm_nats::{Bytes, Connection, NatsError, Subjects};

/// Number of attempts to update or reread a rollout.
const MAX_ATTEMPTS: usize = 20;

/// Number of attempts to store a new rollout; each may take as long as a request.
const CREATE_ATTEMPTS: usize = 6;

/// Delay between two reads of a lagging replica.
const REPLICA_DELAY: Duration = Duration::from_millis(50);

/// Why an operation on a rollout failed.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("rollout {0} does not exist")]
    NotFound(Token),
    #[error("rollout {id}: {cause}")]
    Encoding {
        id: String,
        #[source]
        cause: EncodingError,
    },
    #[error("key {key} holds rollout {id} of collective {collective}")]
    WrongKey {
        key: String,
        id: Token,
        collective: Token,
    },
    #[error("rollout {id} has {size} bytes, the NATS server allows {limit}")]
    TooLarge {
        id: Token,
        size: usize,
        limit: usize,
    },
    #[error("rollout {0} is changed concurrently; giving up")]
    Busy(Token),
    #[error("rollout {id} is {state} and includes {nodes} of these nodes, such as {first}")]
    Overlap {
        id: Token,
        state: &'static str,
        nodes: usize,
        first: NodeName,
    },
    #[error("rollout {id} may have been stored: {source}")]
    Unconfirmed { id: Token, source: NatsError },
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("can't make a rollout id of the time")]
    Name(#[from] NameError),
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RolloutError {
    /// Reports whether another update came first.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Nats(err) if err.is_conflict())
    }

    /// Reports whether NATS did not reply, has no quorum or lags behind: a retry may succeed.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Nats(err) => err.is_temporary(),
            Self::Busy(_) => true,
            _ => false,
        }
    }
}

/// A rollout and its revision.
#[derive(Clone, Debug)]
pub struct StoredRollout {
    pub rollout: Rollout,
    pub revision: u64,
    /// Where its nodes are stored.
    pub(super) layout: Layout,
}

impl StoredRollout {
    /// Returns a rollout that is one message.
    pub(super) fn whole(rollout: Rollout, revision: u64) -> Self {
        Self {
            rollout,
            revision,
            layout: Layout::default(),
        }
    }
}

/// A rollout without its nodes, which are read by [`RolloutStore::get`].
#[derive(Clone, Debug)]
pub struct RolloutHead {
    /// May lack the nodes of its plan, their progress and their previous assignments.
    pub rollout: Rollout,
    pub tally: Tally,
    pub revision: u64,
}

/// What a key holds.
#[derive(Debug)]
pub(super) enum StoredForm {
    Whole(Box<StoredRollout>),
    /// The head of a rollout in chunks, and its revision.
    Head(Box<Head>, u64),
}

impl StoredForm {
    pub(super) fn revision(&self) -> u64 {
        match self {
            Self::Whole(stored) => stored.revision,
            Self::Head(_, revision) => *revision,
        }
    }

    pub(super) fn id(&self) -> &Token {
        match self {
            Self::Whole(stored) => &stored.rollout.id,
            Self::Head(head, _) => &head.rollout.id,
        }
    }

    fn into_head(self) -> RolloutHead {
        match self {
            Self::Whole(stored) => RolloutHead {
                tally: stored.rollout.tally(),
                rollout: stored.rollout,
                revision: stored.revision,
            },
            Self::Head(head, revision) => RolloutHead {
                rollout: head.rollout,
                tally: head.tally,
                revision,
            },
        }
    }
}

/// The rollouts of a collective.
#[derive(Clone, Debug)]
pub struct RolloutStore {
    bucket: Bucket,
    subjects: Subjects,
    limit: usize,
}

impl RolloutStore {
    pub async fn open(connection: &Connection, subjects: &Subjects) -> Result<Self, RolloutError> {
        Ok(Self {
            bucket: connection.bucket(ROLLOUTS).await?,
            subjects: subjects.clone(),
            limit: connection.max_payload(),
        })
    }

    /// Returns the stored rollout, as the leader of the bucket has it: a rollout may be read just after
    /// it was stored.
    pub async fn get(&self, id: &Token) -> Result<StoredRollout, RolloutError> {
        for _ in 0..MAX_ATTEMPTS {
            let found = self.bucket.get_latest(&self.subjects.key(id)).await?;
            let form = read(found.ok_or_else(|| RolloutError::NotFound(id.clone()))?)?;
            if let Some(stored) = self.load(form, None).await? {
                return Ok(stored);
            }
            // The head was replaced while its chunks were read.
            tokio::time::sleep(REPLICA_DELAY).await;
        }
        let cause = EncodingError::Missing("of the last head".into());
        let id = id.to_string();
        Err(RolloutError::Encoding { id, cause })
    }

    /// Returns a rollout once its revision is above one that is known to be replaced.
    pub(super) async fn get_newer(
        &self,
        id: &Token,
        revision: u64,
    ) -> Result<StoredRollout, RolloutError> {
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.get(id).await?;
            if stored.revision > revision {
                return Ok(stored);
            }
            // A replica may lag behind, and so may a new leader.
            tokio::time::sleep(REPLICA_DELAY).await;
        }
        Err(RolloutError::Busy(id.clone()))
    }

    /// Returns all rollouts without their nodes, the oldest first, and the errors of those that can't
    /// be read.
    pub async fn list(&self) -> Result<(Vec<RolloutHead>, Vec<RolloutError>), RolloutError> {
        list(&self.bucket, &self.subjects.all_keys()).await
    }

    /// Stores a new rollout, unless an active one includes some of its nodes. Tries again if NATS
    /// does not reply, and calls `waiting` with the reason before.
    pub(super) async fn create(
        &self,
        rollout: Rollout,
        waiting: impl Fn(&RolloutError),
    ) -> Result<StoredRollout, RolloutError> {
        for other in self.list().await?.0 {
            if !other.rollout.state.is_finished() {
                check_overlap(&rollout, &self.get(&other.rollout.id).await?.rollout)?;
            }
        }
        let prepared = self.prepare(&rollout, &Layout::default())?;
        let bytes = Bytes::from(prepared.bytes);
        let key = self.subjects.key(&rollout.id);
        let mut attempts = 0;
        // The head was sent and NATS did not reply.
        let mut is_sent = false;
        loop {
            attempts += 1;
            let written = self.write_chunks(&rollout.id, &prepared.chunks).await;
            let has_chunks = written.is_ok();
            let created = match written {
                Ok(()) => self.bucket.create(&key, bytes.clone()).await,
                Err(err) => Err(err),
            };
            let err = match created {
                Ok(revision) => {
                    return Ok(StoredRollout {
                        rollout,
                        revision,
                        layout: prepared.layout,
                    });
                }
                // The random id is ours.
                Err(err) if err.is_conflict() && is_sent => return self.get(&rollout.id).await,
                Err(err) => err,
            };
            is_sent |= has_chunks && err.is_temporary();
            if err.is_temporary() && attempts < CREATE_ATTEMPTS {
                waiting(&err.into());
                tokio::time::sleep(backoff::delay(attempts - 1)).await;
            } else if is_sent {
                let id = rollout.id;
                return Err(RolloutError::Unconfirmed { id, source: err });
            } else {
                return Err(err.into());
            }
        }
    }

    /// Updates a rollout if this is its last revision, and returns the new revision and where its nodes
    /// are stored; else a conflict.
    pub(super) async fn update(
        &self,
        stored: &StoredRollout,
    ) -> Result<(u64, Layout), RolloutError> {
        let rollout = &stored.rollout;
        let prepared = self.prepare(rollout, &stored.layout)?;
        self.write_chunks(&rollout.id, &prepared.chunks).await?;
        let key = self.subjects.key(&rollout.id);
        let update = self
            .bucket
            .update(&key, prepared.bytes.into(), stored.revision);
        match update.await {
            Ok(revision) => {
                self.remove_chunks(&rollout.id, &prepared.replaced).await;
                Ok((revision, prepared.layout))
            }
            Err(err) => {
                if err.is_conflict() {
                    // Members may be those of the head that came first.
                    let unused = prepared.chunks.into_iter().filter(Chunk::is_unique);
                    let unused: Vec<String> = unused.map(|it| it.name).collect();
                    self.remove_chunks(&rollout.id, &unused).await;
                }
                Err(err.into())
            }
        }
    }

    /// Changes a rollout for an operator and records it.
    pub async fn control<T>(
        &self,
        id: &Token,
        verb: &str,
        by: &str,
        change: impl Fn(&mut Rollout) -> Result<T, ControlError>,
    ) -> Result<(T, StoredRollout), RolloutError> {
        let recorded = |rollout: &mut Rollout| {
            let outcome = change(rollout)?;
            rollout.record_control(ControlRecord {
                verb: verb.into(),
                by: by.into(),
                at: SystemClock.now(),
            });
            Ok(outcome)
        };
        self.change(id, recorded).await
    }

    /// Changes a rollout; retries after a conflict.
    pub(super) async fn change<T>(
        &self,
        id: &Token,
        change: impl Fn(&mut Rollout) -> Result<T, ControlError>,
    ) -> Result<(T, StoredRollout), RolloutError> {
        let mut stored = self.get(id).await?;
        for _ in 0..MAX_ATTEMPTS {
            let outcome = change(&mut stored.rollout)?;
            match self.update(&stored).await {
                Ok((revision, layout)) => {
                    (stored.revision, stored.layout) = (revision, layout);
                    return Ok((outcome, stored));
                }
                Err(err) if err.is_conflict() => {
                    stored = self.get_newer(id, stored.revision).await?;
                }
                Err(err) => return Err(err),
            }
        }
        Err(RolloutError::Busy(id.clone()))
    }

    /// Watches a rollout.
    pub(super) fn watch(&self, id: &Token) -> Result<RolloutWatch, RolloutError> {
        Ok(RolloutWatch {
            watch: self.bucket.watch(&self.subjects.key(id))?,
            id: id.clone(),
        })
    }

    /// Returns what is to be written to store a rollout.
    fn prepare(&self, rollout: &Rollout, layout: &Layout) -> Result<Prepared, RolloutError> {
        let failed = |cause| RolloutError::Encoding {
            id: rollout.id.to_string(),
            cause,
        };
        let unique = format!("{:016x}", random()? >> 64);
        let prepared = match rollout_chunks::writes(rollout, layout, &unique).map_err(failed)? {
            Some(writes) => Prepared {
                bytes: writes.head,
                chunks: writes.chunks,
                replaced: writes.replaced,
                layout: writes.layout,
            },
            None => Prepared {
                bytes: rollout_encoding::encode(rollout).map_err(failed)?,
                ..Prepared::default()
            },
        };
        let sizes = prepared.chunks.iter().map(|it| it.bytes.len());
        let size = sizes.chain([prepared.bytes.len()]).max().unwrap_or(0);
        if size > self.limit {
            return Err(RolloutError::TooLarge {
                id: rollout.id.clone(),
                size,
                limit: self.limit,
            });
        }
        Ok(prepared)
    }
}

/// What is to be written to store a rollout: the chunks first.
#[derive(Debug, Default)]
struct Prepared {
    /// The value of the key of the rollout.
    bytes: Vec<u8>,
    chunks: Vec<Chunk>,
    /// Chunks that are not used afterwards.
    replaced: Vec<String>,
    layout: Layout,
}

/// A watch of one rollout.
#[derive(Debug)]
pub(super) struct RolloutWatch {
    watch: Watch,
    id: Token,
}

impl RolloutWatch {
    /// Waits for the next change and returns what is stored now.
    pub(super) async fn next(&mut self) -> Result<StoredForm, RolloutError> {
        loop {
            match self.watch.next().await {
                Some(Change::Put(entry)) => return read(entry),
                Some(Change::Removed { .. }) => {
                    return Err(RolloutError::NotFound(self.id.clone()));
                }
                Some(Change::Restart | Change::Current) => {}
                Some(Change::Denied(denial)) => return Err(NatsError::from(denial).into()),
                None => return Err(NatsError::Closed.into()),
            }
        }
    }
}

/// Refuses nodes that another active rollout includes.
fn check_overlap(rollout: &Rollout, other: &Rollout) -> Result<(), RolloutError> {
    if other.state.is_finished() || other.collective != rollout.collective {
        return Ok(());
    }
    let ours: BTreeSet<&NodeName> = rollout.plan.nodes().collect();
    let theirs: BTreeSet<&NodeName> = other.plan.nodes().collect();
    let mut common = ours.intersection(&theirs);
    match common.next() {
        None => Ok(()),
        Some(first) => Err(RolloutError::Overlap {
            id: other.id.clone(),
            state: other.state.as_str(),
            nodes: common.count() + 1,
            first: (*first).clone(),
        }),
    }
}

/// Returns the readable rollouts of all collectives that are not finished.
pub(super) async fn list_active(
    connection: &Connection,
) -> Result<Vec<StoredRollout>, RolloutError> {
    let bucket = connection.bucket(ROLLOUTS).await?;
    let mut active = Vec::new();
    for head in list(&bucket, "*.*").await?.0 {
        let Rollout {
            state,
            collective,
            id,
            ..
        } = head.rollout;
        if !state.is_finished() {
            let subjects = Subjects::new(DEFAULT_PREFIX, collective)?;
            let rollouts = RolloutStore::open(connection, &subjects).await?;
            match rollouts.get(&id).await {
                Ok(stored) => active.push(stored),
                Err(RolloutError::NotFound(_)) => {}
                Err(err) => return Err(err),
            }
        }
    }
    Ok(active)
}

async fn list(
    bucket: &Bucket,
    keys: &str,
) -> Result<(Vec<RolloutHead>, Vec<RolloutError>), RolloutError> {
    let mut rollouts = Vec::new();
    let mut broken = Vec::new();
    for entry in bucket.entries(keys).await? {
        match read(entry) {
            Ok(form) => rollouts.push(form.into_head()),
            Err(err) => broken.push(err),
        }
    }
    rollouts.sort_by_key(|stored| (stored.rollout.created, stored.rollout.id.clone()));
    Ok((rollouts, broken))
}

/// Decodes what the key of a rollout holds, which must have the id and collective of the key.
pub(super) fn read(entry: Entry) -> Result<StoredForm, RolloutError> {
    let failed = |cause| RolloutError::Encoding {
        id: entry.key.clone(),
        cause,
    };
    let form = match rollout_chunks::decode_head(&entry.value).map_err(failed)? {
        Some(head) => StoredForm::Head(Box::new(head), entry.revision),
        None => {
            let rollout = rollout_encoding::decode(&entry.value).map_err(failed)?;
            StoredForm::Whole(Box::new(StoredRollout::whole(rollout, entry.revision)))
        }
    };
    let rollout = match &form {
        StoredForm::Whole(stored) => &stored.rollout,
        StoredForm::Head(head, _) => &head.rollout,
    };
    if entry.key != format!("{}.{}", rollout.collective, rollout.id) {
        return Err(RolloutError::WrongKey {
            key: entry.key,
            id: rollout.id.clone(),
            collective: rollout.collective.clone(),
        });
    }
    Ok(form)
}

/// Returns a new rollout id: a sortable time and random letters.
pub(super) fn new_id(now: DateTime<Utc>, random: u128) -> Result<Token, RolloutError> {
    const LETTERS: [char; 16] = [
        'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z',
    ];
    let bytes = random.to_be_bytes();
    let letters = bytes.iter().take(4);
    let letters: String = letters
        .filter_map(|byte| LETTERS.get(usize::from(byte % 16)))
        .collect();
    let text = format!("{}-{letters}", now.format("%Y%m%d-%H%M%S"));
    Ok(text.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_an_active_rollout_are_refused() {
        let rollout = |id: &str, nodes: &[&str], state: &str| -> Rollout {
            serde_json::from_value(serde_json::json!({
                "protocol": ccm_core::model::rollout::ROLLOUT,
                "id": id,
                "bundle": {"name": "app", "digest": "ab".repeat(32)},
                "created": "2027-01-15T08:00:00Z",
                "plan": {"waves": [{"name": "wave 1", "nodes": nodes}]},
                "state": {"name": state}
            }))
            .unwrap()
        };
        let ours = rollout("r2", &["a", "b"], "running");
        for (nodes, state, is_clear) in [
            (&["b", "c"][..], "running", false),
            (&["b", "c"], "rolling_back", false),
            (&["b", "c"], "done", true),
            (&["c"], "running", true),
        ] {
            let found = check_overlap(&ours, &rollout("r1", nodes, state));
            assert_eq!(found.is_ok(), is_clear, "{nodes:?} {state}");
        }
        let error = check_overlap(&ours, &rollout("r1", &["b"], "running")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rollout r1 is running and includes 1 of these nodes, such as b"
        );
    }

    #[test]
    fn an_id_has_the_time_and_random_letters() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(new_id(now, 0).unwrap().as_str(), "20270115-080000-bbbb");
        assert_ne!(new_id(now, 1 << 120).unwrap(), new_id(now, 0).unwrap());
    }
}
