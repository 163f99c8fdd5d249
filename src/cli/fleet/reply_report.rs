//! Output of replies from nodes: a progress bar, one line per group of equal replies and a summary,
//! or JSON.
//!
//! Only replies go to standard output, so that it can be piped: the progress bar, and the summary
//! of JSON lines, go to standard error.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

use super::output_blocks::OutputBlocks;
use crate::cli::CliError;
use crate::cli::output::{Console, print_error};
use ccm_core::model::id::EventId;
use ccm_core::model::node::NodeName;
use ccm_fleet::batches::BatchReport;
use ccm_fleet::node_reply::NodeReply;
use ccm_fleet::reply_body::ReplyBody;
use ccm_fleet::summarize::{Counts, Outcome, ReplyLine, summarize};
use ccm_value::text::count_of;
use ccm_value::{json, yaml};

/// Maximum number of nodes whose run ids are printed.
const MAX_RUN_IDS: usize = 10;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    /// One JSON document.
    Json,
    /// One JSON line per node, printed as replies arrive.
    Lines,
}

/// Which replies the text output contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextStyle {
    /// One line per group of equal replies.
    Lines,
    /// The same without replies that are ok.
    HideOk,
    /// Only replies that are neither ok nor changed, because the output of commands is printed.
    Output,
    /// Run ids of accepted runs; for many nodes as [`TextStyle::Lines`].
    Runs,
    /// Ok replies as YAML documents, others as lines.
    Documents,
}

/// Result of a request to all nodes.
pub(super) struct RequestSummary<'a> {
    pub(super) verb: &'a str,
    pub(super) request_id: &'a EventId,
    pub(super) report: &'a BatchReport,
}

/// Prints replies as they arrive.
pub(super) struct Reporter {
    format: Format,
    style: TextStyle,
    bar: ProgressBar,
    lines: Vec<ReplyLine>,
    /// Whether the output of commands is printed.
    pub(super) shows_output: bool,
    /// File diffs, each with the nodes that reported it.
    diffs: BTreeMap<String, Vec<NodeName>>,
    /// Outputs of commands, each with the nodes that printed it.
    outputs: OutputBlocks,
    expected: usize,
    documents: Vec<ReplyDocument>,
}

impl Reporter {
    /// Returns a reporter for this number of expected replies.
    pub(super) fn new(format: Format, style: TextStyle, expected: usize) -> Self {
        let length = u64::try_from(expected).unwrap_or(u64::MAX);
        // Draws only where standard error is a terminal.
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} nodes {elapsed}") {
            bar.set_style(style);
        }
        Self {
            format,
            style,
            bar,
            lines: Vec::new(),
            shows_output: false,
            diffs: BTreeMap::new(),
            outputs: OutputBlocks::default(),
            expected,
            documents: Vec::new(),
        }
    }

    /// Adds the reply of one node.
    pub(super) fn add(&mut self, reply: NodeReply, console: &Console) {
        // A node that came online during the request replies as well. The length is set first: each
        // call may draw the bar.
        let position = self.bar.position().saturating_add(1);
        if self.bar.length().is_some_and(|it| it < position) {
            self.bar.set_length(position);
        }
        self.bar.set_position(position);
        if self.format == Format::Text
            && let Some(diff) = reply.body.text("diff")
        {
            let nodes = self.diffs.entry(diff).or_default();
            nodes.push(reply.node.clone());
        }
        if self.format == Format::Text && self.shows_output {
            self.outputs.add(&reply);
        }
        match self.format {
            Format::Json => self.documents.push(ReplyDocument::new(reply)),
            Format::Lines => {
                let line = json!(ReplyDocument::new(reply));
                self.bar.suspend(|| console.print(&format!("{line}\n")));
            }
            Format::Text => match (self.style, reply.outcome) {
                (TextStyle::HideOk | TextStyle::Output, Outcome::Ok) => {}
                (TextStyle::Output, Outcome::Changed) => {}
                (TextStyle::Runs, Outcome::Ok) if self.expected <= MAX_RUN_IDS => {
                    self.lines.push(with_run_id(&reply));
                }
                (TextStyle::Documents, Outcome::Ok) => {
                    let text = yaml::print(&json!({ reply.node.as_str(): reply.body.document() }));
                    self.bar.suspend(|| console.print(&format!("{text}\n")));
                }
                _ => self.lines.push(reply.to_line()),
            },
        }
    }

    /// Prints the remaining output and the summary.
    pub(super) fn finish(
        self,
        request: &RequestSummary<'_>,
        console: &Console,
    ) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        let BatchReport {
            counts,
            not_contacted,
            is_halted,
        } = request.report;
        match self.format {
            Format::Json => {
                let document = RequestDocument {
                    verb: request.verb,
                    request_id: request.request_id,
                    nodes: &self.documents,
                    not_contacted,
                    halted: *is_halted,
                    summary: summary(counts),
                };
                console.print_with(|mut out| {
                    json::write_pretty(&mut out, &document)?;
                    writeln!(out)
                });
            }
            Format::Lines => print_error(&summary_line(request.report)),
            Format::Text => {
                let mut text = String::new();
                for (diff, nodes) in &self.diffs {
                    text.push_str(&format!("{}:\n{diff}", nodes_label(nodes)));
                }
                text.push_str(&self.outputs.to_string());
                for line in summarize(self.lines) {
                    text.push_str(&format!("{line}\n"));
                }
                text.push_str(&format!("{}\n", summary_line(request.report)));
                console.print(&text);
            }
        }
        Ok(())
    }
}

