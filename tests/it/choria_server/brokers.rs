//! A connection to Choria's own brokers, with the token of the node as its login.

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{Call, Client, NODE, server_config};
use crate::support::nats::NatsServer;
use crate::support::{TestEnv, agent};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_lifecycle_events_use_choria_s_brokers() {
    let (env, fleet) = (TestEnv::new(), NatsServer::start());
    let mut choria = server_config(&env);
    let token = env.read("server.jwt");
    let brokers = NatsServer::with(&format!("authorization {{ token: \"{token}\" }}"));
    choria.servers = vec![ccm_value::secret::Secret::new(brokers.url())];
    let login = async_nats::ConnectOptions::with_token(token);
    let watcher = login.connect(brokers.url()).await.unwrap();
    let mut events = watcher.subscribe("choria.lifecycle.event.>").await.unwrap();
    watcher.flush().await.unwrap();
    let mut config = agent::config(NODE, env.root());
    config.choria.events = true;
    config.choria.component = "server".parse().unwrap();
    config.choria.server = Some(choria);
    let agent = agent::start(&config, &fleet).await;
    assert_eq!(Client(watcher).text(&Call::ping()).await, "pong");
    let started = events.next().await.unwrap();
    let subject = "choria.lifecycle.event.startup.server";
    assert_eq!(started.subject.as_str(), subject);
    let event: Value = serde_json::from_slice(&started.payload).unwrap();
    assert_eq!(
        (&event["data"]["identity"], &event["data"]["component"]),
        (&json!(NODE), &json!("server")),
        "{event}"
    );
    agent.stop().await;
    let stopped = events.next().await.unwrap();
    let subject = "choria.lifecycle.event.shutdown.server";
    assert_eq!(stopped.subject.as_str(), subject);
}
