//! The first read of a reader: the last message of each subject, or the messages since a time.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::json;

use super::batch::{BATCH, BATCH_BYTES, BatchReply};
use super::{Reader, StoredMessage};
use crate::NatsError;
use crate::kv::bucket_of;
use ccm_value::text::go_time;

/// Maximum size of a snapshot in memory.
const MAX_READ: usize = 512 << 20;

impl Reader {
    /// Reads the last message of each subject.
    pub(super) async fn snapshot(&mut self, last: u64) -> Result<(), NatsError> {
        if self.read_last_messages().await? {
            Ok(())
        } else {
            self.scan(last).await
        }
    }

    /// Reads the last message of each subject, or all messages, a batch at a time, if there are more
    /// subjects than the server returns at once.
    pub(super) async fn begin_last_or_all(&mut self) -> Result<(), NatsError> {
        if self.read_last_messages().await? {
            return Ok(());
        }
        self.next = 1;
        self.fetch().await
    }

    /// Reads the last message of each subject by one request. Returns false if the server does not
    /// support that, or not for so many subjects.
    async fn read_last_messages(&mut self) -> Result<bool, NatsError> {
        let mut found = Vec::new();
        let mut size = 0;
        let mut request = json!({ "multi_last": [self.options.filter], "max_bytes": BATCH_BYTES });
        while self.is_direct {
            match self.request_direct(&request).await? {
                BatchReply::Batch {
                    messages,
                    left,
                    up_to: Some(up_to),
                } => {
                    size += messages.iter().map(|it| it.body.len()).sum::<usize>();
                    self.check_size(size)?;
                    let end = messages.last().map_or(0, |it| it.sequence);
                    found.extend(messages);
                    if left.unwrap_or(0) == 0 {
                        self.next = up_to.saturating_add(1);
                        self.buffer = found.into();
                        return Ok(true);
                    }
                    request = json!({
                        "multi_last": [self.options.filter], "max_bytes": BATCH_BYTES,
                        "seq": end.saturating_add(1), "up_to_seq": up_to,
                    });
                }
                BatchReply::Empty => {
                    // From the first message: this replica may lag behind the leader's `last`.
                    self.next = 1;
                    self.buffer = found.into();
                    return Ok(true);
                }
                BatchReply::Batch { .. } | BatchReply::TooMany | BatchReply::Unsupported => break,
            }
        }
        Ok(false)
    }

    /// Reads the last message of each of these subjects, at most a thousand. Returns them with the
    /// last sequence of the replica that replied; nothing if it has none of them, or if the server
    /// does not support the request.
    pub(crate) async fn last_of(
        &mut self,
        subjects: &[String],
    ) -> Result<Option<(Vec<StoredMessage>, u64)>, NatsError> {
        let mut found = Vec::new();
        let mut request = json!({ "multi_last": subjects, "max_bytes": BATCH_BYTES });
        while self.is_direct {
            match self.request_direct(&request).await? {
                BatchReply::Batch {
                    messages,
                    left,
                    up_to: Some(up_to),
                } => {
                    let end = messages.last().map_or(0, |it| it.sequence);
                    found.extend(messages);
                    if left.unwrap_or(0) == 0 {
                        return Ok(Some((found, up_to)));
                    }
                    request = json!({
                        "multi_last": subjects, "max_bytes": BATCH_BYTES,
                        "seq": end.saturating_add(1), "up_to_seq": up_to,
                    });
                }
                BatchReply::Batch { .. }
                | BatchReply::Empty
                | BatchReply::TooMany
                | BatchReply::Unsupported => break,
            }
        }
        Ok(None)
    }

    /// Reads all messages and keeps the last one of each subject.
    async fn scan(&mut self, last: u64) -> Result<(), NatsError> {
        let mut newest: BTreeMap<String, StoredMessage> = BTreeMap::new();
        let mut size = 0;
        self.next = 1;
        loop {
            self.fetch().await?;
            let is_over = self.buffer.is_empty();
            for stored in std::mem::take(&mut self.buffer) {
                size += stored.body.len();
                if let Some(old) = newest.insert(stored.subject.clone(), stored) {
                    size -= old.body.len();
                }
            }
            self.check_size(size)?;
            if is_over || self.remaining == 0 {
                break;
            }
        }
        self.remaining = 0;
        self.next = self.next.max(last.saturating_add(1));
        let mut found: Vec<StoredMessage> = newest.into_values().collect();
        found.sort_by_key(|stored| stored.sequence);
        self.buffer = found.into();
        Ok(())
    }

    /// Fails if a snapshot exceeds the memory limit.
    fn check_size(&self, size: usize) -> Result<(), NatsError> {
        if size > MAX_READ {
            Err(NatsError::Limit {
                what: format!("the content of bucket {}", bucket_of(&self.options.stream)),
                limit: u64::try_from(MAX_READ).unwrap_or(u64::MAX),
            })
        } else {
            Ok(())
        }
    }

    /// Reads from the first message stored at or after a time.
    pub(super) async fn begin_since(
        &mut self,
        since: DateTime<Utc>,
        last: u64,
    ) -> Result<(), NatsError> {
        if self.is_direct {
            let request = json!({
                "start_time": go_time(&since), "next_by_subj": self.options.filter,
                "batch": BATCH, "max_bytes": BATCH_BYTES,
            });
            match self.request_direct(&request).await? {
                BatchReply::Batch { messages, left, .. } => {
                    self.take(messages, left);
                    return Ok(());
                }
                BatchReply::Empty => {
                    self.next = last.saturating_add(1);
                    return Ok(());
                }
                BatchReply::TooMany | BatchReply::Unsupported => {}
            }
        }
        // Servers without support for start times: older messages are read and skipped.
        self.oldest = Some(since);
        self.next = 1;
        self.fetch().await
    }
}
