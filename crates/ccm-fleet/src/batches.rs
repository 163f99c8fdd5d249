//! Requests in batches: all selected nodes at once, or batch by batch until too many fail.
//!
//! Nodes without a reply do not count as failed. When the failure limit is exceeded, the remaining
//! nodes are not contacted and listed in the report. Node selection is in `selection`, sending in
//! `scatter`.

use super::node_reply::{NodeReply, interpret};
use super::scatter::{MAX_CONCURRENT, NodeRequest, Recipients, ScatterClient};
use super::summarize::Counts;
use ccm_core::model::amount::Amount;
use ccm_core::model::node::NodeName;
use ccm_nats::NatsError;

/// Batch size and failure limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSettings {
    /// Number of nodes per batch; all nodes if not set.
    pub batch: Option<Amount>,
    /// Number of failures, over all batches, that is tolerated.
    pub max_failures: Option<Amount>,
}

impl BatchSettings {
    /// Returns the batch size, at least 1.
    fn batch_of(&self, total: usize) -> usize {
        let all = match self.max_failures {
            // A limit checked only after the last node would have no effect.
            Some(_) => MAX_CONCURRENT,
            None => total,
        };
        self.batch.map_or(all, |batch| batch.of(total)).max(1)
    }

    /// Reports whether this number of failures is above the limit.
    fn is_exceeded(&self, failures: usize, total: usize) -> bool {
        match self.max_failures {
            None => false,
            Some(Amount::Count(most)) => failures > most,
            Some(Amount::Percent(most)) => most.is_exceeded(failures, total),
        }
    }
}

/// The nodes that a request goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    pub nodes: Vec<NodeName>,
    /// These are all nodes of the collective, so that one broadcast can reach them.
    pub is_whole_fleet: bool,
}

/// The result of a request in batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchReport {
    pub counts: Counts,
    /// Not contacted because of failures in earlier batches.
    pub not_contacted: Vec<NodeName>,
    pub is_halted: bool,
}

/// Sends a request to nodes batch by batch and calls `each` with every interpreted reply.
pub async fn request_in_batches(
    client: &ScatterClient,
    request: &NodeRequest,
    targets: &Targets,
    settings: BatchSettings,
    mut each: impl FnMut(NodeReply),
) -> Result<BatchReport, NatsError> {
    let total = targets.nodes.len();
    let size = settings.batch_of(total);
    let mut report = BatchReport::default();
    let mut left = targets.nodes.as_slice();
    while !left.is_empty() {
        if settings.is_exceeded(report.counts.failures(), total) {
            report.is_halted = true;
            report.not_contacted = left.to_vec();
            break;
        }
        let (batch, rest) = left.split_at(size.min(left.len()));
        left = rest;
        let recipients = if targets.is_whole_fleet && batch.len() == total && total > 1 {
            Recipients::Broadcast(batch)
        } else {
            Recipients::Nodes(batch)
        };
        let counts = &mut report.counts;
        let receive = |reply| {
            let reply = interpret(request.verb, reply);
            counts.add(reply.outcome);
            each(reply);
        };
        client.scatter(request, recipients, receive).await?;
    }
    // The last batch may have exceeded the limit.
    report.is_halted |= settings.is_exceeded(report.counts.failures(), total);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(batch: &str, max_failures: &str) -> BatchSettings {
        let amount = |text: &str| match text {
            "" => None,
            text => Some(text.parse().unwrap()),
        };
        BatchSettings {
            batch: amount(batch),
            max_failures: amount(max_failures),
        }
    }

    #[test]
    fn a_batch_is_a_count_or_a_percentage_and_at_least_one_node() {
        for (batch, max_failures, total, size) in [
            ("", "", 1000, 1000),
            ("", "2", 1000, MAX_CONCURRENT),
            ("10", "", 1000, 10),
            ("5%", "", 30, 2),
            ("0", "", 30, 1),
            ("", "", 0, 1),
        ] {
            assert_eq!(
                settings(batch, max_failures).batch_of(total),
                size,
                "{batch}"
            );
        }
    }

    #[test]
    fn the_failure_limit_is_exceeded_by_one_more_than_it_allows() {
        for (limit, failures, total, is_exceeded) in [
            ("", 100, 100, false),
            ("0", 0, 100, false),
            ("0", 1, 100, true),
            ("2", 2, 100, false),
            ("2", 3, 100, true),
            ("10%", 10, 100, false),
            ("10%", 11, 100, true),
        ] {
            let found = settings("", limit).is_exceeded(failures, total);
            assert_eq!(found, is_exceeded, "{failures} of {total} with {limit}");
        }
    }
}
