//! Rollouts where they are kept: one key each, below that of their collective, changed only by
//! comparing.
//!
//! Whoever changes a rollout says which revision was read, so two can never both succeed. What a
//! rollout should become is decided elsewhere: by [`super::planner`] step by step, by
//! [`super::controls`] when people want something. Bytes are made by [`super::rollout_encoding`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::controls::SteerError;
use super::node_progress::{self, Heard};
use super::rollout_encoding::{self, WireError};
use ccm_core::model::node::{BadName, NodeName, Report, Token};
use ccm_core::model::rollout::Rollout;
use ccm_nats::kv::{Bucket, Change, Entry, Watch};
use ccm_nats::streams::{REPORTED, ROLLOUTS};
use ccm_nats::{Connection, NatsError, Subjects};

/// How often a change is tried when somebody else is quicker.
const TRIES: usize = 20;

/// How long to wait for what is read to catch up with what was written.
const CATCH_UP: Duration = Duration::from_millis(50);

/// What went wrong with a rollout.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("rollout {0} does not exist")]
    NotFound(Token),
    #[error("rollout {id}: {cause}")]
    Wire {
        id: String,
        #[source]
        cause: WireError,
    },
    #[error("key {key} holds rollout {id} of collective {collective}")]
    Misplaced {
        key: String,
        id: Token,
        collective: Token,
    },
    #[error("rollout {id} takes {size} bytes and the servers allow {limit}")]
    TooLarge {
        id: Token,
        size: usize,
        limit: usize,
    },
    #[error("rollout {0} is changed by others all the time")]
    Busy(Token),
    #[error("rollout {id} is {state} and has {nodes} of these nodes, {first} among them")]
    InTheWay {
        id: Token,
        state: &'static str,
        nodes: usize,
        first: NodeName,
    },
    #[error(transparent)]
    Steer(#[from] SteerError),
    #[error("its time gives a rollout no name")]
    Name(#[from] BadName),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RolloutError {
    /// Whether somebody else wrote first.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Nats(err) if err.is_conflict())
    }
}

/// A rollout and the revision it was read at.
#[derive(Clone, Debug)]
pub struct Stored {
    pub rollout: Rollout,
    pub revision: u64,
}

/// The rollouts of a collective.
#[derive(Clone, Debug)]
pub struct Rollouts {
    bucket: Bucket,
    subjects: Subjects,
    limit: usize,
}

impl Rollouts {
    pub async fn open(connection: &Connection, subjects: &Subjects) -> Result<Self, RolloutError> {
        Ok(Self {
            bucket: connection.bucket(ROLLOUTS).await?,
            subjects: subjects.clone(),
            limit: connection.max_payload(),
        })
    }

    /// Returns a rollout as it is now.
    pub async fn get(&self, id: &Token) -> Result<Stored, RolloutError> {
        let found = self.bucket.get(&self.subjects.key(id)).await?;
        read(found.ok_or_else(|| RolloutError::NotFound(id.clone()))?)
    }

    /// Returns a rollout once it is beyond a revision that somebody else has replaced.
    pub(super) async fn get_beyond(
        &self,
        id: &Token,
        revision: u64,
    ) -> Result<Stored, RolloutError> {
        for _ in 0..TRIES {
            let stored = self.get(id).await?;
            if stored.revision > revision {
                return Ok(stored);
            }
            // Read from a replica that is behind.
            tokio::time::sleep(CATCH_UP).await;
        }
        Err(RolloutError::Busy(id.clone()))
    }

    /// Returns all rollouts, the oldest first, and what is wrong with those that can't be read.
    pub async fn list(&self) -> Result<(Vec<Stored>, Vec<RolloutError>), RolloutError> {
        list(&self.bucket, &self.subjects.keys()).await
    }

    /// Stores a rollout that is new, unless another one is on its way to the same nodes.
    pub async fn create(&self, rollout: Rollout) -> Result<Stored, RolloutError> {
        for other in self.list().await?.0 {
            stay_clear(&rollout, &other.rollout)?;
        }
        let bytes = self.bytes(&rollout)?;
        let key = self.subjects.key(&rollout.id);
        let revision = self.bucket.create(&key, bytes.into()).await?;
        Ok(Stored { rollout, revision })
    }

    /// Stores a rollout whose last revision is this, and returns the new one; a conflict if
    /// somebody else was quicker.
    pub async fn update(&self, rollout: &Rollout, revision: u64) -> Result<u64, RolloutError> {
        let bytes = self.bytes(rollout)?;
        let key = self.subjects.key(&rollout.id);
        Ok(self.bucket.update(&key, bytes.into(), revision).await?)
    }

    /// Changes a rollout, as often as it takes for nobody to be quicker.
    pub async fn steer<T>(
        &self,
        id: &Token,
        change: impl Fn(&mut Rollout) -> Result<T, SteerError>,
    ) -> Result<(T, Stored), RolloutError> {
        let mut stored = self.get(id).await?;
        for _ in 0..TRIES {
            let mut rollout = stored.rollout.clone();
            let outcome = change(&mut rollout)?;
            match self.update(&rollout, stored.revision).await {
                Ok(revision) => return Ok((outcome, Stored { rollout, revision })),
                Err(err) if err.is_conflict() => {
                    stored = self.get_beyond(id, stored.revision).await?;
                }
                Err(err) => return Err(err),
            }
        }
        Err(RolloutError::Busy(id.clone()))
    }

