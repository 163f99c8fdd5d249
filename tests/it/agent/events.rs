//! Events: none lost, none twice.

use std::collections::HashSet;

use ccm_nats::{Headers, ReplyLimits, Verb};
use tokio::time::Duration;

use crate::support::TestEnv;
use crate::support::agent::{
    self, AgentProcess, config, file_request, request_json, start, stored_events, subjects,
};
use crate::support::nats::{Cluster, NatsServer};
use crate::support::poll::{LIMIT, eventually, when};
use crate::support::setup::Setup;

/// Returns the ids of stored events of a type, and how many there are.
fn ids(events: &[(String, serde_json::Value)], type_name: &str) -> (HashSet<String>, usize) {
    let of_type = events
        .iter()
        .filter(|(subject, _)| subject.split('.').nth(5) == Some(type_name));
    let all: Vec<String> = of_type
        .map(|(_, event)| event["event_id"].as_str().unwrap().to_owned())
        .collect();
    let count = all.len();
    (all.into_iter().collect(), count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_agents_answer_one_broadcast_and_each_event_is_stored_once() {
    const NODES: usize = 50;
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let dir = tempfile::tempdir().unwrap();
    let mut agents = Vec::new();
    for number in 0..NODES {
        let name = format!("n{number}.lab");
        agents.push(start(&config(&name, &dir.path().join(&name)), &server).await);
    }
    eventually("all agents reply", async || {
        let stop = ReplyLimits {
            expected: Some(NODES),
            silence: Duration::from_secs(1),
            deadline: Duration::from_secs(5),
        };
        let ping = subjects().all(Verb::Ping);
        let replies = client.request_many(&ping, Headers::new(), "".into(), stop);
        let mut replies = replies.await.unwrap();
        let mut count = 0;
        while replies.next().await.is_some() {
            count += 1;
        }
        count == NODES
    })
    .await;
    let body = serde_json::json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": "exec",
        "properties": {"name": "/bin/true", "ensure": "present"},
    });
    let stop = ReplyLimits {
        expected: Some(NODES),
        silence: LIMIT,
        deadline: LIMIT,
    };
    let ensure = subjects().all(Verb::Ensure);
    let body = body.to_string().into();
    let replies = client.request_many(&ensure, Headers::new(), body, stop);
    let mut replies = replies.await.unwrap();
    let mut answered = HashSet::new();
    let mut event_ids = HashSet::new();
    while let Some(reply) = replies.next().await {
        let answer: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answer["state"]["changed"], true, "{answer}");
        event_ids.insert(answer["state"]["event_id"].as_str().unwrap().to_owned());
        answered.insert(reply.header("Ccm-Identity").unwrap().to_owned());
    }
    assert_eq!(answered.len(), NODES);
    let events = eventually("all events are stored", async || {
        let events = stored_events(&server).await;
        when(events.len() >= NODES, events)
    })
    .await;
    let (stored, count) = ids(&events, "exec");
    assert_eq!((count, stored), (NODES, event_ids));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_dies_during_a_run_delays_events_and_loses_none() {
    let mut setup = Setup::inside("web1.lab").await;
    let mut manifest = String::from("ccm:\n  resources:\n    - exec:\n");
    let (begun, go) = (setup.env.root().join("begun"), setup.env.root().join("go"));
    let gate = format!(
        "touch {}; until [ -e {} ]; do sleep 0.05; done",
        begun.display(),
        go.display()
    );
    for number in 0..300 {
        let properties = match number {
            150 => format!("provider: shell, command: '{gate}'"),
            _ => "command: /bin/true".to_owned(),
        };
        manifest.push_str(&format!("        - r{number}: {{{properties}}}\n"));
    }
    let body = serde_json::json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request", "manifest": manifest,
    });
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &body.to_string()).await;
    assert_eq!(answer["state"], "accepted", "{answer}");
    eventually("half of the run", async || begun.exists()).await;
    setup.server.stop();
    std::fs::write(&go, "").unwrap();
    eventually("the run ends without a broker", async || {
        setup.agent.node().status().last_run
    })
    .await;
    assert!(setup.agent.node().status().spool.pending > 0);
    setup.server.resume();
    let events = eventually("everything is stored", async || {
        let events = stored_events(&setup.server).await;
        when(events.len() >= 301, events)
    })
    .await;
    let (stored, count) = ids(&events, "exec");
    assert_eq!((stored.len(), count, events.len()), (300, 300, 301));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_repeatedly_publishes_every_event_once() {
    let env = TestEnv::new();
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let mut event_ids = HashSet::new();
    for round in 0..10_u64 {
        let agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
        request_json(&client, "web1.lab", Verb::Ping, "").await;
        // Killed one answer later in every round, when the next request has been sent.
        let body = |number| file_request(&env.path(&format!("f{round}-{number}")), "x");
        for number in 0..round {
            let answer = request_json(&client, "web1.lab", Verb::Ensure, &body(number)).await;
            event_ids.insert(answer["state"]["event_id"].as_str().unwrap().to_owned());
        }
        let last = subjects().node(&"web1_lab".parse().unwrap(), Verb::Ensure);
        let sent = client.publish(&last, Headers::new(), body(round).into());
        sent.await.unwrap();
        client.flush().await.unwrap();
        agent.kill();
    }
    let _agent = AgentProcess::start(&env, "web1.lab", &server.url(), "");
    request_json(&client, "web1.lab", Verb::Ping, "").await;
    let events = eventually("every event of a reply is stored", async || {
        let events = stored_events(&server).await;
        let (stored, _) = ids(&events, "file");
        event_ids.is_subset(&stored).then_some(events)
    })
    .await;
    let (stored, count) = ids(&events, "file");
    assert_eq!(stored.len(), count, "none is there twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_cluster_dies_and_requests_and_events_go_on() {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let mut options = ccm_nats::streams::InitOptions::new(subjects());
    options.replicas = Some(3);
    eventually("the cluster has made the streams", async || {
        ccm_nats::streams::init(&client, &options).await.ok()
    })
    .await;
    let env = TestEnv::new();
    let _agent = AgentProcess::start(&env, "web1.lab", &cluster.url(), "");
    let file = env.path("a");
    request_json(&client, "web1.lab", Verb::Ensure, &file_request(&file, "1")).await;
    cluster.servers[0].stop();
    for content in ["2", "3", "4"] {
        let body = file_request(&file, content);
        let answer = request_json(&client, "web1.lab", Verb::Ensure, &body).await;
        assert_eq!(answer["state"]["changed"], true, "{answer}");
    }
    let server = &cluster.servers[1];
    let events = eventually("all four events are stored", async || {
        let events = stored_events(server).await;
        when(events.len() >= 4, events)
    })
    .await;
    assert_eq!(ids(&events, "file").1, 4);
}
