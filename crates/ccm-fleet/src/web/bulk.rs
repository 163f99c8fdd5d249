//! Bulk actions: one request to many nodes, with equal replies grouped.
//!
//! Requests are built in `actions`. One diff is kept for each group of equal replies, since the
//! others differ in names at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::actions::{self, EnsureOptions};
use super::api::{ApiError, AppState};
use crate::node_reply::{NodeReply, interpret};
use crate::scatter::{NodeRequest, Recipients};
use crate::summarize::{Outcome, ReplyLine, summarize};
use ccm_core::model::node::NodeName;

/// Maximum number of nodes in a request.
const MAX_NODES: usize = 10_000;

/// Maximum number of diffs, and maximum size of each.
const MAX_DIFFS: usize = 20;
const MAX_DIFF_BYTES: usize = 16 << 10;

type ApiResult = Result<Json<Value>, ApiError>;

/// Body of a bulk pause.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkPause {
    nodes: Vec<NodeName>,
    #[serde(default)]
    reason: String,
    #[serde(default, rename = "for")]
    duration: Option<String>,
}

/// Body of a bulk resume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkResume {
    nodes: Vec<NodeName>,
}

/// Body of a bulk ensure. `request` is passed on to the nodes, which parse it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkEnsure {
    nodes: Vec<NodeName>,
    request: Value,
}

pub(super) async fn pause(State(app): State<Arc<AppState>>, body: Bytes) -> ApiResult {
    let body: BulkPause = parse(&body)?;
    let request = actions::pause_request(&body.reason, body.duration.as_deref())?;
    request_all(&app, body.nodes, &request).await
}

pub(super) async fn resume(State(app): State<Arc<AppState>>, body: Bytes) -> ApiResult {
    let body: BulkResume = parse(&body)?;
    request_all(&app, body.nodes, &actions::resume_request()).await
}

pub(super) async fn ensure(
    State(app): State<Arc<AppState>>,
    options: Result<Query<EnsureOptions>, QueryRejection>,
    body: Bytes,
) -> ApiResult {
    let Query(options) = options.map_err(ApiError::bad_query)?;
    let body: BulkEnsure = parse(&body)?;
    let request = actions::ensure_request(body.request.to_string().into(), options);
    request_all(&app, body.nodes, &request).await
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(ApiError::bad)
}

async fn request_all(app: &AppState, nodes: Vec<NodeName>, request: &NodeRequest) -> ApiResult {
    let nodes: Vec<NodeName> = nodes
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    if nodes.is_empty() || nodes.len() > MAX_NODES {
        let count = nodes.len();
        let reason = format!("{count} nodes in the request: expected 1 to {MAX_NODES}");
        return Err(ApiError::bad(reason));
    }
    let mut replies = ReplyCollector::default();
    let client = app.actions.client()?;
    let sent = client.scatter(request, Recipients::Nodes(&nodes), |reply| {
        replies.add(interpret(request.verb, reply));
    });
    sent.await.map_err(ApiError::bad)?;
    Ok(Json(replies.document(nodes.len())))
}

/// The replies so far.
#[derive(Debug, Default)]
struct ReplyCollector {
    lines: Vec<ReplyLine>,
    /// One diff per group of equal replies, with its node.
    diffs: BTreeMap<(Outcome, String), (NodeName, String)>,
}

impl ReplyCollector {
    fn add(&mut self, reply: NodeReply) {
        let line = reply.to_line();
        let diff = reply.body.get("diff").and_then(Value::as_str);
        if let Some(diff) = diff.filter(|diff| !diff.is_empty())
            && self.diffs.len() < MAX_DIFFS
        {
            let group = (reply.outcome, reply.text.clone());
            let entry = self.diffs.entry(group);
            entry.or_insert_with(|| (reply.node.clone(), cut(diff)));
        }
        self.lines.push(line);
    }

    fn document(self, requested: usize) -> Value {
        let Self { lines, diffs } = self;
        let groups = summarize(lines).into_iter().map(|one| {
            let group = (one.outcome, one.text);
            let diff = diffs.get(&group);
            let diff = diff.map(|(node, text)| json!({ "node": node, "text": text }));
            let (outcome, text) = group;
            json!({ "outcome": outcome, "text": text, "nodes": one.nodes, "diff": diff })
        });
        let groups: Vec<Value> = groups.collect();
        json!({ "asked": requested, "answers": groups })
    }
}

/// Returns a diff, cut to the maximum size.
fn cut(diff: &str) -> String {
    let end = diff.floor_char_boundary(MAX_DIFF_BYTES);
    match diff.get(..end) {
        Some(start) if end < diff.len() => format!("{start}…"),
        _ => diff.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reply(node: &str, text: &str, diff: &str) -> NodeReply {
        NodeReply {
            node: node.parse().unwrap(),
            outcome: Outcome::Changed,
            text: text.into(),
            body: json!({ "diff": diff }),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn equal_replies_are_grouped_with_the_diff_of_one_node() {
        let mut replies = ReplyCollector::default();
        replies.add(reply("web2", "would change", "-a\n+b\n"));
        replies.add(reply("web1", "would change", "-a\n+c\n"));
        replies.add(reply("db1", "would be made", ""));
        let document = replies.document(3);
        assert_eq!(
            document,
            json!({"asked": 3, "answers": [
                {"outcome": "changed", "text": "would change", "nodes": ["web1", "web2"],
                 "diff": {"node": "web2", "text": "-a\n+b\n"}},
                {"outcome": "changed", "text": "would be made", "nodes": ["db1"], "diff": null}
            ]})
        );
    }

    #[test]
    fn number_and_size_of_diffs_are_limited() {
        let mut replies = ReplyCollector::default();
        let long = "é".repeat(MAX_DIFF_BYTES);
        for number in 0..MAX_DIFFS + 5 {
            replies.add(reply("web1", &format!("answer {number}"), &long));
        }
        assert_eq!(replies.diffs.len(), MAX_DIFFS);
        let lengths = replies.diffs.values().map(|(_, text)| text.len());
        assert!(lengths.max().unwrap() <= MAX_DIFF_BYTES + '…'.len_utf8());
    }
}
