//! Tests of the inventory: records that are read, left out and combined.

use super::*;
use crate::fixture::{entry, subjects};
use ccm_core::model::node::{NODE_FACTS, NODE_STATUS, REPORT};

fn presence(key: &str, identity: &str) -> Entry {
    let status = serde_json::json!({
        "protocol": NODE_STATUS,
        "identity": identity,
        "collective": "lab",
        "version": "1",
        "started": "2027-01-15T08:00:00Z",
        "timestamp": "2027-01-15T08:00:00Z",
        "beat": 30
    });
    entry(key, status)
}

fn report(key: &str, identity: &str) -> Entry {
    let report = serde_json::json!({
        "protocol": REPORT,
        "identity": identity,
        "generation": 3,
        "manifests": [],
        "timestamp": "2027-01-15T08:00:00Z"
    });
    entry(key, report)
}

fn facts(key: &str, identity: &str) -> Entry {
    let facts = serde_json::json!({
        "protocol": NODE_FACTS,
        "identity": identity,
        "groups": ["stored"],
        "version": "0",
        "timestamp": "2027-01-15T08:00:00Z",
        "facts": {"os": "debian"}
    });
    entry(key, facts)
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn inventory(nodes: &[Entry], facts: &[Entry], labels: &[Entry], reports: &[Entry]) -> Inventory {
    fn records<T>(entries: &[Entry], parse: impl Fn(&Entry) -> Result<T, BadRecord>) -> Records<T> {
        let records = entries.iter().map(|it| (it.key.clone(), parse(it)));
        records.collect()
    }
    let subjects = subjects();
    let mut inventory = Inventory::default();
    inventory.add_present(records(nodes, |it| {
        Ok((status_of(&subjects, it)?.into(), None))
    }));
    inventory.add_facts(records(facts, |it| {
        let stored = facts_of(&subjects, it)?;
        Ok((stored.identity.clone(), stored, None))
    }));
    inventory.add_reports(records(reports, |it| report_of(&subjects, it)));
    inventory.add_labels(records(labels, |it| labels_of(&subjects, it)));
    inventory
}

#[test]
fn a_node_with_only_labels_or_a_report_is_known_and_offline() {
    let inventory = inventory(
        &[presence("lab.web1_example_net", "web1.example.net")],
        &[],
        &[entry("lab.db1", serde_json::json!({"role": "db"}))],
        &[report("lab.web2_example_net", "web2.example.net")],
    );
    assert!(inventory.unreadable().is_empty());
    let resolved = inventory.resolve(&Selection::default()).unwrap();
    assert_eq!(resolved.chosen, [name("web1.example.net")]);
    assert_eq!(resolved.offline, [name("db1"), name("web2.example.net")]);
    assert_eq!(inventory.labels(&name("db1")).get("role"), Some("db"));
    let last = inventory.last_report(&name("web2.example.net")).unwrap();
    assert_eq!(last.at.to_rfc3339(), "2027-01-15T08:00:00+00:00");
    assert!(inventory.status(&name("web1.example.net")).is_some());
    assert!(inventory.status(&name("db1")).is_none());
    assert!(inventory.has_reported_itself(&name("web2.example.net")));
    assert!(!inventory.has_reported_itself(&name("db1")));
}

#[test]
fn a_node_with_only_an_assignment_is_known_and_keeps_its_labels() {
    let labels = [entry("lab.web1", serde_json::json!({"role": "web"}))];
    let mut inventory = inventory(&[], &[], &labels, &[]);
    let assigned = ["web1", "web2"].map(|node| (format!("lab.{node}"), Ok(name(node))));
    inventory.add_assigned(assigned.into());
    assert_eq!(inventory.labels(&name("web1")).get("role"), Some("web"));
    let resolved = inventory.resolve(&Selection::default()).unwrap();
    assert_eq!(resolved.offline, [name("web1"), name("web2")]);
    assert!(inventory.unreadable().is_empty());
}

#[test]
fn a_record_with_the_identity_of_another_node_is_left_out() {
    let nodes = [presence("lab.web1", "web1"), presence("lab.evil", "web1")];
    let reports = [report("lab.evil", "db1")];
    let inventory = inventory(&nodes, &[], &[], &reports);
    assert_eq!(inventory.online(), 1);
    let reasons: Vec<String> = inventory
        .unreadable()
        .iter()
        .map(|one| one.reason.to_string())
        .collect();
    assert_eq!(
        reasons,
        [
            "the record has the identity web1",
            "the record has the identity db1"
        ]
    );
}

#[test]
fn a_broken_record_hides_no_others() {
    let nodes = [
        entry("lab.web1", serde_json::json!({"identity": 7})),
        entry("lab.UPPER", serde_json::json!({})),
        presence("lab.web2", "web2"),
    ];
    let inventory = inventory(&nodes, &[], &[], &[]);
    assert_eq!(inventory.online(), 1);
    let keys: Vec<&str> = inventory
        .unreadable()
        .iter()
        .map(|one| one.key.as_str())
        .collect();
    assert_eq!(keys, ["lab.UPPER", "lab.web1"]);
}

#[test]
fn presence_precedes_stored_facts() {
    let nodes = [presence("lab.web1", "web1")];
    let stored = [
        facts("lab.web1", "web1"),
        facts("lab.web2", "web2"),
        facts("lab.evil", "web1"),
    ];
    let inventory = inventory(&nodes, &stored, &[], &[]);
    let (facts, _) = inventory.facts(&name("web1")).unwrap();
    assert_eq!(facts.get("os"), None);
    assert_eq!(inventory.groups(&name("web1")), []);
    assert_eq!(inventory.version(&name("web1")), Some("1"));
    let (facts, time) = inventory.facts(&name("web2")).unwrap();
    assert_eq!(facts.get("os"), Some(&"debian".into()));
    assert_eq!(time.to_rfc3339(), "2027-01-15T08:00:00+00:00");
    assert_eq!(inventory.version(&name("web2")), Some("0"));
    assert!(inventory.has_reported_itself(&name("web2")));
    let unreadable = inventory.unreadable();
    assert_eq!(unreadable.len(), 1, "{unreadable:?}");
    assert_eq!(unreadable[0].key, "lab.evil");
}

#[test]
fn of_names_only_the_status_of_paused_and_strict_nodes_is_kept() {
    let with = |name: &str, more: serde_json::Value| {
        let mut status: serde_json::Value =
            serde_json::from_slice(&presence(&format!("lab.{name}"), name).value).unwrap();
        for (key, value) in more.as_object().unwrap() {
            status[key] = value.clone();
        }
        entry(&format!("lab.{name}"), status)
    };
    let pause = serde_json::json!({"reason": "disk", "since": "2027-01-15T08:00:00Z"});
    for (node, is_kept) in [
        (with("web1", serde_json::json!({})), false),
        (
            with("web1", serde_json::json!({"trust": {"required": false}})),
            false,
        ),
        (
            with("web1", serde_json::json!({"trust": {"required": true}})),
            true,
        ),
        (with("web1", serde_json::json!({"pause": pause})), true),
    ] {
        let found = name_and_pause_of(&subjects(), &node).unwrap();
        assert_eq!(found.name, name("web1"));
        assert_eq!(found.status.is_some(), is_kept, "{node:?}");
    }
    let other = presence("lab.evil", "web1");
    assert!(name_and_pause_of(&subjects(), &other).is_err());
}
