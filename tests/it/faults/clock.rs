//! Clocks that jump, made with libfaketime.

use ccm_nats::streams::NODES;
use chrono::{DateTime, TimeDelta, Utc};

use crate::agent::scheduled_runs::{content_becomes, document};
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};

/// Returns the library that fakes the time.
fn library() -> String {
    let directories = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths = directories.map(|it| it.unwrap().path().join("faketime/libfaketime.so.1"));
    let found = paths.find(|path| path.exists());
    let found = found.expect("faketime (scripts/test installs it)");
    found.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_survives_a_clock_that_jumps_a_day_ahead() {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let script = format!(
        "cd {} && touch begun && until [ -e go ]; do sleep 0.05; done; printf done >result",
        env.at("")
    );
    let text = format!(
        "ccm:\n  resources:\n    - exec:\n        - waits: {{provider: shell, timeout: 10m, \
         command: '{script}'}}\n"
    );
    let file = env.write("site.yaml", text);
    let clock = env.write("clock", "+0d\n");
    for (name, value) in [
        ("LD_PRELOAD", library().as_str()),
        ("FAKETIME_TIMESTAMP_FILE", &clock),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ] {
        env.set(name, value);
    }
    let lines = format!("manifests: [{file}]\nrun_timeout: 1h\n");
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    eventually("the run", async || env.exists("begun")).await;
    env.write("clock", "+1d\n");
    // Maintenance runs as often as the presence is published, once a second.
    let mut seen = std::collections::BTreeSet::new();
    eventually("several seconds of tomorrow", async || {
        let status = document(&client, NODES, "default.web1_lab").await;
        let time = status.unwrap_or_default()["timestamp"].clone();
        let time = DateTime::parse_from_rfc3339(time.as_str().unwrap_or_default()).ok();
        seen.extend(time.filter(|time| *time > Utc::now() + TimeDelta::hours(12)));
        when(seen.len() > 3, seen.len())
    })
    .await;
    env.write("go", "");
    content_becomes(&env, "result", "done").await;
    assert!(!agent.log().contains("was cancelled"), "{}", agent.log());
}
