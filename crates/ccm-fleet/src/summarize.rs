//! Grouping of equal replies into summary lines, failures first, and counts by outcome.
//!
//! Knows node names, outcomes and texts; sending requests and printing lines happen elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use ccm_core::model::node::NodeName;
use ccm_value::text::count_of;

/// Maximum number of node names in a line. With more nodes the line has their number and the first
/// names.
const MAX_NAMES: usize = 3;

/// The outcome of a request to one node, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Failed,
    Denied,
    Busy,
    NoReply,
    Changed,
    /// A noop run reported changes that it would make.
    WouldChange,
    Ok,
}

impl Outcome {
    pub const ALL: [Self; 7] = [
        Self::Failed,
        Self::Denied,
        Self::Busy,
        Self::NoReply,
        Self::Changed,
        Self::WouldChange,
        Self::Ok,
    ];

    /// Returns the text for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::NoReply => "no reply",
            Self::Changed => "changed",
            Self::WouldChange => "would change",
            Self::Ok => "ok",
        }
    }

    /// Returns the name in JSON documents.
    pub fn wire_name(self) -> &'static str {
        match self {
            Self::NoReply => "no_reply",
            Self::WouldChange => "would_change",
            other => other.as_str(),
        }
    }
}

/// The reply of one node as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyLine {
    pub node: NodeName,
    pub outcome: Outcome,
    pub text: String,
}

/// Nodes with equal replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryLine {
    pub outcome: Outcome,
    pub text: String,
    /// Sorted, without duplicates.
    pub nodes: Vec<NodeName>,
}

impl fmt::Display for SummaryLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.nodes.iter().take(MAX_NAMES).map(NodeName::as_str);
        let names = names.collect::<Vec<_>>().join(", ");
        match self.nodes.len() {
            count if count <= MAX_NAMES => write!(out, "{names}: {}", self.text),
            count => write!(out, "{count} nodes: {} ({names}, …)", self.text),
        }
    }
}

/// Groups equal replies: the worst outcome first, then by number of nodes.
pub fn summarize(replies: impl IntoIterator<Item = ReplyLine>) -> Vec<SummaryLine> {
    let mut groups: BTreeMap<(Outcome, String), Vec<NodeName>> = BTreeMap::new();
    for reply in replies {
        let nodes = groups.entry((reply.outcome, reply.text)).or_default();
        nodes.push(reply.node);
    }
    let mut lines: Vec<SummaryLine> = groups
        .into_iter()
        .map(|((outcome, text), mut nodes)| {
            nodes.sort_unstable();
            nodes.dedup();
            SummaryLine {
                outcome,
                text,
                nodes,
            }
        })
        .collect();
    // A stable sort: lines with the same number of nodes stay sorted by text.
    lines.sort_by(|a, b| {
        let by_count = || b.nodes.len().cmp(&a.nodes.len());
        a.outcome.cmp(&b.outcome).then_with(by_count)
    });
    lines
}

/// Number of nodes by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Outcome, usize>);

impl Counts {
    /// Returns the number of nodes with an outcome.
    pub fn of(&self, outcome: Outcome) -> usize {
        self.0.get(&outcome).copied().unwrap_or_default()
    }

    /// Adds one node.
    pub fn add(&mut self, outcome: Outcome) {
        *self.0.entry(outcome).or_default() += 1;
    }

    /// Returns the total number of nodes.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Returns the number of nodes that failed or refused. Nodes without a reply are not included.
    pub fn failures(&self) -> usize {
        let failures = [Outcome::Failed, Outcome::Denied, Outcome::Busy];
        failures.map(|outcome| self.of(outcome)).iter().sum()
    }

    /// Returns the exit code: 1 if a node failed or refused, 2 if nodes only did not reply, else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.failures(), self.of(Outcome::NoReply)) {
            (0, 0) => 0,
            (0, _) => 2,
            _ => 1,
        }
    }
}

impl FromIterator<Outcome> for Counts {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            counts.add(outcome);
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&count_of(self.total(), "node"))?;
        for (index, (outcome, count)) in self.0.iter().enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            write!(out, "{before}{count} {}", outcome.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(node: &str, outcome: Outcome, text: &str) -> ReplyLine {
        ReplyLine {
            node: node.parse().unwrap(),
            outcome,
            text: text.into(),
        }
    }

    fn lines(replies: Vec<ReplyLine>) -> Vec<String> {
        summarize(replies).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_replies_of_many_nodes_are_one_line_with_a_count() {
        let text = "package#nginx changed 1.22 -> 1.24";
        let nodes = (0..812).rev();
        let replies = nodes.map(|n| reply(&format!("n{n:03}"), Outcome::Changed, text));
        assert_eq!(
            lines(replies.collect()),
            ["812 nodes: package#nginx changed 1.22 -> 1.24 (n000, n001, n002, …)"]
        );
    }

    #[test]
    fn a_line_of_few_nodes_names_all() {
        let replies = vec![
            reply("c", Outcome::Changed, "x"),
            reply("a", Outcome::Changed, "x"),
            reply("b", Outcome::Changed, "y"),
        ];
        assert_eq!(lines(replies), ["a, c: x", "b: y"]);
    }

    #[test]
    fn lines_are_sorted_by_outcome_then_by_number_of_nodes() {
        let replies = vec![
            reply("a", Outcome::Ok, "stable"),
            reply("b", Outcome::Failed, "one"),
            reply("c", Outcome::Failed, "two"),
            reply("d", Outcome::Failed, "two"),
            reply("e", Outcome::NoReply, "no reply"),
        ];
        assert_eq!(
            lines(replies),
            ["c, d: two", "b: one", "e: no reply", "a: stable"]
        );
    }

    #[test]
    fn equal_texts_with_different_outcomes_are_separate_lines() {
        let replies = vec![
            reply("a", Outcome::Ok, "x"),
            reply("b", Outcome::Failed, "x"),
        ];
        assert_eq!(lines(replies), ["b: x", "a: x"]);
    }

    #[test]
    fn counts_print_as_one_line() {
        let counts: Counts = [Outcome::Ok, Outcome::Failed, Outcome::Ok]
            .into_iter()
            .collect();
        assert_eq!(counts.to_string(), "3 nodes: 1 failed, 2 ok");
        assert_eq!(Counts::default().to_string(), "0 nodes");
    }

    #[test]
    fn every_outcome_is_stored_under_its_wire_name() {
        for outcome in Outcome::ALL {
            let stored = serde_json::to_value(outcome).unwrap();
            assert_eq!(stored, outcome.wire_name());
        }
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_outcome() {
        for (outcomes, code) in [
            (&[][..], 0),
            (&[Outcome::Ok, Outcome::Changed, Outcome::WouldChange], 0),
            (&[Outcome::Ok, Outcome::NoReply], 2),
            (&[Outcome::NoReply, Outcome::Failed], 1),
            (&[Outcome::Denied], 1),
            (&[Outcome::Busy], 1),
        ] {
            let counts: Counts = outcomes.iter().copied().collect();
            assert_eq!(counts.exit_code(), code, "{outcomes:?}");
        }
    }
}
