//! Governors: so many slots and no more, kept by the servers, shared with everyone who uses
//! Choria's.
//!
//! A governor is a stream that takes as many messages as it has slots and refuses the rest. To
//! enter is to publish, and the sequence of the message is the slot. To leave is to delete it. A
//! message that got old is dropped by the stream: that is the lease, which frees the slots of those
//! who died.
//!
//! A request whose answer is lost may have entered. Asking again could take a second slot that
//! nobody leaves, so each try is marked, and after a lost one the stream is searched for the mark
//! first. Servers that know marks would store the same one once only, too.
//!
//! Who needs a slot, and what to do without one, is not known here. Governors are made by
//! `choria governor add`.

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
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::Token;
use ccm_core::system;

/// Marks a message, and tells a server that it may have it already.
const MARK: &str = "Nats-Msg-Id";

/// How long one try may take.
const TRY_LIMIT: Duration = Duration::from_secs(2);

/// The wait after a first try that failed; it grows by half each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest wait between two tries.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How often whoever waits is asked whether to go on.
const GLANCE: Duration = Duration::from_millis(250);

/// How long leaving may take; after that the lease frees the slot.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// How many messages are searched for a mark; no governor has as many slots.
const MOST_SEARCHED: usize = 10_000;

/// How often it is looked whether a slot is still there.
const LOOK_LEAST: Duration = Duration::from_millis(250);
const LOOK_MOST: Duration = Duration::from_secs(10);

/// One governor, seen by one who may want a slot.
#[derive(Clone, Debug)]
pub struct Governor {
    name: GovernorName,
    subject: Subject,
    stream_api: GovernorStream,
}

/// What came of a try.
enum Tried {
    In(u64),
    /// Surely not in.
    Out(String),
    /// Perhaps in.
    Lost(String),
}

impl Governor {
    /// Returns the governor of this name; whether there is one turns out on entering.
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

    /// Waits for a slot, but not longer than `limit`, and only until `given_up` has a reason.
    /// `who` is what others read about the holder. To be awaited to its end: who drops it half
    /// way may leave a slot behind, until the lease frees it.
    pub async fn enter(
        &self,
        who: &str,
        limit: Duration,
        given_up: impl Fn() -> Option<String>,
    ) -> Result<Slot, NatsError> {
        let began = Instant::now();
        let mut mark = new_mark()?;
        let mut is_lost = false;
        let mut tries = 0;
        loop {
            let reason = match self.advance(&mark, who, is_lost).await? {
                Tried::In(sequence) => return Ok(Slot::new(self.stream_api.clone(), sequence)),
                Tried::Out(reason) => {
                    // A mark that was refused may be remembered as one that is on its way.
                    mark = new_mark()?;
                    is_lost = false;
                    reason
                }
                Tried::Lost(reason) => {
                    is_lost = true;
                    reason
                }
            };
            let left = limit.saturating_sub(began.elapsed());
            let given_up_for = pause(wait_after(tries).min(left), &given_up).await;
            tries += 1;
            if given_up_for.is_none() && began.elapsed() < limit {
                continue;
            }
            if is_lost && let Ok(Some(sequence)) = self.stream_api.find(&self.subject, &mark).await {
                // In after all, but nobody waits any more.
                let _ = Slot::new(self.stream_api.clone(), sequence).leave().await;
            }
            let governor = self.name.to_string();
            return Err(match given_up_for {
                Some(reason) => NatsError::WaitCancelled { governor, reason },
                None => NatsError::NoSlot {
                    governor,
                    limit,
                    reason,
                },
            });
        }
    }

    /// Tries once; after a try that was lost the stream is searched for it first.
    async fn advance(&self, mark: &str, who: &str, is_lost: bool) -> Result<Tried, NatsError> {
        if is_lost {
            match self.stream_api.find(&self.subject, mark).await {
                Ok(Some(sequence)) => return Ok(Tried::In(sequence)),
                Ok(None) => {}
                Err(err) if err.is_denied() => return Err(err),
                Err(err) => return Ok(Tried::Lost(err.to_string())),
            }
        }
        if !self.stream_api.connection.is_up() {
            let reason = NatsError::Closed.to_string();
            return Ok(if is_lost {
                Tried::Lost(reason)
            } else {
                Tried::Out(reason)
            });
        }
        let headers = Headers::new().with(MARK, mark)?;
        let body = Bytes::copy_from_slice(who.as_bytes());
        let connection = &self.stream_api.connection;
        let asked = connection.request(&self.subject, headers, body, TRY_LIMIT);
        match asked.await {
            Ok(reply) => self.read(&reply.body),
            Err(NatsError::NoResponders(_)) => self.explain_silence().await,
            Err(err @ (NatsError::NoReply { .. } | NatsError::Closed)) => {
                Ok(Tried::Lost(err.to_string()))
            }
            Err(err) => Err(err),
        }
    }

