//! Many results into few lines: what is equal is said once, failures first.
//!
//! Knows nodes, outcomes and texts; who gathered them and where the lines go is not known here.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use ccm_core::model::node::NodeName;
use ccm_value::text::count_of;

/// Up to how many nodes a line names them all; of more it counts them and names as many.
const NAMED: usize = 3;

/// What came of asking one node, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Failed,
    Denied,
    Busy,
    NoAnswer,
    Changed,
    Ok,
}

impl Outcome {
    pub const ALL: [Self; 6] = [
        Self::Failed,
        Self::Denied,
        Self::Busy,
        Self::NoAnswer,
        Self::Changed,
        Self::Ok,
    ];

    /// Returns the words people know it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::NoAnswer => "no answer",
            Self::Changed => "changed",
            Self::Ok => "ok",
        }
    }
}

/// What one node answered, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub node: NodeName,
    pub outcome: Outcome,
    pub text: String,
}

/// Nodes that all answered the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    pub outcome: Outcome,
    pub text: String,
    /// In order, each once.
    pub nodes: Vec<NodeName>,
}

impl fmt::Display for Folded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.nodes.iter().take(NAMED).map(NodeName::as_str);
        let names = names.collect::<Vec<_>>().join(", ");
        match self.nodes.len() {
            count if count <= NAMED => write!(out, "{names}: {}", self.text),
            count => write!(out, "{count} nodes: {} ({names}, …)", self.text),
        }
    }
}

/// Folds equal answers: the worst outcomes first, of those the most common.
pub fn fold(answers: impl IntoIterator<Item = Answer>) -> Vec<Folded> {
    let mut groups: BTreeMap<(Outcome, String), Vec<NodeName>> = BTreeMap::new();
    for answer in answers {
        let nodes = groups.entry((answer.outcome, answer.text)).or_default();
        nodes.push(answer.node);
    }
    let mut folded: Vec<Folded> = groups
        .into_iter()
        .map(|((outcome, text), mut nodes)| {
            nodes.sort_unstable();
            nodes.dedup();
            Folded {
                outcome,
                text,
                nodes,
            }
        })
        .collect();
    // Stable: equally common texts stay in the order of the text.
    folded.sort_by(|a, b| {
        let common = || b.nodes.len().cmp(&a.nodes.len());
        a.outcome.cmp(&b.outcome).then_with(common)
    });
    folded
}

/// How many nodes came to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<Outcome, usize>);

impl Counts {
    /// Returns how many nodes came to an outcome.
    pub fn of(&self, outcome: Outcome) -> usize {
        self.0.get(&outcome).copied().unwrap_or_default()
    }

    /// Counts one more.
    pub fn add(&mut self, outcome: Outcome) {
        *self.0.entry(outcome).or_default() += 1;
    }

    /// Returns how many nodes there are in all.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Returns how many nodes failed or refused. Silent ones are neither.
    pub fn failures(&self) -> usize {
        let failures = [Outcome::Failed, Outcome::Denied, Outcome::Busy];
        failures.map(|outcome| self.of(outcome)).iter().sum()
    }

    /// Returns the exit code that tells a script: 1 when something failed or was refused, 2 when
    /// only some did not answer, else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.failures(), self.of(Outcome::NoAnswer)) {
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

    fn answer(node: &str, outcome: Outcome, text: &str) -> Answer {
        Answer {
            node: node.parse().unwrap(),
            outcome,
            text: text.into(),
        }
    }

    fn lines(answers: Vec<Answer>) -> Vec<String> {
        fold(answers).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn many_equal_answers_are_one_line_with_a_count() {
        let text = "package#nginx changed 1.22 -> 1.24";
        let nodes = (0..812).rev();
        let answers = nodes.map(|n| answer(&format!("n{n:03}"), Outcome::Changed, text));
        assert_eq!(
            lines(answers.collect()),
            ["812 nodes: package#nginx changed 1.22 -> 1.24 (n000, n001, n002, …)"]
        );
    }

    #[test]
    fn few_nodes_are_all_named() {
        let answers = vec![
            answer("c", Outcome::Changed, "x"),
            answer("a", Outcome::Changed, "x"),
            answer("b", Outcome::Changed, "y"),
        ];
        assert_eq!(lines(answers), ["a, c: x", "b: y"]);
    }

    #[test]
    fn the_worst_comes_first_and_then_the_most_common() {
        let answers = vec![
            answer("a", Outcome::Ok, "stable"),
            answer("b", Outcome::Failed, "one"),
            answer("c", Outcome::Failed, "two"),
            answer("d", Outcome::Failed, "two"),
            answer("e", Outcome::NoAnswer, "no answer"),
        ];
        assert_eq!(
            lines(answers),
            ["c, d: two", "b: one", "e: no answer", "a: stable"]
        );
    }

    #[test]
    fn an_equal_text_of_another_outcome_is_another_line() {
        let answers = vec![
            answer("a", Outcome::Ok, "x"),
            answer("b", Outcome::Failed, "x"),
        ];
        assert_eq!(lines(answers), ["b: x", "a: x"]);
    }

    #[test]
    fn counts_are_summed_up_in_one_line() {
        let counts: Counts = [Outcome::Ok, Outcome::Failed, Outcome::Ok]
            .into_iter()
            .collect();
        assert_eq!(counts.to_string(), "3 nodes: 1 failed, 2 ok");
        assert_eq!(Counts::default().to_string(), "0 nodes");
    }

    #[test]
    fn the_exit_code_says_the_worst() {
        for (outcomes, code) in [
            (&[][..], 0),
            (&[Outcome::Ok, Outcome::Changed], 0),
            (&[Outcome::Ok, Outcome::NoAnswer], 2),
            (&[Outcome::NoAnswer, Outcome::Failed], 1),
            (&[Outcome::Denied], 1),
            (&[Outcome::Busy], 1),
        ] {
            let counts: Counts = outcomes.iter().copied().collect();
            assert_eq!(counts.exit_code(), code, "{outcomes:?}");
        }
    }
}
