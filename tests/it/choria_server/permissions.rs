//! The permissions that `ccm fleet permissions agent --choria-server` prints are those that a node
//! needs to serve Choria's clients, and a node without them says so.

use std::time::Duration;

use ccm_agent::Agent;
use ccm_nats::Settings;
use futures_util::StreamExt as _;
use serde_json::json;

use super::{Call, Client, NODE, server_config};
use crate::support::poll::{eventually, when};
use crate::support::{TestEnv, agent, nats::NatsServer};

/// Returns a server on which the node has the printed permissions, and its URL for all permissions.
async fn server(env: &TestEnv, flags: &[&str]) -> (NatsServer, String) {
    let print = ["fleet", "permissions", "agent", NODE];
    let printed = env.ccm(&[&print, flags].concat()).ok();
    let server = NatsServer::with(&format!(
        "authorization {{ users: [ {{ user: admin, password: pw }}\n\
         {{ user: web1, password: pw, permissions: {{\n{printed}\n}} }} ] }}"
    ));
    let admin = server.url().replace("//", "//admin:pw@");
    let settings = Settings::plain(&admin).unwrap();
    let limit = ccm_nats::ConnectMode::Once(crate::support::poll::LIMIT);
    let connection = ccm_nats::connect(&settings, limit, "test").await.unwrap();
    agent::init(&connection).await;
    (server, admin)
}

/// Returns a client that may do everything.
async fn administrator(server: &NatsServer) -> async_nats::Client {
    let options = async_nats::ConnectOptions::with_user_and_password("admin".into(), "pw".into());
    options.connect(server.url()).await.unwrap()
}

/// Starts the agent with the login of the node.
async fn start(env: &TestEnv, server: &NatsServer) -> Agent {
    let mut config = agent::config(NODE, env.root());
    let mut choria = server_config(env);
    choria.registration_interval = Some(Duration::from_secs(3600));
    config.choria.events = true;
    config.choria.server = Some(choria);
    let url = server.url().replace("//", "//web1:pw@");
    let mut settings = Settings::plain(&url).unwrap();
    settings.inbox_prefix = Some("_INBOX_web1_lab".into());
    let process = agent::process(Default::default());
    Agent::start(&config, &settings, process).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_the_printed_permissions_serves_its_collectives() {
    let env = TestEnv::new();
    let flags = ["--choria-server", "mcollective", "--choria-server", "ops"];
    let (server, _) = server(&env, &flags).await;
    let watcher = administrator(&server).await;
    let registration = "mcollective.broadcast.agent.registration";
    let mut registrations = watcher.subscribe(registration).await.unwrap();
    watcher.flush().await.unwrap();
    let agent = start(&env, &server).await;
    let client = Client(watcher);
    for (collective, subject) in [
        ("mcollective", "mcollective.broadcast.agent.discovery"),
        ("mcollective", "mcollective.node.web1.lab"),
        ("ops", "ops.broadcast.agent.discovery"),
        ("ops", "ops.node.web1.lab"),
    ] {
        let call = Call {
            collective: collective.into(),
            subject: subject.into(),
            ..Call::ping()
        };
        assert_eq!(client.text(&call).await, "pong", "{subject}");
    }
    for (name, action) in [("rpcutil", "ping"), ("ccm", "ping")] {
        client.data(name, action, json!({})).await;
    }
    // Through a federation broker.
    let reply_to = "choria.federation.eu.collective";
    let call = Call::ping();
    let sent = client.send(&call.subject, call.encode(reply_to), reply_to);
    assert_eq!(sent.await.unwrap(), "pong");
    assert!(registrations.next().await.is_some());
    let status = serde_json::to_value(agent.node().status()).unwrap();
    assert_eq!(status["choria"], json!(["mcollective", "ops"]));
    assert!(status.get("problems").is_none(), "{status}");
    agent.stop().await;
    let log = server.log();
    assert!(!log.contains("Violation"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_permissions_reports_the_problem_and_serves_the_rest() {
    let env = TestEnv::new();
    let (server, admin) = server(&env, &["--choria-server", "ops"]).await;
    let agent = start(&env, &server).await;
    let problem = "can't serve Choria's clients: permission denied: the role of this NATS user \
                   lacks subscribe on mcollective.broadcast.agent.ccm";
    eventually("a problem", async || {
        let status = agent.node().status();
        let served = serde_json::to_value(&status.choria).unwrap();
        let is_told = status.problems == [problem] && served == json!(["ops"]);
        when(is_told, format!("{status:?}"))
    })
    .await;
    let client = Client(administrator(&server).await);
    let call = Call {
        collective: "ops".into(),
        subject: "ops.broadcast.agent.discovery".into(),
        ..Call::ping()
    };
    assert_eq!(client.text(&call).await, "pong");
    eventually("the list of nodes", async || {
        let nodes = env.ccm(&["fleet", "nodes", "--server", &admin]).ok();
        let is_told = nodes.contains("unhealthy")
            && nodes.contains(problem)
            && nodes.contains("serves Choria in ops");
        when(is_told, nodes)
    })
    .await;
    agent.stop().await;
}