    /// Follows a rollout.
    pub(super) fn follow(&self, id: &Token) -> Result<Following, RolloutError> {
        Ok(Following {
            watch: self.bucket.watch(&self.subjects.key(id))?,
            id: id.clone(),
        })
    }

    fn bytes(&self, rollout: &Rollout) -> Result<Vec<u8>, RolloutError> {
        let bytes = rollout_encoding::encode(rollout).map_err(|cause| RolloutError::Wire {
            id: rollout.id.to_string(),
            cause,
        })?;
        if bytes.len() > self.limit {
            return Err(RolloutError::TooLarge {
                id: rollout.id.clone(),
                size: bytes.len(),
                limit: self.limit,
            });
        }
        Ok(bytes)
    }
}

/// What becomes of a rollout, as others change it.
#[derive(Debug)]
pub(super) struct Following {
    watch: Watch,
    id: Token,
}

impl Following {
    /// Returns the rollout when it has changed.
    pub(super) async fn next(&mut self) -> Result<Stored, RolloutError> {
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

/// Refuses nodes that another rollout may still assign.
fn stay_clear(rollout: &Rollout, other: &Rollout) -> Result<(), RolloutError> {
    if other.state.is_at_rest() || other.collective != rollout.collective {
        return Ok(());
    }
    let planned = |rollout: &Rollout| -> BTreeSet<NodeName> {
        let waves = rollout.plan.waves.iter();
        waves.flat_map(|wave| wave.nodes.clone()).collect()
    };
    let (ours, theirs) = (planned(rollout), planned(other));
    let mut both = ours.intersection(&theirs);
    match both.next() {
        None => Ok(()),
        Some(first) => Err(RolloutError::InTheWay {
            id: other.id.clone(),
            state: other.state.as_str(),
            nodes: both.count() + 1,
            first: first.clone(),
        }),
    }
}

/// Notes in a rollout what its nodes have reported since somebody drove it, without storing it.
pub async fn catch_up(
    connection: &Connection,
    subjects: &Subjects,
    rollout: &mut Rollout,
) -> Result<(), RolloutError> {
    let reported = connection.bucket(REPORTED).await?;
    let reports = reported.entries(&subjects.keys()).await?;
    let planned = rollout.plan.waves.iter().flat_map(|wave| &wave.nodes);
    let names: BTreeMap<String, NodeName> = planned
        .map(|node| (subjects.key(&node.token()), node.clone()))
        .collect();
    for entry in reports {
        if let Some(node) = names.get(&entry.key)
            && let Ok(report) = serde_json::from_slice::<Report>(&entry.value)
        {
            let heard = Heard::of(&report, rollout);
            node_progress::note(rollout, node, &heard);
        }
    }
    Ok(())
}

/// Returns the rollouts of every collective that can be read.
pub(super) async fn list_everywhere(connection: &Connection) -> Result<Vec<Stored>, RolloutError> {
    let bucket = connection.bucket(ROLLOUTS).await?;
    Ok(list(&bucket, "*.*").await?.0)
}

async fn list(
    bucket: &Bucket,
    keys: &str,
) -> Result<(Vec<Stored>, Vec<RolloutError>), RolloutError> {
    let mut rollouts = Vec::new();
    let mut broken = Vec::new();
    for entry in bucket.entries(keys).await? {
        match read(entry) {
            Ok(stored) => rollouts.push(stored),
            Err(err) => broken.push(err),
        }
    }
    rollouts.sort_by_key(|stored| (stored.rollout.created, stored.rollout.id.clone()));
    Ok((rollouts, broken))
}

/// Reads a rollout, which must be the one that its key names.
fn read(entry: Entry) -> Result<Stored, RolloutError> {
    let rollout = rollout_encoding::decode(&entry.value).map_err(|cause| RolloutError::Wire {
        id: entry.key.clone(),
        cause,
    })?;
    if entry.key != format!("{}.{}", rollout.collective, rollout.id) {
        return Err(RolloutError::Misplaced {
            key: entry.key,
            id: rollout.id,
            collective: rollout.collective,
        });
    }
    Ok(Stored {
        rollout,
        revision: entry.revision,
    })
}

/// Returns the name of a new rollout: its time, so that names sort, and a little chance.
pub(super) fn new_id(now: DateTime<Utc>, chance: u128) -> Result<Token, RolloutError> {
    const LETTERS: [char; 16] = [
        'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z',
    ];
    let bytes = chance.to_be_bytes();
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
    fn nodes_of_a_rollout_that_is_not_over_are_left_alone() {
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
            let found = stay_clear(&ours, &rollout("r1", nodes, state));
            assert_eq!(found.is_ok(), is_clear, "{nodes:?} {state}");
        }
        let error = stay_clear(&ours, &rollout("r1", &["b"], "running")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rollout r1 is running and has 1 of these nodes, b among them"
        );
    }

    #[test]
    fn a_name_says_when_and_differs_by_chance() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(new_id(now, 0).unwrap().as_str(), "20270115-080000-bbbb");
        assert_ne!(new_id(now, 1 << 120).unwrap(), new_id(now, 0).unwrap());
    }
}
