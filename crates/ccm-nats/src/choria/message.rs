//! Documents of the protocol: transport, secure request, request, reply and secure reply.
//!
//! The outer documents hold the inner ones as bytes in base64, so that a signature covers exactly
//! the bytes that were sent. Decoding checks everything that Choria's schemas check, and limits
//! lengths; unknown fields are ignored, as newer versions of Choria may add some. No error contains
//! text of a message.

use chrono::{DateTime, Utc};
use data_encoding::BASE64;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use ccm_core::model::envelope::Filter;
use ccm_core::system::Digest;

pub const TRANSPORT: &str = "io.choria.protocol.v2.transport";
pub const SECURE_REQUEST: &str = "io.choria.protocol.v2.secure_request";
pub const REQUEST: &str = "io.choria.protocol.v2.request";
pub const SECURE_REPLY: &str = "io.choria.protocol.v2.secure_reply";
pub const REPLY: &str = "io.choria.protocol.v2.reply";

/// Maximum length of a message.
pub const MAX_MESSAGE: usize = 8 * 1024 * 1024;

/// Maximum length of a name, id or subject in a message.
const MAX_NAME: usize = 512;

/// Maximum number of federation targets and of hops of a trace.
const MAX_LIST: usize = 1024;

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
    #[error("invalid {0} document")]
    Document(&'static str),
    #[error("the document is not of protocol {0}")]
    Protocol(&'static str),
    #[error("{0} is empty, too long or contains invalid characters")]
    Name(&'static str),
    #[error("ttl is not a positive number of seconds")]
    Ttl,
    #[error("time is not a time in nanoseconds since 1970")]
    Time,
    #[error("the hash does not match the reply")]
    Hash,
    #[error("the message can't be encoded")]
    Encode,
}

/// Bytes, base64 in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Base64Bytes(Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match BASE64.decode(text.as_bytes()) {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(D::Error::custom("not base64")),
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8], protocol: &'static str) -> Result<T, MessageError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(MessageError::TooLong);
    }
    serde_json::from_slice(bytes).map_err(|_| MessageError::Document(protocol))
}

fn encode(document: &impl Serialize) -> Result<Vec<u8>, MessageError> {
    serde_json::to_vec(document).map_err(|_| MessageError::Encode)
}

fn check_protocol(found: &str, wanted: &'static str) -> Result<(), MessageError> {
    match found == wanted {
        true => Ok(()),
        false => Err(MessageError::Protocol(wanted)),
    }
}

/// Checks that a text is printable and not empty.
fn check_name(what: &'static str, text: &str) -> Result<(), MessageError> {
    let is_valid = !text.is_empty() && text.len() <= MAX_NAME && !text.contains(char::is_control);
    is_valid.then_some(()).ok_or(MessageError::Name(what))
}

/// Outermost document, not signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportMessage {
    protocol: String,
    data: Base64Bytes,
    headers: TransportHeaders,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct TransportHeaders {
    #[serde(rename = "reply", default, skip_serializing_if = "String::is_empty")]
    reply_to: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    sender: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trace: Vec<[String; 3]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    federation: Option<FederationHeader>,
}

/// Headers that federation brokers add; replies return them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FederationHeader {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    request: String,
    #[serde(rename = "reply", default, skip_serializing_if = "String::is_empty")]
    reply_to: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    targets: Vec<String>,
}

impl TransportMessage {
    /// Decodes a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let message: Self = parse(bytes, TRANSPORT)?;
        check_protocol(&message.protocol, TRANSPORT)?;
        let headers = &message.headers;
        for (what, text) in [("sender", &headers.sender), ("reply", &headers.reply_to)] {
            if !text.is_empty() {
                check_name(what, text)?;
            }
        }
        if headers.trace.len() > MAX_LIST {
            return Err(MessageError::Name("trace"));
        }
        if let Some(federation) = &headers.federation {
            check_name("federation request", &federation.request)?;
            if federation.targets.len() > MAX_LIST {
                return Err(MessageError::Name("federation targets"));
            }
        }
        Ok(message)
    }

    /// Returns a message from this sender.
    pub fn new(data: Vec<u8>, sender: &str) -> Self {
        Self {
            protocol: TRANSPORT.into(),
            data: Base64Bytes(data),
            headers: TransportHeaders {
                sender: sender.into(),
                ..TransportHeaders::default()
            },
        }
    }

    #[must_use]
    pub fn replying_to(mut self, subject: &str) -> Self {
        self.headers.reply_to = subject.into();
        self
    }

    /// Returns a reply to this message, with its federation headers and trace.
    #[must_use]
    pub fn reply(&self, data: Vec<u8>, sender: &str) -> Self {
        let mut reply = Self::new(data, sender);
        if self.headers.federation.is_some() {
            reply
                .headers
                .federation
                .clone_from(&self.headers.federation);
            reply.headers.trace.clone_from(&self.headers.trace);
        }
        reply
    }

    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        encode(self)
    }

    pub fn data(&self) -> &[u8] {
        &self.data.0
    }

    pub fn sender(&self) -> &str {
        &self.headers.sender
    }

    /// Returns the subject for the reply; empty if there is none.
    pub fn reply_to(&self) -> &str {
        &self.headers.reply_to
    }
}

/// Request with its signature and tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SecureRequest {
    protocol: String,
    request: Base64Bytes,
    signature: Base64Bytes,
    /// Token of the caller.
    caller: String,
    /// Token of the delegated signer, if it signed instead of the caller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    signer: String,
}

