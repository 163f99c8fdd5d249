//! What an enrolled node can do, and that it can do nothing after it is revoked.

use crate::support::poll::{wait_for, when};

use super::Fleet;

const NODE: &str = "web1.example.net";

#[test]
fn a_node_that_enrolled_with_a_token_executes_a_signed_request() {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&["--group", "web"]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    let file = fleet.env.at("managed");
    let ensure = [
        "ensure",
        "file",
        &file,
        "--content",
        "hi\n",
        "--mode",
        "0644",
    ];
    fleet
        .operator(&[&ensure[..], &["--node", NODE]].concat())
        .ok();
    assert_eq!(fleet.env.read("managed"), "hi\n");
}

#[test]
fn an_enrolled_node_refuses_unsigned_requests() {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    let context = fleet.context("operator-admin");
    let pause = ["fleet", "pause", "--node", NODE, "--reason", "x"];
    let outcome = fleet.ccm(&[&pause[..], &["--context", &context]].concat());
    assert!(outcome.stdout.contains("not signed"), "{outcome:?}");
}

#[test]
fn a_revoked_node_is_disconnected_and_does_not_return() {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    fleet.ccm(&["fleet", "trust", "revoke", "agent", NODE]).ok();
    let log = format!("{NODE}/log");
    // First the server closes the connection, then it refuses the next one.
    for text in ["Authentication Revoked", "authorization violation"] {
        wait_for("the end of the connection", || {
            let log = fleet.env.read(&log);
            when(log.to_lowercase().contains(&text.to_lowercase()), log)
        });
    }
    let other = fleet.token(&[]);
    let refused = fleet.enroll(NODE, &other).error(1);
    assert!(refused.contains("this key was revoked"), "{refused}");
}

#[test]
fn a_revocation_survives_a_restart_of_the_server() {
    let mut fleet = Fleet::start();
    let token = fleet.token(&["--count", "2"]);
    fleet.enroll(NODE, &token).ok();
    fleet.ccm(&["fleet", "trust", "revoke", "agent", NODE]).ok();
    let mut server = fleet.processes.remove(0);
    server.kill().unwrap();
    server.wait().unwrap();
    fleet.start_server();
    let context = fleet.env.at(&format!("{NODE}/nats-context.json"));
    let outcome = fleet.ccm(&["fleet", "nodes", "--context", &context]);
    let error = outcome.error(1);
    assert!(error.contains("authorization violation"), "{error}");
}

#[test]
fn a_revoked_node_can_enroll_with_a_new_key() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--count", "2"]);
    fleet.enroll(NODE, &token).ok();
    fleet.ccm(&["fleet", "trust", "revoke", "agent", NODE]).ok();
    fleet.enroll_at(NODE, NODE, &token, &["--new-key"]).ok();
    let states: Vec<_> = fleet.listed();
    assert_eq!(states[0]["state"], "enrolled", "{states:?}");
}

#[test]
fn enrolled_nodes_move_to_a_new_signing_key_before_the_old_one_is_retired() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--group", "web"]);
    fleet.enroll(NODE, &token).ok();
    fleet.ccm(&["fleet", "trust", "rotate", "agent"]).ok();
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    let retire = ["fleet", "trust", "rotate", "agent", "--retire"];
    fleet.ccm(&retire).ok();
    // It connects, and still has its group.
    let again = fleet.enroll(NODE, &token).ok();
    assert!(again.starts_with("enrolled"), "{again}");
    let config = fleet.env.read(&format!("{NODE}/agent.yaml"));
    assert!(config.contains("groups: [web]"), "{config}");
}

#[test]
fn the_old_signing_key_is_not_retired_while_a_node_uses_it() {
    let fleet = Fleet::start();
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet.ccm(&["fleet", "trust", "rotate", "agent"]).ok();
    assert_eq!(fleet.listed()[0]["state"], "old key");
    let retire = ["fleet", "trust", "rotate", "agent", "--retire"];
    let refused = fleet.ccm(&retire).error(2);
    assert!(refused.contains(NODE), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    fleet.ccm(&[&retire[..], &["--force"]].concat()).ok();
}

#[test]
fn nodes_that_were_forgotten_before_a_failure_are_printed() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--count", "2"]);
    for node in [NODE, "web2.example.net"] {
        fleet.enroll(node, &token).ok();
    }
    // A record that can't be revoked.
    let record = r#"{"role": "agent", "name": "web2.example.net", "public_key": "damaged",
        "issued": "2026-01-01T00:00:00Z", "issuer": "A"}"#;
    fleet
        .env
        .write("trust/users/agent-web2.example.net.json", record);
    let forget = ["fleet", "forget", NODE, "web2.example.net", "--yes"];
    let outcome = fleet.ccm(&forget);
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    let removed = outcome.stdout.lines().any(|line| {
        line.starts_with(NODE) && line.contains("credentials") && line.contains("revoked")
    });
    assert!(removed, "{outcome:?}");
}

#[test]
fn a_forgotten_node_is_disconnected_and_its_key_is_refused() {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&["--count", "2"]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    let forget = ["fleet", "forget", NODE, "--force", "--yes", "--json"];
    let outcome = fleet.ccm(&forget).json();
    let result = |item: &str| {
        let items = outcome["items"].as_array().unwrap();
        let row = items.iter().find(|row| row["item"] == item).unwrap();
        row["result"].as_str().unwrap().to_owned()
    };
    assert_eq!(result("enrolment"), "removed", "{outcome}");
    assert!(result("credentials").starts_with("revoked: U"), "{outcome}");
    let log = format!("{NODE}/log");
    wait_for("the end of the connection", || {
        let log = fleet.env.read(&log);
        when(log.contains("Authentication Revoked"), log)
    });
    assert_eq!(fleet.listed(), [serde_json::Value::Null; 0]);
    let nodes = fleet.operator(&["nodes", "--json"]).ok();
    assert!(!nodes.contains(NODE), "{nodes}");
    let refused = fleet.enroll(NODE, &token).error(1);
    assert!(refused.contains("this key was revoked"), "{refused}");
}
