//! Rollout plan: cuts nodes into waves. A plan is made once, then shown, stored and executed
//! without changes.
//!
//! A pure function: the same nodes and settings give the same plan, independent of the input order.
//! Nodes are sorted by the tag that the settings name, then by name; nodes without the tag come
//! last. The first nodes are the canary. A wave size that is a count takes this number of nodes; a
//! percentage extends the rollout to this part of all nodes, canary included, rounded up. After the
//! last size, a count is repeated and a percentage is followed by one wave with the rest.
//!
//! Reachability and the content of the rollout are not considered; see [`super::planner`] for the
//! execution of a plan.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::inventory::Inventory;
use ccm_core::filter::NodeAttributes;
use ccm_core::model::amount::{Amount, Percent};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{NodeName, Pause};
use ccm_core::model::rollout::{ExcludedNode, Plan, Settings, Wave};
use ccm_template::env::Facts;
use ccm_value::Value;

/// A selected node.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) name: &'a NodeName,
    /// Facts from presence; null for an offline node.
    pub(super) facts: &'a Value,
    pub(super) labels: &'a Labels,
    pub(super) pause: Option<&'a Pause>,
}

/// Returns nodes with their facts, labels and pause.
pub(super) fn candidates<'a>(
    inventory: &'a Inventory,
    nodes: &'a [NodeName],
) -> Vec<Candidate<'a>> {
    static UNKNOWN: Value = Value::Null;
    let candidate = |name| {
        let status = inventory.status(name);
        Candidate {
            name,
            facts: inventory.facts(name).map_or(&UNKNOWN, |(facts, _)| facts),
            labels: inventory.labels(name),
            pause: status.and_then(|status| status.pause.as_ref()),
        }
    };
    nodes.iter().map(candidate).collect()
}

/// Why nodes can't be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("no node to roll out to")]
    NoNodes,
    #[error("all {0} nodes are paused")]
    AllPaused(usize),
    #[error("node {0} is selected twice")]
    Duplicate(NodeName),
    #[error("a wave can't have 0 nodes")]
    EmptyWave,
    #[error("wave {later} must be larger than {earlier}: percentages are cumulative")]
    NotRising { earlier: Percent, later: Percent },
}

/// Returns the plan. Every node is in exactly one wave, or left out with a reason.
pub(super) fn plan(nodes: &[Candidate<'_>], settings: &Settings) -> Result<Plan, PlanError> {
    check_sizes(&settings.waves)?;
    let mut seen = BTreeSet::new();
    if let Some(duplicate) = nodes.iter().find(|node| !seen.insert(node.name)) {
        return Err(PlanError::Duplicate(duplicate.name.clone()));
    }
    let (paused, active): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.pause.is_some());
    match (active.is_empty(), paused.len()) {
        (true, 0) => return Err(PlanError::NoNodes),
        (true, count) => return Err(PlanError::AllPaused(count)),
        _ => {}
    }
    let mut left_out: Vec<ExcludedNode> = paused.into_iter().map(left_out).collect();
    left_out.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(Plan {
        waves: cut(ordered(active, settings.order_by.as_deref()), settings),
        left_out,
    })
}

fn check_sizes(sizes: &[Amount]) -> Result<(), PlanError> {
    let mut reached = None;
    for size in sizes {
        match *size {
            Amount::Count(0) => return Err(PlanError::EmptyWave),
            Amount::Count(_) => {}
            Amount::Percent(later) => {
                if let Some(earlier) = reached.filter(|earlier| *earlier >= later) {
                    return Err(PlanError::NotRising { earlier, later });
                }
                reached = Some(later);
            }
        }
    }
    Ok(())
}

fn left_out(node: &Candidate<'_>) -> ExcludedNode {
    let reason = match node.pause.map(|pause| pause.reason.as_str()) {
        None | Some("") => "paused".into(),
        Some(reason) => format!("paused: {reason}"),
    };
    ExcludedNode {
        node: node.name.clone(),
        reason,
    }
}

/// Returns the names in rollout order.
fn ordered(nodes: Vec<&Candidate<'_>>, order_by: Option<&str>) -> Vec<NodeName> {
    let tag = |node: &Candidate<'_>| {
        let facts = Facts::Known(node.facts.clone());
        let about = NodeAttributes {
            identity: node.name,
            groups: &[],
            facts: &facts,
            labels: node.labels,
        };
        Tag::of(order_by.and_then(|path| about.fact(path)))
    };
    let mut tagged: Vec<(Tag, &NodeName)> = nodes
        .into_iter()
        .map(|node| (tag(node), node.name))
        .collect();
    tagged.sort_by(|a, b| a.0.compare(&b.0).then_with(|| a.1.cmp(b.1)));
    tagged.into_iter().map(|(_, name)| name.clone()).collect()
}

