//! Asking many nodes and hearing each of them once.
//!
//! Chosen nodes are asked one by one, so many at a time; everyone is asked with one message. Either
//! way each node that was meant is heard of exactly once: with its reply, or with why there is
//! none. Answers are handed over as they come and nothing is kept but names.
//!
//! A broadcast ends when all have answered or at the deadline. When it gets quiet the silent are
//! looked for: one that nobody connects any more is given up at once, a slow one is waited for. So
//! neither a dead node nor a slow one has to be guessed from a timeout.
//!
//! What a reply means is not known here; that is `answer`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::StreamExt as _;
use futures_util::stream::{self, Stream};
use tokio::time::{Instant, timeout};

use ccm_core::model::envelope::{CALLER, DEADLINE, DIFF, IDENTITY, NOOP, REQUEST_ID};
use ccm_core::model::id::EventId;
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock, RandomError, random};
use ccm_nats::{Bytes, Connection, Headers, NatsError, Reply, Stop, Subjects, Verb};
use ccm_value::text::go_time;

/// How many nodes are asked at once.
pub const IN_FLIGHT: usize = 128;

/// How many nodes are asked at once for work. They take their time and cost nothing meanwhile.
const AT_WORK: usize = 2048;

/// How long it is quiet before the silent are looked for. It doubles each time, so that a long
/// wait costs few questions.
const QUIET: Duration = Duration::from_millis(500);

/// How long it is quiet at most before they are looked for again.
const LONGEST_QUIET: Duration = Duration::from_secs(30);

/// How long a node may take to show that it is there.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How many nodes that nobody expected are heard at most.
const MOST_STRANGERS: usize = 10_000;

/// The longest caller that a node takes.
const MAX_CALLER: usize = 256;

/// What is asked of each node.
#[derive(Clone, Debug)]
pub struct Ask {
    pub verb: Verb,
    pub body: Bytes,
    pub noop: bool,
    /// Nodes also tell what changes in files, or would.
    pub diff: bool,
    /// How long a node may take to answer.
    pub limit: Duration,
    /// It is work that nodes must not begin after that time: whoever asked is gone by then.
    pub binding: bool,
}

