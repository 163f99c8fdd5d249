//! Tables of metrics, from what agents and the fleet's page print.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use regex::Regex;
use serde_json::json;

use super::root;
use crate::support::web::Web;

/// Returns the table of the metrics of `agent` or `page`.
pub(super) fn table(of: &str) -> String {
    let printed = match of {
        "agent" => std::fs::read_to_string(root().join("tests/data/metrics/full.txt")).unwrap(),
        "page" => {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(page_metrics())
        }
        _ => panic!("no metrics of {of}"),
    };
    let series = Regex::new(r"^([a-z_]+?)(?:_sum|_count)?(?:\{(.*)\})? ").unwrap();
    let label = Regex::new(r#"([a-z_]+)=""#).unwrap();
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in printed.lines().filter(|line| !line.starts_with('#')) {
        let Some(found) = series.captures(line) else {
            continue;
        };
        let names = found.get(2).map_or("", |names| names.as_str());
        let names: Vec<String> = label
            .captures_iter(names)
            .map(|name| format!("`{}`", &name[1]))
            .collect();
        // The name of a counter may end with _count itself.
        for name in [&found[1], line.split(['{', ' ']).next().unwrap()] {
            labels.entry(name.into()).or_default().extend(names.clone());
        }
    }
    let kinds: BTreeMap<&str, &str> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut text = String::from("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n");
    let helps = printed
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "));
    for (name, help) in helps.filter_map(|line| line.split_once(' ')) {
        let labels = labels.get(name);
        let labels = labels.unwrap_or_else(|| panic!("{name} has no value, so no labels"));
        let labels = labels.iter().cloned().collect::<Vec<_>>().join(", ");
        writeln!(text, "| `{name}` | {} | {labels} | {help} |", kinds[name]).unwrap();
    }
    text
}

/// Returns the metrics of a page after an event, in a rollout and while a node waits for a governor, so that
/// each metric has a value.
async fn page_metrics() -> String {
    let web = Web::start().await;
    let waiting = json!({"current_run": {
        "run_id": "3GpVtBn0dgoYSmbFKtjTWDUsMWL", "source": "app", "trigger": "interval",
        "since": "2027-01-15T08:00:00Z", "waiting_for": "governor deploys"
    }});
    web.presence("web1", waiting).await;
    web.rollout("20270115-080000-dshj", json!({})).await;
    web.event("web1", "file#/etc/motd", "changed", 1).await;
    let names = [
        "ccm_fleet_events_total{",
        "ccm_fleet_governor_waiting_nodes{",
        "ccm_fleet_rollout_state{",
        "ccm_fleet_rollout_nodes{",
    ];
    let has_all = |text: &str| names.iter().all(|name| text.contains(name));
    let answer = web.until("/metrics", |answer| has_all(&answer.body));
    answer.body
}
