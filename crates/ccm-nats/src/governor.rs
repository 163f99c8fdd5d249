//! Choria governors: a limited number of slots, shared by all users of the governor.
//!
//! A governor is a stream that accepts as many messages as it has slots and rejects the rest. To
//! enter is to publish a message, whose sequence is the slot; to leave is to delete it. The stream's
//! maximum age is the lease: it frees the slots of holders that crashed.
//!
//! A request without a reply may have entered, and a second one could take a second slot. Each
//! attempt therefore has a unique message id, and after a timeout the stream is searched for it.
//!
//! Governors are created by `choria governor add`.

use std::time::Duration;

use async_nats::RequestErrorKind as CoreErrorKind;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::response::Response;
use data_encoding::BASE64;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

use super::subject::choria;
use super::{Bytes, Cause, Connection, Headers, NatsError, Subject, backoff};
use ccm_core::model::governor::{GovernorName, SlotLoss};
use ccm_core::model::node::Token;
use ccm_core::system;

/// Header with the unique id of an attempt, which the server also uses to drop duplicates.
const MSG_ID: &str = "Nats-Msg-Id";

/// Time limit of one attempt.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// Delay after the first failed attempt; grows by half each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Maximum delay between two attempts.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Interval at which `give_up` is checked.
const GIVE_UP_INTERVAL: Duration = Duration::from_millis(250);

/// Time limit for leaving; afterwards the lease frees the slot.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of messages searched for an attempt's id.
const MAX_SEARCHED: usize = 10_000;

/// Bounds of the interval at which a held slot is checked.
const CHECK_MIN: Duration = Duration::from_millis(250);
const CHECK_MAX: Duration = Duration::from_secs(10);

/// A governor.
#[derive(Clone, Debug)]
pub struct Governor {
    name: GovernorName,
    subject: Subject,
    stream_api: GovernorStream,
}

/// The result of an attempt to enter.
enum Attempt {
    /// Entered, with the sequence of the slot.
    Entered(u64),
    /// Not entered.
    Refused(String),
    /// No reply: it may have entered.
    Unknown(String),
}

impl Governor {
    /// Returns the governor of this name. Whether it exists is checked on entering.
    pub fn new(connection: Connection, collective: &Token, name: &GovernorName) -> Self {
        Self {
            subject: choria::governor(collective, name),
            stream_api: GovernorStream {
                connection,
                stream: format!("GOVERNOR_{name}"),
            },
            name: name.clone(),
        }
    }

    /// Waits for a slot for at most `limit`, and only until `give_up` returns a reason. `holder` is
    /// shown to users of the governor. Not cancel safe: a slot may stay taken until its lease ends.
    pub async fn enter(
        &self,
        holder: &str,
        limit: Duration,
        give_up: impl Fn() -> Option<String>,
    ) -> Result<Slot, NatsError> {
        let began = Instant::now();
        let mut msg_id = new_msg_id()?;
        let mut sent = began;
        let mut is_unknown = false;
        let mut tries = 0;
        loop {
            if !is_unknown {
                sent = Instant::now();
            }
            let reason = match self.attempt(&msg_id, holder, is_unknown).await? {
                Attempt::Entered(sequence) => {
                    return Ok(Slot::new(self.stream_api.clone(), sequence, sent));
                }
                Attempt::Refused(reason) => {
                    // The server may treat the id of a refused message as a duplicate.
                    msg_id = new_msg_id()?;
                    is_unknown = false;
                    reason
                }
                Attempt::Unknown(reason) => {
                    is_unknown = true;
                    reason
                }
            };
            let left = limit.saturating_sub(began.elapsed());
            let cancelled = pause(wait_after(tries).min(left), &give_up).await;
            tries += 1;
            if cancelled.is_none() && began.elapsed() < limit {
                continue;
            }
            if is_unknown
                && let Ok(Some(sequence)) = self.stream_api.find(&self.subject, &msg_id).await
            {
                // Entered after all: free the slot again.
                let _ = Slot::new(self.stream_api.clone(), sequence, sent)
                    .leave()
                    .await;
            }
            let governor = self.name.to_string();
            return Err(match cancelled {
                Some(reason) => NatsError::WaitCancelled { governor, reason },
                None => NatsError::NoSlot {
                    governor,
                    limit,
                    reason,
                },
            });
        }
    }

