//! A question taken through the chosen nodes: all at once, or batch by batch until too many fail.
//!
//! Nodes that were not reached do not count as failed. A sweep that halts names whom it did not
//! ask. Who is chosen is `selection`; who is asked how is `gather`.

use super::node_reply::{Told, understand};
use super::scatter::{Ask, Gatherer, IN_FLIGHT, Whom};
use super::summarize::Counts;
use ccm_core::model::amount::Amount;
use ccm_core::model::node::NodeName;
use ccm_nats::NatsError;

/// How fast, and how much may go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many nodes are asked before anyone looks at what came of it.
    pub batch: Option<Amount>,
    /// More failures than these, over all batches, halt the sweep.
    pub max_failures: Option<Amount>,
}

impl Pace {
    /// Returns how many nodes are asked at a time; never none.
    fn batch_of(&self, total: usize) -> usize {
        let all = match self.max_failures {
            // A budget that is only looked at in the end would save nobody.
            Some(_) => IN_FLIGHT,
            None => total,
        };
        self.batch.map_or(all, |batch| batch.of(total)).max(1)
    }

    /// Reports whether so many failures among all nodes are too many.
    fn is_exceeded(&self, failures: usize, total: usize) -> bool {
        match self.max_failures {
            None => false,
            Some(Amount::Count(most)) => failures > most,
            Some(Amount::Percent(most)) => most.is_exceeded(failures, total),
        }
    }
}

/// The nodes of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    pub nodes: Vec<NodeName>,
    /// Everyone is meant, whoever that is, so one message can reach them all.
    pub is_everyone: bool,
}

/// How a sweep ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub counts: Counts,
    /// Left out because too many failed before them.
    pub not_asked: Vec<NodeName>,
    pub is_halted: bool,
}

/// Asks the nodes at a pace and hands over what each told.
pub async fn sweep(
    gatherer: &Gatherer,
    ask: &Ask,
    course: &Course,
    pace: Pace,
    mut each: impl FnMut(Told),
) -> Result<Ended, NatsError> {
    let total = course.nodes.len();
    let size = pace.batch_of(total);
    let mut ended = Ended::default();
    let mut left = course.nodes.as_slice();
    while !left.is_empty() {
        if pace.is_exceeded(ended.counts.failures(), total) {
            ended.is_halted = true;
            ended.not_asked = left.to_vec();
            break;
        }
        let (batch, rest) = left.split_at(size.min(left.len()));
        left = rest;
        let whom = if course.is_everyone && batch.len() == total && total > 1 {
            Whom::Everyone(batch)
        } else {
            Whom::These(batch)
        };
        let counts = &mut ended.counts;
        let hear = |heard| {
            let told = understand(ask.verb, heard);
            counts.add(told.outcome);
            each(told);
        };
        gatherer.gather(ask, whom, hear).await?;
    }
    // The last batch may have been the one too many.
    ended.is_halted |= pace.is_exceeded(ended.counts.failures(), total);
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(batch: &str, max_failures: &str) -> Pace {
        let amount = |text: &str| match text {
            "" => None,
            text => Some(text.parse().unwrap()),
        };
        Pace {
            batch: amount(batch),
            max_failures: amount(max_failures),
        }
    }

    #[test]
    fn a_batch_is_a_count_or_a_part_and_never_empty() {
        for (batch, max_failures, total, size) in [
            ("", "", 1000, 1000),
            ("", "2", 1000, IN_FLIGHT),
            ("10", "", 1000, 10),
            ("5%", "", 30, 2),
            ("0", "", 30, 1),
            ("", "", 0, 1),
        ] {
            assert_eq!(pace(batch, max_failures).batch_of(total), size, "{batch}");
        }
    }

    #[test]
    fn a_budget_is_exceeded_by_one_more_than_it_allows() {
        for (budget, failures, total, is_exceeded) in [
            ("", 100, 100, false),
            ("0", 0, 100, false),
            ("0", 1, 100, true),
            ("2", 2, 100, false),
            ("2", 3, 100, true),
            ("10%", 10, 100, false),
            ("10%", 11, 100, true),
        ] {
            let found = pace("", budget).is_exceeded(failures, total);
            assert_eq!(found, is_exceeded, "{failures} of {total} with {budget}");
        }
    }
}
