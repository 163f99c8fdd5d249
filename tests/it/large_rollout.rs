//! Rollouts to more nodes than one message holds, on simulated nodes that share connections.

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::poll::wait_for;
use crate::support::simulation::Simulation;

/// Starts a server with simulated nodes, and stores the bundle `app`.
fn fleet(nodes: usize, flags: &[&str]) -> (Fleet, Simulation) {
    let fleet = Fleet::start(&[]);
    let mut all = vec!["--connections", "2", "--latency", "1ms"];
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

#[tokio::test]
async fn a_large_rollout_of_an_earlier_version_is_read_and_changed() {
    let fleet = Fleet::start(&[]);
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

#[tokio::test]
async fn nodes_that_disconnect_and_restart_converge() {
    let trouble = ["--disconnect-rate", "0.05", "--restart-rate", "0.05"];
    let (fleet, _simulation) = fleet(300, &trouble);
    let flags = [
        "rollout",
        "start",
        "app",
        "--all",
        "--wave",
        "100",
        "--node-timeout",
        "60s",
    ];
    fleet.run(&flags).ok();
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done");
    assert_eq!(count(&rollout, "changed") + count(&rollout, "ok"), 300);
}
