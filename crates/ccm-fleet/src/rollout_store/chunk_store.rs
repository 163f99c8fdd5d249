//! Reading and writing the chunks of large rollouts: keys below the key of the rollout.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use futures_util::StreamExt as _;
use futures_util::stream::iter;

use super::{RolloutError, RolloutStore, StoredForm, StoredRollout};
use crate::rollout_chunks::{self, Chunk, Layout};
use crate::rollout_encoding::EncodingError;
use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;
use ccm_nats::{Bytes, NatsError};

/// Number of concurrent writes.
const MAX_CONCURRENT: usize = 32;

/// Number of missing chunks from which on all chunks are read at once.
const MAX_SINGLE: usize = 8;

/// Age at which a chunk that no head names is removed. Its head would have been written long before.
const MAX_ORPHAN_AGE: TimeDelta = TimeDelta::minutes(15);

impl RolloutStore {
    /// Reads the chunks of a rollout. `before` is an earlier state of it, whose chunks are not read
    /// again. Returns nothing if a chunk is gone, because the head was replaced.
    pub(crate) async fn load(
        &self,
        form: StoredForm,
        before: Option<(&Rollout, &Layout)>,
    ) -> Result<Option<StoredRollout>, RolloutError> {
        let (head, revision) = match form {
            StoredForm::Whole(stored) => return Ok(Some(*stored)),
            StoredForm::Head(head, revision) => (*head, revision),
        };
        let id = head.rollout.id.clone();
        let is_known = |name: &&str| before.is_some_and(|(_, layout)| layout.has_progress(name));
        let wanted: BTreeSet<String> = head
            .chunks()
            .filter(|name| !is_known(name))
            .map(str::to_owned)
            .collect();
        let Some(mut chunks) = self.read_chunks(&id, &wanted).await? else {
            return Ok(None);
        };
        let assembled = rollout_chunks::assemble(head, before, |name| {
            let bytes = chunks.remove(name);
            bytes.ok_or_else(|| EncodingError::Missing(name.into()))
        });
        let (rollout, layout) = assembled.map_err(|cause| RolloutError::Encoding {
            id: id.to_string(),
            cause,
        })?;
        Ok(Some(StoredRollout {
            rollout,
            revision,
            layout,
        }))
    }

    /// Returns the content of chunks, or nothing if one does not exist.
    async fn read_chunks(
        &self,
        id: &Token,
        names: &BTreeSet<String>,
    ) -> Result<Option<BTreeMap<String, Bytes>>, RolloutError> {
        let mut found = BTreeMap::new();
        let prefix = self.chunk_key(id, "");
        if names.len() > MAX_SINGLE {
            for entry in self.bucket.entries(&self.chunk_key(id, "*")).await? {
                if let Some(name) = entry.key.strip_prefix(&prefix)
                    && names.contains(name)
                {
                    found.insert(name.to_owned(), entry.value);
                }
            }
        }
        for name in names {
            if found.contains_key(name) {
                continue;
            }
            // A replica may lag behind the leader, which had the head.
            match self.bucket.get_latest(&self.chunk_key(id, name)).await? {
                Some(entry) => found.insert(name.clone(), entry.value),
                None => return Ok(None),
            };
        }
        Ok(Some(found))
    }

    /// Writes chunks. Writing one twice has no effect: its name is unique or that of its content.
    pub(super) async fn write_chunks(&self, id: &Token, chunks: &[Chunk]) -> Result<(), NatsError> {
        let chunks = chunks.iter();
        let chunks: Vec<(String, Bytes)> = chunks
            .map(|chunk| (self.chunk_key(id, &chunk.name), chunk.bytes.clone().into()))
            .collect();
        let writes = iter(chunks)
            .map(|(key, bytes)| async move { self.bucket.put(&key, bytes).await.map(drop) });
        let mut writes = writes.buffer_unordered(MAX_CONCURRENT);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }

    /// Removes chunks that no head names. What fails is left to [`Self::remove_orphans`].
    pub(super) async fn remove_chunks(&self, id: &Token, names: &[String]) {
        let keys: Vec<String> = names.iter().map(|name| self.chunk_key(id, name)).collect();
        let removals = iter(keys).map(|key| async move { self.bucket.purge(&key).await });
        let mut removals = removals.buffer_unordered(MAX_CONCURRENT);
        while removals.next().await.is_some() {}
    }

    /// Removes chunks that a controller wrote, or did not remove, before it died.
    pub(crate) async fn remove_orphans(&self, stored: &StoredRollout) -> Result<(), RolloutError> {
        let used: BTreeSet<&str> = stored.layout.chunks().collect();
        if used.is_empty() {
            return Ok(());
        }
        let id = &stored.rollout.id;
        let prefix = self.chunk_key(id, "");
        let entries = self.bucket.entries(&self.chunk_key(id, "*")).await?;
        // All times are those of the server.
        let Some(now) = entries.iter().map(|entry| entry.created).max() else {
            return Ok(());
        };
        let orphans = entries.iter().filter_map(|entry| {
            let name = entry.key.strip_prefix(&prefix)?;
            let is_old = now.signed_duration_since(entry.created) > MAX_ORPHAN_AGE;
            (is_old && !used.contains(name)).then(|| name.to_owned())
        });
        let orphans: Vec<String> = orphans.collect();
        self.remove_chunks(id, &orphans).await;
        Ok(())
    }

    fn chunk_key(&self, id: &Token, name: &str) -> String {
        format!("{}.{name}", self.subjects.key(id))
    }
}
