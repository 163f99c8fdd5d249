//! Assignments written and taken back, so that doing it twice does nothing.
//!
//! An assignment is only ever written over the one that was read, and always with a higher
//! generation. Whether a node has one of a rollout can be read from the bucket, so a controller
//! that died in between left no doubt behind. Which nodes are meant, and when, is not known here.
//! Nothing is signed here either: who stands for an assignment is in [`super::decision`].

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use ccm_core::model::node::{ASSIGNMENT, Assignment, NodeName, NodeStatus, Pause};
use ccm_core::model::rollout::Rollout;
use ccm_nats::kv::Bucket;
use ccm_nats::streams::{DESIRED, NODES};
use ccm_nats::{Bytes, Connection, Headers, NatsError, Subjects, Verb};
use ccm_value::json;

/// How often a value is read again that must have changed.
const TRIES: usize = 20;

/// How long to wait for what is read to catch up with what was written.
const CATCH_UP: Duration = Duration::from_millis(50);

/// What a node is assigned, as it was read.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Nothing,
    Assigned {
        assignment: Assignment,
        revision: u64,
    },
    /// Not to be read, so it could not be put back either.
    Broken {
        cause: Arc<serde_json::Error>,
        revision: u64,
    },
}

impl Found {
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

/// Whether a node is there, and what it says that matters to a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Away,
    Here {
        pause: Option<Pause>,
        /// It follows only what is signed.
        requires_signature: bool,
    },
}

/// What came of giving a node an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// It stands, written now or before.
    Stands,
    /// Somebody else was quicker; theirs stands.
    Foreign,
}

/// The assignments of a collective.
#[derive(Clone, Debug)]
pub(super) struct Assigning {
    connection: Connection,
    subjects: Subjects,
    desired: Bucket,
    nodes: Bucket,
}

impl Assigning {
    pub(super) async fn open(
        connection: &Connection,
        subjects: &Subjects,
    ) -> Result<Self, NatsError> {
        Ok(Self {
            connection: connection.clone(),
            subjects: subjects.clone(),
            desired: connection.bucket(DESIRED).await?,
            nodes: connection.bucket(NODES).await?,
        })
    }

    /// Returns what a node is assigned now.
    pub(super) async fn find(&self, node: &NodeName) -> Result<Found, NatsError> {
        let entry = self.desired.get(&self.key(node)).await?;
        let Some(entry) = entry else {
            return Ok(Found::Nothing);
        };
        let revision = entry.revision;
        Ok(match serde_json::from_slice(&entry.value) {
            Ok(assignment) => Found::Assigned {
                assignment,
                revision,
            },
            Err(err) => Found::Broken {
                cause: Arc::new(err),
                revision,
            },
        })
    }

    /// Returns whether a node is there.
    pub(super) async fn presence(&self, node: &NodeName) -> Result<Presence, NatsError> {
        let Some(entry) = self.nodes.get(&self.key(node)).await? else {
            return Ok(Presence::Away);
        };
        // A node whose words we don't understand is there all the same.
        let status = serde_json::from_slice::<NodeStatus>(&entry.value).ok();
        Ok(Presence::Here {
            requires_signature: status.as_ref().is_some_and(requires_signature),
            pause: status.and_then(|status| status.pause),
        })
    }

    /// Writes an assignment over what was found.
    pub(super) async fn give(
        &self,
        node: &NodeName,
        assignment: &Assignment,
        over: &Found,
    ) -> Result<Given, NatsError> {
        let key = self.key(node);
        let failed = |source| NatsError::Store {
            action: "write",
            name: format!("{DESIRED}#{key}"),
            source,
        };
        let text = json::compact(assignment).map_err(|err| failed(err.into()))?;
        let written = match over.revision() {
            Some(revision) => self.desired.update(&key, text.into(), revision).await,
            None => self.desired.create(&key, text.into()).await,
        };
        match written {
            Ok(_) => Ok(Given::Stands),
            Err(err) if err.is_conflict() => {
                let now = self.find_beyond(node, over.revision()).await?;
                let is_this = |it: &Assignment| {
                    it.rollout == assignment.rollout && it.generation == assignment.generation
                };
                Ok(if now.assignment().is_some_and(is_this) {
                    Given::Stands
                } else {
                    Given::Foreign
                })
            }
            Err(err) => Err(err),
        }
    }

    /// Tells a node that its assignment may be new. One that does not hear it looks by itself.
    pub(super) async fn nudge(&self, node: &NodeName) -> Result<(), NatsError> {
        let subject = self.subjects.node(&node.token(), Verb::Nudge);
        let nothing = Bytes::new();
        self.connection
            .publish(&subject, Headers::new(), nothing)
            .await
    }

    /// Returns what is there once it is no longer what was found.
    async fn find_beyond(
        &self,
        node: &NodeName,
        revision: Option<u64>,
    ) -> Result<Found, NatsError> {
        let mut found = self.find(node).await?;
        for _ in 0..TRIES {
            if found.revision() != revision {
                break;
            }
            // Read from a replica that is behind.
            tokio::time::sleep(CATCH_UP).await;
            found = self.find(node).await?;
        }
        Ok(found)
    }

    fn key(&self, node: &NodeName) -> String {
        self.subjects.key(&node.token())
    }
}

/// Reports whether a node follows only what is signed.
pub(super) fn requires_signature(status: &NodeStatus) -> bool {
    status.trust.as_ref().is_some_and(|trust| trust.required)
}

/// Returns the assignment of a rollout, without who stands for it.
pub(super) fn assignment(rollout: &Rollout, generation: u64, now: DateTime<Utc>) -> Assignment {
    Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        manifests: vec![rollout.bundle.clone()],
        data: rollout.data.clone(),
        noop: rollout.noop,
        governor: rollout.settings.governor.clone(),
        rollout: Some(rollout.id.clone()),
        assigned: now,
        signature: None,
    }
}

/// Returns the assignment that puts back what a node had before. A node that had none is assigned
/// nothing: its generation only ever grows, so it can't mistake a later assignment for an old one.
pub(super) fn restored(
    previous: Option<&Assignment>,
    generation: u64,
    now: DateTime<Utc>,
) -> Assignment {
    let nothing = Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        manifests: Vec::new(),
        data: ccm_value::Value::Null,
        noop: false,
        governor: None,
        rollout: None,
        assigned: now,
        signature: None,
    };
    match previous {
        None => nothing,
        Some(previous) => Assignment {
            generation,
            assigned: now,
            signature: None,
            ..previous.clone()
        },
    }
}

/// Reports whether two assignments want the same of a node.
pub(super) fn is_same(a: Option<&Assignment>, b: Option<&Assignment>) -> bool {
    let wanted = |it: Option<&Assignment>| {
        it.filter(|it| !it.manifests.is_empty())
            .map(|it| (it.manifests.clone(), it.data.clone(), it.noop))
    };
    wanted(a) == wanted(b)
}
