//! Where an operator sees that an agent serves Choria's clients, and what is wrong with it.

use ccm_nats::Verb;

use super::{Lab, NODE, server_lines, token};
use crate::doctor::Diagnosis;
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request_json};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};

#[test]
fn the_doctor_checks_token_seed_and_issuers() {
    let env = TestEnv::new();
    let lines = server_lines(&env);
    let state = env.at("state");
    let config =
        format!("identity: {NODE}\nstate_dir: {state}\nservers: nats://127.0.0.1:1\n{lines}");
    let file = env.write("agent.yaml", &config);
    let diagnose = || Diagnosis::read(&env.ccm(&["doctor", "--json", "--config", &file]));
    let (found, remedy) = (
        "serves Choria's clients in mcollective",
        "issue a new token",
    );
    diagnose().assert("choria", "warning", found, remedy);
    env.write(
        "server.jwt",
        token(2, serde_json::json!({"purpose": "choria_server"})),
    );
    let found = "the token is not signed by the issuer of its organization";
    diagnose().assert("choria", "failed", found, "choria jwt server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_node_names_the_collectives_that_it_serves() {
    let lab = Lab::new().await;
    let status = serde_json::to_value(lab.setup.agent.node().status()).unwrap();
    assert_eq!(status["choria"], serde_json::json!(["mcollective", "ops"]));
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_nodes_names_the_collectives_that_a_node_serves() {
    let lab = Lab::new().await;
    let url = lab.setup.server.url();
    eventually("the list of nodes", async || {
        let nodes = lab
            .setup
            .env
            .ccm(&["fleet", "nodes", "--server", &url])
            .ok();
        when(nodes.contains("serves Choria in mcollective, ops"), nodes)
    })
    .await;
    lab.setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_with_a_bad_token_keeps_the_current_agent() {
    let (server, env) = (NatsServer::start(), TestEnv::new());
    let client = server.client().await;
    agent::init(&client).await;
    let agent = AgentProcess::start(&env, NODE, &server.url(), &server_lines(&env));
    let before = request_json(&client, NODE, Verb::Ping, "").await;
    let claims = serde_json::json!({"purpose": "choria_server"});
    env.write("server.jwt", token(2, claims));
    agent.signal("HUP");
    eventually("the refused reload", async || {
        let log = agent.log();
        let text = "Could not reload the configuration, keeping the current one";
        let reason = "the token is not signed by the issuer of its organization";
        when(log.contains(text) && log.contains(reason), log)
    })
    .await;
    let after = request_json(&client, NODE, Verb::Ping, "").await;
    assert_eq!(after["started"], before["started"]);
    assert_eq!(after["choria"], serde_json::json!(["mcollective"]));
    agent.signal("TERM");
    assert_eq!(agent.wait(), Some(0));
}
