//! The tables of docs/monitoring.md, the dashboard and the alert rules name only existing metrics,
//! and the tables name all of them.
//!
//! Agents print a metric with labels once it has a value. The list of all is a data file that a
//! unit test of the metrics compares with what they really print.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;
use serde_json::Value;

use crate::support::web::Web;

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the names that a text in the format of Prometheus declares, with their kinds.
fn declared(text: &str) -> Vec<(String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let pair = |line: &str| {
        let (name, kind) = line.split_once(' ').unwrap();
        (name.to_owned(), kind.to_owned())
    };
    types.map(pair).collect()
}

/// Returns every metric of agents and of the fleet's page, with its kind.
async fn metrics() -> Vec<(String, String)> {
    let web = Web::start().await;
    let mut all = declared(&file("tests/data/metrics/full.txt"));
    all.extend(declared(&web.get("/metrics").body));
    all
}

/// Returns the series that can be queried.
async fn series() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, kind) in metrics().await {
        match kind.as_str() {
            "summary" => found.extend(["_sum", "_count"].map(|end| format!("{name}{end}"))),
            _ => {
                found.insert(name);
            }
        }
    }
    found
}

/// Returns the metrics of ours that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let ours = Regex::new(r"\b(choria_ccm|ccm_fleet)_[a-z_]+").unwrap();
    ours.find_iter(text).map(|it| it.as_str().into()).collect()
}

/// Returns all texts below a key, anywhere in a document.
fn texts(document: &Value, key: &str, found: &mut Vec<String>) {
    match document {
        Value::Object(map) => {
            for (name, value) in map {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    other => texts(other, key, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|item| texts(item, key, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_documents_name_every_metric_and_no_other() {
    let text = file("docs/monitoring.md");
    let row = Regex::new(r"(?m)^\| `((?:choria_ccm|ccm_fleet)_[a-z_]+)` \| (\w+) \|").unwrap();
    let documented: BTreeSet<(String, String)> = row
        .captures_iter(&text)
        .map(|row| (row[1].to_owned(), row[2].to_owned()))
        .collect();
    let real: BTreeSet<(String, String)> = metrics().await.into_iter().collect();
    let forgotten: Vec<_> = real.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&real).collect();
    assert!(
        forgotten.is_empty() && invented.is_empty(),
        "not in docs/monitoring.md: {forgotten:?}; only there: {invented:?}"
    );
}

#[tokio::test]
async fn the_alerts_ask_for_metrics_that_there_are() {
    let rules = file("packaging/prometheus/alerts.yaml");
    let document: Value = serde_yaml::from_str(&rules).unwrap();
    let mut expressions = Vec::new();
    texts(&document, "expr", &mut expressions);
    assert!(expressions.len() >= 8);
    let queried = named(&expressions.join("\n"));
    let unknown: Vec<_> = queried.difference(&series().await).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[tokio::test]
async fn the_dashboard_queries_existing_metrics() {
    let document: Value = serde_json::from_str(&file("packaging/grafana/ccm-fleet.json")).unwrap();
    let mut expressions = Vec::new();
    texts(&document, "expr", &mut expressions);
    texts(&document, "definition", &mut expressions);
    assert!(expressions.len() > 20);
    let queried = named(&expressions.join("\n"));
    let unknown: Vec<_> = queried.difference(&series().await).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_dashboard_has_the_form_that_grafana_imports() {
    let document: Value = serde_json::from_str(&file("packaging/grafana/ccm-fleet.json")).unwrap();
    assert_eq!(document["uid"], "ccm-fleet");
    assert!(document["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(document.get("id").is_none(), "an id belongs to one Grafana");
    let variables: BTreeSet<&str> = document["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    let used = Regex::new(r"\$\{?([a-z]\w*)").unwrap();
    let mut ids = BTreeSet::new();
    for panel in document["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        for key in ["type", "title", "gridPos"] {
            assert!(!panel[key].is_null(), "{key} of {panel}");
        }
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{panel}");
        let targets = panel["targets"].as_array();
        assert!(panel["type"] == "row" || !targets.unwrap().is_empty());
        let mut refs = BTreeSet::new();
        for target in targets.into_iter().flatten() {
            assert!(refs.insert(target["refId"].as_str().unwrap()), "{panel}");
            let text = target.to_string();
            for name in used.captures_iter(&text) {
                let name = name.get(1).unwrap().as_str();
                assert!(variables.contains(name), "{name} in {text}");
            }
        }
    }
}
