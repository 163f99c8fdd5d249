//! Agents whose state directory was deleted or can't be written to: they say so, everywhere.

use std::net::Ipv4Addr;

use ccm_nats::Verb;
use ccm_nats::streams::NODES;
use serde_json::Value;

use crate::agent::scheduled_runs::document;
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, file_request, request_json, stored_events};
use crate::support::disk::SmallDisk;
use crate::support::nats::{MONITOR, NatsServer, own_address};
use crate::support::poll::{eventually, when};

/// Returns the problems in the presence record of the node.
async fn problems(client: &ccm_nats::Connection) -> Value {
    let status = document(client, NODES, "default.web1_lab").await;
    status.unwrap_or_default()["problems"].clone()
}

/// Returns the status and the body of a page of the agent.
fn page(env: &TestEnv, address: Ipv4Addr, path: &str) -> String {
    let url = format!("http://{address}:{MONITOR}/{path}");
    let output = env
        .program("curl")
        .args(["-s", "-w", " %{http_code}", &url])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_read_only_state_directory_is_reported_everywhere_until_it_is_writable() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let address = own_address();
    let lines = format!("monitor_port: {MONITOR}\nmonitor_address: {address}\n");
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    eventually("a healthy agent", async || {
        let text = page(&env, address, "readyz");
        when(text.ends_with(" 200"), text)
    })
    .await;
    // Read-only from the start: with files that are open for writing it could not be made so.
    let disk = SmallDisk::mount(&env.path("web1.lab/state"), "1m,ro");
    for path in ["healthz", "readyz"] {
        let text = eventually("an unhealthy agent", async || {
            let text = page(&env, address, path);
            when(text.ends_with(" 503"), text)
        })
        .await;
        assert!(text.contains("read-only file system"), "{text}");
    }
    eventually("the reason in the presence record", async || {
        let found = problems(&client).await;
        when(found.to_string().contains("read-only file system"), found)
    })
    .await;
    let listed = env.ccm(&["fleet", "nodes", "--server", &server.url()]).ok();
    assert!(
        listed.contains("the state directory can't be used"),
        "{listed}"
    );
    drop(disk);
    eventually("a healthy agent", async || {
        let found = problems(&client).await;
        when(found.is_null(), found)
    })
    .await;
    assert!(page(&env, address, "healthz").ends_with(" 200"));
}

#[tokio::test]
async fn a_deleted_state_directory_is_created_again_and_events_go_on() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    let ensure = async |name: &str| {
        let request = file_request(&env.path(name), "x");
        request_json(&client, "web1.lab", Verb::Ensure, &request).await
    };
    ensure("first").await;
    std::fs::remove_dir_all(env.path("web1.lab/state")).unwrap();
    eventually("the directory", async || {
        env.exists("web1.lab/state/spool/lock")
    })
    .await;
    let reply = ensure("second").await;
    assert_eq!(reply["state"]["changed"], true, "{reply}");
    // The event is on disk: a killed agent publishes it after its restart.
    agent.kill();
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    eventually("the event of the second file", async || {
        let events = stored_events(&server).await;
        let is_there = events.iter().any(|(_, it)| it["name"] == env.at("second"));
        when(is_there, events.len())
    })
    .await;
}

#[tokio::test]
async fn a_read_only_disk_at_the_start_is_not_taken_for_another_agent() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("web1.lab/state"), "16m");
    std::fs::create_dir(env.path("web1.lab/state/spool")).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    for name in ["web1.lab/state", "web1.lab/state/spool"] {
        std::fs::set_permissions(env.path(name), Clone::clone(&private)).unwrap();
    }
    disk.remount("ro");
    let agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", "");
    let output = eventually("an error", async || {
        let log = agent.log();
        when(log.contains("read-only file system"), log)
    })
    .await;
    assert!(!output.contains("another agent"), "{output}");
}
