//! Deeds on many nodes at once: each is asked the same, and equal answers are told once.
//!
//! What is asked is made by `act`; how answers are gathered and folded is known to the room. A
//! diff is kept of one node for each kind of answer: the others differ in names at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::actions::{self, Manner};
use super::api::{Failure, Web};
use crate::node_reply::{Told, understand};
use crate::scatter::{Ask, Whom};
use crate::summarize::{Answer, Outcome, fold};
use ccm_core::model::node::NodeName;

/// How many nodes may be named at once.
const MOST_NODES: usize = 10_000;

/// How many diffs are told, and how much of each.
const MOST_DIFFS: usize = 20;
const LONGEST_DIFF: usize = 16 << 10;

type Answered = Result<Json<Value>, Failure>;

/// Whom to pause, why, and for how long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseMany {
    nodes: Vec<NodeName>,
    #[serde(default)]
    reason: String,
    #[serde(default, rename = "for")]
    lasting: Option<String>,
}

/// Whom to let go on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeMany {
    nodes: Vec<NodeName>,
}

/// Whom to ask for a resource. The request is the one of the bus; the nodes read it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnsureMany {
    nodes: Vec<NodeName>,
    request: Value,
}

pub(super) async fn pause(State(web): State<Arc<Web>>, body: Bytes) -> Answered {
    let wish: PauseMany = read(&body)?;
    let ask = actions::to_pause(&wish.reason, wish.lasting.as_deref())?;
    ask_all(&web, wish.nodes, &ask).await
}

pub(super) async fn resume(State(web): State<Arc<Web>>, body: Bytes) -> Answered {
    let wish: ResumeMany = read(&body)?;
    ask_all(&web, wish.nodes, &actions::to_resume()).await
}

pub(super) async fn ensure(
    State(web): State<Arc<Web>>,
    manner: Result<Query<Manner>, QueryRejection>,
    body: Bytes,
) -> Answered {
    let Query(manner) = manner.map_err(Failure::bad_query)?;
    let wish: EnsureMany = read(&body)?;
    let ask = actions::to_ensure(wish.request.to_string().into(), manner);
    ask_all(&web, wish.nodes, &ask).await
}

fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(Failure::bad)
}

async fn ask_all(web: &Web, nodes: Vec<NodeName>, ask: &Ask) -> Answered {
    let nodes: Vec<NodeName> = nodes
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    if nodes.is_empty() || nodes.len() > MOST_NODES {
        let count = nodes.len();
        let reason = format!("{count} nodes are named: from 1 to {MOST_NODES} can be asked");
        return Err(Failure::bad(reason));
    }
    let mut said = Said::default();
    let gatherer = web.actions.gatherer()?;
    let asked = gatherer.gather(ask, Whom::These(&nodes), |heard| {
        said.note(understand(ask.verb, heard));
    });
    asked.await.map_err(Failure::bad)?;
    Ok(Json(said.document(nodes.len())))
}

/// What was said so far.
#[derive(Debug, Default)]
struct Said {
    answers: Vec<Answer>,
    /// One diff for each kind of answer, with the node that it is of.
    diffs: BTreeMap<(Outcome, String), (NodeName, String)>,
}

impl Said {
    fn note(&mut self, told: Told) {
        let answer = told.to_answer();
        let diff = told.body.get("diff").and_then(Value::as_str);
        if let Some(diff) = diff.filter(|diff| !diff.is_empty())
            && self.diffs.len() < MOST_DIFFS
        {
            let kind = (told.outcome, told.text.clone());
            let kept = self.diffs.entry(kind);
            kept.or_insert_with(|| (told.node.clone(), cut(diff)));
        }
        self.answers.push(answer);
    }

    fn document(self, asked: usize) -> Value {
        let Self { answers, diffs } = self;
        let folded = fold(answers).into_iter().map(|one| {
            let kind = (one.outcome, one.text);
            let diff = diffs.get(&kind);
            let diff = diff.map(|(node, text)| json!({ "node": node, "text": text }));
            let (outcome, text) = kind;
            json!({ "outcome": outcome, "text": text, "nodes": one.nodes, "diff": diff })
        });
        let folded: Vec<Value> = folded.collect();
        json!({ "asked": asked, "answers": folded })
    }
}

/// Returns as much of a diff as is told.
fn cut(diff: &str) -> String {
    let end = diff.floor_char_boundary(LONGEST_DIFF);
    match diff.get(..end) {
        Some(start) if end < diff.len() => format!("{start}…"),
        _ => diff.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn told(node: &str, text: &str, diff: &str) -> Told {
        Told {
            node: node.parse().unwrap(),
            outcome: Outcome::Changed,
            text: text.into(),
            body: json!({ "diff": diff }),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn equal_answers_are_told_once_with_the_diff_of_one_node() {
        let mut said = Said::default();
        said.note(told("web2", "would change", "-a\n+b\n"));
        said.note(told("web1", "would change", "-a\n+c\n"));
        said.note(told("db1", "would be made", ""));
        let document = said.document(3);
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
    fn diffs_take_bounded_room() {
        let mut said = Said::default();
        let long = "é".repeat(LONGEST_DIFF);
        for number in 0..MOST_DIFFS + 5 {
            said.note(told("web1", &format!("answer {number}"), &long));
        }
        assert_eq!(said.diffs.len(), MOST_DIFFS);
        let kept = said.diffs.values().map(|(_, text)| text.len());
        assert!(kept.max().unwrap() <= LONGEST_DIFF + '…'.len_utf8());
    }
}
