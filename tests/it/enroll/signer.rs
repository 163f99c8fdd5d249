//! Rotation of the request signer: two signers overlap, and no request is refused in between.

use serde_json::Value;

use crate::support::Outcome;
use crate::support::poll::{wait_for, when};

use super::Fleet;

const NODE: &str = "web1.example.net";

/// Starts a fleet with one enrolled node.
fn start() -> Fleet {
    let mut fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet.agent(NODE);
    fleet
}

/// Sends a request that is signed with a seed.
fn request(fleet: &Fleet, seed: &str) -> Outcome {
    let (context, seed) = (fleet.context("operator-admin"), fleet.env.at(seed));
    let ensure = ["fleet", "ensure", "exec", "/bin/true", "--node", NODE];
    let flags = ["--context", &context, "--sign-with", &seed];
    fleet.ccm(&[&ensure[..], &flags].concat())
}

/// Keeps a copy of a seed, as an operator on another machine has one.
fn copy_seed(fleet: &Fleet, name: &str) {
    let text = fleet.env.read("trust/keys/signer.seed");
    fleet.env.write_secret(name, text);
}

fn rotate(fleet: &Fleet, flags: &[&str]) -> Outcome {
    fleet.ccm(&[&["fleet", "trust", "rotate", "signer"], flags].concat())
}

/// Assigns a bundle that touches a file, with the current signer.
fn roll_out(fleet: &Fleet, file: &str) {
    let manifest = format!(
        "ccm:\n  resources:\n    - file:\n        - {}: {{ensure: present, content: x, owner: root, group: root, mode: '0644'}}\n",
        fleet.env.at(file)
    );
    fleet.env.write("app/manifest.yaml", manifest);
    let directory = fleet.env.at("app");
    let context = fleet.context("controller-main");
    let seed = fleet.env.at("trust/keys/signer.seed");
    for args in [
        &["bundle", "push", &directory, "--name", "app"][..],
        &["rollout", "start", "app", "--all"][..],
    ] {
        let flags = ["--context", &context, "--sign-with", &seed];
        fleet.ccm(&[&["fleet"], args, &flags].concat()).ok();
    }
}

#[test]
fn requests_of_both_signers_are_accepted_until_the_old_one_is_retired() {
    let fleet = start();
    copy_seed(&fleet, "old.seed");
    request(&fleet, "old.seed").ok();
    let before = fleet.env.read("trust/agent-trust.yaml");
    rotate(&fleet, &[]).ok();
    copy_seed(&fleet, "new.seed");
    assert_ne!(fleet.env.read("old.seed"), fleet.env.read("new.seed"));
    for _ in 0..3 {
        request(&fleet, "new.seed").ok();
        request(&fleet, "old.seed").ok();
    }
    rotate(&fleet, &["--retire"]).ok();
    request(&fleet, "new.seed").ok();
    wait_for("the refusal of the old signer", || {
        let outcome = request(&fleet, "old.seed");
        let is_refused = outcome.stdout.contains("signer is not trusted");
        when(is_refused, format!("{outcome:?}"))
    });
    request(&fleet, "new.seed").ok();
    assert_ne!(fleet.env.read("trust/agent-trust.yaml"), before);
    assert!(!fleet.env.exists("trust/keys/signer-previous.seed"));
}

#[test]
fn a_node_that_has_not_read_the_change_accepts_the_first_request() {
    let fleet = start();
    // Nothing waits for nodes, and the request follows at once.
    rotate(&fleet, &["--wait", "1ms"]).ok();
    copy_seed(&fleet, "new.seed");
    request(&fleet, "new.seed").ok();
}

#[test]
fn a_node_that_was_away_follows_when_it_returns() {
    let mut fleet = start();
    copy_seed(&fleet, "old.seed");
    let mut agent = fleet.processes.pop().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    // Its presence record remains for a while.
    rotate(&fleet, &["--wait", "1ms"]).ok();
    rotate(&fleet, &["--retire", "--force", "--wait", "1ms"]).ok();
    copy_seed(&fleet, "new.seed");
    fleet.agent(NODE);
    wait_for("the new signer", || {
        let outcome = request(&fleet, "new.seed");
        when(outcome.code == Some(0), format!("{outcome:?}"))
    });
    let refused = request(&fleet, "old.seed");
    assert!(
        refused.stdout.contains("signer is not trusted"),
        "{refused:?}"
    );
}

#[test]
fn an_assignment_of_the_retired_signer_is_still_followed() {
    let mut fleet = start();
    roll_out(&fleet, "managed");
    assert!(fleet.env.exists("managed"));
    rotate(&fleet, &[]).ok();
    rotate(&fleet, &["--retire"]).ok();
    let mut agent = fleet.processes.pop().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    std::fs::remove_file(fleet.env.path("managed")).unwrap();
    fleet.agent(NODE);
    wait_for("the managed file", || {
        let log = fleet.env.read(&format!("{NODE}/log"));
        when(fleet.env.exists("managed"), log)
    });
    // The new signer assigns as well.
    roll_out(&fleet, "other");
    assert!(fleet.env.exists("other"));
}

#[test]
fn the_old_signer_is_not_retired_while_a_node_depends_on_it() {
    let mut fleet = start();
    let mut agent = fleet.processes.pop().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    rotate(&fleet, &["--wait", "1ms"]).ok();
    let error = rotate(&fleet, &["--retire", "--wait", "1ms"]).error(2);
    assert!(error.contains(NODE), "{error}");
    assert!(error.contains("--force"), "{error}");
    let again = rotate(&fleet, &[]).error(2);
    assert!(again.contains("not retired yet"), "{again}");
}

#[test]
fn nodes_show_the_signers_that_they_trust() {
    let fleet = start();
    rotate(&fleet, &[]).ok();
    let signers = wait_for("the signers", || {
        let nodes = fleet.operator(&["nodes", "--json"]).json();
        let signers = nodes["nodes"][0]["status"]["trust"]["signers"].clone();
        when(signers.as_array().is_some_and(|it| it.len() == 2), signers)
    });
    let document: Value = serde_json::from_str(&fleet.env.read("trust/fleet.json")).unwrap();
    for field in ["signer", "previous_signer"] {
        assert!(
            signers.as_array().unwrap().contains(&document[field]),
            "{signers}"
        );
    }
}
