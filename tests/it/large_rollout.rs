//! Rollouts to more nodes than one message holds, on simulated nodes that share connections.

use std::sync::atomic::{AtomicBool, Ordering};

use ccm_core::model::event::TransactionEvent;
use ccm_core::model::rollout::RolloutState;
use ccm_fleet::rollout_store::RolloutStore;
use ccm_nats::Subjects;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::wait_for;
use crate::support::simulation::Simulation;

/// Starts a server with simulated nodes, and stores the bundle `app`.
fn fleet(nodes: usize, flags: &[&str]) -> (Fleet, Simulation) {
    let fleet = Fleet::start(&[]);
    let mut all = vec!["--connections", "2"];
    if !flags.contains(&"--latency") {
        all.extend(["--latency", "1ms"]);
    }
    all.extend(flags);
    let simulation = Simulation::start(&fleet.server, nodes, &all);
    fleet.settle(nodes);
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    let file = fleet.env.write("app/manifest.yaml", manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", "app"])
        .ok();
    (fleet, simulation)
}

fn newest(fleet: &Fleet) -> Value {
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    all.as_array().unwrap().last().cloned().unwrap_or_default()
}

fn id(rollout: &Value) -> String {
    rollout["id"].as_str().unwrap().to_owned()
}

/// Returns the number of nodes with this progress.
fn count(rollout: &Value, progress: &str) -> usize {
    let nodes = rollout["nodes"].as_object().unwrap().values();
    nodes.filter(|it| **it == json!(progress)).count()
}

/// Returns the names of the chunks of a rollout.
async fn chunks(fleet: &Fleet, id: &str) -> Vec<String> {
    let bucket = fleet.server.jetstream().await;
    let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
    let keys: Vec<_> = bucket.keys().await.unwrap().collect().await;
    let prefix = format!("default.{id}.");
    let keys = keys.into_iter().map(Result::unwrap);
    keys.filter_map(|key| Some(key.strip_prefix(&prefix)?.to_owned()))
        .collect()
}

/// Returns the number of run events of each node.
async fn runs(fleet: &Fleet) -> Vec<usize> {
    let stream = fleet.server.jetstream().await;
    let stream = stream.get_stream("CCM_EVENTS").await.unwrap();
    let filter = "ccm.v1.default.event.*.run.>";
    let mut subjects = stream.info_with_subjects(filter).await.unwrap();
    let mut counts = Vec::new();
    while let Some(found) = subjects.next().await {
        counts.push(found.unwrap().1);
    }
    counts
}

#[tokio::test]
async fn a_large_rollout_is_stored_in_chunks_and_rolled_back() {
    let (fleet, _simulation) = fleet(600, &[]);
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done");
    assert_eq!(count(&rollout, "changed"), 600);
    let id = id(&rollout);
    let found = chunks(&fleet, &id).await;
    let of_kind = |kind: char| found.iter().filter(|it| it.starts_with(kind)).count();
    // Replaced chunks are removed.
    assert_eq!(
        (of_kind('m'), of_kind('p'), found.len()),
        (3, 3, 6),
        "{found:?}"
    );
    fleet.run(&["rollout", "rollback", &id]).ok();
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "rolled_back");
    assert_eq!(count(&rollout, "restored"), 600);
}

#[tokio::test]
async fn another_controller_finishes_the_chunks_of_a_killed_one() {
    let (fleet, _simulation) = fleet(700, &[]);
    let flags = [
        "rollout", "start", "app", "--all", "--wave", "100", "--bake", "300ms", "--lease", "2s",
    ];
    let mut first = fleet.begin(&flags);
    wait_for("third wave", || match newest(&fleet)["wave"].as_u64() {
        Some(2..) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    first.kill().unwrap();
    first.wait().unwrap();
    let rollout = newest(&fleet);
    assert_eq!(
        rollout["state"]["name"].as_str().map(|it| it == "done"),
        Some(false)
    );
    let id = id(&rollout);
    let outcome = fleet.run(&["rollout", "drive", &id, "--lease", "2s"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done");
    assert_eq!(rollout["lease"], Value::Null);
    assert_eq!(count(&rollout, "changed"), 700);
    // Every node ran once.
    let runs = runs(&fleet).await;
    assert_eq!((runs.len(), runs.iter().sum::<usize>()), (700, 700));
}

/// Stores a paused rollout to 1,000 nodes as earlier versions did: in one message.
async fn store_in_one_message(fleet: &Fleet) -> Vec<String> {
    let names: Vec<String> = (0..1000).map(|it| format!("node{it}")).collect();
    let progress: serde_json::Map<String, Value> = names
        .iter()
        .take(300)
        .map(|name| (name.clone(), json!("changed")))
        .collect();
    let stored = json!({
        "protocol": "io.choria.ccm.v1.rollout",
        "id": "20270115-080000-bbbb",
        "collective": "default",
        "bundle": {"name": "app", "digest": "ab".repeat(32)},
        "created": "2027-01-15T08:00:00Z",
        "plan": {"waves": [{"name": "wave 1", "nodes": names}]},
        "state": {"name": "paused", "reason": "lunch"},
        "nodes": progress
    });
    let bucket = fleet.server.jetstream().await;
    let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
    let key = "default.20270115-080000-bbbb";
    bucket.put(key, stored.to_string().into()).await.unwrap();
    names
}

#[tokio::test]
async fn a_large_rollout_of_an_earlier_version_is_read_and_changed() {
    let fleet = Fleet::start(&[]);
    let names = store_in_one_message(&fleet).await;
    let rollout = newest(&fleet);
    assert_eq!(count(&rollout, "changed"), 300);
    let id = id(&rollout);
    let aborted = fleet.run(&["rollout", "abort", &id]);
    assert_eq!(aborted.code, Some(3), "{aborted:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "aborted");
    assert_eq!(rollout["plan"]["waves"][0]["nodes"], json!(names));
    assert_eq!(count(&rollout, "changed"), 300);
    let found = chunks(&fleet, &id).await;
    let members = found.iter().filter(|it| it.starts_with('m')).count();
    assert_eq!(members, 4, "{found:?}");
}

/// Pauses a rollout for this reason, after `before` ran between its read and its write.
async fn pause(server: &NatsServer, reason: &str, before: impl Fn()) {
    let connection = server.client().await;
    let subjects = Subjects::new("ccm.v1", "default".parse().unwrap()).unwrap();
    let rollouts = RolloutStore::open(&connection, &subjects).await.unwrap();
    let id = "20270115-080000-bbbb".parse().unwrap();
    let paused = rollouts.control(&id, "pause", "test", |rollout| {
        before();
        rollout.state = RolloutState::Paused {
            reason: reason.into(),
            by: "test".into(),
            auto: false,
        };
        Ok(())
    });
    paused.await.unwrap();
}

#[tokio::test]
async fn of_two_changes_that_divide_a_rollout_neither_removes_the_chunks_of_the_other() {
    let fleet = Fleet::start(&[]);
    let names = store_in_one_message(&fleet).await;
    let server = &fleet.server;
    let is_first = AtomicBool::new(true);
    // The other change happens between the read and the write of this one, which is then retried.
    pause(server, "second", || {
        if is_first.swap(false, Ordering::SeqCst) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Runtime::new().unwrap();
                    runtime.block_on(pause(server, "first", || {}));
                });
            });
        }
    })
    .await;
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["reason"], "second");
    assert_eq!(rollout["plan"]["waves"][0]["nodes"], json!(names));
    assert_eq!(count(&rollout, "changed"), 300);
}