    /// Attempts to enter once. After an attempt without a reply, searches the stream for it first.
    async fn attempt(
        &self,
        msg_id: &str,
        holder: &str,
        is_unknown: bool,
    ) -> Result<Attempt, NatsError> {
        if is_unknown {
            match self.stream_api.find(&self.subject, msg_id).await {
                Ok(Some(sequence)) => return Ok(Attempt::Entered(sequence)),
                Ok(None) => {}
                Err(err) if err.is_denied() => return Err(err),
                Err(err) => return Ok(Attempt::Unknown(err.to_string())),
            }
        }
        if !self.stream_api.connection.is_up() {
            let reason = NatsError::Closed.to_string();
            return Ok(if is_unknown {
                Attempt::Unknown(reason)
            } else {
                Attempt::Refused(reason)
            });
        }
        let headers = Headers::new().with(MSG_ID, msg_id)?;
        let body = Bytes::copy_from_slice(holder.as_bytes());
        let connection = &self.stream_api.connection;
        let request = connection.request(&self.subject, headers, body, ATTEMPT_LIMIT);
        match request.await {
            Ok(reply) => self.parse_ack(&reply.body),
            Err(NatsError::NoResponders(_)) => self.explain_no_responders().await,
            Err(err @ (NatsError::NoReply { .. } | NatsError::Closed)) => {
                Ok(Attempt::Unknown(err.to_string()))
            }
            Err(err) => Err(err),
        }
    }

    /// Parses the acknowledgement of the stream.
    fn parse_ack(&self, body: &[u8]) -> Result<Attempt, NatsError> {
        let failed = |source| NatsError::Failed {
            action: "enter governor",
            subject: self.subject.to_string(),
            source,
        };
        let ack: Response<Ack> = serde_json::from_slice(body).map_err(|err| failed(err.into()))?;
        match ack {
            Response::Ok(Ack { stream, seq }) if stream == self.stream_api.stream => {
                Ok(Attempt::Entered(seq))
            }
            // Another stream captures the subject; it does not limit slots.
            Response::Ok(_) => Err(self.missing()),
            Response::Err { error } if error.error_code() == ErrorCode::STREAM_STORE_FAILED => {
                Ok(Attempt::Refused("all slots are taken".into()))
            }
            // No leader, or the message is being processed.
            Response::Err { error }
                if error.code() == 503
                    || error.error_code() == ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT =>
            {
                Ok(Attempt::Unknown(error.to_string()))
            }
            Response::Err { error } => Err(failed(Cause::client(error))),
        }
    }

    /// Determines why there are no responders: no such governor, or no leader at the moment.
    async fn explain_no_responders(&self) -> Result<Attempt, NatsError> {
        match self.stream_api.info().await {
            Ok(Some(info))
                if info
                    .config
                    .subjects
                    .iter()
                    .any(|it| it == self.subject.as_str()) =>
            {
                Ok(Attempt::Refused("it has no leader".into()))
            }
            Ok(_) => Err(self.missing()),
            Err(err @ (NatsError::NoJetStream { .. } | NatsError::Denied(_))) => Err(err),
            Err(err) => Ok(Attempt::Refused(err.to_string())),
        }
    }

    fn missing(&self) -> NatsError {
        NatsError::NoGovernor {
            governor: self.name.to_string(),
            subject: self.subject.to_string(),
        }
    }
}

/// Returns a unique message id.
fn new_msg_id() -> Result<String, NatsError> {
    Ok(format!("{:032x}", system::random()?))
}

/// Returns the delay after `tries` attempts, without jitter.
fn step(tries: usize) -> Duration {
    let tries = i32::try_from(tries.min(16)).unwrap_or(16);
    FIRST_WAIT.mul_f64(1.5_f64.powi(tries)).min(LAST_WAIT)
}

/// Returns the delay after `tries` attempts, with jitter.
fn wait_after(tries: usize) -> Duration {
    backoff::with_jitter(step(tries))
}

/// Waits; returns early with the reason if `give_up` returns one.
async fn pause(wait: Duration, give_up: &impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + wait;
    loop {
        if let Some(reason) = give_up() {
            return Some(reason);
        }
        let now = Instant::now();
        if now >= until {
            return None;
        }
        sleep_until(until.min(now + GIVE_UP_INTERVAL)).await;
    }
}

/// Whether a slot was still held when it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Freed,
    /// The slot was no longer held.
    Lost(SlotLoss),
}

/// A held slot. Dropping it frees it in the background.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    stream_api: GovernorStream,
    sequence: u64,
    /// Before the slot was taken, so that the lease never ends before it has passed since then.
    entered: Instant,
    /// Runtime that frees the slot on drop; nothing once it was left.
    runtime: Option<Handle>,
}

