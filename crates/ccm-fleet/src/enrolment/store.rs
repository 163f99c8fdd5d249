//! Records of tokens, requests and enrolled nodes, in one bucket.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EnrolmentError;
use ccm_core::model::enrolment::{EnrolledNode, EnrolmentToken, PendingNode};
use ccm_core::model::node::{NodeName, Token};
use ccm_nats::kv::{Bucket, Entry};
use ccm_nats::streams::{ENROLMENTS, NODES};
use ccm_nats::{Connection, NatsError, Subjects};

/// A record and its revision.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    pub value: T,
    revision: u64,
}

/// The records of a fleet.
#[derive(Clone, Debug)]
pub struct EnrolmentStore {
    bucket: Bucket,
    nodes: Bucket,
    subjects: Subjects,
}

impl EnrolmentStore {
    /// Opens the bucket.
    pub async fn open(connection: &Connection, subjects: &Subjects) -> Result<Self, NatsError> {
        Ok(Self {
            bucket: connection.bucket(ENROLMENTS).await?,
            nodes: connection.bucket(NODES).await?,
            subjects: subjects.clone(),
        })
    }

    pub(super) fn subjects(&self) -> &Subjects {
        &self.subjects
    }

    pub async fn token(
        &self,
        id: &Token,
    ) -> Result<Option<Stored<EnrolmentToken>>, EnrolmentError> {
        self.get(&self.subjects.enrolment_token_key(id)).await
    }

    /// Returns all tokens, in the order of their last change.
    pub async fn tokens(&self) -> Result<Vec<EnrolmentToken>, EnrolmentError> {
        self.all(&self.subjects.enrolment_token_keys()).await
    }

    pub async fn enrolled(
        &self,
        node: &NodeName,
    ) -> Result<Option<Stored<EnrolledNode>>, EnrolmentError> {
        self.get(&self.subjects.enrolled_key(&node.token())).await
    }

    /// Returns all enrolled nodes, in the order of their last change.
    pub async fn all_enrolled(&self) -> Result<Vec<EnrolledNode>, EnrolmentError> {
        self.all(&self.subjects.enrolled_keys()).await
    }

    pub(super) async fn pending(
        &self,
        node: &NodeName,
        public_key: &str,
    ) -> Result<Option<Stored<PendingNode>>, EnrolmentError> {
        let key = self.subjects.pending_key(&node.token(), public_key);
        self.get(&key).await
    }

    /// Returns the pending and rejected requests of a node, or all of them.
    pub async fn requests(
        &self,
        node: Option<&NodeName>,
    ) -> Result<Vec<PendingNode>, EnrolmentError> {
        let node = node.map(NodeName::token);
        self.all(&self.subjects.pending_keys(node.as_ref())).await
    }

    /// Reports whether a node of this name is online.
    pub(super) async fn is_online(&self, node: &NodeName) -> Result<bool, EnrolmentError> {
        let key = self.subjects.key(&node.token());
        Ok(self.nodes.get(&key).await?.is_some())
    }

    /// Stores a token; fails with a conflict if it was changed since it was read.
    pub(super) async fn put_token(
        &self,
        token: &EnrolmentToken,
        revision: Option<u64>,
    ) -> Result<(), EnrolmentError> {
        let key = self.subjects.enrolment_token_key(&token.id);
        self.put(&key, token, revision).await
    }

    /// Stores an enrolled node; fails with a conflict if it was changed since it was read.
    pub(super) async fn put_enrolled(
        &self,
        node: &EnrolledNode,
        revision: Option<u64>,
    ) -> Result<(), EnrolmentError> {
        let key = self.subjects.enrolled_key(&node.node.token());
        self.put(&key, node, revision).await
    }

    pub(super) async fn put_pending(
        &self,
        pending: &PendingNode,
        revision: Option<u64>,
    ) -> Result<(), EnrolmentError> {
        let key = self
            .subjects
            .pending_key(&pending.node.token(), &pending.public_key);
        self.put(&key, pending, revision).await
    }

    /// Removes a request. No error if it does not exist.
    pub(super) async fn remove_pending(
        &self,
        node: &NodeName,
        public_key: &str,
    ) -> Result<(), EnrolmentError> {
        let key = self.subjects.pending_key(&node.token(), public_key);
        self.bucket.purge(&key).await?;
        Ok(())
    }

    /// Removes requests.
    pub(crate) async fn remove_requests(
        &self,
        requests: &[PendingNode],
    ) -> Result<(), EnrolmentError> {
        for request in requests {
            self.remove_pending(&request.node, &request.public_key)
                .await?;
        }
        Ok(())
    }

    /// Removes an enrolled node. No error if it is not enrolled.
    pub(crate) async fn remove_enrolled(&self, node: &NodeName) -> Result<(), EnrolmentError> {
        let key = self.subjects.enrolled_key(&node.token());
        self.bucket.purge(&key).await?;
        Ok(())
    }

    /// Marks a node as revoked, if it is enrolled with this key.
    pub async fn mark_revoked(
        &self,
        node: &NodeName,
        public_key: &str,
        now: chrono::DateTime<chrono::Utc>,
    ) -> Result<(), EnrolmentError> {
        let Some(stored) = self.enrolled(node).await? else {
            return Ok(());
        };
        if stored.value.public_key != public_key {
            return Ok(());
        }
        let revision = stored.revision;
        let revoked = EnrolledNode {
            revoked: Some(now),
            ..stored.value
        };
        self.put_enrolled(&revoked, Some(revision)).await
    }

    /// Marks a token as revoked, and returns it.
    pub async fn revoke_token(&self, id: &Token) -> Result<EnrolmentToken, EnrolmentError> {
        let missing = || EnrolmentError::NoToken(id.to_string());
        let stored = self.token(id).await?.ok_or_else(missing)?;
        let token = EnrolmentToken {
            revoked: true,
            ..stored.value
        };
        self.put_token(&token, Some(stored.revision)).await?;
        Ok(token)
    }

    async fn get<T: DeserializeOwned>(
        &self,
        key: &str,
    ) -> Result<Option<Stored<T>>, EnrolmentError> {
        let Some(entry) = self.bucket.get(key).await? else {
            return Ok(None);
        };
        let revision = entry.revision;
        let value = read(&entry)?;
        Ok(Some(Stored { value, revision }))
    }

    async fn all<T: DeserializeOwned>(&self, filter: &str) -> Result<Vec<T>, EnrolmentError> {
        let entries = self.bucket.entries(filter).await?;
        entries.iter().map(read).collect()
    }

    async fn put(
        &self,
        key: &str,
        value: &impl Serialize,
        revision: Option<u64>,
    ) -> Result<(), EnrolmentError> {
        let text = serde_json::to_vec(value).map_err(|source| EnrolmentError::Record {
            key: key.into(),
            source,
        })?;
        match revision {
            Some(revision) => self.bucket.update(key, text.into(), revision).await?,
            None => self.bucket.create(key, text.into()).await?,
        };
        Ok(())
    }
}

impl<T> Stored<T> {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}

fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, EnrolmentError> {
    serde_json::from_slice(&entry.value).map_err(|source| EnrolmentError::Record {
        key: entry.key.clone(),
        source,
    })
}