    /// Reads the stream's answer.
    fn read(&self, body: &[u8]) -> Result<Tried, NatsError> {
        let failed = |source| NatsError::Failed {
            action: "enter governor",
            subject: self.subject.to_string(),
            source,
        };
        let ack: Response<Ack> = serde_json::from_slice(body).map_err(|err| failed(err.into()))?;
        match ack {
            Response::Ok(Ack { stream, seq }) if stream == self.stream_api.stream => Ok(Tried::In(seq)),
            // Somebody stores everything; that limits nobody.
            Response::Ok(_) => Err(self.missing()),
            Response::Err { error } if error.error_code() == ErrorCode::STREAM_STORE_FAILED => {
                Ok(Tried::Out("all slots are taken".into()))
            }
            // The servers are busy with themselves, or with this very message.
            Response::Err { error }
                if error.code() == 503
                    || error.error_code() == ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT =>
            {
                Ok(Tried::Lost(error.to_string()))
            }
            Response::Err { error } => Err(failed(Cause::client(error))),
        }
    }

    /// Finds out why nobody listens: there is no such governor, or it has no leader just now.
    async fn explain_silence(&self) -> Result<Tried, NatsError> {
        match self.stream_api.info().await {
            Ok(Some(info))
                if info
                    .config
                    .subjects
                    .iter()
                    .any(|it| it == self.subject.as_str()) =>
            {
                Ok(Tried::Out("it has no leader".into()))
            }
            Ok(_) => Err(self.missing()),
            Err(err @ (NatsError::NoJetStream { .. } | NatsError::Denied(_))) => Err(err),
            Err(err) => Ok(Tried::Out(err.to_string())),
        }
    }

    fn missing(&self) -> NatsError {
        NatsError::NoGovernor {
            governor: self.name.to_string(),
            subject: self.subject.to_string(),
        }
    }
}

/// Returns a mark that no other try has.
fn new_mark() -> Result<String, NatsError> {
    Ok(format!("{:032x}", system::random()?))
}

/// Returns the wait after so many tries, before chance is added.
fn step(tries: usize) -> Duration {
    let tries = i32::try_from(tries.min(16)).unwrap_or(16);
    FIRST_WAIT.mul_f64(1.5_f64.powi(tries)).min(LAST_WAIT)
}

/// Returns a wait after so many tries, another one for everybody who waits.
fn wait_after(tries: usize) -> Duration {
    backoff::spread_by_chance(step(tries))
}

/// Waits, and returns early with the reason if there is one to give up.
async fn pause(wait: Duration, given_up: &impl Fn() -> Option<String>) -> Option<String> {
    let until = Instant::now() + wait;
    loop {
        if let Some(reason) = given_up() {
            return Some(reason);
        }
        let now = Instant::now();
        if now >= until {
            return None;
        }
        sleep_until(until.min(now + GLANCE)).await;
    }
}

/// Whether a slot was still there when it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Freed,
    /// It was taken away before: the lease ended, or somebody freed it by hand.
    Evicted,
}

/// A slot that is held. One that is dropped is left in the background, where that is possible.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    stream_api: GovernorStream,
    sequence: u64,
    /// Where it is left if nobody does; nothing once it was.
    runtime: Option<Handle>,
}

impl Slot {
    fn new(stream_api: GovernorStream, sequence: u64) -> Self {
        Self {
            stream_api,
            sequence,
            runtime: Handle::try_current().ok(),
        }
    }

    /// Returns the number by which Choria knows the slot.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns a wait that ends when the slot is taken away while it is held.
    pub fn evicted(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (stream_api, sequence) = (self.stream_api.clone(), self.sequence);
        async move {
            let lease = match stream_api.info().await {
                Ok(Some(info)) => Duration::from_nanos(info.config.max_age),
                _ => Duration::ZERO,
            };
            // A lease without an end can still be taken away by hand.
            let every = if lease.is_zero() {
                LOOK_MOST
            } else {
                (lease / 4).clamp(LOOK_LEAST, LOOK_MOST)
            };
            loop {
                sleep(every).await;
                // While nobody can be asked, nothing is known.
                if let Ok(None) = stream_api.message(json!({ "seq": sequence })).await {
                    return;
                }
            }
        }
    }

    /// Frees the slot, as long as that takes, up to a limit.
    pub async fn leave(mut self) -> Result<Release, NatsError> {
        self.runtime = None;
        free(self.stream_api.clone(), self.sequence).await
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Without success the lease does it.
            runtime.spawn(free(self.stream_api.clone(), self.sequence));
        }
    }
}