impl Slot {
    fn new(stream_api: GovernorStream, sequence: u64, entered: Instant) -> Self {
        Self {
            stream_api,
            sequence,
            entered,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Returns the sequence, by which Choria identifies the slot.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns a future that completes when the slot is lost.
    pub fn lost(&self) -> impl Future<Output = SlotLoss> + Send + 'static + use<> {
        let (stream_api, sequence, entered) =
            (self.stream_api.clone(), self.sequence, self.entered);
        async move {
            let lease = stream_api.lease().await;
            // Without a lease the slot can still be evicted manually.
            let every = if lease.is_zero() {
                CHECK_MAX
            } else {
                (lease / 4).clamp(CHECK_MIN, CHECK_MAX)
            };
            loop {
                sleep(every).await;
                // An error says nothing about the slot.
                if let Ok(None) = stream_api.message(json!({ "seq": sequence })).await {
                    return loss(lease, entered.elapsed());
                }
            }
        }
    }

    /// Frees the slot; retries up to a time limit.
    pub async fn leave(mut self) -> Result<Release, NatsError> {
        self.runtime = None;
        Ok(match free(&self.stream_api, self.sequence).await? {
            true => Release::Freed,
            false => Release::Lost(loss(self.stream_api.lease().await, self.entered.elapsed())),
        })
    }
}

/// Returns how a slot was lost that was entered this long ago.
fn loss(lease: Duration, held: Duration) -> SlotLoss {
    if lease.is_zero() || held < lease {
        SlotLoss::Evicted
    } else {
        SlotLoss::LeaseEnded
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let (stream_api, sequence) = (self.stream_api.clone(), self.sequence);
            // If this fails, the lease frees the slot.
            runtime.spawn(async move { free(&stream_api, sequence).await });
        }
    }
}

/// Frees a slot; reports whether it was still held.
async fn free(stream_api: &GovernorStream, sequence: u64) -> Result<bool, NatsError> {
    let began = Instant::now();
    let mut tries = 0;
    loop {
        match stream_api.delete(sequence).await {
            Ok(true) => return Ok(true),
            // An earlier attempt without a reply may have deleted it.
            Ok(false) => return Ok(tries > 0),
            Err(err) if err.is_denied() || began.elapsed() >= LEAVE_LIMIT => return Err(err),
            Err(_) => sleep(wait_after(tries)).await,
        }
        tries += 1;
    }
}

/// The stream behind a governor.
#[derive(Clone, Debug)]
struct GovernorStream {
    connection: Connection,
    stream: String,
}

/// The acknowledgement of a published message.
#[derive(Deserialize)]
struct Ack {
    stream: String,
    seq: u64,
}

#[derive(Deserialize)]
struct Info {
    config: InfoConfig,
}

#[derive(Deserialize)]
struct InfoConfig {
    #[serde(default)]
    subjects: Vec<String>,
    /// In nanoseconds.
    #[serde(default)]
    max_age: u64,
}

#[derive(Deserialize)]
struct Stored {
    message: StoredMessage,
}

#[derive(Deserialize)]
struct StoredMessage {
    seq: u64,
    /// In base64.
    #[serde(default)]
    hdrs: String,
}

impl StoredMessage {
    fn has_msg_id(&self, msg_id: &str) -> bool {
        let headers = BASE64.decode(self.hdrs.as_bytes()).unwrap_or_default();
        String::from_utf8_lossy(&headers).lines().any(|line| {
            let header = line.split_once(':');
            header.is_some_and(|(name, value)| name == MSG_ID && value.trim() == msg_id)
        })
    }
}

#[derive(Deserialize)]
struct Deleted {
    success: bool,
}

impl GovernorStream {
    /// Returns the configuration of the stream, if it exists.
    async fn info(&self) -> Result<Option<Info>, NatsError> {
        let missing = [ErrorCode::STREAM_NOT_FOUND];
        self.api_request("INFO", json!({}), &missing).await
    }

    /// Returns the time after which the server frees a slot; zero if it does not, or if that is not
    /// known.
    async fn lease(&self) -> Duration {
        match self.info().await {
            Ok(Some(info)) => Duration::from_nanos(info.config.max_age),
            _ => Duration::ZERO,
        }
    }

    /// Returns the message that matches a request, if there is one.
    async fn message(&self, which: serde_json::Value) -> Result<Option<StoredMessage>, NatsError> {
        let missing = [ErrorCode::NO_MESSAGE_FOUND, ErrorCode::STREAM_NOT_FOUND];
        let stored: Option<Stored> = self.api_request("MSG.GET", which, &missing).await?;
        Ok(stored.map(|stored| stored.message))
    }

