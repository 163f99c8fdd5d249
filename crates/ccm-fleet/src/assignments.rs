//! Assignments: reading and writing the desired state of nodes, idempotently.
//!
//! An assignment is only written over the revision that was read, and always with a higher
//! generation. The bucket shows whether a node has an assignment of a rollout, so that another
//! controller can continue. Which nodes are assigned, and when, is decided in the executor;
//! signatures are made in [`super::decision`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use ccm_core::model::incarnation::Incarnation;
use ccm_core::model::node::{ASSIGNMENT, Assignment, NodeName, NodeStatus, Pause};
use ccm_core::model::rollout::Rollout;
use ccm_nats::kv::{Bucket, Entry};
use ccm_nats::streams::{DESIRED, NODES};
use ccm_nats::{Bytes, Connection, Headers, NatsError, Subjects, Verb};
use ccm_value::json;

/// Number of reads until a changed value must be visible.
const MAX_READS: usize = 20;

/// Delay between two reads of a lagging replica.
const REPLICA_DELAY: Duration = Duration::from_millis(50);

/// The current assignment of a node.
#[derive(Clone, Debug)]
pub(super) enum CurrentAssignment {
    Nothing,
    Assigned {
        assignment: Box<Assignment>,
        revision: u64,
    },
    /// Can't be parsed, so it could not be restored either.
    Broken {
        cause: Arc<serde_json::Error>,
        revision: u64,
    },
}

impl CurrentAssignment {
    /// Returns the generation of the assignment.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Assigned { assignment, .. } => assignment.generation,
            Self::Nothing | Self::Broken { .. } => 0,
        }
    }

    /// Returns the assignment.
    pub(super) fn assignment(&self) -> Option<&Assignment> {
        match self {
            Self::Assigned { assignment, .. } => Some(assignment),
            Self::Nothing | Self::Broken { .. } => None,
        }
    }

    fn revision(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Assigned { revision, .. } | Self::Broken { revision, .. } => Some(*revision),
        }
    }
}

/// Presence of a node, and the parts of its status that matter to a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Offline,
    Online {
        pause: Option<Pause>,
        /// The node refuses unsigned assignments.
        requires_signature: bool,
        /// What keeps the node from working, such as a bundle that it can't fetch.
        problem: Option<String>,
    },
}

impl From<Entry> for CurrentAssignment {
    fn from(entry: Entry) -> Self {
        let revision = entry.revision;
        match serde_json::from_slice(&entry.value) {
            Ok(assignment) => Self::Assigned {
                assignment,
                revision,
            },
            Err(err) => Self::Broken {
                cause: Arc::new(err),
                revision,
            },
        }
    }
}

impl From<Entry> for Presence {
    fn from(entry: Entry) -> Self {
        // A node with an unreadable status is online all the same.
        let status = serde_json::from_slice::<NodeStatus>(&entry.value).ok();
        Self::Online {
            requires_signature: status.as_ref().is_some_and(requires_signature),
            problem: status.as_ref().and_then(|it| it.problems.first().cloned()),
            pause: status.and_then(|status| status.pause),
        }
    }
}

/// Result of writing an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteResult {
    /// The assignment is current, written now or before.
    Current,
    /// Another assignment was written first and remains.
    Conflict,
}

/// The assignments of a collective.
#[derive(Clone, Debug)]
pub(super) struct AssignmentStore {
    connection: Connection,
    subjects: Subjects,
    desired: Bucket,
    nodes: Bucket,
    incarnation: Option<Incarnation>,
}

impl AssignmentStore {
    pub(super) async fn open(
        connection: &Connection,
        subjects: &Subjects,
    ) -> Result<Self, NatsError> {
        Ok(Self {
            connection: connection.clone(),
            subjects: subjects.clone(),
            desired: connection.bucket(DESIRED).await?,
            nodes: connection.bucket(NODES).await?,
            incarnation: connection.incarnation().await?,
        })
    }

    /// Returns the incarnation of the fleet, which assignments carry.
    pub(super) fn incarnation(&self) -> Option<&Incarnation> {
        self.incarnation.as_ref()
    }

    /// Returns the current assignment of a node, as the leader of the bucket has it: an older one from
    /// a lagging replica would be taken for the previous one, or for one written by others.
    async fn find(&self, node: &NodeName) -> Result<CurrentAssignment, NatsError> {
        let entry = self.desired.get_latest(&self.key(node)).await?;
        Ok(entry.map_or(CurrentAssignment::Nothing, CurrentAssignment::from))
    }

    /// Returns the current assignments of nodes in their order, as the leader of the bucket has them.
    pub(super) async fn find_many(
        &self,
        nodes: &[NodeName],
    ) -> Result<Vec<CurrentAssignment>, NatsError> {
        let keys: Vec<String> = nodes.iter().map(|node| self.key(node)).collect();
        let found = self.desired.get_many_latest(&keys).await?;
        let mut found: HashMap<String, Entry> =
            found.into_iter().map(|it| (it.key.clone(), it)).collect();
        let found = keys.iter().map(|key| found.remove(key));
        let found = found.map(|it| it.map_or(CurrentAssignment::Nothing, CurrentAssignment::from));
        Ok(found.collect())
    }