impl SecureRequest {
    /// Decodes the data of a transport message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let secure: Self = parse(bytes, SECURE_REQUEST)?;
        check_protocol(&secure.protocol, SECURE_REQUEST)?;
        if secure.request.0.is_empty() || secure.signature.0.is_empty() {
            return Err(MessageError::Document(SECURE_REQUEST));
        }
        Ok(secure)
    }

    /// Returns a request signed by its caller.
    pub fn new(request: Vec<u8>, signature: Vec<u8>, caller: &str) -> Self {
        Self {
            protocol: SECURE_REQUEST.into(),
            request: Base64Bytes(request),
            signature: Base64Bytes(signature),
            caller: caller.into(),
            signer: String::new(),
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        encode(self)
    }

    /// Returns the signed bytes.
    pub fn request(&self) -> &[u8] {
        &self.request.0
    }

    pub fn signature(&self) -> &[u8] {
        &self.signature.0
    }

    pub fn caller_token(&self) -> &str {
        &self.caller
    }

    pub fn signer_token(&self) -> Option<&str> {
        (!self.signer.is_empty()).then_some(self.signer.as_str())
    }
}

/// Request to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    protocol: String,
    message: Base64Bytes,
    pub id: String,
    pub sender: String,
    pub caller: String,
    pub collective: String,
    pub agent: String,
    /// In seconds.
    pub ttl: u64,
    /// In nanoseconds since 1970.
    time: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filter: Option<Filter>,
}

impl Request {
    /// Decodes a request of a secure request.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let request: Self = parse(bytes, REQUEST)?;
        check_protocol(&request.protocol, REQUEST)?;
        for (what, text) in [
            ("id", &request.id),
            ("sender", &request.sender),
            ("caller", &request.caller),
            ("collective", &request.collective),
            ("agent", &request.agent),
        ] {
            check_name(what, text)?;
        }
        if !is_caller_id(&request.caller) {
            return Err(MessageError::Name("caller"));
        }
        if request.ttl == 0 {
            return Err(MessageError::Ttl);
        }
        if request.time <= 0 {
            return Err(MessageError::Time);
        }
        if request.message.0.is_empty() {
            return Err(MessageError::Document(REQUEST));
        }
        Ok(request)
    }

    /// Returns a request without a filter.
    pub fn new(
        (agent, collective): (&str, &str),
        (caller, sender): (&str, &str),
        id: &str,
        ttl: u64,
        time: DateTime<Utc>,
        message: Vec<u8>,
    ) -> Self {
        Self {
            protocol: REQUEST.into(),
            message: Base64Bytes(message),
            id: id.into(),
            sender: sender.into(),
            caller: caller.into(),
            collective: collective.into(),
            agent: agent.into(),
            ttl,
            time: time.timestamp_nanos_opt().unwrap_or_default(),
            filter: None,
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        encode(self)
    }

    /// Returns the text for the agent.
    pub fn message(&self) -> &[u8] {
        &self.message.0
    }

    pub fn time(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(self.time)
    }

    /// Returns the filter; empty if the request has none.
    pub fn filter(&self) -> Filter {
        self.filter.clone().unwrap_or_default()
    }
}

/// Reports whether a text is the id of a caller, such as `choria=ann`.
fn is_caller_id(text: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    text.split_once('=').is_some_and(|(kind, name)| {
        let is_kind = !kind.is_empty() && kind.chars().all(|c| c.is_ascii_lowercase());
        is_kind && !name.is_empty() && name.chars().all(is_name)
    })
}

/// Reply of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    protocol: String,
    message: Base64Bytes,
    /// Id of the request.
    pub request: String,
    pub sender: String,
    pub agent: String,
    time: i64,
}

impl Reply {
    /// Returns the reply to a request.
    pub fn new(request: &Request, sender: &str, time: DateTime<Utc>, message: Vec<u8>) -> Self {
        Self {
            protocol: REPLY.into(),
            message: Base64Bytes(message),
            request: request.id.clone(),
            sender: sender.into(),
            agent: request.agent.clone(),
            time: time.timestamp_nanos_opt().unwrap_or_default(),
        }
    }

    /// Decodes the reply of a secure reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let reply: Self = parse(bytes, REPLY)?;
        check_protocol(&reply.protocol, REPLY)?;
        for (what, text) in [
            ("request", &reply.request),
            ("sender", &reply.sender),
            ("agent", &reply.agent),
        ] {
            check_name(what, text)?;
        }
        Ok(reply)
    }

    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        encode(self)
    }

    /// Returns the text of the agent.
    pub fn message(&self) -> &[u8] {
        &self.message.0
    }
}

/// Reply with its hash, signature and the token of its sender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SecureReply {
    protocol: String,
    reply: Base64Bytes,
    hash: String,
    #[serde(default)]
    signature: Base64Bytes,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    sender: String,
}

impl SecureReply {
    pub fn new(reply: Vec<u8>, signature: Vec<u8>, sender_token: &str) -> Self {
        Self {
            protocol: SECURE_REPLY.into(),
            hash: BASE64.encode(Digest::of(&reply).as_bytes()),
            reply: Base64Bytes(reply),
            signature: Base64Bytes(signature),
            sender: sender_token.into(),
        }
    }

    /// Decodes the data of a transport message and checks the hash.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let secure: Self = parse(bytes, SECURE_REPLY)?;
        check_protocol(&secure.protocol, SECURE_REPLY)?;
        let hash = BASE64.encode(Digest::of(&secure.reply.0).as_bytes());
        if hash != secure.hash {
            return Err(MessageError::Hash);
        }
        Ok(secure)
    }

    pub fn encode(&self) -> Result<Vec<u8>, MessageError> {
        encode(self)
    }

    /// Returns the signed bytes.
    pub fn reply(&self) -> &[u8] {
        &self.reply.0
    }

    pub fn signature(&self) -> &[u8] {
        &self.signature.0
    }

    pub fn sender_token(&self) -> &str {
        &self.sender
    }
}
