//! `ccm fleet forget` and labels of unknown nodes.

use serde_json::Value;

use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::web::Page;

/// Returns the results of `forget --json` for one node, by item.
fn results(outcome: &Value, node: &str) -> Vec<(String, String)> {
    let items = outcome["items"].as_array().unwrap();
    let items = items.iter().filter(|row| row["node"] == node);
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    items
        .map(|row| (text(row, "item"), text(row, "result")))
        .collect()
}

fn result_of(outcome: &Value, node: &str, item: &str) -> String {
    let found = results(outcome, node);
    let row = found.iter().find(|(name, _)| name == item);
    row.unwrap_or_else(|| panic!("{item}: {outcome}")).1.clone()
}

/// Assigns a bundle to all nodes.
fn roll_out(fleet: &Fleet) {
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    fleet.env.write("app/manifest.yaml", manifest);
    let directory = fleet.env.at("app");
    fleet
        .run(&["bundle", "push", &directory, "--name", "app"])
        .ok();
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
}

#[test]
fn every_record_of_a_retired_node_is_removed() {
    let mut fleet = Fleet::start(&[("web1", &[]), ("web2", &[])]);
    fleet.run(&["label", "web1", "tier=gold"]).ok();
    roll_out(&fleet);
    fleet.stop("web1");
    let outcome = fleet.run(&["forget", "web1", "--yes", "--json"]).json();
    for item in ["facts", "labels", "assignment", "report"] {
        assert_eq!(result_of(&outcome, "web1", item), "removed", "{outcome}");
    }
    assert_eq!(result_of(&outcome, "web1", "presence"), "none");
    let nodes = fleet.run(&["nodes", "--json"]).ok();
    assert!(!nodes.contains("web1"), "{nodes}");
    assert!(nodes.contains("web2"), "{nodes}");
    let drift = fleet.run(&["drift", "--json"]).stdout;
    assert!(!drift.contains("web1"), "{drift}");
    let audit = ["events", "--type", "audit", "--node", "web1", "--jsonl"];
    let audit = fleet.run(&audit).ok();
    let event: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
    assert_eq!(event["event"]["verb"], "forget", "{audit}");
    assert_eq!(
        event["event"]["about"], "facts, assignment, report, labels",
        "{audit}"
    );
    let again = fleet.run(&["forget", "web1", "--yes"]);
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(
        again.stderr.contains("node web1 is unknown"),
        "{}",
        again.stderr
    );
}

#[test]
fn a_node_that_is_online_is_retired_by_force_only() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let refused = fleet.run(&["forget", "web1", "--yes"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("node web1 is online"),
        "{refused:?}"
    );
    let forced = fleet.run(&["forget", "web1", "--yes", "--force", "--json"]);
    let presence = result_of(&forced.json(), "web1", "presence");
    assert!(presence.starts_with("removed"), "{presence}");
}

#[test]
fn nothing_is_removed_without_a_confirmation() {
    let mut fleet = Fleet::start(&[("web1", &[])]);
    fleet.stop("web1");
    for (answer, code) in [("n\n", 0), ("", 1)] {
        let outcome = fleet
            .env
            .ccm_with_input(&["fleet", "forget", "web1"], answer);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains("Remove all records of web1?"));
        assert!(fleet.run(&["nodes", "--json"]).ok().contains("web1"));
    }
    let outcome = fleet
        .env
        .ccm_with_input(&["fleet", "forget", "web1"], "y\n");
    let text = outcome.ok();
    assert!(text.contains("not revoked, no trust directory"), "{text}");
    assert!(!fleet.run(&["nodes", "--json"]).ok().contains("web1"));
}

#[test]
fn a_retired_node_disappears_from_the_page() {
    let mut fleet = Fleet::start(&[("web1", &[]), ("web2", &[])]);
    let page = Page::serve(&fleet.server).settled();
    wait_for("both nodes on the page", || {
        let nodes = page.get("/api/nodes").body;
        when(nodes.contains("web1") && nodes.contains("web2"), nodes)
    });
    fleet.stop("web1");
    fleet.run(&["forget", "web1", "--yes"]).ok();
    wait_for("the page without the node", || {
        let nodes = page.get("/api/nodes").body;
        when(!nodes.contains("web1") && nodes.contains("web2"), nodes)
    });
}

#[test]
fn a_label_of_an_unknown_node_needs_a_flag() {
    let mut fleet = Fleet::start(&[("web1", &[])]);
    let refused = fleet.run(&["label", "wbe1", "tier=gold"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("node wbe1 is unknown"));
    assert!(refused.stderr.contains("--create"), "{refused:?}");
    fleet.run(&["label", "web9", "tier=gold", "--create"]).ok();
    // A removal can't create a node.
    fleet.run(&["label", "web9", "tier-"]).ok();
    // An offline node is known by its facts.
    fleet.stop("web1");
    fleet.run(&["label", "web1", "tier=gold"]).ok();
}

#[test]
fn a_label_of_an_assigned_node_needs_no_flag() {
    let mut fleet = Fleet::start(&[("web1", &[])]);
    roll_out(&fleet);
    fleet.stop("web1");
    for bucket in ["CCM_FACTS", "CCM_REPORTED", "CCM_NODES"] {
        purge(&fleet, bucket, "default.web1");
    }
    fleet.run(&["label", "web1", "tier=gold"]).ok();
}

fn purge(fleet: &Fleet, bucket: &str, key: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = fleet.server.client().await;
        let bucket = client.bucket(bucket).await.unwrap();
        bucket.purge(key).await.unwrap();
    });
}
