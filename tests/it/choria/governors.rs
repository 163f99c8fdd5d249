//! Limits on concurrent runs: the governor of the manifest and that of the request, on a real server.

use serde_json::{Value, json};

use super::Server;
use crate::governor::{DEPLOYS, HOUR, evict, exec, make, occupy, stream, taken};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, wait_for, when};

/// Returns nodes of a server with a governor of one slot.
async fn nodes(names: &[&str]) -> (NatsServer, Vec<Server>) {
    let nats = NatsServer::start();
    make(&nats, stream(1, HOUR)).await;
    let node = |name: &&str| {
        let server = Server::new();
        server.configure(&format!(
            "identity = {name}\nnats_server = {}\n",
            nats.url()
        ));
        server
    };
    let nodes = names.iter().map(node).collect();
    (nats, nodes)
}

/// Returns a manifest that creates the file `touched`.
fn touching(node: &Server) -> String {
    exec(&format!("/bin/touch {}", node.env.at("touched")))
}

/// Waits until a run waits for its slot.
fn until_waiting(node: &Server, run_id: &Value) {
    wait_for("a run that waits for its slot", || {
        let run = node.call("run_status", json!({ "run_id": run_id })).ok();
        when(run["waiting_for"] == "governor deploys", run)
    });
}

/// Returns the holders of all slots.
async fn holders(nats: &NatsServer) -> Vec<String> {
    let jetstream = nats.jetstream().await;
    let stream = jetstream.get_stream(format!("GOVERNOR_{DEPLOYS}")).await;
    let mut stream = stream.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut found = Vec::new();
    for sequence in state.first_sequence..=state.last_sequence {
        if let Ok(message) = stream.get_raw_message(sequence).await {
            found.push(String::from_utf8(message.payload.to_vec()).unwrap());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_waits_for_the_governor_of_its_manifest() {
    let (nats, nodes) = nodes(&["web1.lab"]).await;
    let node = &nodes[0];
    let other = occupy(&nats).await;
    let manifest = format!("governor: {{name: {DEPLOYS}}}\n{}", touching(node));
    let run = node.call("apply", json!({ "manifest": manifest })).ok();
    until_waiting(node, &run["run_id"]);
    assert!(!node.env.exists("touched"), "it had no slot");
    evict(&nats, other).await;
    let run = node.wait_for(&run["run_id"]);
    assert_eq!(run["outcome"], "changed", "{run:#}");
    assert_eq!(run["waiting_for"], "");
    assert!(node.env.exists("touched"));
    assert_eq!(taken(&nats).await, 0, "the slot was left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_one_at_a_time_holds_the_governor_of_a_request() {
    let (nats, nodes) = nodes(&["web1.lab", "web2.lab"]).await;
    let (first, second) = (&nodes[0], &nodes[1]);
    let data = json!({"manifest": first.patient_manifest(), "governor": DEPLOYS});
    let running = first.call("apply", data).ok();
    eventually("the slot of the first node", async || {
        let holders = holders(&nats).await;
        when(holders == ["web1.lab"], holders)
    })
    .await;
    let data = json!({"manifest": touching(second), "governor": DEPLOYS});
    let waiting = second.call("apply", data).ok();
    until_waiting(second, &waiting["run_id"]);
    assert!(!second.env.exists("touched"));
    first.go();
    assert_eq!(first.wait_for(&running["run_id"])["outcome"], "changed");
    assert_eq!(second.wait_for(&waiting["run_id"])["outcome"], "changed");
    assert_eq!(holders(&nats).await, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_without_a_slot_in_time_fails_and_changes_nothing() {
    let (nats, nodes) = nodes(&["web1.lab"]).await;
    let node = &nodes[0];
    occupy(&nats).await;
    let data = json!({
        "manifest": touching(node),
        "governor": DEPLOYS,
        "governor_timeout": "1s",
        "wait": 50,
    });
    let reply = node.call("apply", data);
    assert_eq!(reply.data["state"], "failed");
    assert_eq!(reply.data["total"], Value::from(0));
    let message = reply.refused(1);
    let expected = "no slot in governor deploys within 1s: all slots are taken";
    assert!(message.ends_with(expected), "{message}");
    assert!(!node.env.exists("touched"));
    assert_eq!(taken(&nats).await, 1, "the slot of another owner stays");
}
