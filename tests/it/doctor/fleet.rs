//! `ccm fleet doctor`: servers, streams, rollouts, nodes and enrolments.

use super::Diagnosis;
use crate::enroll::Fleet as EnrolledFleet;
use crate::rollout;
use crate::support::TestEnv;
use crate::support::agent::AgentProcess;
use crate::support::fleet::Fleet;
use crate::support::nats::Cluster;
use crate::support::poll::{eventually, wait_for};

fn diagnose(fleet: &Fleet) -> Diagnosis {
    Diagnosis::read(&fleet.run(&["doctor", "--json"]))
}

/// Diagnoses until a check has a state.
fn wait_for_state(name: &str, state: &str, diagnose: impl Fn() -> Diagnosis) -> Diagnosis {
    wait_for(name, || {
        let found = diagnose();
        let is_it = found.state(name) == state;
        if is_it {
            Ok(found)
        } else {
            Err(found.document)
        }
    })
}

#[test]
fn nothing_is_wrong_with_a_fleet_that_works() {
    let fleet = rollout::fleet(&["a", "b"]);
    let found = diagnose(&fleet);
    assert_eq!(found.code, Some(0), "{:#}", found.document);
    assert_eq!(found.document["state"], "ok", "{:#}", found.document);
    found.assert("nodes_online", "ok", "2 nodes online", "");
    found.assert("streams", "ok", "10 exist", "");
    let text = fleet.run(&["doctor"]).ok();
    assert!(text.starts_with("CHECK          STATE"), "{text}");
    let problems = fleet.run(&["doctor", "--problems"]).ok();
    assert_eq!(problems, "no problems\n");
}

#[test]
fn a_server_that_is_down_is_named() {
    let mut fleet = rollout::fleet(&[]);
    fleet.server.stop();
    let found = diagnose(&fleet);
    found.assert(
        "server",
        "failed",
        "connection refused",
        "check that a server runs",
    );
}

#[tokio::test]
async fn a_missing_bucket_and_changed_settings_are_named() {
    let fleet = rollout::fleet(&[]);
    let jetstream = fleet.server.jetstream().await;
    let stream = jetstream.get_stream("KV_CCM_DESIRED").await.unwrap();
    let mut config = stream.cached_info().config.clone();
    config.max_messages_per_subject = 2;
    jetstream.update_stream(config).await.unwrap();
    diagnose(&fleet).assert(
        "streams",
        "warning",
        "settings differ: CCM_DESIRED",
        "ccm fleet init",
    );
    jetstream.delete_stream("KV_CCM_LABELS").await.unwrap();
    let found = diagnose(&fleet);
    found.assert("streams", "failed", "missing: CCM_LABELS", "ccm fleet init");
    fleet.run(&["init"]).ok();
    assert_eq!(diagnose(&fleet).state("streams"), "ok");
}

#[test]
fn a_rollout_without_a_controller_and_a_halted_one_are_named() {
    let fleet = rollout::fleet(&["a"]);
    rollout::push(&fleet, "app", "false");
    fleet
        .run(&["rollout", "start", "app", "--all", "--detach"])
        .ok();
    let found = diagnose(&fleet);
    found.assert(
        "rollouts",
        "failed",
        "no controller drives",
        "ccm fleet rollout drive",
    );
    let _ = fleet.run(&["rollout", "drive"]);
    let found = wait_for_state("nodes_health", "warning", || diagnose(&fleet));
    found.assert("rollouts", "warning", "halted:", "ccm fleet rollout show");
    found.assert(
        "nodes_health",
        "warning",
        "last run failed: a",
        "--outcome failed",
    );
}

#[test]
fn nodes_that_are_offline_unhealthy_or_paused_are_named() {
    let mut fleet = rollout::fleet(&["a", "b"]);
    fleet.run(&["pause", "--node", "b", "--reason", "x"]).ok();
    fleet.stop("a");
    let found = wait_for_state("nodes_health", "warning", || diagnose(&fleet));
    found.assert("nodes_health", "warning", "paused: b", "ccm fleet resume");
    found.assert(
        "nodes_online",
        "warning",
        "1 offline: a (last seen",
        "ccm doctor",
    );
    fleet.break_state_dir("b");
    let found = wait_for_state("nodes_health", "failed", || diagnose(&fleet));
    found.assert("nodes_health", "failed", "unhealthy: b", "ccm doctor");
}

#[test]
fn a_node_with_another_time_is_named() {
    let fleet = rollout::fleet(&[]);
    let mut env = TestEnv::new();
    for (name, value) in crate::support::clock::variables("-2m") {
        env.set(name, &value);
    }
    let _agent = AgentProcess::start(&env, "late", &fleet.server.url(), "");
    let found = wait_for_state("nodes_clock", "failed", || diagnose(&fleet));
    found.assert("nodes_clock", "failed", "late (-1", "synchronize");
}

#[test]
fn a_request_that_waits_for_a_decision_is_named() {
    let fleet = EnrolledFleet::start();
    let token = fleet.token(&["--manual"]);
    let mut waiting = fleet.start_enroll("db1", "db1", &token);
    fleet.wait_for_request("db1");
    let found = Diagnosis::read(&fleet.operator(&["doctor", "--json"]));
    found.assert(
        "enrolments",
        "warning",
        "1 waiting request",
        "ccm fleet enroll list",
    );
    waiting.kill().unwrap();
    waiting.wait().unwrap();
}

#[test]
fn a_monitor_is_permitted_to_diagnose_all_but_enrolments() {
    let fleet = EnrolledFleet::start();
    let issue = ["fleet", "trust", "issue", "monitor", "page", "--save"];
    fleet.ccm(&issue).ok();
    let context = fleet.env.at("trust/contexts/monitor-page.json");
    let args = ["fleet", "doctor", "--json", "--context", &context];
    let found = Diagnosis::read(&fleet.ccm(&args));
    assert_eq!(found.failed(), [""; 0], "{:#}", found.document);
    found.assert("streams", "ok", "9 exist", "");
    assert_eq!(found.state("enrolments"), "not_checked");
}

#[tokio::test]
async fn replicas_that_are_missing_are_named() {
    let mut cluster = Cluster::start();
    cluster.client().await;
    let env = TestEnv::new();
    let url = cluster.url();
    let run = |args: &[&str]| env.ccm(&[&["fleet", "--server", &url], args].concat());
    eventually("streams", async || {
        let outcome = run(&["init", "--replicas", "1"]);
        if outcome.code == Some(0) {
            Ok(())
        } else {
            Err(outcome)
        }
    })
    .await;
    let diagnose = || Diagnosis::read(&run(&["doctor", "--json"]));
    let found = diagnose();
    found.assert(
        "replication",
        "warning",
        "fewer than 3 replicas",
        "--replicas 3",
    );
    run(&["init", "--replicas", "3"]).ok();
    wait_for_state("replication", "ok", diagnose);
    cluster.servers[2].stop();
    let found = wait_for_state("replication", "warning", diagnose);
    let text = found.check("replication")["found"].as_str().unwrap();
    assert!(text.contains("n3"), "{text}");
}