    /// Returns the presence of nodes, in their order.
    pub(super) async fn presence_of(&self, nodes: &[NodeName]) -> Result<Vec<Presence>, NatsError> {
        let keys: Vec<String> = nodes.iter().map(|node| self.key(node)).collect();
        let found = self.nodes.get_many_latest(&keys).await?;
        let mut found: HashMap<String, Entry> =
            found.into_iter().map(|it| (it.key.clone(), it)).collect();
        let found = keys.iter().map(|key| found.remove(key));
        Ok(found
            .map(|it| it.map_or(Presence::Offline, Presence::from))
            .collect())
    }

    /// Writes an assignment over the one that was read, in the incarnation of the fleet.
    pub(super) async fn write(
        &self,
        node: &NodeName,
        assignment: &Assignment,
        over: &CurrentAssignment,
    ) -> Result<WriteResult, NatsError> {
        let key = self.key(node);
        let failed = |source| NatsError::Store {
            action: "write",
            name: format!("{DESIRED}#{key}"),
            source,
        };
        let assignment = &Assignment {
            incarnation: self.incarnation.clone(),
            ..assignment.clone()
        };
        let text = json::compact(assignment).map_err(|err| failed(err.into()))?;
        let written = match over.revision() {
            Some(revision) => self.desired.update(&key, text.into(), revision).await,
            None => self.desired.create(&key, text.into()).await,
        };
        match written {
            Ok(_) => Ok(WriteResult::Current),
            Err(err) if err.is_conflict() => {
                let now = self.find_other_than(node, over.revision()).await?;
                let is_same = |it: &Assignment| {
                    it.rollout == assignment.rollout && it.generation == assignment.generation
                };
                Ok(if now.assignment().is_some_and(is_same) {
                    WriteResult::Current
                } else {
                    WriteResult::Conflict
                })
            }
            Err(err) => Err(err),
        }
    }

    /// Notifies a node of a new assignment. A node that misses the message sees the change in its
    /// own watch.
    pub(super) async fn nudge(&self, node: &NodeName) -> Result<(), NatsError> {
        let subject = self.subjects.node(&node.token(), Verb::Nudge);
        self.connection
            .publish(&subject, Headers::new(), Bytes::new())
            .await
    }

    /// Returns the current assignment once its revision differs from this one.
    async fn find_other_than(
        &self,
        node: &NodeName,
        revision: Option<u64>,
    ) -> Result<CurrentAssignment, NatsError> {
        let mut found = self.find(node).await?;
        for _ in 0..MAX_READS {
            if found.revision() != revision {
                break;
            }
            // A replica may lag behind.
            tokio::time::sleep(REPLICA_DELAY).await;
            found = self.find(node).await?;
        }
        Ok(found)
    }

    fn key(&self, node: &NodeName) -> String {
        self.subjects.key(&node.token())
    }
}

/// Reports whether a node requires signatures.
pub(super) fn requires_signature(status: &NodeStatus) -> bool {
    status.trust.as_ref().is_some_and(|trust| trust.required)
}

/// Returns the assignment of a rollout, unsigned.
pub(super) fn assignment(rollout: &Rollout, generation: u64, now: DateTime<Utc>) -> Assignment {
    Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        incarnation: None,
        manifests: vec![rollout.bundle.clone()],
        data: rollout.data.clone(),
        noop: rollout.noop,
        governor: rollout.settings.governor.clone(),
        rollout: Some(rollout.id.clone()),
        assigned: now,
        signature: None,
    }
}

/// Returns the assignment that restores the previous one, unsigned. Without a previous one it is
/// empty: the generation must grow, so that a node never takes a later assignment for an old one.
pub(super) fn restored(
    previous: Option<&Assignment>,
    generation: u64,
    now: DateTime<Utc>,
) -> Assignment {
    let empty = Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        incarnation: None,
        manifests: Vec::new(),
        data: ccm_value::Value::Null,
        noop: false,
        governor: None,
        rollout: None,
        assigned: now,
        signature: None,
    };
    match previous {
        None => empty,
        Some(previous) => Assignment {
            generation,
            incarnation: None,
            assigned: now,
            signature: None,
            ..previous.clone()
        },
    }
}

/// Reports whether two assignments have the same content.
pub(super) fn has_same_content(a: Option<&Assignment>, b: Option<&Assignment>) -> bool {
    let content = |it: Option<&Assignment>| {
        it.filter(|it| !it.manifests.is_empty())
            .map(|it| (it.manifests.clone(), it.data.clone(), it.noop))
    };
    content(a) == content(b)
}
