use serde_json::json;

use super::*;
use crate::fixture::{report, run, status};

fn node() -> Node {
    let mut node = Node::new("web1".parse().unwrap());
    node.set_presence(Some(status("web1")), Instant::now());
    node
}

#[test]
fn a_node_that_is_only_known_is_offline() {
    let mut node = Node::new("web1".parse().unwrap());
    node.set_report(Some(report("web1", 1)));
    assert_eq!(node.row().state, NodeState::Offline);
}

#[test]
fn a_pause_takes_precedence_over_runs() {
    let mut node = node();
    node.record_run(run("web1", RunOutcome::Failed, 10));
    assert_eq!(node.row().state, NodeState::Failed);
    let mut paused = status("web1");
    paused.pause = serde_json::from_value(json!({
        "reason": "disk swap", "since": "2027-01-15T08:00:00Z"
    }))
    .unwrap();
    node.set_presence(Some(paused), Instant::now());
    let row = node.row();
    assert_eq!(
        (row.state, row.note.as_str()),
        (NodeState::Paused, "disk swap")
    );
}

#[test]
fn a_run_that_waits_names_the_governor() {
    let mut node = node();
    let mut waiting = status("web1");
    waiting.current_run = serde_json::from_value(json!({
        "run_id": "3Ouil37bUs2V3TmTG2OoEYtuLS3", "source": "site", "trigger": "request",
        "since": "2027-01-15T08:00:00Z", "waiting_for": "governor deploys",
    }))
    .unwrap();
    node.set_presence(Some(waiting), Instant::now());
    let row = node.row();
    assert_eq!(
        (row.state, row.note.as_str()),
        (NodeState::Running, "waiting for governor deploys: site")
    );
    assert_eq!(node.awaited_governor().unwrap().as_str(), "deploys");
}

#[test]
fn the_newest_run_counts_whatever_its_source() {
    let mut node = node();
    node.record_run(run("web1", RunOutcome::Failed, 10));
    let mut after = report("web1", 1);
    after.run = Some(run("web1", RunOutcome::Changed, 20));
    node.set_report(Some(after));
    assert_eq!(node.row().state, NodeState::Stable);
    node.record_run(run("web1", RunOutcome::Failed, 5));
    assert_eq!(node.row().state, NodeState::Stable, "an old run is ignored");
}

#[test]
fn drift_in_the_report_makes_a_node_drifted_and_a_noop_run_does_not() {
    let mut drifted = node();
    let mut found = report("web1", 1);
    found.drift = serde_json::from_value(json!([{
        "type": "file", "name": "/etc/motd", "message": "would change content",
        "since": "2027-01-15T08:00:00Z"
    }]))
    .unwrap();
    drifted.set_report(Some(found));
    let row = drifted.row();
    assert_eq!((row.state, row.drift), (NodeState::Drifted, 1));
    assert_eq!(row.note, "file#/etc/motd: would change content");
    let mut noop = node();
    noop.record_run(run("web1", RunOutcome::Noop, 1));
    assert_eq!(noop.row().state, NodeState::Stable);
}

#[test]
fn an_error_about_an_older_assignment_is_ignored() {
    let mut node = node();
    let mut failed = report("web1", 1);
    failed.error = "no such bundle".into();
    node.set_report(Some(failed));
    assert_eq!(node.row().state, NodeState::Failed);
    node.set_assignment(
        serde_json::from_value(json!({
            "protocol": "x", "generation": 2, "manifests": [],
            "assigned": "2027-01-15T08:00:00Z"
        }))
        .unwrap(),
    );
    let row = node.row();
    assert_eq!((row.state, row.lagging), (NodeState::Stable, true));
}

#[test]
fn a_node_that_misses_heartbeats_is_expired() {
    let node = node();
    let now = Instant::now();
    assert!(!node.is_expired(now + Duration::from_secs(80)));
    assert!(node.is_expired(now + Duration::from_secs(100)));
}

#[test]
fn search_finds_names_groups_and_labels() {
    let mut node = node();
    let mut grouped = status("web1");
    grouped.groups = vec!["Frontend".parse().unwrap()];
    node.set_presence(Some(grouped), Instant::now());
    node.set_labels(serde_json::from_value(json!({"role": "Edge"})).unwrap());
    for text in ["web", "front", "role=edge"] {
        assert!(node.matches_text(text), "{text}");
    }
    assert!(!node.matches_text("db"));
}

#[test]
fn an_offline_node_has_the_version_and_groups_that_it_stored() {
    let mut node = node();
    let mut stored = StoredFacts::from(&status("web1"));
    stored.version = "0.9.0".into();
    stored.groups = vec!["web".parse().unwrap()];
    node.set_stored(Some(stored));
    assert_eq!(node.row().version, "1.0.0");
    node.set_presence(None, Instant::now());
    let row = node.row();
    assert_eq!(
        (row.state, row.version.as_str()),
        (NodeState::Offline, "0.9.0")
    );
    assert_eq!(row.groups, ["web".parse().unwrap()]);
    assert!(!node.has_no_records());
}

#[test]
fn the_number_of_resources_per_node_is_limited() {
    let mut node = node();
    let mut known = 0;
    for number in 0..MAX_RESOURCES as u64 + 10 {
        let event = EventRow::example(number, "web1", &format!("/etc/{number}"), "stable");
        known += node.record_resource(&Arc::new(event), false);
    }
    assert_eq!(
        (known, node.resource_count()),
        (MAX_RESOURCES, MAX_RESOURCES)
    );
    assert!(
        !node
            .resources
            .contains_key(&("file".into(), "/etc/0".into()))
    );
    let late = EventRow::example(9999, "web1", "/late", "stable");
    assert_eq!(node.record_resource(&Arc::new(late), true), 0);
}

#[test]
fn an_unreadable_record_is_the_reason_of_a_failure() {
    let mut node = node();
    let now = Instant::now();
    node.set_report(Some(report("web1", 1)));
    node.set_unreadable(Source::Report, "no identity".into(), now);
    let row = node.row();
    assert_eq!((row.state, row.lagging), (NodeState::Failed, false));
    assert_eq!(row.note, "report is unreadable: no identity");
    node.set(Record::Report(Box::new(report("web1", 1))), now);
    assert_eq!(node.row().state, NodeState::Stable);
}

#[test]
fn a_node_with_unreadable_presence_is_not_offline() {
    let mut node = node();
    node.set_unreadable(Source::Presence, "no identity".into(), Instant::now());
    assert!(!node.has_no_records());
    assert_eq!(node.row().state, NodeState::Failed);
}
