//! Scatter-gather requests: one request to many nodes, one result for each of them.
//!
//! Selected nodes get one request each, with bounded concurrency; [`Recipients::Broadcast`]
//! publishes a single message. In both cases every expected node yields exactly one [`RawReply`]:
//! its reply, or the reason why there is none. Replies are passed on as they arrive; only node
//! names are kept in memory.
//!
//! A broadcast ends when all expected nodes have replied or at the timeout. While no replies
//! arrive, the missing nodes are pinged: a node without a subscriber is reported as disconnected at
//! once, a slow one is waited for.
//!
//! The meaning of a reply is decided in `node_reply`.

use std::collections::BTreeSet;
use std::pin::pin;
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
use ccm_nats::{Bytes, Connection, Headers, NatsError, Reply, ReplyLimits, Subjects, Verb};
use ccm_value::text::go_time;

/// Number of concurrent requests that nodes answer immediately.
pub(super) const MAX_CONCURRENT: usize = 128;

/// Number of concurrent requests that start a run on the node: long, but cheap while pending.
const MAX_CONCURRENT_RUNS: usize = 2048;

/// Number of requests after which a round trip to the server is awaited. The NATS client keeps 128
/// errors of the server and drops the others, so that no more permission violations may be pending.
const MAX_BURST: usize = 50;

/// Time without a reply before missing nodes are pinged. Doubles each time, up to [`MAX_QUIET`].
const QUIET: Duration = Duration::from_millis(500);

/// Longest interval between two rounds of pings.
const MAX_QUIET: Duration = Duration::from_secs(30);

/// Timeout of such a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of unexpected nodes whose replies to a broadcast are passed on.
const MAX_UNEXPECTED: usize = 10_000;

/// Longest caller name that nodes accept.
const MAX_CALLER_BYTES: usize = 256;

/// A request to a node.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    pub verb: Verb,
    pub body: Bytes,
    pub noop: bool,
    /// Includes content diffs of files in the reply.
    pub diff: bool,
    pub timeout: Duration,
    /// Sends the end of the timeout as a deadline: the node must not start the run after it,
    /// because the caller no longer waits.
    pub sends_deadline: bool,
}

