//! Columns of tables about nodes: cells of text, and values of JSON and CSV.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::flag_values::BadValue;
use crate::cli::table::{Cell, Paint};
use ccm_core::model::label::LabelName;
use ccm_core::model::node::NodeName;
use ccm_core::model::run::RunOutcome;
use ccm_fleet::bundle_store::short_name;
use ccm_fleet::inventory::Inventory;
use ccm_fleet::node_condition::{Condition, ConditionKind};
use ccm_template::env::Facts;
use ccm_template::functions::find_fact;
use ccm_value::text::{go_time, to_the_second};

/// Named columns, with their titles.
const NAMED: [(&str, Column); 9] = [
    ("identity", Column::Identity),
    ("status", Column::Status),
    ("reason", Column::Reason),
    ("version", Column::Version),
    ("groups", Column::Groups),
    ("labels", Column::Labels),
    ("bundle", Column::Bundle),
    ("last_run", Column::LastRun),
    ("facts_age", Column::FactsAge),
];

/// A column of a table of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Identity,
    Status,
    Reason,
    Version,
    Groups,
    Labels,
    /// Bundles that the node last reported.
    Bundle,
    LastRun,
    /// Time since the facts were confirmed.
    FactsAge,
    Label(LabelName),
    Fact(String),
}

impl FromStr for Column {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if let Some((_, column)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(column.clone());
        }
        let after = |roots: [&str; 2]| roots.iter().find_map(|root| text.strip_prefix(root));
        let label = after(["Labels.", "labels."]);
        if let Some(label) = label.and_then(|name| name.parse().ok()) {
            return Ok(Self::Label(label));
        }
        match after(["Facts.", "facts."]) {
            Some(path) if !path.is_empty() => Ok(Self::Fact(path.into())),
            _ => {
                let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
                Err(BadValue::Column(names.join(", ")))
            }
        }
    }
}

/// A node, as the columns see it.
pub(super) struct NodeView<'a> {
    pub(super) name: &'a NodeName,
    pub(super) inventory: &'a Inventory,
    /// Newest version of the fleet's agents.
    pub(super) newest: Option<&'a str>,
    pub(super) now: DateTime<Utc>,
}

impl Column {
    /// Returns the name of the column in JSON and CSV.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Label(label) => format!("Labels.{label}"),
            Self::Fact(path) => format!("Facts.{path}"),
            named => {
                let found = NAMED.iter().find(|(_, column)| column == named);
                found.map_or_else(String::new, |(name, _)| (*name).into())
            }
        }
    }

    /// Returns the title of the column in a table.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Label(_) | Self::Fact(_) => self.name(),
            named => named.name().replace('_', " ").to_uppercase(),
        }
    }

    /// Returns the value for JSON.
    pub(super) fn value(&self, node: &NodeView<'_>) -> Value {
        let NodeView {
            name, inventory, ..
        } = node;
        match self {
            Self::Identity => json!(name),
            Self::Status => json!(node.condition().kind.as_str()),
            Self::Reason => json!(node.condition().reason),
            Self::Version => json!(inventory.version(name)),
            Self::Groups => json!(inventory.groups(name)),
            Self::Labels => json!(inventory.labels(name)),
            Self::Bundle => json!(node.bundles()),
            Self::LastRun => match last_run_of(name, inventory) {
                Some((outcome, time)) => json!({
                    "outcome": outcome.map(RunOutcome::as_str), "time": go_time(&time),
                }),
                None => Value::Null,
            },
            Self::FactsAge => json!(node.facts_age()),
            Self::Label(label) => json!(inventory.labels(name).get(label.as_str())),
            Self::Fact(path) => {
                let facts = inventory.facts(name).map(|(facts, _)| facts.clone());
                let found = facts.and_then(|facts| find_fact(&Facts::Known(facts), path));
                found.map_or(Value::Null, |found| json!(found))
            }
        }
    }

    /// Returns the value as text, for CSV.
    pub(super) fn text(&self, node: &NodeView<'_>) -> String {
        match self {
            Self::LastRun => last_run_of(node.name, node.inventory)
                .map_or_else(String::new, |(outcome, time)| run_text(outcome, time)),
            _ => match self.value(node) {
                Value::Null => String::new(),
                Value::String(text) => text,
                Value::Array(items) => items
                    .iter()
                    .map(|item| {
                        item.as_str()
                            .map_or_else(|| item.to_string(), str::to_owned)
                    })
                    .collect::<Vec<String>>()
                    .join(" "),
                Value::Object(entries) if *self == Self::Labels => entries
                    .iter()
                    .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                    .collect::<Vec<String>>()
                    .join(" "),
                other => other.to_string(),
            },
        }
    }

    /// Returns the cell of a table.
    pub(super) fn cell(&self, node: &NodeView<'_>) -> Cell {
        match self {
            Self::Status => condition_cell(&node.condition()),
            Self::LastRun => last_run(node.name, node.inventory),
            Self::FactsAge => node
                .facts_age()
                .map_or_else(|| "-".into(), |age| Cell::from(short_age(age))),
            other => match other.text(node) {
                empty if empty.is_empty() => "-".into(),
                text => text.into(),
            },
        }
    }
}

