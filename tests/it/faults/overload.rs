//! More requests than an agent can handle, and requests that take long: every request is answered or
//! counted, and light ones don't wait for heavy ones.

use std::time::Duration;

use async_nats::ConnectOptions;
use ccm_nats::{Headers, Verb};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::agent::scheduled_runs::fetch;
use crate::support::agent::{self, request_json};
use crate::support::nats::{MONITOR, own_address};
use crate::support::poll::{LIMIT, eventually, when};
use crate::support::setup::Setup;

const NODE: &str = "web1.lab";

/// How many requests are sent as fast as possible.
const FLOOD: u64 = 100_000;

/// Returns the value of a counter without labels.
fn counter(metrics: &str, name: &str) -> Option<u64> {
    let prefix = format!("choria_ccm_agent_{name}_count ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
    line?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_flood_is_answered_or_counted_and_logged() {
    let address = own_address();
    let lines = format!("monitor_port: {MONITOR}\nmonitor_address: {address}\n");
    let setup = Setup::process(NODE, &lines).await;

    let options = ConnectOptions::new().subscription_capacity(2 * FLOOD as usize);
    let raw = options.connect(setup.server.url()).await.unwrap();
    let mut replies = raw.subscribe("replies").await.unwrap();
    let subject = agent::subjects().all(Verb::Ping).as_str().to_owned();
    for _ in 0..FLOOD {
        let sent = raw.publish_with_reply(subject.clone(), "replies", "".into());
        sent.await.unwrap();
    }
    raw.flush().await.unwrap();

    let url = format!("http://{address}:{MONITOR}/metrics");
    let (mut answered, mut before) = (0, None);
    let (dropped, dropped_by_client) = eventually("all requests", async || {
        while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, replies.next()).await {
            answered += 1;
        }
        let metrics = fetch(&url).await.unwrap_or_default();
        let dropped = counter(&metrics, "requests_dropped");
        let client = counter(&metrics, "nats_dropped");
        let (dropped, client) = (dropped.unwrap_or_default(), client.unwrap_or_default());
        // The client does not report each message that it drops in a burst, so its number is a lower
        // bound: then nothing more arrives, and no request counts twice.
        let seen = (answered, dropped, client);
        let is_over = before.replace(seen) == Some(seen);
        let is_complete = answered + dropped == FLOOD || (client > 0 && is_over);
        when(is_complete, (dropped, client)).map_err(|_| seen)
    })
    .await;
    assert!(answered + dropped + dropped_by_client <= FLOOD);
    let unanswered = FLOOD - answered;
    if unanswered > 0 {
        assert!(dropped + dropped_by_client > 0, "{unanswered} not counted");
        eventually("a line in the log", async || {
            let log = setup.agent.log();
            when(log.contains("Too many requests"), log)
        })
        .await;
    }
    request_json(&setup.client, NODE, Verb::Ping, "").await;
}

#[tokio::test]
async fn facts_do_not_wait_for_the_digests_of_large_files() {
    let setup = Setup::process(NODE, "").await;
    // Takes hours to read, but no space.
    let file = std::fs::File::create(setup.env.path("large")).unwrap();
    file.set_len(1 << 43).unwrap();
    let path = setup.env.at("large");
    let status = json!({"protocol": "io.choria.ccm.v1.resource.status.request", "type": "file",
        "name": path, "properties": {"name": path}});
    let subject = agent::subjects().all(Verb::Status);
    let raw = async_nats::connect(setup.server.url()).await.unwrap();
    for _ in 0..16 {
        let body = status.to_string().into();
        raw.publish_with_reply(subject.as_str().to_owned(), "nobody", body)
            .await
            .unwrap();
    }
    raw.flush().await.unwrap();
    let agent = setup.agent.id();
    eventually("digests at work", async || {
        let entries = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap();
        let targets = entries.flatten().map(|fd| std::fs::read_link(fd.path()));
        let count = targets
            .flatten()
            .filter(|target| target.ends_with("large"))
            .count();
        when(count >= 4, (count, setup.agent.log()))
    })
    .await;
    let node: ccm_core::model::node::NodeName = NODE.parse().unwrap();
    let subject = agent::subjects().node(&node.token(), Verb::Facts);
    let reply = setup
        .client
        .request(&subject, Headers::new(), "host.info.os".into(), LIMIT)
        .await
        .unwrap();
    assert_eq!(reply.body, "\"linux\"");
}
