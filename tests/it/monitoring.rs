//! The tables of docs/monitoring.md, the dashboard and the alert rules name only existing metrics,
//! and the tables name all of them: those that code declares, and those of a scrape after work.
//! Alerts fire when they should, which promtool checks.
//!
//! Agents print a metric with labels once it has a value. The list of all is a data file that a
//! unit test of the metrics compares with what they really print.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccm_nats::Verb;
use regex::Regex;
use serde_json::{Value, json};

use crate::agent::scheduled_runs::fetch;
use crate::governor;
use crate::support::agent::{AgentProcess, request_json};
use crate::support::http::{Response, Server};
use crate::support::nats::{MONITOR, own_address};
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;
use crate::support::web::{Page, Web};
use crate::support::{TestEnv, pack};

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

/// Returns the metrics in the tables of the documents, with their kinds.
fn documented() -> BTreeSet<(String, String)> {
    let text = file("docs/monitoring.md");
    let row = Regex::new(r"(?m)^\| `((?:choria_ccm|ccm_fleet)_[a-z_]+)` \| (\w+) \|").unwrap();
    row.captures_iter(&text)
        .map(|row| (row[1].to_owned(), row[2].to_owned()))
        .collect()
}

/// Returns the metrics of a scrape that have a value, with their kinds.
fn scraped(text: &str) -> BTreeSet<(String, String)> {
    let has_value = |(name, kind): &(String, String)| {
        let series = match kind.as_str() {
            "summary" => format!("{name}_count"),
            _ => name.clone(),
        };
        let is_sample = |line: &str| {
            let rest = line.strip_prefix(&series);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
        };
        text.lines().any(is_sample)
    };
    declared(text).into_iter().filter(has_value).collect()
}

/// External data of an agent.
const DATA: &str = "hierarchy: {order: [default]}\ndata: {word: first}\n";

/// Returns a manifest with a changed, a failed, a skipped and a checked resource.
fn manifest(env: &TestEnv) -> String {
    let (motd, checked) = (env.at("motd"), env.at("checked"));
    format!(
        "ccm:
  resources:
    - file: {{name: {motd}, ensure: present, content: hi, owner: root, group: root, mode: '0644'}}
    - exec: {{name: /bin/false}}
    - exec: {{name: /bin/true, require: ['exec#/bin/false']}}
    - file:
        - {checked}:
            ensure: present
            content: healthy
            owner: root
            group: root
            mode: '0644'
            health_checks:
              - command: /bin/sh -c 'test -e {checked} || exit 2'
"
    )
}

/// Starts an agent, and makes it do everything that it counts.
async fn busy_agent(env: &TestEnv, web: &Server) -> (Setup<AgentProcess>, String) {
    let address = own_address();
    let local = env.write("site.yaml", manifest(env));
    let lines = format!(
        "monitor_port: {MONITOR}\nmonitor_address: {address}\nhealth_check_interval: 1s\n\
         external_data_url: {}\nmanifests: [{local}, '{}', '{}']\n",
        web.url("/data.yaml"),
        web.url("/site.tgz"),
        web.url("/missing.tgz"),
    );
    let setup = Setup::process("web1.lab", &lines).await;
    let url = format!("http://{address}:{MONITOR}/metrics");
    for noop in [false, true] {
        let request = json!({
            "protocol": "io.choria.ccm.v1.manifest.apply.request",
            "manifest": manifest(env),
            "noop": noop,
            "wait": true,
        });
        let request = request.to_string();
        request_json(&setup.client, "web1.lab", Verb::Apply, &request).await;
    }
    // Another run may restore the file before a health check misses it.
    eventually("a remediation", async || {
        let _ = std::fs::remove_file(env.path("checked"));
        let text = fetch(&url).await.unwrap_or_default();
        when(text.contains("healthcheck_remediations_count{"), text)
    })
    .await;
    (setup, url)
}