/// Sort key of a node.
enum Tag {
    Number(f64),
    Text(String),
    Missing,
}

impl Tag {
    fn of(value: Option<Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Missing,
            Some(value) => {
                let text = value.to_string();
                // Label values are strings; numbers among them sort numerically.
                match text.parse::<f64>().ok().filter(|it| it.is_finite()) {
                    Some(number) => Self::Number(number),
                    None => Self::Text(text),
                }
            }
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Number(_) => 0,
            Self::Text(_) => 1,
            Self::Missing => 2,
        }
    }
}

fn cut(names: Vec<NodeName>, settings: &Settings) -> Vec<Wave> {
    let total = names.len();
    let mut names = names.into_iter();
    let mut waves = Vec::new();
    let mut done = 0;
    if settings.canary > 0 {
        let nodes: Vec<NodeName> = names.by_ref().take(settings.canary).collect();
        done = nodes.len();
        waves.push(Wave {
            name: "canary".into(),
            canary: true,
            nodes,
        });
    }
    let mut sizes = settings.waves.iter().copied();
    let mut last = Amount::Percent(Percent::ALL);
    let mut number = 0;
    while done < total {
        last = match (sizes.next(), last) {
            (Some(size), _) => size,
            (None, Amount::Count(count)) => Amount::Count(count),
            (None, Amount::Percent(_)) => Amount::Percent(Percent::ALL),
        };
        let more = match last {
            Amount::Count(count) => count,
            // The canary may already be larger than this part.
            Amount::Percent(percent) => percent.of(total).saturating_sub(done),
        };
        let nodes: Vec<NodeName> = names.by_ref().take(more).collect();
        if nodes.is_empty() {
            continue;
        }
        done += nodes.len();
        number += 1;
        waves.push(Wave {
            name: format!("wave {number}"),
            canary: false,
            nodes,
        });
    }
    waves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Fleet(Vec<(NodeName, Value, Labels, Option<Pause>)>);

    impl Fleet {
        fn of(count: usize) -> Self {
            let node = |number| {
                let name = format!("n{number:04}").parse().unwrap();
                (name, Value::Null, Labels::default(), None)
            };
            Self((1..=count).map(node).collect())
        }

        fn plan(&self, settings: &Settings) -> Result<Plan, PlanError> {
            let nodes: Vec<_> = self.0.iter().map(candidate).collect();
            plan(&nodes, settings)
        }
    }

    fn candidate(node: &(NodeName, Value, Labels, Option<Pause>)) -> Candidate<'_> {
        Candidate {
            name: &node.0,
            facts: &node.1,
            labels: &node.2,
            pause: node.3.as_ref(),
        }
    }

    fn settings(canary: usize, waves: &str) -> Settings {
        let sizes = waves.split(',').filter(|size| !size.is_empty());
        Settings {
            canary,
            waves: sizes.map(|size| size.parse().unwrap()).collect(),
            ..Settings::default()
        }
    }

    fn sizes(plan: &Plan) -> Vec<usize> {
        plan.waves.iter().map(|wave| wave.nodes.len()).collect()
    }

    #[test]
    fn waves_are_cut_by_count_and_by_percentage() {
        for (count, canary, waves, expected) in [
            (10, 0, "", &[10][..]),
            (10, 1, "", &[1, 9]),
            (100, 1, "5%,25%,100%", &[1, 4, 20, 75]),
            (100, 0, "5%,25%", &[5, 20, 75]),
            (10, 0, "3", &[3, 3, 3, 1]),
            (10, 2, "1,3", &[2, 1, 3, 3, 1]),
            (10, 0, "1,50%,2", &[1, 4, 2, 2, 1]),
            (3, 1, "5%,50%,100%", &[1, 1, 1]),
            (3, 5, "1", &[3]),
            (20, 10, "5%,25%,100%", &[10, 10]),
        ] {
            let plan = Fleet::of(count).plan(&settings(canary, waves)).unwrap();
            assert_eq!(sizes(&plan), expected, "{count} {canary} {waves}");
        }
    }

    #[test]
    fn the_canary_is_the_first_wave_and_the_only_one_marked() {
        let plan = Fleet::of(5).plan(&settings(1, "2")).unwrap();
        let waves = plan
            .waves
            .iter()
            .map(|wave| (wave.name.as_str(), wave.canary));
        assert_eq!(
            waves.collect::<Vec<_>>(),
            [("canary", true), ("wave 1", false), ("wave 2", false)]
        );
    }

    #[test]
    fn nodes_are_ordered_by_tag_and_those_without_come_last() {
        let mut fleet = Fleet::of(6);
        for (at, label) in [
            (4, "rank=9"),
            (1, "rank=10"),
            (0, "rank=late"),
            (5, "rank=9"),
        ] {
            let (name, value) = ccm_core::model::label::parse_label(label).unwrap();
            fleet.0[at].2.set(name, value);
        }
        fleet.0[3].1 = [("rank", Value::Int(1))].into_iter().collect();
        let settings = Settings {
            order_by: Some("rank".into()),
            ..Settings::default()
        };
        let plan = fleet.plan(&settings).unwrap();
        let names: Vec<&str> = plan.waves[0].nodes.iter().map(NodeName::as_str).collect();
        assert_eq!(
            names,
            ["n0004", "n0005", "n0006", "n0002", "n0001", "n0003"]
        );
    }

    #[test]
    fn paused_nodes_are_left_out_with_the_reason() {
        let mut fleet = Fleet::of(3);
        fleet.0[1].3 = Some(Pause {
            reason: "disk swap".into(),
            by: "ann".into(),
            since: chrono::DateTime::UNIX_EPOCH,
            until: None,
        });
        let plan = fleet.plan(&Settings::default()).unwrap();
        assert_eq!(sizes(&plan), [2]);
        assert_eq!(plan.left_out.len(), 1);
        assert_eq!(plan.left_out[0].node.as_str(), "n0002");
        assert_eq!(plan.left_out[0].reason, "paused: disk swap");
    }

    #[test]
    fn invalid_plans_are_errors() {
        let plan = |count, waves| Fleet::of(count).plan(&settings(0, waves));
        assert_eq!(plan(0, ""), Err(PlanError::NoNodes));
        assert_eq!(plan(1, "0"), Err(PlanError::EmptyWave));
        assert_eq!(
            plan(9, "25%,5%").unwrap_err().to_string(),
            "wave 5% must be larger than 25%: percentages are cumulative"
        );
        let mut duplicate = Fleet::of(2);
        duplicate.0[1].0 = duplicate.0[0].0.clone();
        let error = duplicate.plan(&Settings::default()).unwrap_err();
        assert_eq!(error.to_string(), "node n0001 is selected twice");
    }

    fn sizes_strategy() -> impl Strategy<Value = Vec<Amount>> {
        let counts = prop::collection::vec((1_usize..40).prop_map(Amount::Count), 0..4);
        let percents = prop::collection::btree_set(1_u8..=100, 0..4).prop_map(|parts| {
            let amount = |part: u8| format!("{part}%").parse().unwrap();
            parts.into_iter().map(amount).collect()
        });
        prop_oneof![counts, percents]
    }

    proptest! {
        #[test]
        fn every_node_is_in_exactly_one_wave_independent_of_input_order(
            mut numbers in prop::collection::btree_set(0_u16..500, 1..120)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle(),
            tags in prop::collection::vec(0_i64..4, 500),
            canary in 0_usize..10,
            waves in sizes_strategy(),
        ) {
            let fleet = |numbers: &[u16]| Fleet(numbers.iter().map(|number| {
                let tag = Value::Int(tags[usize::from(*number)]);
                let facts = [("tag", tag)].into_iter().collect();
                (format!("n{number:04}").parse().unwrap(), facts, Labels::default(), None)
            }).collect());
            let settings = Settings {
                canary,
                waves,
                order_by: Some("tag".into()),
                ..Settings::default()
            };
            let plan = fleet(&numbers).plan(&settings).unwrap();
            numbers.sort_unstable();
            prop_assert_eq!(&plan, &fleet(&numbers).plan(&settings).unwrap());

            let planned: Vec<&NodeName> =
                plan.waves.iter().flat_map(|wave| &wave.nodes).collect();
            let order = |name: &&NodeName| {
                let number: usize = name.as_str()[1..].parse().unwrap();
                (tags[number], number)
            };
            let mut expected = planned.clone();
            expected.sort_by_key(order);
            expected.dedup();
            prop_assert_eq!(planned.len(), numbers.len());
            prop_assert_eq!(planned, expected);
            prop_assert!(plan.waves.iter().all(|wave| !wave.nodes.is_empty()));
        }

        #[test]
        fn a_percentage_wave_completes_that_part_of_all_nodes(
            count in 1_usize..300,
            canary in 0_usize..5,
            percents in prop::collection::btree_set(1_u8..=100, 1..5),
        ) {
            let text: Vec<String> = percents.iter().map(|part| format!("{part}%")).collect();
            let plan = Fleet::of(count).plan(&settings(canary, &text.join(","))).unwrap();
            let mut ends = Vec::new();
            let mut done = 0;
            for wave in &plan.waves {
                done += wave.nodes.len();
                ends.push(done);
            }
            for percent in text {
                let part = percent.parse::<Percent>().unwrap().of(count);
                prop_assert!(ends.contains(&part) || part <= canary.min(count));
            }
            prop_assert_eq!(done, count);
        }
    }
}
