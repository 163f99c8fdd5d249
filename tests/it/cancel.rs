//! Cancelling runs of real agents: politely, at once, and on all nodes of one request.

use serde_json::Value;

use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};

/// A fleet whose nodes apply a manifest of three execs, of which the second waits for a file.
fn waiting(nodes: &[(&str, &[&str])]) -> Fleet {
    let fleet = Fleet::start(nodes);
    let at = |name: &str| fleet.env.at(name);
    let command = format!(
        "touch {0}; while [ ! -e {1} ]; do sleep 0.05; done; touch {2}",
        at("{{ Facts.node }}.begun"),
        at("go"),
        at("{{ Facts.node }}.finished"),
    );
    let after = at("{{ Facts.node }}.after");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec: {{name: waits, provider: shell, timeout: 10m, command: \"{command}\"}}\n    \
         - exec: {{name: after, command: \"touch {after}\"}}\n"
    );
    fleet.env.write("m.yaml", manifest);
    fleet
}

/// Waits until the first resource of a node is running.
fn begun(fleet: &Fleet, node: &str) {
    wait_for("a running exec", || {
        fleet.env.exists(&format!("{node}.begun"))
    });
}

/// Waits for the end of the run that failed, and returns its error.
fn run_error(fleet: &Fleet, node: &str) -> String {
    wait_for("the end of the run", || {
        let line = fleet.run(&["nodes", "--node", node, "--jsonl"]).ok();
        let document: Value = serde_json::from_str(&line).unwrap();
        let error = find(&document, "error").unwrap_or_default();
        when(!error.is_empty(), error)
    })
}

/// Returns the first text with this key in a document.
fn find(document: &Value, key: &str) -> Option<String> {
    match document {
        Value::Object(map) => map
            .get(key)
            .and_then(Value::as_str)
            .map(str::to_owned)
            .or_else(|| map.values().find_map(|value| find(value, key))),
        Value::Array(items) => items.iter().find_map(|item| find(item, key)),
        _ => None,
    }
}

/// Returns the run id that a line of `fleet apply` names.
fn run_id(output: &str) -> String {
    let (_, id) = output.split_once(": accepted as run ").unwrap();
    id.lines().next().unwrap().to_owned()
}

#[test]
fn a_cancelled_run_finishes_its_current_resource() {
    let fleet = waiting(&[("a", &[])]);
    let accepted = fleet.run(&["apply", "m.yaml", "--node", "a"]);
    let run = run_id(&accepted.clone().ok());
    assert_eq!(run.len(), 27, "{accepted:?}");
    begun(&fleet, "a");
    let output = fleet.run(&["cancel", &run]).ok();
    assert_eq!(output, "a: cancelled\n1 node: 1 changed\n");
    fleet.env.write("go", "");
    let error = run_error(&fleet, "a");
    assert!(
        error.starts_with("stopped before exec#after: cancelled by "),
        "{error}"
    );
    assert!(fleet.env.exists("a.finished"));
    assert!(!fleet.env.exists("a.after"));
}

#[test]
fn a_run_that_is_cancelled_now_loses_its_current_command() {
    let fleet = waiting(&[("a", &[])]);
    let run = run_id(&fleet.run(&["apply", "m.yaml", "--node", "a"]).ok());
    begun(&fleet, "a");
    fleet.run(&["cancel", &run, "--now"]).ok();
    let error = run_error(&fleet, "a");
    assert!(
        error.starts_with("stopped before exec#after: cancelled by "),
        "{error}"
    );
    assert!(!fleet.env.exists("a.finished"));
    assert!(!fleet.env.exists("a.after"));
}

#[test]
fn the_runs_of_a_request_are_cancelled_together() {
    let fleet = waiting(&[("a", &[]), ("b", &[])]);
    let accepted = fleet.run(&["apply", "m.yaml", "--all"]);
    let (_, id) = accepted.stderr.split_once("ccm fleet cancel ").unwrap();
    begun(&fleet, "a");
    begun(&fleet, "b");
    let output = fleet.run(&["cancel", id.trim(), "--now"]).ok();
    assert_eq!(output, "a, b: cancelled\n2 nodes: 2 changed\n");
    for node in ["a", "b"] {
        assert!(run_error(&fleet, node).starts_with("stopped before exec#after"));
    }
}

#[test]
fn an_id_that_is_none_is_named_as_one_with_its_form() {
    let error = crate::support::TestEnv::new()
        .ccm(&["fleet", "cancel", "abc"])
        .error(2);
    assert!(error.contains("invalid value 'abc' for '<RUN>'"), "{error}");
    assert!(
        error.contains("expected an id of 27 letters and digits, as `ccm fleet apply`"),
        "{error}"
    );
}
