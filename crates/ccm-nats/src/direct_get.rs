//! Messages of a stream, read by direct get: one question, many answers.
//!
//! A consumer sends what a stream holds to any subject that its owner names, whether or not the owner
//! may publish there. So nothing here makes one, and no user of a fleet needs leave for it. A reader
//! asks for what is stored after the last message that it has, and leaves nothing on the servers.
//! One that follows listens to the subjects of the stream as well, but only to know when to ask.
//!
//! Servers answer the same question with one message where they don't know batches, and streams that
//! can't be read directly are read by the slower API of JetStream.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Info;
use async_nats::{StatusCode, Subscriber};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use data_encoding::BASE64;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{API_LIMIT, Headers, DenialReceiver, Message};
use super::kv::{bucket_of, failed, is_missing};
use super::{Cause, Connection, NatsError};
use ccm_value::text::{go_time, parse_time};

/// How many messages one question asks for; fewer than wait for a slow reader of ours.
const BATCH: usize = 1024;

/// How many bytes one question asks for.
const BATCH_BYTES: usize = 8 << 20;

/// The most bytes that are held in memory at once.
const MAX_READ: usize = 512 << 20;

/// The end of the answers.
const END: u16 = 204;
/// The question asks for more subjects than a server answers at once.
const TOO_MANY: u16 = 413;
/// The server does not know such questions.
const BAD_REQUEST: u16 = 408;

/// When to ask again after something may be new: a message is heard before its stream has it.
const SOON: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(150),
    Duration::from_millis(400),
    Duration::from_millis(1000),
];

/// How often to ask while nothing is heard: what expires is not.
const LISTENING_POLL: Duration = Duration::from_secs(5);

/// How often to ask where nobody listens.
const POLL: Duration = Duration::from_millis(250);

/// How often a reader is told that there is nothing new.
const IDLE: Duration = Duration::from_secs(5);

/// How often it is checked that the stream is still the same.
const CHECK: Duration = Duration::from_secs(30);

/// Which messages of which stream.
#[derive(Clone, Debug)]
pub(super) struct ReadRequest {
    pub(super) stream: String,
    pub(super) filter: String,
    pub(super) start: Start,
}

/// With which message reading begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The last one of each subject, then those that follow.
    LastPerSubject,
    /// The next one to come.
    New,
    Since(DateTime<Utc>),
    /// The one of this number, or the first after it.
    At(u64),
}

impl ReadRequest {
    /// Returns the last message of each subject that matches.
    pub(super) fn last(stream: impl Into<String>, filter: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            filter: filter.into(),
            start: Start::LastPerSubject,
        }
    }
}

/// A message as a stream keeps it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) headers: Headers,
    pub(super) body: Bytes,
    pub(super) sequence: u64,
    pub(super) time: DateTime<Utc>,
}

/// Why a reader is of no more use.
pub(super) enum ReadFailure {
    /// Something was missed, or the stream is another one.
    Gap,
    Failed(NatsError),
}

impl From<NatsError> for ReadFailure {
    fn from(err: NatsError) -> Self {
        Self::Failed(err)
    }
}

impl ReadFailure {
    /// Returns it as the end of reading a stream.
    pub(super) fn into_error(self, stream: &str) -> NatsError {
        match self {
            Self::Failed(err) => err,
            Self::Gap => NatsError::Store {
                action: "read",
                name: bucket_of(stream).into(),
                source: Cause::Reply("the server stopped in the middle".into()),
            },
        }
    }
}

/// What a reader does next.
pub(super) enum Step {
    /// A message, and how many are still to come.
    Message(Stored, u64),
    /// There is nothing more for now.
    Idle,
}

/// A question on its way, and the answers so far.
#[derive(Default)]
struct Question {
    reply: String,
    messages: Vec<Stored>,
}

/// What came of a question.
enum Answer {
    Batch {
        messages: Vec<Stored>,
        /// How many match after these; nothing from servers that don't tell.
        left: Option<u64>,
        /// The last message that the answer knows of.
        up_to: Option<u64>,
    },
    Nothing,
    TooMany,
    Unknown,
}

