//! Bundles that were lost on the way to a node or on its disk: fetched again, never applied damaged.

use std::path::{Path, PathBuf};

use ccm_core::model::node::NodeName;
use ccm_nats::streams::{NODES, REPORTED};
use ccm_nats::{Headers, Verb};

use crate::agent::scheduled_runs::{assign, content_becomes, document, manifest, reported};
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request_json, subjects};
use crate::support::disk::Disk;
use crate::support::http::Server;
use crate::support::nats::NatsServer;
use crate::support::pack;
use crate::support::poll::{eventually, when};
use crate::support::proxy::Proxy;

/// Returns the manifests in the bundle cache of the node.
fn cached_manifests(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(cached_manifests(&path)),
            false if path.ends_with("manifest.yaml") => found.push(path),
            false => {}
        }
    }
    found
}

#[tokio::test]
async fn a_bundle_is_whole_after_a_power_cut() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let mut disk = Disk::mount(&env.path("image"), &env.path("web1.lab"));
    assign(&client, 1, &manifest(&env.at("motd"), "good"), false).await;
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    reported(&client, 1).await;
    agent.kill();
    disk.cut_power();
    std::fs::remove_file(env.path("motd")).unwrap();
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    content_becomes(&env, "motd", "good").await;
}

#[tokio::test]
async fn an_altered_bundle_of_an_assignment_is_fetched_again() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    assign(&client, 1, &manifest(&env.at("motd"), "good"), false).await;
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    reported(&client, 1).await;
    agent.kill();
    std::fs::remove_file(env.path("motd")).unwrap();
    for path in cached_manifests(&env.path("web1.lab/cache")) {
        std::fs::write(path, manifest(&env.at("motd"), "evil")).unwrap();
    }
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    eventually("the file", async || env.exists("motd")).await;
    assert_eq!(env.read("motd"), "good");
}

#[tokio::test]
async fn an_altered_bundle_of_a_configured_manifest_is_fetched_again() {
    let env = TestEnv::new();
    let web = Server::serving(pack::tgz(&[(
        "site/manifest.yaml",
        &manifest(&env.at("motd"), "good"),
    )]));
    let lines = format!("manifests: ['{}']\ninterval: 1m\n", web.url("/site.tgz"));
    let agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    content_becomes(&env, "motd", "good").await;
    agent.kill();
    std::fs::remove_file(env.path("motd")).unwrap();
    for path in cached_manifests(&env.path("web1.lab/cache")) {
        std::fs::write(path, manifest(&env.at("motd"), "evil")).unwrap();
    }
    let _agent = AgentProcess::start(&env, "web1.lab", "nats://127.0.0.1:1", &lines);
    eventually("the file", async || env.exists("motd")).await;
    assert_eq!(env.read("motd"), "good");
}

#[tokio::test]
async fn a_broken_connection_during_a_fetch_is_no_failure_and_is_tried_again() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let proxy = Proxy::start(&server.url());
    let _agent = AgentProcess::start(&env, "web1.lab", &proxy.url(), "interval: 1h\n");
    assign(&client, 1, &manifest(&env.at("motd"), "first"), false).await;
    request_json(&client, "web1.lab", Verb::Nudge, "").await;
    reported(&client, 1).await;
    proxy.forbid(Some("OBJ_CCM_MANIFESTS"));
    assign(&client, 2, &manifest(&env.at("motd"), "second"), false).await;
    // Without a reply, which may be lost with the connection.
    let node: NodeName = "web1.lab".parse().unwrap();
    let nudge = subjects().node(&node.token(), Verb::Nudge);
    let body = Default::default();
    client.publish(&nudge, Headers::new(), body).await.unwrap();
    eventually("broken connections", async || {
        when(proxy.dropped() > 1, proxy.dropped())
    })
    .await;
    let status = eventually("the reason in the presence record", async || {
        let status = document(&client, NODES, "default.web1_lab").await;
        let status = status.unwrap_or_default();
        when(status["problems"][0].is_string(), status)
    })
    .await;
    let problem = status["problems"][0].as_str().unwrap();
    assert!(
        problem.starts_with("waiting for the bundle app/"),
        "{problem}"
    );
    let report = document(&client, REPORTED, "default.web1_lab").await;
    let report = report.unwrap();
    assert_eq!(report["generation"], 1, "not failed: {report}");
    proxy.forbid(None);
    content_becomes(&env, "motd", "second").await;
    let report = reported(&client, 2).await;
    assert_eq!(report["error"], serde_json::Value::Null, "{report}");
}
