//! Stored messages, decoded from the replies to `DIRECT.GET` and `STREAM.MSG.GET`.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use data_encoding::BASE64;
use serde::Deserialize;

use crate::connection::{Headers, Message};
use ccm_value::text::parse_time;

/// A message as stored in a stream.
#[derive(Clone, Debug)]
pub(crate) struct StoredMessage {
    pub(crate) subject: String,
    pub(crate) headers: Headers,
    pub(crate) body: Bytes,
    pub(crate) sequence: u64,
    pub(crate) time: DateTime<Utc>,
}

/// Decodes the reply to a direct get request. The headers that the server adds come after those of
/// the publisher, who may have set headers of the same names.
pub(super) fn from_direct_get(message: Message) -> Option<StoredMessage> {
    let Message { headers, body, .. } = message;
    Some(StoredMessage {
        subject: headers.last("Nats-Subject")?.to_owned(),
        sequence: headers.last("Nats-Sequence")?.parse().ok()?,
        time: parse_time(headers.last("Nats-Time-Stamp")?).ok()?.to_utc(),
        headers,
        body,
    })
}

/// The reply to `STREAM.MSG.GET`.
#[derive(Deserialize)]
pub(super) struct MsgGetReply {
    pub(super) message: EncodedMessage,
}

#[derive(Deserialize)]
pub(super) struct EncodedMessage {
    subject: String,
    seq: u64,
    time: String,
    /// Headers in base64.
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl EncodedMessage {
    /// Returns the decoded message.
    pub(super) fn decode(self) -> Option<StoredMessage> {
        let text = BASE64.decode(self.hdrs.as_bytes()).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut headers = Headers::new();
        for line in text.lines() {
            if let Some((name, value)) = line.split_once(':') {
                headers.set(name, value.trim()).ok()?;
            }
        }
        Some(StoredMessage {
            subject: self.subject,
            headers,
            body: BASE64.decode(self.data.as_bytes()).ok()?.into(),
            sequence: self.seq,
            time: parse_time(&self.time).ok()?.to_utc(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn headers_of_the_server_override_those_of_the_publisher() {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in [
            ("Nats-Subject", "forged"),
            ("Nats-Subject", "a.b"),
            ("Nats-Sequence", "99"),
            ("Nats-Sequence", "7"),
            ("Nats-Time-Stamp", "2026-01-01T00:00:00Z"),
        ] {
            map.append(name, value);
        }
        let message = Message::from(async_nats::Message {
            subject: "_INBOX.x".into(),
            reply: None,
            payload: Bytes::new(),
            headers: Some(map),
            status: None,
            description: None,
            length: 0,
        });
        let stored = from_direct_get(message).unwrap();
        assert_eq!((stored.subject.as_str(), stored.sequence), ("a.b", 7));
    }

    #[test]
    fn reply_of_msg_get_is_decoded() {
        let reply: MsgGetReply = serde_json::from_value(json!({ "message": {
            "subject": "a", "seq": 3, "time": "2026-01-01T00:00:00Z", "data": "eA==",
            "hdrs": BASE64.encode(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"),
        }}))
        .unwrap();
        let stored = reply.message.decode().unwrap();
        assert_eq!(stored.headers.get("KV-Operation"), Some("DEL"));
        assert_eq!((stored.sequence, &stored.body[..]), (3, &b"x"[..]));
    }
}