pub(super) struct Reader {
    connection: Connection,
    wanted: ReadRequest,
    denied: DenialReceiver,
    /// The subject of the question, for direct gets.
    asks: String,
    inbox: String,
    answers: Subscriber,
    nudges: Option<Subscriber>,
    is_direct: bool,
    /// When the stream was made, once it was asked.
    created: Option<i128>,
    question: Option<Question>,
    count: u64,
    /// The number with which the next question begins.
    next: u64,
    /// What is older is not wanted.
    since: Option<DateTime<Utc>>,
    waiting: VecDeque<Stored>,
    /// How many are still to come after those that wait.
    left: u64,
    /// How many there were when reading began.
    pending: u64,
    /// The message of the stream after which it began.
    after: u64,
    /// When to ask again, and how often that was in vain.
    due: Instant,
    tries: usize,
    told_idle: Instant,
    checked: Instant,
}

impl Reader {
    /// Begins to read. Whoever follows hears of new messages at once.
    pub(super) async fn open(
        connection: &Connection,
        wanted: &ReadRequest,
        listens: bool,
    ) -> Result<Self, NatsError> {
        let stream = &wanted.stream;
        let client = connection.client();
        let nudges = if listens {
            Some(client.subscribe(wanted.filter.clone()).await)
        } else {
            None
        };
        let nudges = nudges.transpose().map_err(|_| NatsError::Closed)?;
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.*")).await;
        let now = Instant::now();
        let mut reader = Self {
            connection: connection.clone(),
            wanted: wanted.clone(),
            denied: connection.denials(),
            asks: connection.api(&format!("DIRECT.GET.{stream}")),
            inbox,
            answers: answers.map_err(|_| NatsError::Closed)?,
            nudges,
            is_direct: true,
            created: None,
            question: None,
            count: 0,
            next: 1,
            since: None,
            waiting: VecDeque::new(),
            left: 0,
            pending: 0,
            after: 0,
            due: now,
            tries: 0,
            told_idle: now,
            checked: now,
        };
        // Whoever reads once needs no leave but to read.
        let needs_end = listens || matches!(wanted.start, Start::New | Start::Since(_));
        let last = if needs_end { reader.learn().await? } else { 0 };
        reader.begin(last).await?;
        Ok(reader)
    }

    /// Asks what the stream is like, and returns the number of its last message.
    async fn learn(&mut self) -> Result<u64, NatsError> {
        let stream = &self.wanted.stream;
        let info = self.connection.stream_info(stream).await?;
        let info = info.ok_or_else(|| NatsError::NoBucket(bucket_of(stream).into()))?;
        self.is_direct = info.config.allow_direct;
        self.created = Some(info.created.unix_timestamp_nanos());
        Ok(info.state.last_sequence)
    }

    async fn begin(&mut self, last: u64) -> Result<(), NatsError> {
        match self.wanted.start {
            Start::LastPerSubject => self.snapshot(last).await?,
            Start::New => self.next = last.saturating_add(1),
            Start::At(sequence) => {
                self.next = sequence.max(1);
                self.fetch().await?;
            }
            Start::Since(since) => self.begin_since(since, last).await?,
        }
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        self.pending = self.left.saturating_add(waiting);
        self.after = match (self.waiting.front(), self.wanted.start) {
            (_, Start::At(sequence)) => sequence.saturating_sub(1),
            (Some(first), _) => first.sequence.saturating_sub(1),
            (None, _) => last,
        };
        Ok(())
    }

    /// Returns how many messages there were when reading began.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the number of the stream's message after which it began.
    pub(super) fn after(&self) -> u64 {
        self.after
    }

    /// Whether nothing has arrived that is not handed over.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns what comes next. To be dropped before it is done loses nothing.
    pub(super) async fn next(&mut self) -> Result<Step, ReadFailure> {
        loop {
            if let Some(stored) = self.waiting.pop_front() {
                let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
                self.told_idle = Instant::now();
                return Ok(Step::Message(stored, self.left.saturating_add(waiting)));
            }
            let was_expected = self.left > 0;
            if !was_expected && self.question.is_none() {
                self.rest().await;
            }
            self.fetch().await?;
            if !self.waiting.is_empty() {
                self.tries = 0;
                self.due = Instant::now();
                continue;
            }
            if was_expected {
                // What was still to come has expired meanwhile.
                return Ok(Step::Idle);
            }
            if self.checked.elapsed() >= CHECK {
                self.check().await?;
            }
            if self.told_idle.elapsed() >= IDLE {
                self.told_idle = Instant::now();
                return Ok(Step::Idle);
            }
        }
    }