    /// Returns the sequence of the message with an id, if it is stored.
    async fn find(&self, subject: &Subject, msg_id: &str) -> Result<Option<u64>, NatsError> {
        let mut from = 1;
        for _ in 0..MAX_SEARCHED {
            let next = json!({ "seq": from, "next_by_subj": subject.as_str() });
            match self.message(next).await? {
                None => return Ok(None),
                Some(message) if message.has_msg_id(msg_id) => return Ok(Some(message.seq)),
                Some(message) => from = message.seq.saturating_add(1),
            }
        }
        Err(NatsError::Limit {
            what: format!("stream {}", self.stream),
            limit: u64::try_from(MAX_SEARCHED).unwrap_or(u64::MAX),
        })
    }

    /// Deletes a message and reports whether it existed.
    async fn delete(&self, sequence: u64) -> Result<bool, NatsError> {
        let which = json!({ "seq": sequence, "no_erase": true });
        let missing = [
            ErrorCode::SEQUENCE_NOT_FOUND,
            ErrorCode::NO_MESSAGE_FOUND,
            ErrorCode::STREAM_NOT_FOUND,
        ];
        let deleted: Option<Deleted> = match self.api_request("MSG.DELETE", which, &missing).await {
            Ok(deleted) => deleted,
            Err(err) if err.is_denied() => return Err(err),
            // Some servers return a generic error.
            Err(err) => match self.message(json!({ "seq": sequence })).await {
                Ok(None) => None,
                _ => return Err(err),
            },
        };
        Ok(deleted.is_some_and(|deleted| deleted.success))
    }

    /// Sends a JetStream API request for the stream. The error codes in `missing` yield nothing.
    async fn api_request<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        body: serde_json::Value,
        missing: &[ErrorCode],
    ) -> Result<Option<T>, NatsError> {
        let name = || self.stream.clone();
        let failed = |source| NatsError::Store {
            action: operation,
            name: name(),
            source,
        };
        let request = format!("STREAM.{operation}.{}", self.stream);
        let subject = self.connection.api(&request);
        let sending = self.connection.jetstream().request(request, &body);
        let reply: Result<Response<T>, _> =
            self.connection.unless_denied(&subject, sending).await?;
        match reply {
            Ok(Response::Ok(found)) => Ok(Some(found)),
            Ok(Response::Err { error }) if missing.contains(&error.error_code()) => Ok(None),
            Ok(Response::Err { error }) => Err(failed(Cause::client(error))),
            Err(err) if err.kind() == RequestErrorKind::NoResponders => {
                Err(NatsError::NoJetStream {
                    servers: self.connection.servers().into(),
                    source: Cause::Reply(CoreErrorKind::NoResponders.to_string()),
                })
            }
            Err(err) => Err(failed(Cause::client(err))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_from_a_quarter_of_a_second_to_two() {
        assert_eq!(step(0), Duration::from_millis(250));
        assert_eq!(step(1), Duration::from_millis(375));
        assert_eq!(step(6), LAST_WAIT);
        assert_eq!(step(usize::MAX), LAST_WAIT);
    }

    #[test]
    fn a_slot_that_is_lost_before_its_lease_ends_was_evicted() {
        let second = Duration::from_secs(1);
        assert_eq!(loss(second * 2, second), SlotLoss::Evicted);
        assert_eq!(loss(Duration::ZERO, second), SlotLoss::Evicted);
        assert_eq!(loss(second, second), SlotLoss::LeaseEnded);
    }

    #[test]
    fn message_id_is_found_in_its_header_only() {
        let message = |headers: &str| StoredMessage {
            seq: 1,
            hdrs: BASE64.encode(headers.as_bytes()),
        };
        assert!(message("NATS/1.0\r\nNats-Msg-Id: abc\r\n\r\n").has_msg_id("abc"));
        assert!(!message("NATS/1.0\r\nNats-Msg-Id: abcd\r\n\r\n").has_msg_id("abc"));
        assert!(!message("NATS/1.0\r\nOther: abc\r\n\r\n").has_msg_id("abc"));
        let damaged = StoredMessage {
            seq: 1,
            hdrs: "?".into(),
        };
        assert!(!damaged.has_msg_id("abc"));
    }

    #[tokio::test]
    async fn pause_ends_when_the_caller_gives_up() {
        let reason = pause(Duration::from_secs(3600), &|| Some("enough".into())).await;
        assert_eq!(reason.as_deref(), Some("enough"));
        assert_eq!(pause(Duration::ZERO, &|| None).await, None);
    }
}