/// Who is asked.
#[derive(Clone, Copy, Debug)]
pub enum Whom<'a> {
    These(&'a [NodeName]),
    /// Everyone, with one message; these are expected to answer and others may.
    Everyone(&'a [NodeName]),
}

/// What came back from one node.
#[derive(Debug)]
pub struct Heard {
    pub node: NodeName,
    pub reply: Result<Reply, NatsError>,
    /// Since it was asked.
    pub took: Duration,
}

/// Asks on behalf of one caller, under one request id.
#[derive(Clone)]
pub struct Gatherer {
    connection: Connection,
    subjects: Subjects,
    request_id: EventId,
    caller: String,
    clock: Arc<dyn Clock>,
}

impl Gatherer {
    /// Returns one that asks as `caller`, by convention `user@host`.
    pub fn new(
        connection: Connection,
        subjects: Subjects,
        caller: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, RandomError> {
        let plain = caller.chars().filter(|c| !c.is_control());
        let mut caller = String::new();
        for c in plain {
            if caller.len() + c.len_utf8() > MAX_CALLER {
                break;
            }
            caller.push(c);
        }
        Ok(Self {
            connection,
            subjects,
            request_id: EventId::new(clock.now(), random()?),
            caller,
            clock,
        })
    }

    /// Returns the id that all its requests carry.
    pub fn request_id(&self) -> &EventId {
        &self.request_id
    }

    /// Asks, and hands over what came back from each node, in the order it came. Fails when nobody
    /// can be asked at all.
    pub async fn gather(
        &self,
        ask: &Ask,
        whom: Whom<'_>,
        each: impl FnMut(Heard),
    ) -> Result<(), NatsError> {
        match whom {
            Whom::These(nodes) => self.ask_each(ask, nodes, each).await,
            Whom::Everyone(expected) => self.ask_everyone(ask, expected, each).await,
        }
    }

    async fn ask_each(
        &self,
        ask: &Ask,
        nodes: &[NodeName],
        mut each: impl FnMut(Heard),
    ) -> Result<(), NatsError> {
        let at_once = if ask.binding { AT_WORK } else { IN_FLIGHT };
        let mut answers = self.ask_these(ask, nodes.iter()).buffer_unordered(at_once);
        while let Some(heard) = answers.next().await {
            match heard.reply {
                // It is as large for everybody.
                Err(err @ NatsError::TooLarge { .. }) => return Err(err),
                _ => each(heard),
            }
        }
        Ok(())
    }

    /// Returns the question to each node, not asked yet. Each has its name as its own: futures
    /// that borrow it could not move between threads.
    fn ask_these<'a>(
        &'a self,
        ask: &'a Ask,
        nodes: impl Iterator<Item = &'a NodeName> + Send + 'a,
    ) -> impl Stream<Item = impl Future<Output = Heard> + Send + 'a> + Send + 'a {
        let nodes = nodes.cloned();
        stream::iter(nodes.map(move |node| async move { self.ask_one(ask, &node).await }))
    }

    /// Asks one node, and returns what came back.
    pub(super) async fn ask_one(&self, ask: &Ask, node: &NodeName) -> Heard {
        let since = Instant::now();
        let subject = self.subjects.node(&node.token(), ask.verb);
        let reply = match self.headers(ask) {
            Ok(headers) => {
                let body = ask.body.clone();
                let asking = self.connection.request(&subject, headers, body, ask.limit);
                asking.await
            }
            Err(err) => Err(err),
        };
        Heard {
            node: node.clone(),
            reply,
            took: since.elapsed(),
        }
    }

    async fn ask_everyone(
        &self,
        ask: &Ask,
        expected: &[NodeName],
        mut each: impl FnMut(Heard),
    ) -> Result<(), NatsError> {
        let since = Instant::now();
        let stop = Stop {
            expected: None,
            silence: ask.limit,
            deadline: ask.limit,
        };
        let subject = self.subjects.all(ask.verb);
        let headers = self.headers(ask)?;
        let asking = self
            .connection
            .request_many(&subject, headers, ask.body.clone(), stop);
        let mut replies = asking.await?;
        let mut crowd = Crowd::expecting(expected);
        let mut hear = |crowd: &mut Crowd, reply: Reply| {
            if let Some(node) = crowd.answered(&reply) {
                each(Heard {
                    node,
                    reply: Ok(reply),
                    took: since.elapsed(),
                });
            }
        };
        let mut gone = Vec::new();
        let mut quiet = QUIET;
        while !crowd.waiting.is_empty() {
            match timeout(quiet, replies.next()).await {
                Ok(Some(reply)) => hear(&mut crowd, reply),
                Ok(None) => break,
                Err(_) => {
                    let lost = self.look_for(&crowd.waiting).await;
                    // A node may have answered first and gone then.
                    while let Ok(Some(reply)) = timeout(Duration::ZERO, replies.next()).await {
                        hear(&mut crowd, reply);
                    }
                    let lost = lost.into_iter().filter(|node| crowd.waiting.remove(node));
                    gone.extend(lost);
                    quiet = (quiet * 2).min(LONGEST_QUIET);
                }
            }
        }
        if let Some(denial) = replies.denial() {
            return Err(denial.clone().into());
        }
        let is_deserted = replies.is_deserted();
        let silent = |node: NodeName, is_gone: bool| {
            let subject = self.subjects.node(&node.token(), ask.verb).to_string();
            let limit = ask.limit;
            let reply = if is_gone {
                Err(NatsError::NoResponders(subject))
            } else {
                Err(NatsError::NoAnswer { subject, limit })
            };
            let took = since.elapsed();
            Heard { node, reply, took }
        };
        for node in gone {
            each(silent(node, true));
        }
        for node in crowd.waiting {
            each(silent(node, is_deserted));
        }
        Ok(())
    }

    /// Returns those of the nodes that are not connected.
    async fn look_for(&self, nodes: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let probe = Ask {
            verb: Verb::Ping,
            body: Bytes::new(),
            noop: false,
            diff: false,
            limit: PROBE_LIMIT,
            binding: false,
        };
        let mut answers = self
            .ask_these(&probe, nodes.iter())
            .buffer_unordered(IN_FLIGHT);
        let mut gone = Vec::new();
        while let Some(heard) = answers.next().await {
            if matches!(heard.reply, Err(NatsError::NoResponders(_))) {
                gone.push(heard.node);
            }
        }
        gone
    }

    fn headers(&self, ask: &Ask) -> Result<Headers, NatsError> {
        let mut headers = Headers::new().with(REQUEST_ID, self.request_id.as_str())?;
        if !self.caller.is_empty() {
            headers.set(CALLER, &self.caller)?;
        }
        if ask.noop {
            headers.set(NOOP, "true")?;
        }
        if ask.diff {
            headers.set(DIFF, "true")?;
        }
        if ask.binding {
            headers.set(DEADLINE, &go_time(&self.deadline(ask.limit)))?;
        }
        Ok(headers)
    }

    fn deadline(&self, limit: Duration) -> DateTime<Utc> {
        TimeDelta::from_std(limit)
            .ok()
            .and_then(|limit| self.clock.now().checked_add_signed(limit))
            .unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

/// Who answered a broadcast, and who is waited for.
#[derive(Debug)]
struct Crowd {
    waiting: BTreeSet<NodeName>,
    answered: BTreeSet<NodeName>,
    most: usize,
}

impl Crowd {
    fn expecting(expected: &[NodeName]) -> Self {
        Self {
            waiting: expected.iter().cloned().collect(),
            answered: BTreeSet::new(),
            most: expected.len().saturating_add(MOST_STRANGERS),
        }
    }

    /// Notes an answer. Returns who gave it, unless nobody says so or it is not the first.
    fn answered(&mut self, reply: &Reply) -> Option<NodeName> {
        let node: NodeName = reply.header(IDENTITY)?.parse().ok()?;
        self.waiting.remove(&node);
        let is_new = self.answered.len() < self.most && self.answered.insert(node.clone());
        is_new.then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(identity: &str) -> Reply {
        Reply {
            subject: "x".into(),
            reply: None,
            headers: Headers::new().with(IDENTITY, identity).unwrap(),
            body: Bytes::new(),
        }
    }

    #[test]
    fn each_node_is_heard_once_and_only_by_its_name() {
        let mut crowd = Crowd::expecting(&["web1".parse().unwrap(), "web2".parse().unwrap()]);
        assert!(crowd.answered(&reply("web1")).is_some());
        assert!(crowd.answered(&reply("web1")).is_none());
        assert!(crowd.answered(&reply("No Name")).is_none());
        assert!(crowd.answered(&reply("stranger")).is_some());
        assert_eq!(crowd.waiting, ["web2".parse().unwrap()].into());
    }

    #[test]
    fn strangers_beyond_reason_are_not_kept() {
        let mut crowd = Crowd::expecting(&[]);
        crowd.most = 2;
        let heard = (0..5).filter(|number| {
            let reply = reply(&format!("n{number}"));
            crowd.answered(&reply).is_some()
        });
        assert_eq!(heard.count(), 2);
    }
}