async fn free(stream_api: GovernorStream, sequence: u64) -> Result<Release, NatsError> {
    let began = Instant::now();
    let mut tries = 0;
    loop {
        match stream_api.delete(sequence).await {
            Ok(true) => return Ok(Release::Freed),
            // After a try whose answer was lost it may be that one that worked.
            Ok(false) if tries > 0 => return Ok(Release::Freed),
            Ok(false) => return Ok(Release::Evicted),
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

/// A stream's answer to a message.
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
    fn has_mark(&self, mark: &str) -> bool {
        let headers = BASE64.decode(self.hdrs.as_bytes()).unwrap_or_default();
        String::from_utf8_lossy(&headers).lines().any(|line| {
            let header = line.split_once(':');
            header.is_some_and(|(name, value)| name == MARK && value.trim() == mark)
        })
    }
}

#[derive(Deserialize)]
struct Deleted {
    success: bool,
}

impl GovernorStream {
    /// Returns what the stream is like, if there is one.
    async fn info(&self) -> Result<Option<Info>, NatsError> {
        let missing = [ErrorCode::STREAM_NOT_FOUND];
        self.ask("INFO", json!({}), &missing).await
    }

    /// Returns a message, if there is one like it.
    async fn message(&self, which: serde_json::Value) -> Result<Option<StoredMessage>, NatsError> {
        let missing = [ErrorCode::NO_MESSAGE_FOUND, ErrorCode::STREAM_NOT_FOUND];
        let stored: Option<Stored> = self.ask("MSG.GET", which, &missing).await?;
        Ok(stored.map(|stored| stored.message))
    }

    /// Returns the sequence of the message with a mark, if it is there.
    async fn find(&self, subject: &Subject, mark: &str) -> Result<Option<u64>, NatsError> {
        let mut from = 1;
        for _ in 0..MOST_SEARCHED {
            let next = json!({ "seq": from, "next_by_subj": subject.as_str() });
            match self.message(next).await? {
                None => return Ok(None),
                Some(message) if message.has_mark(mark) => return Ok(Some(message.seq)),
                Some(message) => from = message.seq.saturating_add(1),
            }
        }
        Err(NatsError::Limit {
            what: format!("stream {}", self.stream),
            limit: u64::try_from(MOST_SEARCHED).unwrap_or(u64::MAX),
        })
    }

    /// Deletes a message and reports whether it was there.
    async fn delete(&self, sequence: u64) -> Result<bool, NatsError> {
        let which = json!({ "seq": sequence, "no_erase": true });
        let missing = [
            ErrorCode::SEQUENCE_NOT_FOUND,
            ErrorCode::NO_MESSAGE_FOUND,
            ErrorCode::STREAM_NOT_FOUND,
        ];
        let deleted: Option<Deleted> = match self.ask("MSG.DELETE", which, &missing).await {
            Ok(deleted) => deleted,
            Err(err) if err.is_denied() => return Err(err),
            // Some servers say no more than that it failed.
            Err(err) => match self.message(json!({ "seq": sequence })).await {
                Ok(None) => None,
                _ => return Err(err),
            },
        };
        Ok(deleted.is_some_and(|deleted| deleted.success))
    }

    /// Asks JetStream about the stream; some errors only say that something is not there.
    async fn ask<T: DeserializeOwned>(
        &self,
        what: &'static str,
        body: serde_json::Value,
        missing: &[ErrorCode],
    ) -> Result<Option<T>, NatsError> {
        let name = || self.stream.clone();
        let failed = |source| NatsError::Store {
            action: what,
            name: name(),
            source,
        };
        let question = format!("STREAM.{what}.{}", self.stream);
        let subject = self.connection.api(&question);
        let asking = self.connection.jetstream().request(question, &body);
        let answer: Result<Response<T>, _> = self.connection.unless_denied(&subject, asking).await?;
        match answer {
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
    fn waits_grow_from_a_quarter_of_a_second_to_two() {
        assert_eq!(step(0), Duration::from_millis(250));
        assert_eq!(step(1), Duration::from_millis(375));
        assert_eq!(step(6), LAST_WAIT);
        assert_eq!(step(usize::MAX), LAST_WAIT);
    }

    #[test]
    fn a_mark_is_found_among_headers_and_nowhere_else() {
        let message = |headers: &str| StoredMessage {
            seq: 1,
            hdrs: BASE64.encode(headers.as_bytes()),
        };
        assert!(message("NATS/1.0\r\nNats-Msg-Id: abc\r\n\r\n").has_mark("abc"));
        assert!(!message("NATS/1.0\r\nNats-Msg-Id: abcd\r\n\r\n").has_mark("abc"));
        assert!(!message("NATS/1.0\r\nOther: abc\r\n\r\n").has_mark("abc"));
        let damaged = StoredMessage {
            seq: 1,
            hdrs: "?".into(),
        };
        assert!(!damaged.has_mark("abc"));
    }

    #[tokio::test]
    async fn a_pause_ends_when_nobody_waits_any_more() {
        let told = pause(Duration::from_secs(3600), &|| Some("enough".into())).await;
        assert_eq!(told.as_deref(), Some("enough"));
        assert_eq!(pause(Duration::ZERO, &|| None).await, None);
    }
}
