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

/// An agent that serves its health over HTTP.
struct Monitored<'e> {
    env: &'e TestEnv,
    server: NatsServer,
    client: ccm_nats::Connection,
    address: Ipv4Addr,
    _agent: AgentProcess,
}

impl<'e> Monitored<'e> {
    /// Starts an agent in an environment, and waits until it is ready.
    async fn start(env: &'e TestEnv) -> Self {
        let server = NatsServer::start();
        let client = server.client().await;
        agent::init(&client).await;
        let address = own_address();
        let lines = format!("monitor_port: {MONITOR}\nmonitor_address: {address}\n");
        let agent = AgentProcess::start(env, "web1.lab", &server.url(), &lines);
        let started = Self {
            env,
            server,
            client,
            address,
            _agent: agent,
        };
        eventually("a healthy agent", async || {
            let text = started.page("readyz");
            when(text.ends_with(" 200"), text)
        })
        .await;
        started
    }

    fn page(&self, path: &str) -> String {
        page(self.env, self.address, path)
    }

    /// Waits until the agent is unhealthy for this reason, and checks that it is reported
    /// everywhere. `fault` is repeated until then.
    async fn assert_unhealthy(&self, reason: &str, fault: impl Fn()) {
        for path in ["healthz", "readyz"] {
            let text = eventually("an unhealthy agent", async || {
                fault();
                let text = self.page(path);
                when(text.ends_with(" 503"), text)
            })
            .await;
            assert!(text.contains(reason), "{text}");
        }
        eventually("the reason in the presence record", async || {
            let found = problems(&self.client).await;
            when(found.to_string().contains(reason), found)
        })
        .await;
        let server = self.server.url();
        let listed = self.env.ccm(&["fleet", "nodes", "--server", &server]).ok();
        assert!(
            listed.contains("the state directory can't be used"),
            "{listed}"
        );
    }

    async fn assert_healthy_again(&self) {
        eventually("a healthy agent", async || {
            let found = problems(&self.client).await;
            when(found.is_null(), found)
        })
        .await;
        let text = self.page("healthz");
        assert!(text.ends_with(" 200"), "{text}");
    }
}

#[tokio::test]
async fn a_read_only_state_directory_is_reported_everywhere_until_it_is_writable() {
    let env = TestEnv::new();
    let agent = Monitored::start(&env).await;
    // Read-only from the start: with files that are open for writing it could not be made so.
    let disk = SmallDisk::mount(&env.path("web1.lab/state"), "1m,ro");
    agent.assert_unhealthy("read-only file system", || {}).await;
    drop(disk);
    agent.assert_healthy_again().await;
}

#[tokio::test]
async fn a_full_disk_is_reported_everywhere_until_it_has_room() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("web1.lab/state"), "16m");
    let agent = Monitored::start(&env).await;
    // Again and again: the agent removes files that it needs no more.
    agent
        .assert_unhealthy("no space left on device", || disk.fill())
        .await;
    disk.make_room();
    agent.assert_healthy_again().await;
    assert!(!env.exists("web1.lab/state/.storage-check"));
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

#[test]
fn an_agent_exits_if_its_disk_is_read_only_at_the_start_and_blames_no_other_agent() {
    let env = TestEnv::new();
    let disk = SmallDisk::mount(&env.path("web1.lab/state"), "16m");
    std::fs::create_dir(env.path("web1.lab/state/spool")).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    for name in ["web1.lab/state", "web1.lab/state/spool"] {
        std::fs::set_permissions(env.path(name), Clone::clone(&private)).unwrap();
    }
    disk.remount("ro");
    // It can't report its health, so the service manager must see that it failed.
    let agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", "");
    assert_eq!(agent.wait(), Some(1));
    let log = env.read("web1.lab.log");
    assert!(log.contains("read-only file system"), "{log}");
    assert!(!log.contains("another agent"), "{log}");
}
