//! The time of the NATS servers, as the leader of a stream states it.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::connection::API_LIMIT;
use super::{Cause, Connection, Headers, NatsError};

/// The part of stream information that has the time; servers before 2.10 do not send it.
#[derive(Deserialize)]
struct StreamTime {
    ts: Option<String>,
}

impl Connection {
    /// Returns the time of the leader of a bucket; nothing from servers that do not state it.
    pub async fn server_time(&self, bucket: &str) -> Result<Option<DateTime<Utc>>, NatsError> {
        let subject = self.api(&format!("STREAM.INFO.KV_{bucket}")).parse()?;
        let reply = self.request(&subject, Headers::new(), Bytes::new(), API_LIMIT);
        let reply = reply.await?;
        let parsed = serde_json::from_slice::<StreamTime>(&reply.body);
        let parsed = parsed.map_err(|err| NatsError::Store {
            action: "lookup",
            name: bucket.into(),
            source: Cause::Json(err),
        })?;
        let time = parsed.ts.as_deref().map(DateTime::parse_from_rfc3339);
        Ok(time.and_then(Result::ok).map(|time| time.to_utc()))
    }
}