/// Returns the line of an accepted run with its id.
fn with_run_id(reply: &NodeReply) -> ReplyLine {
    let mut line = reply.to_line();
    if let Some(id) = reply.body.text("run_id") {
        let id = id.replace(char::is_control, " ");
        line.text.push_str(&format!(" as run {id}"));
    }
    line
}

/// Returns the name of a single node, or the number of nodes.
fn nodes_label(nodes: &[NodeName]) -> String {
    match nodes {
        [one] => one.to_string(),
        many => count_of(many.len(), "node"),
    }
}

/// Returns the summary line.
fn summary_line(report: &BatchReport) -> String {
    let counts = &report.counts;
    match (report.is_halted, report.not_contacted.len()) {
        (false, _) => counts.to_string(),
        (true, left) => {
            let failures = count_of(counts.failures(), "failure");
            format!("{counts}; halted after {failures}, {left} not contacted")
        }
    }
}

/// The JSON document of a request. The replies are parsed one by one while it is written.
#[derive(Serialize)]
struct RequestDocument<'a> {
    verb: &'a str,
    request_id: &'a EventId,
    nodes: &'a [ReplyDocument],
    not_contacted: &'a [NodeName],
    halted: bool,
    summary: Value,
}

/// The JSON document of the reply of one node.
#[derive(Serialize)]
struct ReplyDocument {
    node: NodeName,
    outcome: Outcome,
    message: Box<str>,
    milliseconds: u64,
    reply: ReplyBody,
}

impl ReplyDocument {
    fn new(reply: NodeReply) -> Self {
        Self {
            node: reply.node,
            outcome: reply.outcome,
            message: reply.text.into(),
            milliseconds: u64::try_from(reply.elapsed.as_millis()).unwrap_or(u64::MAX),
            reply: reply.body.detached(),
        }
    }
}

/// Returns the counts as JSON, including outcomes that did not occur.
fn summary(counts: &Counts) -> Value {
    let mut summary = json!({ "total": counts.total() });
    if let Some(entries) = summary.as_object_mut() {
        for outcome in Outcome::ALL {
            let name = outcome.wire_name().to_owned();
            entries.insert(name, counts.of(outcome).into());
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_summary_contains_every_outcome() {
        let counts: Counts = [Outcome::Ok, Outcome::NoReply].into_iter().collect();
        assert_eq!(
            summary(&counts),
            json!({
                "total": 2, "failed": 0, "denied": 0, "busy": 0, "no_reply": 1, "changed": 0, "would_change": 0,
                "ok": 1
            })
        );
    }

    #[test]
    fn the_progress_bar_never_exceeds_its_length() {
        let console = Console::new(false, false);
        let mut reporter = Reporter::new(Format::Json, TextStyle::Lines, 2);
        for node in ["web1", "web2", "web3"] {
            let reply = NodeReply::no_reply(node.parse().unwrap(), "offline");
            reporter.add(reply, &console);
        }
        assert_eq!(reporter.bar.position(), 3);
        assert_eq!(reporter.bar.length(), Some(3));
    }

    #[test]
    fn a_halt_reports_the_nodes_not_contacted() {
        let report = BatchReport {
            counts: [Outcome::Failed].into_iter().collect(),
            not_contacted: vec!["web2".parse().unwrap()],
            is_halted: true,
        };
        assert_eq!(
            summary_line(&report),
            "1 node: 1 failed; halted after 1 failure, 1 not contacted"
        );
    }

    #[test]
    fn an_absent_node_has_a_document() {
        let reply = NodeReply::no_reply("web1".parse().unwrap(), "offline");
        assert_eq!(
            json!(ReplyDocument::new(reply)),
            json!({
                "node": "web1", "outcome": "no_reply", "message": "offline", "milliseconds": 0,
                "reply": null
            })
        );
    }
}
