//! Agents and servers that are killed or frozen under load: every event whose reply arrived is stored
//! once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ccm_core::model::node::NodeName;
use ccm_nats::streams::InitOptions;
use ccm_nats::{Connection, Headers, Verb};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::random::Random;
use crate::support::TestEnv;
use crate::support::agent::{AgentProcess, request_json, stored_events, subjects};
use crate::support::nats::{Cluster, NatsServer};
use crate::support::poll::{LIMIT, eventually};
use crate::tally::Tally;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const FAULTS: usize = 8;

/// Time after which a request counts as not replied.
const REPLY_LIMIT: Duration = Duration::from_secs(3);

/// Runs a scenario that needs NATS.
pub(crate) fn block_on<T>(round: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(round)
}

pub(crate) fn round(random: &mut Random) -> Tally {
    block_on(under_load(random))
}

async fn under_load(random: &mut Random) -> Tally {
    let mut cluster = Cluster::start();
    let client = cluster.client().await;
    let mut options = InitOptions::new(subjects());
    options.replicas = Some(3);
    eventually("the streams", async || {
        ccm_nats::streams::init(&client, &options).await
    })
    .await;
    let env = TestEnv::new();
    let start = |name: &str| AgentProcess::start(&env, name, &cluster.url(), "");
    let mut agents = NODES.map(|name| Some(start(name)));
    for name in NODES {
        request_json(&client, name, Verb::Ping, "").await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let senders = NODES.map(|name| {
        let (client, is_over) = (client.clone(), is_over.clone());
        let actions = env.path(&format!("{name}.actions"));
        tokio::spawn(async move {
            let (mut replied, mut number) = (Vec::new(), 0);
            while !is_over.load(Ordering::Relaxed) {
                replied.extend(request(&client, name, &action(&actions, number)).await);
                number += 1;
            }
            replied
        })
    });
    let mut tally = Tally::default();
    let url = cluster.url();
    for _ in 0..FAULTS {
        sleep(random.millis(200, 1000)).await;
        tally.faults += 1;
        if random.below(3) > 0 {
            disturb(&mut cluster, random);
            continue;
        }
        let node = random.pick(NODES.len());
        agents[node].take().unwrap().kill();
        sleep(random.millis(0, 300)).await;
        agents[node] = Some(AgentProcess::start(&env, NODES[node], &url, ""));
    }
    is_over.store(true, Ordering::Relaxed);
    let mut replied = Vec::new();
    for sender in senders {
        replied.push(sender.await.unwrap());
    }
    for name in NODES {
        request_json(&client, name, Verb::Ping, "").await;
    }
    let stored = check(&cluster.servers[0], &replied, &mut tally).await;
    for name in NODES {
        let actions = std::fs::read_to_string(env.path(&format!("{name}.actions")));
        let actions = actions.unwrap_or_default();
        let unique: BTreeSet<&str> = actions.lines().collect();
        let count = actions.lines().count();
        tally.duplicate += u64::try_from(count - unique.len()).unwrap();
        let events = stored.get(name).copied().unwrap_or_default();
        tally.unrecorded += u64::try_from(count.saturating_sub(events)).unwrap();
    }
    tally
}

/// Kills or freezes a server of a cluster for a moment, or kills two, which leaves it without quorum.
pub(crate) fn disturb(cluster: &mut Cluster, random: &mut Random) {
    let servers = &mut cluster.servers;
    let first = random.pick(servers.len());
    let other = (first + 1) % servers.len();
    match random.below(3) {
        0 => {
            servers[first].stop();
            std::thread::sleep(random.millis(100, 1500));
            servers[first].resume();
        }
        1 => {
            servers[first].freeze();
            std::thread::sleep(random.millis(100, 2000));
            servers[first].thaw();
        }
        _ => {
            servers[first].stop();
            servers[other].stop();
            std::thread::sleep(random.millis(100, 4000));
            servers[first].resume();
            servers[other].resume();
        }
    }
}

/// Returns a request that appends a number to a file.
fn action(file: &Path, number: usize) -> String {
    json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": "exec",
        "properties": {
            "name": format!("action {number}"),
            "provider": "shell",
            "command": format!("echo {number} >> {}", file.display()),
        },
    })
    .to_string()
}

/// Sends requests for actions to a node, one after another, and adds the ids of the events in their
/// replies.
pub(crate) async fn send(
    client: &Connection,
    node: &str,
    file: &Path,
    count: usize,
    replied: &mut Vec<String>,
) {
    for _ in 0..count {
        let body = action(file, replied.len());
        replied.extend(request(client, node, &body).await);
    }
}

/// Sends a request to a node and returns the id of the event in its reply, if one arrives.
async fn request(client: &Connection, node: &str, body: &str) -> Option<String> {
    let node: NodeName = node.parse().unwrap();
    let subject = subjects().node(&node.token(), Verb::Ensure);
    let sent = client.request(
        &subject,
        Headers::new(),
        body.to_owned().into(),
        REPLY_LIMIT,
    );
    let Ok(reply) = sent.await else {
        sleep(Duration::from_millis(20)).await;
        return None;
    };
    let reply: Value = serde_json::from_slice(&reply.body).ok()?;
    Some(reply["state"]["event_id"].as_str()?.to_owned())
}

/// Waits until the replied events of each node are stored, counts what is wrong, and returns the
/// number of stored events of each node.
pub(crate) async fn check(
    server: &NatsServer,
    replied: &[Vec<String>],
    tally: &mut Tally,
) -> BTreeMap<String, usize> {
    let wanted: BTreeSet<&String> = replied.iter().flatten().collect();
    let since = Instant::now();
    let events = loop {
        let events: Vec<(String, String)> = stored_events(server)
            .await
            .into_iter()
            .filter(|(subject, _)| subject.split('.').nth(5) == Some("exec"))
            .filter_map(|(subject, event)| {
                let node = subject.split('.').nth(4)?.to_owned();
                Some((node, event["event_id"].as_str()?.to_owned()))
            })
            .collect();
        let ids: BTreeSet<&String> = events.iter().map(|(_, id)| id).collect();
        let missing = wanted.difference(&ids).count();
        if missing == 0 || since.elapsed() > LIMIT {
            tally.lost += u64::try_from(missing).unwrap();
            tally.duplicate += u64::try_from(events.len() - ids.len()).unwrap();
            break events;
        }
        sleep(Duration::from_millis(200)).await;
    };
    tally.checks += u64::try_from(wanted.len()).unwrap();
    let positions: BTreeMap<&String, usize> = events
        .iter()
        .enumerate()
        .map(|(at, (_, id))| (id, at))
        .collect();
    for of_node in replied {
        let order: Vec<usize> = of_node
            .iter()
            .filter_map(|id| positions.get(id).copied())
            .collect();
        let reordered = order.windows(2).filter(|pair| pair[0] > pair[1]);
        tally.reordered += u64::try_from(reordered.count()).unwrap();
    }
    let mut counts = BTreeMap::new();
    for (node, _) in &events {
        *counts.entry(node.clone()).or_default() += 1;
    }
    counts
}