    /// Waits until it is time to ask again.
    async fn rest(&mut self) {
        loop {
            let nudged = async {
                match &mut self.nudges {
                    Some(nudges) => nudges.next().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(self.due) => break,
                is_news = nudged => {
                    if is_news { self.tries = 0 } else { self.nudges = None }
                    if let Some(nudges) = &mut self.nudges {
                        while let Some(Some(_)) = nudges.next().now_or_never() {}
                    }
                    let soon = SOON.first().copied().unwrap_or_default();
                    self.due = self.due.min(Instant::now() + soon);
                }
            }
        }
        let wait = match &self.nudges {
            Some(_) => SOON.get(self.tries).copied().unwrap_or(LISTENING_POLL),
            None => POLL,
        };
        self.tries = self.tries.saturating_add(1);
        self.due = Instant::now() + wait;
    }

    /// Fails if the stream was replaced: its numbers begin anew.
    async fn check(&mut self) -> Result<(), ReadFailure> {
        let info = self.connection.stream_info(&self.wanted.stream).await?;
        self.checked = Instant::now();
        let is_same = info.is_some_and(|info| {
            let is_behind = info.state.last_sequence.saturating_add(1) < self.next;
            let created = info.created.unix_timestamp_nanos();
            *self.created.get_or_insert(created) == created && !is_behind
        });
        if is_same { Ok(()) } else { Err(ReadFailure::Gap) }
    }

    /// Reads the last message of each subject as of now.
    async fn snapshot(&mut self, last: u64) -> Result<(), NatsError> {
        let mut found = Vec::new();
        let mut size = 0;
        let mut question = json!({ "multi_last": [self.wanted.filter], "max_bytes": BATCH_BYTES });
        while self.is_direct {
            match self.ask_directly(&question).await? {
                Answer::Batch {
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
                        self.waiting = found.into();
                        return Ok(());
                    }
                    question = json!({
                        "multi_last": [self.wanted.filter], "max_bytes": BATCH_BYTES,
                        "seq": end.saturating_add(1), "up_to_seq": up_to,
                    });
                }
                Answer::Nothing => {
                    self.next = last.saturating_add(1);
                    self.waiting = found.into();
                    return Ok(());
                }
                Answer::Batch { .. } | Answer::TooMany | Answer::Unknown => break,
            }
        }
        self.scan(last).await
    }

    /// Reads all messages and keeps the last one of each subject.
    async fn scan(&mut self, last: u64) -> Result<(), NatsError> {
        let mut newest: BTreeMap<String, Stored> = BTreeMap::new();
        let mut size = 0;
        self.next = 1;
        loop {
            self.fetch().await?;
            let is_over = self.waiting.is_empty();
            for stored in std::mem::take(&mut self.waiting) {
                size += stored.body.len();
                if let Some(old) = newest.insert(stored.subject.clone(), stored) {
                    size -= old.body.len();
                }
            }
            self.check_size(size)?;
            if is_over || self.left == 0 {
                break;
            }
        }
        self.left = 0;
        self.next = self.next.max(last.saturating_add(1));
        let mut found: Vec<Stored> = newest.into_values().collect();
        found.sort_by_key(|stored| stored.sequence);
        self.waiting = found.into();
        Ok(())
    }

    fn check_size(&self, size: usize) -> Result<(), NatsError> {
        if size > MAX_READ {
            Err(NatsError::Limit {
                what: format!("the content of bucket {}", bucket_of(&self.wanted.stream)),
                limit: u64::try_from(MAX_READ).unwrap_or(u64::MAX),
            })
        } else {
            Ok(())
        }
    }

    /// Begins with the first message that was stored since then.
    async fn begin_since(&mut self, since: DateTime<Utc>, last: u64) -> Result<(), NatsError> {
        if self.is_direct {
            let question = json!({
                "start_time": go_time(&since), "next_by_subj": self.wanted.filter,
                "batch": BATCH, "max_bytes": BATCH_BYTES,
            });
            match self.ask_directly(&question).await? {
                Answer::Batch { messages, left, .. } => {
                    self.take(messages, left);
                    return Ok(());
                }
                Answer::Nothing => {
                    self.next = last.saturating_add(1);
                    return Ok(());
                }
                Answer::TooMany | Answer::Unknown => {}
            }
        }
        // Servers that don't know of times: everything is read, and what is older dropped.
        self.since = Some(since);
        self.next = 1;
        self.fetch().await
    }