/// Starts a rollout, and returns it once it is done.
fn roll_out(fleet: &Fleet, wave: &str) -> Value {
    let flags = [
        "rollout",
        "start",
        "app",
        "--all",
        "--wave",
        wave,
        "--node-timeout",
        "3m",
    ];
    fleet.run(&flags).ok();
    let rollout = newest(fleet);
    assert_eq!(rollout["state"]["name"], "done");
    rollout
}

#[tokio::test]
async fn disconnected_nodes_do_not_reply_and_converge() {
    let (fleet, _simulation) = fleet(300, &["--disconnect-rate", "0.05"]);
    // A broadcast.
    let is_missing = || {
        let pinged = fleet.run(&["ping", "--all", "--timeout", "2s", "--json"]);
        let reply: Value = serde_json::from_str(&pinged.stdout).unwrap_or_default();
        let missing = reply["summary"]["no_reply"].as_u64();
        missing.filter(|it| *it > 0).ok_or(pinged)
    };
    wait_for("disconnected nodes", is_missing);
    let rollout = roll_out(&fleet, "100");
    assert_eq!(count(&rollout, "changed"), 300);
    // A disconnected node goes on with its run and reports it later.
    let runs = runs(&fleet).await;
    assert_eq!((runs.len(), runs.iter().sum::<usize>()), (300, 300));
}

#[tokio::test]
async fn a_node_that_restarts_ends_its_run_before_the_next() {
    let flags = ["--restart-rate", "0.3", "--latency", "2s"];
    let (fleet, _simulation) = fleet(60, &flags);
    let rollout = roll_out(&fleet, "60");
    assert_eq!(count(&rollout, "changed") + count(&rollout, "ok"), 60);
    let mut restarted = 0;
    for node in 0..60 {
        let times = exec_times(&fleet, &format!("sim{node:05}_sim_lab")).await;
        // A node applies its assignment again after a restart.
        restarted += usize::from(times.len() > 1);
        for pair in times.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two runs at once: {times:?}");
        }
    }
    assert!(restarted > 0, "no node restarted");
}

/// Returns when each resource of a node began and ended, the first one first.
async fn exec_times(fleet: &Fleet, node: &str) -> Vec<(DateTime<Utc>, DateTime<Utc>)> {
    let jetstream = fleet.server.jetstream().await;
    let stream = jetstream.get_stream("CCM_EVENTS").await.unwrap();
    let config = async_nats::jetstream::consumer::pull::OrderedConfig {
        filter_subject: format!("ccm.v1.default.event.{node}.exec.>"),
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();
    let pending = consumer.cached_info().num_pending;
    let mut messages = consumer.messages().await.unwrap().take(pending as usize);
    let mut times = Vec::new();
    while let Some(message) = messages.next().await {
        let event: TransactionEvent = serde_json::from_slice(&message.unwrap().payload).unwrap();
        times.push((event.timestamp, event.timestamp + event.duration));
    }
    times.sort();
    times
}

#[test]
fn a_share_of_nodes_with_shared_connections_fails() {
    let (fleet, _simulation) = fleet(100, &["--failure-rate", "0.3"]);
    let rolled = fleet.run(&["rollout", "start", "app", "--all", "--max-failures", "100"]);
    assert_eq!(rolled.code, Some(1), "{rolled:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done_with_failures");
    let nodes = rollout["nodes"].as_object().unwrap().values();
    let failed = nodes.filter(|it| it.get("failed").is_some()).count();
    assert_eq!(failed + count(&rollout, "changed"), 100, "{rollout}");
    // The same nodes each time, about a third.
    assert!((15..=45).contains(&failed), "{failed}");
}