/// The recipients of a request.
#[derive(Clone, Copy, Debug)]
pub enum Recipients<'a> {
    Nodes(&'a [NodeName]),
    /// All nodes, with one message. These are expected to reply; others may.
    Broadcast(&'a [NodeName]),
}

/// The result of a request to one node, not yet interpreted.
#[derive(Debug)]
pub struct RawReply {
    pub node: NodeName,
    pub reply: Result<Reply, NatsError>,
    /// Time since the request was sent.
    pub elapsed: Duration,
}

/// Sends requests for one caller, all with the same request id.
#[derive(Clone)]
pub struct ScatterClient {
    connection: Connection,
    subjects: Subjects,
    request_id: EventId,
    caller: String,
    clock: Arc<dyn Clock>,
}

impl ScatterClient {
    /// Returns a client for `caller`, by convention `user@host`. Control characters are removed
    /// from the caller, and it is cut to the length that nodes accept.
    pub fn new(
        connection: Connection,
        subjects: Subjects,
        caller: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, RandomError> {
        let plain = caller.chars().filter(|c| !c.is_control());
        let mut caller = String::new();
        for c in plain {
            if caller.len() + c.len_utf8() > MAX_CALLER_BYTES {
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

    /// Returns the request id of all requests of this client.
    pub fn request_id(&self) -> &EventId {
        &self.request_id
    }

    /// Sends a request and calls `each` with the result of every node, in order of arrival. Fails
    /// if the request can't be sent to any node.
    pub async fn scatter(
        &self,
        request: &NodeRequest,
        recipients: Recipients<'_>,
        each: impl FnMut(RawReply),
    ) -> Result<(), NatsError> {
        match recipients {
            Recipients::Nodes(nodes) => self.request_each(request, nodes, each).await,
            Recipients::Broadcast(expected) => self.broadcast(request, expected, each).await,
        }
    }

    async fn request_each(
        &self,
        request: &NodeRequest,
        nodes: &[NodeName],
        mut each: impl FnMut(RawReply),
    ) -> Result<(), NatsError> {
        let concurrency = if request.sends_deadline {
            MAX_CONCURRENT_RUNS
        } else {
            MAX_CONCURRENT
        };
        let requests = self.requests(request, nodes.iter());
        let mut replies = pin!(requests.buffer_unordered(concurrency));
        while let Some(reply) = replies.next().await {
            match reply.reply {
                // The same size for all nodes: none of them can get it.
                Err(err @ NatsError::TooLarge { .. }) => return Err(err),
                _ => each(reply),
            }
        }
        Ok(())
    }

    /// Returns one unsent request per node, [`MAX_BURST`] of them for each round trip to the server.
    /// Each future owns its node name: futures that borrow it would not be `Send`.
    fn requests<'a>(
        &'a self,
        request: &'a NodeRequest,
        nodes: impl Iterator<Item = &'a NodeName> + Send + 'a,
    ) -> impl Stream<Item = impl Future<Output = RawReply> + Send + 'a> + Send + 'a {
        let nodes = nodes.cloned().enumerate();
        let paced = stream::iter(nodes).then(move |(number, node)| async move {
            if number > 0 && number % MAX_BURST == 0 && self.connection.is_up() {
                // On a connection that is lost meanwhile, the requests fail on their own.
                let _ = self.connection.flush().await;
            }
            node
        });
        paced.map(move |node| async move { self.request_one(request, &node).await })
    }

    /// Sends a request to one node and returns the result.
    pub(super) async fn request_one(&self, request: &NodeRequest, node: &NodeName) -> RawReply {
        let start = Instant::now();
        let subject = self.subjects.node(&node.token(), request.verb);
        let reply = match self.headers(request) {
            Ok(headers) => {
                let body = request.body.clone();
                self.connection
                    .request(&subject, headers, body, request.timeout)
                    .await
            }
            Err(err) => Err(err),
        };
        RawReply {
            node: node.clone(),
            reply,
            elapsed: start.elapsed(),
        }
    }

    async fn broadcast(
        &self,
        request: &NodeRequest,
        expected: &[NodeName],
        mut each: impl FnMut(RawReply),
    ) -> Result<(), NatsError> {
        let start = Instant::now();
        let stop = ReplyLimits {
            expected: None,
            silence: request.timeout,
            deadline: request.timeout,
        };
        let subject = self.subjects.all(request.verb);
        let headers = self.headers(request)?;
        let sent = self
            .connection
            .request_many(&subject, headers, request.body.clone(), stop);
        let mut replies = sent.await?;
        let mut state = BroadcastState::expecting(expected);
        let mut receive = |state: &mut BroadcastState, reply: Reply| {
            if let Some(node) = state.accept(&reply) {
                each(RawReply {
                    node,
                    reply: Ok(reply),
                    elapsed: start.elapsed(),
                });
            }
        };
        let mut disconnected = Vec::new();
        let mut quiet = QUIET;
        while !state.waiting.is_empty() {
            match timeout(quiet, replies.next()).await {
                Ok(Some(reply)) => receive(&mut state, reply),
                Ok(None) => break,
                Err(_) => {
                    let unreachable = self.find_disconnected(&state.waiting).await;
                    // A node may have replied before it disconnected.
                    while let Ok(Some(reply)) = timeout(Duration::ZERO, replies.next()).await {
                        receive(&mut state, reply);
                    }
                    let removed = unreachable
                        .into_iter()
                        .filter(|node| state.waiting.remove(node));
                    disconnected.extend(removed);
                    quiet = (quiet * 2).min(MAX_QUIET);
                }
            }
        }
        if let Some(denial) = replies.denial() {
            return Err(denial.clone().into());
        }
        let has_no_responders = replies.has_no_responders();
        let no_reply = |node: NodeName, is_disconnected: bool| {
            let subject = self.subjects.node(&node.token(), request.verb).to_string();
            let limit = request.timeout;
            let reply = if is_disconnected {
                Err(NatsError::NoResponders(subject))
            } else {
                Err(NatsError::NoReply { subject, limit })
            };
            let elapsed = start.elapsed();
            RawReply {
                node,
                reply,
                elapsed,
            }
        };
        for node in disconnected {
            each(no_reply(node, true));
        }
        for node in state.waiting {
            each(no_reply(node, has_no_responders));
        }
        Ok(())
    }

    /// Pings nodes and returns those that are not connected.
    async fn find_disconnected(&self, nodes: &BTreeSet<NodeName>) -> Vec<NodeName> {
        let ping = NodeRequest {
            verb: Verb::Ping,
            body: Bytes::new(),
            noop: false,
            diff: false,
            timeout: PING_TIMEOUT,
            sends_deadline: false,
        };
        let requests = self.requests(&ping, nodes.iter());
        let mut replies = pin!(requests.buffer_unordered(MAX_CONCURRENT));
        let mut disconnected = Vec::new();
        while let Some(reply) = replies.next().await {
            if matches!(reply.reply, Err(NatsError::NoResponders(_))) {
                disconnected.push(reply.node);
            }
        }
        disconnected
    }

    fn headers(&self, request: &NodeRequest) -> Result<Headers, NatsError> {
        let mut headers = Headers::new().with(REQUEST_ID, self.request_id.as_str())?;
        if !self.caller.is_empty() {
            headers.set(CALLER, &self.caller)?;
        }
        if request.noop {
            headers.set(NOOP, "true")?;
        }
        if request.diff {
            headers.set(DIFF, "true")?;
        }
        if request.sends_deadline {
            headers.set(DEADLINE, &go_time(&self.deadline(request.timeout)))?;
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

/// The nodes that replied to a broadcast and those that are still expected to.
#[derive(Debug)]
struct BroadcastState {
    waiting: BTreeSet<NodeName>,
    replied: BTreeSet<NodeName>,
    max_replies: usize,
}

impl BroadcastState {
    fn expecting(expected: &[NodeName]) -> Self {
        Self {
            waiting: expected.iter().cloned().collect(),
            replied: BTreeSet::new(),
            max_replies: expected.len().saturating_add(MAX_UNEXPECTED),
        }
    }

    /// Records a reply. Returns its sender, unless the reply has no valid identity or is not the
    /// first of that node.
    fn accept(&mut self, reply: &Reply) -> Option<NodeName> {
        let node: NodeName = reply.header(IDENTITY)?.parse().ok()?;
        self.waiting.remove(&node);
        let is_new = self.replied.len() < self.max_replies && self.replied.insert(node.clone());
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
    fn one_reply_per_node_is_accepted_and_only_with_a_valid_identity() {
        let mut state =
            BroadcastState::expecting(&["web1".parse().unwrap(), "web2".parse().unwrap()]);
        assert!(state.accept(&reply("web1")).is_some());
        assert!(state.accept(&reply("web1")).is_none());
        assert!(state.accept(&reply("No Name")).is_none());
        assert!(state.accept(&reply("unexpected")).is_some());
        assert_eq!(state.waiting, ["web2".parse().unwrap()].into());
    }

    #[test]
    fn replies_of_unexpected_nodes_are_limited() {
        let mut state = BroadcastState::expecting(&[]);
        state.max_replies = 2;
        let accepted = (0..5).filter(|number| {
            let reply = reply(&format!("n{number}"));
            state.accept(&reply).is_some()
        });
        assert_eq!(accepted.count(), 2);
    }
}