    /// Asks for the messages that follow, and takes them.
    async fn fetch(&mut self) -> Result<(), NatsError> {
        let question = json!({
            "seq": self.next, "next_by_subj": self.wanted.filter,
            "batch": BATCH, "max_bytes": BATCH_BYTES,
        });
        let mut answer = Answer::Unknown;
        if self.is_direct {
            answer = self.ask_directly(&question).await?;
        }
        if !self.is_direct {
            answer = self.ask_slowly().await?;
        }
        match answer {
            Answer::Batch { messages, left, .. } => self.take(messages, left),
            Answer::Nothing => self.left = 0,
            Answer::TooMany | Answer::Unknown => {
                return Err(self.failed(Cause::Reply("the server knows no such request".into())));
            }
        }
        Ok(())
    }

    fn take(&mut self, messages: Vec<Stored>, left: Option<u64>) {
        if let Some(last) = messages.last() {
            self.next = last.sequence.saturating_add(1);
        }
        // A server that does not tell may have more.
        self.left = left.unwrap_or(1);
        let since = self.since;
        let is_wanted = |stored: &Stored| since.is_none_or(|since| stored.time >= since);
        self.waiting.extend(messages.into_iter().filter(is_wanted));
    }

    /// Asks a question that nobody may answer, because the stream can't be read directly.
    async fn ask_directly(&mut self, body: &Value) -> Result<Answer, NatsError> {
        match self.ask(body).await {
            Err(err @ NatsError::NoResponders(_)) => {
                self.learn().await?;
                if self.is_direct {
                    Err(err)
                } else {
                    Ok(Answer::Unknown)
                }
            }
            other => other,
        }
    }

    /// Asks one question and waits for all of its answers. If it is dropped half way, the next call
    /// goes on with the same question.
    async fn ask(&mut self, body: &Value) -> Result<Answer, NatsError> {
        if self.question.is_none() {
            self.count = self.count.wrapping_add(1);
            let reply = format!("{}.{}", self.inbox, self.count);
            self.question = Some(Question {
                reply: reply.clone(),
                messages: Vec::new(),
            });
            let body = Bytes::from(body.to_string());
            let client = self.connection.client();
            let asking = client.publish_with_reply(self.asks.clone(), reply, body);
            match timeout(API_LIMIT, asking).await {
                Ok(Ok(())) => {}
                _ => {
                    self.question = None;
                    return Err(NatsError::Closed);
                }
            }
        }
        let outcome = self.collect().await;
        self.question = None;
        outcome
    }

    async fn collect(&mut self) -> Result<Answer, NatsError> {
        loop {
            let (asks, answers) = (&self.asks, &mut self.answers);
            let answer = timeout(API_LIMIT, answers.next());
            let answer = self.denied.during(|subject| subject == asks, answer);
            let answer = answer.await?.map_err(|_| NatsError::NoReply {
                subject: self.asks.clone(),
                limit: API_LIMIT,
            })?;
            let answer = answer.ok_or(NatsError::Closed)?;
            let Some(question) = &mut self.question else {
                return Err(NatsError::Closed);
            };
            if answer.subject.as_str() != question.reply {
                continue;
            }
            let status = answer.status;
            let description = answer.description.clone();
            let message = Message::from(answer);
            let number = |name: &str| message.headers.last(name)?.parse::<u64>().ok();
            let before = question.messages.last().map_or(0, |it| it.sequence);
            let gap = || Cause::Reply("the server stopped in the middle".into());
            match status.map(|status| (status, status.as_u16())) {
                None => {
                    let (left, last) = (number("Nats-Num-Pending"), number("Nats-Last-Sequence"));
                    let Some(stored) = stored(message) else {
                        return Ok(Answer::Unknown);
                    };
                    if left.is_none() {
                        return Ok(Answer::Batch {
                            messages: vec![stored],
                            left,
                            up_to: None,
                        });
                    }
                    if last.is_some_and(|last| last != before) {
                        return Err(self.failed(gap()));
                    }
                    question.messages.push(stored);
                }
                Some((_, END)) => {
                    if number("Nats-Last-Sequence").is_some_and(|last| last != before) {
                        return Err(self.failed(gap()));
                    }
                    return Ok(Answer::Batch {
                        left: number("Nats-Num-Pending"),
                        up_to: number("Nats-UpTo-Sequence"),
                        messages: std::mem::take(&mut question.messages),
                    });
                }
                Some((StatusCode::NOT_FOUND, _)) => return Ok(Answer::Nothing),
                Some((StatusCode::NO_RESPONDERS, _)) => {
                    return Err(NatsError::NoResponders(self.asks.clone()));
                }
                Some((_, TOO_MANY)) => return Ok(Answer::TooMany),
                Some((_, BAD_REQUEST)) => return Ok(Answer::Unknown),
                Some((status, _)) => {
                    let text = description.unwrap_or_else(|| status.to_string());
                    return Err(self.failed(Cause::Reply(text)));
                }
            }
        }
    }