/// Makes a run of the agent end without a slot of a governor, and another one wait for a slot.
async fn wait_for_governor(setup: &Setup<AgentProcess>) {
    let lease = Duration::from_secs(3600);
    governor::make(&setup.server, governor::stream(1, lease)).await;
    governor::occupy(&setup.server).await;
    for (timeout, wait) in [("1s", true), ("1h", false)] {
        let claim = json!({
            "governor": {"name": governor::DEPLOYS, "timeout": timeout},
            "wait": wait,
        });
        let request = governor::apply(&governor::exec("/bin/true"), claim);
        request_json(&setup.client, "web1.lab", Verb::Apply, &request).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_after_work_has_every_documented_metric_and_no_other() {
    let is_away = Arc::new(AtomicBool::new(false));
    let bundle = pack::tgz(&[(
        "site/manifest.yaml",
        "ccm: {resources: [{exec: {name: /bin/true}}]}",
    )]);
    let data_away = is_away.clone();
    let web = Server::start(move |request| match request.path.as_str() {
        "/site.tgz" => Response::ok(bundle.clone()),
        "/data.yaml" if !data_away.load(Ordering::Relaxed) => Response::ok(DATA),
        _ => Response::new("404 Not Found", ""),
    });
    let env = TestEnv::new();
    let (setup, url) = busy_agent(&env, &web).await;
    is_away.store(true, Ordering::Relaxed);
    let page = Page::serve(&setup.server).settled();
    page.push("app", 1);
    page.fleet(&["rollout", "start", "app", "--all"]).ok();
    wait_for_governor(&setup).await;
    let documented = documented();
    eventually("all documented metrics", async || {
        let text = fetch(&url).await.unwrap_or_default() + &page.get("/metrics").body;
        let found = scraped(&text);
        let absent: Vec<_> = documented.difference(&found).collect();
        let undocumented: Vec<_> = found.difference(&documented).collect();
        let seen = format!("documented and absent: {absent:?}; undocumented: {undocumented:?}");
        when(absent.is_empty() && undocumented.is_empty(), seen)
    })
    .await;
}

#[tokio::test]
async fn the_documents_name_every_metric_and_no_other() {
    let documented = documented();
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

/// Returns promtool, which `scripts/test` installs.
fn promtool() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([installed]);
    let found = places.find_map(|place| {
        let program = place.join("promtool");
        program.is_file().then_some(program)
    });
    found.expect("promtool is missing: `scripts/test` installs it below target/tools")
}

#[test]
fn promtool_accepts_the_configurations_in_the_guide() {
    let guide = file("docs/monitoring.md");
    // The examples are parts of one list of jobs.
    let blocks = guide.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|it| it.split_once("```").map(|(block, _)| block));
    let jobs: Vec<&str> = blocks.filter(|it| it.contains("job_name:")).collect();
    assert!(jobs.len() > 1, "{jobs:?}");
    let env = TestEnv::new();
    let config = env.write("prometheus.yml", jobs.concat());
    let output = Command::new(promtool())
        .args(["check", "config", "--syntax-only", &config])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}\n{output:?}", jobs.concat());
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    let tests = "tests/data/prometheus/alerts.yaml";
    let output = Command::new(promtool())
        .args(["test", "rules", tests])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // Each alert has a test in which it fires and one in which it does not.
    let mut alerts = Vec::new();
    let rules: Value = serde_yaml::from_str(&file("packaging/prometheus/alerts.yaml")).unwrap();
    texts(&rules, "alert", &mut alerts);
    assert!(alerts.len() >= 8);
    let tests: Value = serde_yaml::from_str(&file(tests)).unwrap();
    let mut checked = BTreeSet::new();
    for test in tests["tests"].as_array().unwrap() {
        for case in test["alert_rule_test"].as_array().unwrap() {
            let fires = !case["exp_alerts"].as_array().unwrap().is_empty();
            checked.insert((case["alertname"].as_str().unwrap().to_owned(), fires));
        }
    }
    for alert in alerts {
        for fires in [true, false] {
            let case = (alert.clone(), fires);
            assert!(checked.contains(&case), "no test for {case:?}");
        }
    }
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
