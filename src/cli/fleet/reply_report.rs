//! What a person or a script sees of many answers: a bar while they come in, equal ones folded
//! into a line, a summary; or JSON.
//!
//! Standard output holds the answers and nothing else, so that it can be piped on: the bar, and
//! the summary beside lines of JSON, go to standard error.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::CliError;
use crate::cli::output::{Console, complain};
use ccm_core::model::id::EventId;
use ccm_core::model::node::NodeName;
use ccm_fleet::batches::Ended;
use ccm_fleet::node_reply::Told;
use ccm_fleet::summarize::{Answer, Counts, Outcome, fold};
use ccm_value::text::count_of;
use ccm_value::{json, yaml};

/// For whom answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    /// One document.
    Json,
    /// A line for each node, as it answers.
    Lines,
}

/// What of the answers people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// A line for each sort of answer.
    Lines,
    /// The same, without those where there is nothing to tell.
    Noteworthy,
    /// Whole answers as documents, the others as lines.
    Documents,
}

/// What a sweep amounts to.
pub(super) struct Summing<'a> {
    pub(super) verb: &'a str,
    pub(super) request_id: &'a EventId,
    pub(super) ended: &'a Ended,
}

/// Shows answers as they come.
pub(super) struct Reporter {
    format: Format,
    show: Show,
    bar: ProgressBar,
    lines: Vec<Answer>,
    /// What changes in files, and on which nodes it is the same.
    diffs: BTreeMap<String, Vec<NodeName>>,
    documents: Vec<Value>,
}

impl Reporter {
    /// Returns one that expects so many answers.
    pub(super) fn new(format: Format, show: Show, expected: usize) -> Self {
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        // Draws only where standard error is a terminal.
        let bar = ProgressBar::with_draw_target(Some(expected), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} nodes {elapsed}") {
            bar.set_style(style);
        }
        Self {
            format,
            show,
            bar,
            lines: Vec::new(),
            diffs: BTreeMap::new(),
            documents: Vec::new(),
        }
    }

    /// Takes the answer of one node.
    pub(super) fn hear(&mut self, told: Told, console: &Console) {
        self.bar.inc(1);
        if self.format == Format::Text
            && let Some(diff) = told.body.get("diff").and_then(Value::as_str)
        {
            let nodes = self.diffs.entry(diff.to_owned()).or_default();
            nodes.push(told.node.clone());
        }
        match self.format {
            Format::Json => self.documents.push(document(told)),
            Format::Lines => {
                let line = document(told).to_string();
                self.bar.suspend(|| console.print(&format!("{line}\n")));
            }
            Format::Text => match (self.show, told.outcome) {
                (Show::Noteworthy, Outcome::Ok) => {}
                (Show::Documents, Outcome::Ok) => {
                    let text = yaml::print(&json!({ told.node.as_str(): told.body }));
                    self.bar.suspend(|| console.print(&format!("{text}\n")));
                }
                _ => self.lines.push(told.to_answer()),
            },
        }
    }

    /// Prints what is left to print.
    pub(super) fn finish(self, summing: &Summing<'_>, console: &Console) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        let Ended {
            counts,
            not_asked,
            is_halted,
        } = summing.ended;
        match self.format {
            Format::Json => {
                let document = json!({
                    "verb": summing.verb,
                    "request_id": summing.request_id,
                    "nodes": self.documents,
                    "not_asked": not_asked,
                    "halted": is_halted,
                    "summary": summary(counts),
                });
                let text = json::pretty(&document).map_err(CliError::failed)?;
                console.print(&format!("{text}\n"));
            }
            Format::Lines => complain(&closing(summing.ended)),
            Format::Text => {
                let mut text = String::new();
                for (diff, nodes) in &self.diffs {
                    text.push_str(&format!("{}:\n{diff}", several(nodes)));
                }
                for folded in fold(self.lines) {
                    text.push_str(&format!("{folded}\n"));
                }
                text.push_str(&format!("{}\n", closing(summing.ended)));
                console.print(&text);
            }
        }
        Ok(())
    }
}

/// Returns nodes as people name them: one by name, many by number.
fn several(nodes: &[NodeName]) -> String {
    match nodes {
        [one] => one.to_string(),
        many => count_of(many.len(), "node"),
    }
}

/// Returns the line that sums up.
fn closing(ended: &Ended) -> String {
    let counts = &ended.counts;
    match (ended.is_halted, ended.not_asked.len()) {
        (false, _) => counts.to_string(),
        (true, left) => {
            let failures = count_of(counts.failures(), "failure");
            format!("{counts}; halted after {failures}, {left} not asked")
        }
    }
}

/// Returns how one node answered, for machines.
fn document(told: Told) -> Value {
    let milliseconds = u64::try_from(told.took.as_millis()).unwrap_or(u64::MAX);
    json!({
        "node": told.node,
        "outcome": told.outcome,
        "message": told.text,
        "milliseconds": milliseconds,
        "answer": told.body,
    })
}

/// Returns the counts for machines: every outcome is there, also those that nobody came to.
fn summary(counts: &Counts) -> Value {
    let mut summary = json!({ "total": counts.total() });
    if let Some(entries) = summary.as_object_mut() {
        for outcome in Outcome::ALL {
            let name = outcome.as_str().replace(' ', "_");
            entries.insert(name, counts.of(outcome).into());
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_for_machines_names_every_outcome() {
        let counts: Counts = [Outcome::Ok, Outcome::NoAnswer].into_iter().collect();
        assert_eq!(
            summary(&counts),
            json!({
                "total": 2, "failed": 0, "denied": 0, "busy": 0, "no_answer": 1, "changed": 0,
                "ok": 1
            })
        );
    }

    #[test]
    fn a_halt_is_told_with_those_who_were_not_asked() {
        let ended = Ended {
            counts: [Outcome::Failed].into_iter().collect(),
            not_asked: vec!["web2".parse().unwrap()],
            is_halted: true,
        };
        assert_eq!(
            closing(&ended),
            "1 node: 1 failed; halted after 1 failure, 1 not asked"
        );
    }

    #[test]
    fn an_absent_node_is_a_document_too() {
        let told = Told::absent("web1".parse().unwrap(), "offline");
        assert_eq!(
            document(told),
            json!({
                "node": "web1", "outcome": "no_answer", "message": "offline", "milliseconds": 0,
                "answer": null
            })
        );
    }
}
