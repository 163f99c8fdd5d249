//! Snapshots of streams: the configuration and all messages with their sequences and times, as the
//! server copies them, and their restoration.
//!
//! A snapshot is one point in time of one stream. The server sends it in chunks and waits for
//! acknowledgements; a restored stream gets each chunk as a request. The content is compressed and
//! opaque here.

use std::time::Duration;

use async_nats::{Request, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::kv::bucket_of;
use super::{Cause, Connection, NatsError};

/// Size of a chunk; below the default maximum payload of a server.
pub const CHUNK: usize = 256 << 10;

/// Longest time until the next chunk, or until a chunk is stored.
const CHUNK_LIMIT: Duration = Duration::from_secs(30);

/// Longest time until a stream is ready after the last chunk.
const FINISH_LIMIT: Duration = Duration::from_secs(300);

/// What the server needs to restore a stream, besides its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    pub config: Value,
    pub state: Value,
}

impl SnapshotInfo {
    /// Returns the number of messages.
    pub fn messages(&self) -> u64 {
        let count = self.state.get("messages").and_then(Value::as_u64);
        count.unwrap_or_default()
    }
}

/// Reply of the JetStream API.
#[derive(Deserialize)]
struct ApiReply {
    error: Option<ApiError>,
    config: Option<Value>,
    state: Option<Value>,
    deliver_subject: Option<String>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    description: String,
}

impl Connection {
    /// Returns the number of messages in a stream, if it exists.
    pub async fn message_count(&self, stream: &str) -> Result<Option<u64>, NatsError> {
        let info = self.stream_info(stream).await?;
        Ok(info.map(|info| info.state.messages))
    }

    /// Deletes a stream with all its messages.
    pub async fn delete_stream(&self, stream: &str) -> Result<(), NatsError> {
        let reply = self.snapshot_api("DELETE", stream, &Value::Null).await?;
        check(reply, "deletion", stream).map(drop)
    }

    /// Copies a stream: calls `each` for every chunk, and returns what is needed to restore it.
    pub async fn snapshot_stream<E: From<NatsError>>(
        &self,
        stream: &str,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<SnapshotInfo, E> {
        let failed = |source| failed("snapshot", stream, source);
        let inbox = self.client().new_inbox();
        let subscribing = self.client().subscribe(inbox.clone());
        let mut chunks = subscribing.await.map_err(|_| NatsError::Closed)?;
        let request = json!({ "deliver_subject": inbox, "chunk_size": CHUNK });
        let reply = self.snapshot_api("SNAPSHOT", stream, &request).await?;
        let reply = check(reply, "snapshot", stream)?;
        loop {
            let chunk = timeout(CHUNK_LIMIT, chunks.next()).await;
            let chunk = chunk.map_err(|_| failed(Cause::TimedOut))?;
            let chunk = chunk.ok_or(NatsError::Closed)?;
            if chunk.payload.is_empty() {
                check_end(chunk.status, chunk.description.as_deref()).map_err(failed)?;
                break;
            }
            each(&chunk.payload)?;
            if let Some(reply) = chunk.reply {
                let sent = self.client().publish(reply, Bytes::new()).await;
                sent.map_err(|_| NatsError::Closed)?;
            }
        }
        match (reply.config, reply.state) {
            (Some(config), Some(state)) => Ok(SnapshotInfo { config, state }),
            _ => Err(failed(Cause::Reply("the reply has no configuration".into())).into()),
        }
    }

    /// Creates a stream from a snapshot. `next` returns the content chunk by chunk, each of at most
    /// [`CHUNK`] bytes.
    pub async fn restore_stream<E: From<NatsError>>(
        &self,
        stream: &str,
        info: &SnapshotInfo,
        mut next: impl FnMut() -> Result<Option<Bytes>, E>,
    ) -> Result<(), E> {
        let failed = |source| failed("restoration", stream, source);
        let reply = self.snapshot_api("RESTORE", stream, &json!(info)).await?;
        let subject = check(reply, "restoration", stream)?.deliver_subject;
        let subject = subject.ok_or_else(|| {
            let text = "the reply has no subject for the content";
            failed(Cause::Reply(text.into()))
        })?;
        while let Some(chunk) = next()? {
            let stored = self.raw_request(&subject, chunk, CHUNK_LIMIT).await?;
            if !stored.is_empty() {
                check(stored, "restoration", stream)?;
            }
        }
        let finished = self
            .raw_request(&subject, Bytes::new(), FINISH_LIMIT)
            .await?;
        check(finished, "restoration", stream)?;
        Ok(())
    }

    /// Sends a request about a stream to the JetStream API.
    async fn snapshot_api(
        &self,
        action: &str,
        stream: &str,
        body: &Value,
    ) -> Result<Bytes, NatsError> {
        let subject = self.api(&format!("STREAM.{action}.{stream}"));
        let body = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        self.raw_request(&subject, body, CHUNK_LIMIT).await
    }

    /// Sends a request without headers: the server stores the content of a chunk as it is.
    async fn raw_request(
        &self,
        subject: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, NatsError> {
        let request = Request::new().payload(body).timeout(Some(limit));
        let sending = self.client().send_request(subject.to_owned(), request);
        let reply = self.unless_denied(subject, sending).await?;
        let reply = reply.map_err(|err| NatsError::Failed {
            action: "request",
            subject: subject.into(),
            source: Cause::client(err),
        })?;
        Ok(reply.payload)
    }
}

fn failed(action: &'static str, stream: &str, source: Cause) -> NatsError {
    NatsError::Store {
        action,
        name: bucket_of(stream).into(),
        source,
    }
}

/// Parses a reply of the API; fails if it is an error.
fn check(reply: Bytes, action: &'static str, stream: &str) -> Result<ApiReply, NatsError> {
    let parsed: ApiReply =
        serde_json::from_slice(&reply).map_err(|err| failed(action, stream, err.into()))?;
    match parsed.error {
        Some(error) => Err(failed(action, stream, Cause::Reply(error.description))),
        None => Ok(parsed),
    }
}

/// Checks the last message of a snapshot, which is empty.
fn check_end(status: Option<StatusCode>, description: Option<&str>) -> Result<(), Cause> {
    match status {
        // Older servers send no status.
        None => Ok(()),
        Some(status) if status.as_u16() == 204 => Ok(()),
        Some(status) => {
            let text = description.unwrap_or("the server ended it");
            Err(Cause::Reply(format!("{text} ({status})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reply_names_the_bucket() {
        let reply = Bytes::from_static(br#"{"error":{"code":500,"description":"disk full"}}"#);
        let error = check(reply, "restoration", "KV_CCM_DESIRED").err().unwrap();
        assert_eq!(error.to_string(), "restoration of CCM_DESIRED: disk full");
    }

    #[test]
    fn a_snapshot_that_the_server_ended_is_an_error() {
        assert!(check_end(None, None).is_ok());
        assert!(check_end(StatusCode::from_u16(204).ok(), None).is_ok());
        let ended = check_end(StatusCode::from_u16(408).ok(), Some("No Flow Response"));
        assert!(ended.unwrap_err().to_string().contains("No Flow Response"));
    }
}
