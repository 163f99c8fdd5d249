//! Bulk actions: one request to many nodes, with equal replies grouped.
//!
//! Requests are built in `actions`. One diff is kept for each group of equal replies, since the
//! others differ in names at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access::Requester;
use super::actions::{self, Actions, EnsureOptions, RUN_TIMEOUT};
use super::api::{ApiError, ApiResult, AppState};
use crate::node_reply::{NodeReply, interpret};
use crate::preview::{self, PreviewError};
use crate::reply_body::ReplyBody;
use crate::scatter::{NodeRequest, Recipients};
use crate::summarize::{Outcome, ReplyLine, summarize};
use ccm_core::model::node::{NodeName, NodeReport};
use ccm_core::model::output::CommandOutput;

/// Maximum number of nodes in a request.
const MAX_NODES: usize = 10_000;

/// Maximum number of diffs and of outputs, and maximum size of each.
const MAX_DIFFS: usize = 20;
const MAX_DIFF_BYTES: usize = 16 << 10;

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

/// Body of a bulk resume or check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkNodes {
    nodes: Vec<NodeName>,
}

/// Body of a bulk ensure. `request` is passed on to the nodes, which parse it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BulkEnsure {
    nodes: Vec<NodeName>,
    request: Value,
}

pub(super) async fn pause(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    body: Bytes,
) -> ApiResult {
    let body: BulkPause = parse(&body)?;
    let request = actions::pause_request(&body.reason, body.duration.as_deref())?;
    request_all(&app, &requester, body.nodes, &request).await
}

pub(super) async fn resume(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    body: Bytes,
) -> ApiResult {
    let body: BulkNodes = parse(&body)?;
    request_all(&app, &requester, body.nodes, &actions::resume_request()).await
}

pub(super) async fn ensure(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    options: Result<Query<EnsureOptions>, QueryRejection>,
    body: Bytes,
) -> ApiResult {
    let Query(options) = options.map_err(ApiError::bad_query)?;
    let body: BulkEnsure = parse(&body)?;
    let request = actions::ensure_request(body.request.to_string().into(), options);
    request_all(&app, &requester, body.nodes, &request).await
}

/// Makes nodes check their assignments and update their reports, as `ccm fleet drift --refresh`.
pub(super) async fn check(
    State(app): State<Arc<AppState>>,
    Extension(requester): Extension<Requester>,
    body: Bytes,
) -> ApiResult {
    let body: BulkNodes = parse(&body)?;
    let nodes = distinct(body.nodes)?;
    let requested = nodes.len();
    let Actions {
        connection,
        subjects,
        ..
    } = &app.actions;
    let caller = app.actions.caller(&requester);
    let checked = preview::check_all(connection, subjects, nodes, &caller, RUN_TIMEOUT).await;
    let checked = checked.map_err(|err| ApiError::new(StatusCode::BAD_GATEWAY, err))?;
    let mut replies = ReplyCollector::default();
    for (node, result) in checked {
        let (outcome, text) = check_result(result);
        replies.lines.push(ReplyLine {
            node,
            outcome,
            text,
        });
    }
    Ok(Json(replies.document(requested)))
}

