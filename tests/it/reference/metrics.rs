//! Tables of metrics, from what agents and the fleet's page print.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use regex::Regex;

use super::root;
use crate::support::web::Web;

/// Returns the table of the metrics of `agent` or `page`.
pub(super) fn table(of: &str) -> String {
    let printed = match of {
        "agent" => std::fs::read_to_string(root().join("tests/data/metrics/full.txt")).unwrap(),
        "page" => {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async { Web::start().await.get("/metrics").body })
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
        let labels = labels.get(name).into_iter().flatten().cloned();
        let labels = labels.collect::<Vec<_>>().join(", ");
        writeln!(text, "| `{name}` | {} | {labels} | {help} |", kinds[name]).unwrap();
    }
    text
}
