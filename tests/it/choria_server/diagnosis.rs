//! Where an operator sees that an agent serves Choria's clients, and what is wrong with it.

use super::{Lab, NODE, server_lines, token};
use crate::doctor::Diagnosis;
use crate::support::TestEnv;

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