impl NodeView<'_> {
    fn condition(&self) -> Condition {
        Condition::of(self.name, self.inventory, self.newest)
    }

    fn bundles(&self) -> Vec<String> {
        let report = self.inventory.last_report(self.name);
        let bundles = report.map_or(&[][..], |report| &report.bundles);
        bundles.iter().map(short_name).collect()
    }

    /// Returns the age of the facts in seconds.
    fn facts_age(&self) -> Option<i64> {
        let (_, time) = self.inventory.facts(self.name)?;
        Some(self.now.signed_duration_since(time).num_seconds().max(0))
    }
}

/// Formats an age in seconds with one unit.
fn short_age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns the cell of a node's condition.
pub(super) fn condition_cell(condition: &Condition) -> Cell {
    let paint = match condition.kind {
        ConditionKind::Offline => Paint::Dim,
        ConditionKind::Unhealthy | ConditionKind::Refusing => Paint::Red,
        ConditionKind::Paused
        | ConditionKind::Waiting
        | ConditionKind::NoTrust
        | ConditionKind::OldVersion => Paint::Yellow,
        ConditionKind::Busy | ConditionKind::Online => Paint::Green,
    };
    Cell::painted(condition.text(), paint)
}

/// Returns the cell of an outcome.
pub(super) fn outcome_cell(outcome: Option<RunOutcome>, text: String) -> Cell {
    match outcome {
        Some(RunOutcome::Failed) => Cell::painted(text, Paint::Red),
        Some(RunOutcome::Changed | RunOutcome::Noop) => Cell::painted(text, Paint::Yellow),
        _ => text.into(),
    }
}

/// Returns the outcome and time of a node's last run: from its presence, or from its report.
fn last_run_of(
    name: &NodeName,
    inventory: &Inventory,
) -> Option<(Option<RunOutcome>, DateTime<Utc>)> {
    let status = inventory.status(name);
    let run = status.and_then(|status| status.last_run.as_ref());
    run.map(|run| (Some(run.outcome), run.timestamp))
        .or_else(|| {
            let report = inventory.last_report(name)?;
            Some((report.outcome, report.at))
        })
}

fn run_text(outcome: Option<RunOutcome>, time: DateTime<Utc>) -> String {
    let outcome = outcome.map_or("reported", RunOutcome::as_str);
    format!("{outcome} {}", to_the_second(&time))
}

/// Returns the cell of a node's last run.
pub(super) fn last_run(name: &NodeName, inventory: &Inventory) -> Cell {
    match last_run_of(name, inventory) {
        Some((outcome, time)) => outcome_cell(outcome, run_text(outcome, time)),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_name_a_label_or_a_fact() {
        for text in ["identity", "last_run", "Labels.role", "Facts.host.info.os"] {
            assert_eq!(text.parse::<Column>().unwrap().name(), text);
        }
        assert_eq!("last_run".parse::<Column>().unwrap().title(), "LAST RUN");
        for bad in ["", "host", "Facts.", "Labels.a b"] {
            let error = bad.parse::<Column>().unwrap_err().to_string();
            assert!(error.contains("identity"), "{bad}: {error}");
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        let ages = [5, 119, 120, 7_200, 172_800].map(short_age);
        assert_eq!(ages, ["5s", "119s", "2m", "2h", "2d"]);
    }
}