/// Returns the outcome and the text of a check.
fn check_result(result: Result<NodeReport, PreviewError>) -> (Outcome, String) {
    match result {
        Err(PreviewError::NoReply) => (Outcome::NoReply, PreviewError::NoReply.to_string()),
        Err(error) => (Outcome::Failed, error.to_string()),
        Ok(report) if !report.error.is_empty() => (Outcome::Failed, report.error),
        Ok(report) if report.drift.is_empty() => (Outcome::Ok, "no drift".into()),
        Ok(report) => {
            let names = report.drift.iter();
            let names: Vec<String> = names
                .map(|it| format!("{}#{}", it.type_name, it.name))
                .collect();
            (Outcome::WouldChange, format!("drift: {}", names.join(", ")))
        }
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(ApiError::bad)
}

/// Returns the nodes of a request, sorted, each once.
fn distinct(nodes: Vec<NodeName>) -> Result<Vec<NodeName>, ApiError> {
    let nodes: BTreeSet<NodeName> = nodes.into_iter().collect();
    if nodes.is_empty() || nodes.len() > MAX_NODES {
        let count = nodes.len();
        let reason = format!("{count} nodes in the request: expected 1 to {MAX_NODES}");
        return Err(ApiError::bad(reason));
    }
    Ok(nodes.into_iter().collect())
}

async fn request_all(
    app: &AppState,
    requester: &Requester,
    nodes: Vec<NodeName>,
    request: &NodeRequest,
) -> ApiResult {
    let nodes = distinct(nodes)?;
    let mut replies = ReplyCollector::default();
    let client = app.actions.client(requester)?;
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
    /// Nodes by what their command printed.
    outputs: BTreeMap<String, Vec<NodeName>>,
}

impl ReplyCollector {
    fn add(&mut self, reply: NodeReply) {
        let line = reply.to_line();
        let diff = reply.body.text("diff");
        if let Some(diff) = diff.filter(|diff| !diff.is_empty())
            && self.diffs.len() < MAX_DIFFS
        {
            let group = (reply.outcome, reply.text.clone());
            let entry = self.diffs.entry(group);
            entry.or_insert_with(|| (reply.node.clone(), cut(&diff)));
        }
        let output = output_of(&reply.body);
        if !output.is_empty()
            && (self.outputs.len() < MAX_DIFFS || self.outputs.contains_key(&output))
        {
            self.outputs.entry(output).or_default().push(reply.node);
        }
        self.lines.push(line);
    }

    fn document(self, requested: usize) -> Value {
        let Self {
            lines,
            diffs,
            outputs,
        } = self;
        let groups = summarize(lines).into_iter().map(|one| {
            let group = (one.outcome, one.text);
            let diff = diffs.get(&group);
            let diff = diff.map(|(node, text)| json!({ "node": node, "text": text }));
            let (outcome, text) = group;
            json!({ "outcome": outcome, "text": text, "nodes": one.nodes, "diff": diff })
        });
        let groups: Vec<Value> = groups.collect();
        let outputs = outputs.into_iter().map(|(text, mut nodes)| {
            nodes.sort_unstable();
            json!({ "text": text, "nodes": nodes })
        });
        let outputs: Vec<Value> = outputs.collect();
        json!({ "requested": requested, "replies": groups, "outputs": outputs })
    }
}

/// Returns what the command of a reply printed: standard output, then standard error.
fn output_of(body: &ReplyBody) -> String {
    let Ok(Some(found)) = body.field::<CommandOutput>("output") else {
        return String::new();
    };
    let output = CommandOutput::new(&found.stdout, &found.stderr, found.truncated);
    let parts = [output.stdout.trim_end(), output.stderr.trim_end()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    cut(&parts.join("\n"))
}

/// Returns a diff or an output, cut to the maximum size.
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
            body: json!({ "diff": diff }).into(),
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
            json!({"requested": 3, "replies": [
                {"outcome": "changed", "text": "would change", "nodes": ["web1", "web2"],
                 "diff": {"node": "web2", "text": "-a\n+b\n"}},
                {"outcome": "changed", "text": "would be made", "nodes": ["db1"], "diff": null}
            ], "outputs": []})
        );
    }

    #[test]
    fn equal_outputs_are_listed_once_with_their_nodes() {
        let mut replies = ReplyCollector::default();
        for (node, stdout) in [("b", "6.1\n"), ("a", "6.1\n"), ("c", "5.4\n")] {
            let mut reply = reply(node, "exec#uname changed", "");
            reply.body = json!({"output": {"stdout": stdout, "stderr": "\u{1b}[1mold\n"}}).into();
            replies.add(reply);
        }
        assert_eq!(
            replies.document(3)["outputs"],
            json!([
                {"text": "5.4\nold", "nodes": ["c"]},
                {"text": "6.1\nold", "nodes": ["a", "b"]}
            ])
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