    /// Asks for one message of a stream that can't be read directly.
    async fn ask_slowly(&mut self) -> Result<Answer, NatsError> {
        let body = json!({ "seq": self.next, "next_by_subj": self.wanted.filter });
        let question = format!("STREAM.MSG.GET.{}", self.wanted.stream);
        let subject = self.connection.api(&question);
        let asking = self.connection.jetstream().request(question, &body);
        let answer = self.denied.during(|it| it == subject, asking).await?;
        let answer: Response<Got> = answer.map_err(|err| self.failed(Cause::client(err)))?;
        match answer {
            Response::Ok(Got { message }) => match message.stored() {
                Some(stored) => Ok(Answer::Batch {
                    messages: vec![stored],
                    left: None,
                    up_to: None,
                }),
                None => Err(self.failed(Cause::Reply("the answer can't be read".into()))),
            },
            Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(Answer::Nothing)
            }
            Response::Err { error } => Err(self.failed(Cause::client(error))),
        }
    }

    fn failed(&self, source: Cause) -> NatsError {
        NatsError::Store {
            action: "read",
            name: bucket_of(&self.wanted.stream).into(),
            source,
        }
    }
}

/// Reads a message out of the answer to a direct get. The headers that the server adds come after
/// those of whoever wrote the message, who might have used the same names.
fn stored(message: Message) -> Option<Stored> {
    let Message { headers, body, .. } = message;
    Some(Stored {
        subject: headers.last("Nats-Subject")?.to_owned(),
        sequence: headers.last("Nats-Sequence")?.parse().ok()?,
        time: parse_time(headers.last("Nats-Time-Stamp")?).ok()?.to_utc(),
        headers,
        body,
    })
}

/// The answer of JetStream's API to a question for a message.
#[derive(Deserialize)]
struct Got {
    message: GotMessage,
}

#[derive(Deserialize)]
struct GotMessage {
    subject: String,
    seq: u64,
    time: String,
    /// In base64, as is the rest.
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl GotMessage {
    fn stored(self) -> Option<Stored> {
        let text = BASE64.decode(self.hdrs.as_bytes()).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut headers = Headers::new();
        for line in text.lines() {
            if let Some((name, value)) = line.split_once(':') {
                headers.set(name, value.trim()).ok()?;
            }
        }
        Some(Stored {
            subject: self.subject,
            headers,
            body: BASE64.decode(self.data.as_bytes()).ok()?.into(),
            sequence: self.seq,
            time: parse_time(&self.time).ok()?.to_utc(),
        })
    }
}

impl Connection {
    /// Returns what a stream is like, if there is one.
    pub(super) async fn stream_info(&self, name: &str) -> Result<Option<Info>, NatsError> {
        let subject = self.api(&format!("STREAM.INFO.{name}"));
        let found = self.unless_denied(&subject, self.jetstream().get_stream(name));
        match found.await? {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(err) if is_missing(&err) => Ok(None),
            Err(err) => Err(failed("lookup", bucket_of(name), err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_message_is_stored_is_what_the_server_adds_last() {
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
        let stored = stored(message).unwrap();
        assert_eq!((stored.subject.as_str(), stored.sequence), ("a.b", 7));
    }

    #[test]
    fn a_message_of_the_slower_api_is_read() {
        let got: Got = serde_json::from_value(json!({ "message": {
            "subject": "a", "seq": 3, "time": "2026-01-01T00:00:00Z", "data": "eA==",
            "hdrs": BASE64.encode(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"),
        }}))
        .unwrap();
        let stored = got.message.stored().unwrap();
        assert_eq!(stored.headers.get("KV-Operation"), Some("DEL"));
        assert_eq!((stored.sequence, &stored.body[..]), (3, &b"x"[..]));
    }
}
