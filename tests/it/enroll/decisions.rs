//! Decisions of an operator: approval, rejection, and names that are taken.

use serde_json::json;

use crate::support::poll::{wait_for, when};

use super::Fleet;

const NODE: &str = "db1.example.net";

#[test]
fn a_node_waits_until_it_is_approved() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let waiting = fleet.start_enroll(NODE, NODE, &token);
    let key = fleet.wait_for_request(NODE);
    let approve = ["fleet", "enroll", "approve", NODE, "--group", "db"];
    let approved = fleet.ccm(&approve).ok();
    assert_eq!(approved, format!("approved {NODE} with key {key}\n"));
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed = fleet.listed();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["state"], "enrolled");
    let config = fleet.env.read(&format!("{NODE}/agent.yaml"));
    assert!(config.contains("groups: [db]"), "{config}");
}

#[test]
fn a_rejected_node_gets_the_reason() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let waiting = fleet.start_enroll(NODE, NODE, &token);
    fleet.wait_for_request(NODE);
    let reject = ["fleet", "enroll", "reject", NODE, "--reason", "not ours"];
    fleet.ccm(&reject).ok();
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("was rejected: not ours"), "{error}");
    assert!(!fleet.env.exists(&format!("{NODE}/agent.creds")));
}

#[test]
fn who_decided_is_in_the_audit() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    for (node, decision) in [("a1", "approve"), ("b1", "reject")] {
        let waiting = fleet.start_enroll(node, node, &token);
        let key = fleet.wait_for_request(node);
        fleet.ccm(&["fleet", "enroll", decision, node]).ok();
        waiting.wait_with_output().unwrap();
        let audit = fleet.audit(node);
        let event = &audit[0];
        let event = if event["event"].is_object() {
            &event["event"]
        } else {
            event
        };
        let wanted = if decision == "approve" {
            "allowed"
        } else {
            "denied"
        };
        assert_eq!(event["decision"], wanted, "{event:#}");
        assert_eq!(event["verb"], "enroll");
        assert_eq!(event["about"], json!(format!("key {key}")));
        assert!(event["caller"].as_str().unwrap().contains('@'), "{event:#}");
    }
}

#[test]
fn an_interrupted_enrolment_continues_with_the_same_key() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let mut first = fleet.start_enroll(NODE, NODE, &token);
    let key = fleet.wait_for_request(NODE);
    first.kill().unwrap();
    first.wait().unwrap();
    let second = fleet.start_enroll(NODE, NODE, &token);
    fleet.ccm(&["fleet", "enroll", "approve", NODE]).ok();
    assert!(second.wait_with_output().unwrap().status.success());
    assert_eq!(fleet.listed()[0]["public_key"], json!(key));
    assert!(!fleet.env.exists(&format!("{NODE}/agent.seed")));
}

#[test]
fn a_name_that_is_taken_needs_replace() {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    let automatic = fleet.token(&[]);
    let refused = fleet.enroll_at(NODE, "other", &automatic, &[]).error(1);
    assert!(refused.contains("the name is taken"), "{refused}");
    let manual = fleet.token(&["--manual"]);
    let waiting = fleet.start_enroll(NODE, "other", &manual);
    fleet.wait_for_request(NODE);
    let refused = fleet.ccm(&["fleet", "enroll", "approve", NODE]).error(2);
    assert!(refused.contains("is enrolled already"), "{refused}");
    assert!(refused.contains("--replace"), "{refused}");
    let replace = ["fleet", "enroll", "approve", NODE, "--replace"];
    fleet.ccm(&replace).ok();
    assert!(waiting.wait_with_output().unwrap().status.success());
    wait_for("the end of the old connection", || {
        let log = fleet.env.read(&format!("{NODE}/log"));
        when(log.contains("Authentication Revoked"), log)
    });
}

#[test]
fn two_requests_with_one_name_are_distinguished_by_their_keys() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let first = fleet.start_enroll(NODE, "first", &token);
    let key = fleet.wait_for_request(NODE);
    let mut second = fleet.start_enroll(NODE, "second", &token);
    wait_for("two requests", || {
        let listed = fleet.listed();
        when(listed.len() == 2, listed)
    });
    let refused = fleet.ccm(&["fleet", "enroll", "approve", NODE]).error(2);
    assert!(refused.contains("2 requests"), "{refused}");
    let approve = ["fleet", "enroll", "approve", NODE, "--key", &key];
    fleet.ccm(&approve).ok();
    assert!(first.wait_with_output().unwrap().status.success());
    second.kill().unwrap();
    second.wait().unwrap();
}
