//! The agent's log, its presence record, and errors that must fit into a message.

use std::time::Duration;

use ccm_nats::streams::NODES;
use ccm_nats::{Headers, Verb};
use serde_json::Value;

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request, request_json};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;

const NODE: &str = "web1.example.net";

/// Waits for a line of the log that holds all of these.
async fn line(agent: &AgentProcess, parts: &[&str]) -> String {
    eventually(&format!("a line with {parts:?}"), async || {
        let log = agent.log();
        let mut lines = log.lines();
        let found = lines.find(|line| parts.iter().all(|part| line.contains(part)));
        found.map(ToOwned::to_owned).ok_or(log)
    })
    .await
}

#[tokio::test]
async fn the_log_has_connects_and_disconnects() {
    let env = TestEnv::new();
    let mut server = NatsServer::start();
    let agent = AgentProcess::start(&env, NODE, &server.url(), "");
    line(&agent, &["level=INFO", "Connected to NATS", &server.url()]).await;
    server.stop();
    line(&agent, &["level=WARN", "Lost the connection to NATS"]).await;
    agent.signal("TERM");
    line(&agent, &["level=INFO", "Agent stopping"]).await;
    assert_eq!(agent.wait(), Some(0));
}

#[tokio::test]
async fn the_log_names_a_variable_that_overrides_the_configuration() {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    env.set("NATS_URL", &server.url());
    let agent = AgentProcess::start(&env, NODE, "nats://127.0.0.1:1", "");
    line(&agent, &["level=WARN", "variable=NATS_URL", "key=servers"]).await;
    line(&agent, &["Connected to NATS", &server.url()]).await;
}

#[tokio::test]
async fn the_log_has_the_cause_of_a_failed_connection() {
    let env = TestEnv::new();
    let unused_url = "nats://127.0.0.1:1";
    let agent = AgentProcess::start(&env, NODE, unused_url, "");
    line(
        &agent,
        &["level=WARN", "NATS connection error", unused_url, "error="],
    )
    .await;
    let server = NatsServer::with("authorization { user: a, password: b }");
    let agent = AgentProcess::start(&env, "web2.example.net", &server.url(), "");
    line(
        &agent,
        &["NATS connection error", "authorization violation"],
    )
    .await;
}

#[tokio::test]
async fn a_run_that_failed_or_changed_something_ends_with_a_higher_log_level() {
    let setup = Setup::process(NODE, "").await;
    for (command, mode, level) in [
        ("/bin/false", "", "level=ERROR"),
        ("/bin/true", "", "level=WARN"),
        ("/bin/true", ", \"noop\": true", "level=WARN"),
        ("/bin/true", ", \"health_check_only\": true", "level=INFO"),
    ] {
        let body = format!(
            r#"{{"protocol": "io.choria.ccm.v1.manifest.apply.request", "wait": true{mode},
                "manifest": {{"ccm": {{"resources": [{{"exec": [{{"{command}": {{}}}}]}}]}}}}}}"#
        );
        let answer = request_json(&setup.client, NODE, Verb::Apply, &body).await;
        let run = answer["run_id"].as_str().unwrap();
        line(&setup.agent, &[level, "Session: resources=", run]).await;
    }
}

#[tokio::test]
async fn a_refused_request_is_logged_without_its_content() {
    let setup = Setup::process(NODE, "").await;
    let send = async |verb, name: &'static str, value: &str, body: &str| {
        let headers = Headers::new().with(name, value).unwrap();
        let headers = headers.with("Ccm-Caller", "ann").unwrap();
        request(&setup.client, NODE, verb, headers, body).await
    };
    let _ = send(
        Verb::Ensure,
        "Ccm-Request-Id",
        "r1",
        r#"{"protocol":"hunter2"}"#,
    )
    .await;
    let _ = send(Verb::Ping, "Ccm-Filter", "hunter2", "").await;
    let _ = send(Verb::Ping, "Ccm-Deadline", "2020-01-01T00:00:00Z", "").await;
    let denied = "Request denied";
    line(
        &setup.agent,
        &[
            denied,
            "verb=ensure",
            "caller=ann",
            "request=r1",
            "malformed",
        ],
    )
    .await;
    line(
        &setup.agent,
        &[denied, "verb=ping", "caller=ann", "malformed request"],
    )
    .await;
    line(&setup.agent, &[denied, "verb=ping", "deadline has passed"]).await;
    let _ = send(Verb::Pause, "Ccm-Request-Id", "r2", "disk swap").await;
    let body = agent::file_request(&setup.env.path("f"), "x");
    let reply = send(Verb::Ensure, "Ccm-Request-Id", "r3", &body).await;
    assert_eq!(reply.service_error().unwrap().0, 423);
    line(
        &setup.agent,
        &[denied, "request=r3", "node is paused by ann: disk swap"],
    )
    .await;
    assert!(
        !setup.agent.log().contains("hunter2"),
        "{}",
        setup.agent.log()
    );
}

#[tokio::test]
async fn the_log_names_a_missing_object_or_bucket() {
    let lines = "manifests: [\"obj://NOWHERE/a.tgz\", \"obj://CCM_MANIFESTS/b.tgz\"]\n";
    let setup = Setup::process(NODE, lines).await;
    let failed = "Could not fetch a manifest";
    line(&setup.agent, &[failed, "bucket NOWHERE does not exist"]).await;
    let missing = "object b.tgz does not exist in bucket CCM_MANIFESTS";
    line(&setup.agent, &[failed, missing]).await;
}

#[tokio::test]
async fn a_run_is_in_the_presence_record_before_the_next_beat() {
    let setup = Setup::inside_with(NODE, |config, _| {
        config.beat = Duration::from_secs(3600);
    })
    .await;
    let bucket = setup.client.bucket(NODES).await.unwrap();
    let go = setup.env.root().join("go");
    let wait = format!(
        "/bin/sh -c 'until [ -e {} ]; do sleep 0.1; done'",
        go.display()
    );
    let body = serde_json::json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": {"ccm": {"resources": [{"exec": [{wait: {}}]}]}},
    });
    let answer = request_json(&setup.client, NODE, Verb::Apply, &body.to_string()).await;
    for (what, end) in [("current_run", true), ("last_run", false)] {
        eventually(what, async || {
            let entry = bucket.get("default.web1_example_net").await.unwrap();
            let entry = entry.ok_or(Value::Null)?;
            let status: Value = serde_json::from_slice(&entry.value).unwrap();
            when(status[what]["run_id"] == answer["run_id"], status)
        })
        .await;
        if end {
            std::fs::write(&go, "").unwrap();
        }
    }
}

#[tokio::test]
async fn an_error_that_repeats_a_huge_request_is_still_answered() {
    let setup = Setup::inside(NODE).await;
    // Each of these takes six bytes when it is written as JSON.
    let body = format!("protocol: \"{}\"\n", "\\x01".repeat(200_000));
    let answer = request_json(&setup.client, NODE, Verb::Ensure, &body).await;
    let error = answer["error"].as_str().unwrap();
    assert!(error.starts_with("invalid protocol \""), "{error}");
    assert!(error.len() < 10_000, "{}", error.len());
}
