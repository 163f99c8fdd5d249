//! Together with `ccm agent` on the same node: one run at a time, and one spool for all events.

use std::process::Command;

use ccm_nats::Verb;
use serde_json::{Value, json};

use super::{Server, file};
use crate::support::agent::{self, AgentProcess, file_request, request_json, stored_events};
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, when};

const NODE: &str = "web1.lab";

/// Nothing listens there; a daemon works without a server.
const NOWHERE: &str = "nats://127.0.0.1:1";

/// Returns a server whose agent knows where the daemon of the node keeps its state.
fn choria_server() -> Server {
    let server = Server::new();
    let state = server.env.at(&format!("{NODE}/state"));
    let runs = server.env.at("state/choria-runs");
    server.configure(&format!("state_dir = {state}\nrun_dir = {runs}\n"));
    server
}

/// Waits until the daemon has a run going on, and returns its id.
async fn busy_with(server: &Server) -> String {
    let lock = format!("{NODE}/state/run.lock");
    eventually("a run of the daemon", async || {
        let text = server.env.exists(&lock).then(|| server.env.read(&lock))?;
        let holder: Value = serde_json::from_str(&text).ok()?;
        Some(holder["id"].as_str()?.to_owned())
    })
    .await
}

/// Returns the subjects of the events about a resource, or about runs.
async fn events_about(nats: &NatsServer, about: &str) -> Vec<(String, Value)> {
    let mut events = stored_events(nats).await;
    events.retain(|(_, event)| event["name"] == about || event["source"] == about);
    events
}

#[tokio::test]
async fn a_run_of_the_agent_makes_choria_requests_busy_until_it_is_killed() {
    let server = choria_server();
    let manifest = server.env.write("site.yaml", server.patient_manifest());
    let lines = format!("manifests: [{manifest}]\n");
    let daemon = AgentProcess::start(&server.env, NODE, NOWHERE, &lines);
    let id = busy_with(&server).await;
    let ensure = file(&server.env.at("motd"), "hi");
    assert_eq!(
        server.call("ensure", ensure.clone()).refused(1),
        format!("run {id} is still running: wait for it to end")
    );
    assert!(!server.env.exists("motd"));
    assert_eq!(server.call("ping", json!({})).ok()["current_run"], id);
    daemon.kill();
    assert_eq!(server.call("ensure", ensure).ok()["changed"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_waits_for_a_run_of_choria_and_logs_it() {
    let (server, nats) = (choria_server(), NatsServer::start());
    let client = nats.client().await;
    let _daemon = AgentProcess::start(&server.env, NODE, &nats.url(), "");
    request_json(&client, NODE, Verb::Ping, "").await;
    let (run_id, _) = server.begin();
    let wanted = file_request(&server.env.path("motd"), "hi");
    let watching = async {
        let waits_for = eventually("the daemon waits", async || {
            let status = request_json(&client, NODE, Verb::Ping, "").await;
            let text = status["current_run"]["waiting_for"].as_str();
            text.map(ToOwned::to_owned).ok_or(status)
        })
        .await;
        assert!(waits_for.contains(run_id.as_str().unwrap()), "{waits_for}");
        assert!(!server.env.exists("motd"));
        server.go();
    };
    let asking = request_json(&client, NODE, Verb::Ensure, &wanted);
    let (answer, ()) = tokio::join!(asking, watching);
    assert_eq!(answer["state"]["changed"], true, "{answer:#}");
    assert!(server.env.exists("done"), "ours was over before");
}

#[tokio::test]
async fn events_of_choria_runs_are_published_once_also_when_the_agent_was_stopped() {
    let (server, nats) = (choria_server(), NatsServer::start());
    agent::init(&nats.client().await).await;
    let daemon = AgentProcess::start(&server.env, NODE, &nats.url(), "");
    eventually("a daemon to hand over to", async || {
        let directory = format!("{NODE}/state/handover");
        when(server.env.exists(&directory), directory)
    })
    .await;
    let motd = server.env.at("motd");
    let done = server.call("ensure", file(&motd, "hi")).ok();
    let events = eventually("the event of an ensure", async || {
        let events = events_about(&nats, &motd).await;
        when(!events.is_empty(), events)
    })
    .await;
    assert_eq!(events[0].0, "ccm.v1.default.event.web1_lab.file.changed");
    assert_eq!(events[0].1, done["event"]);
    daemon.kill();

    let other = server.env.at("other");
    let manifest = format!("ccm: {{resources: [{{exec: {{name: /usr/bin/touch {other}}}}}]}}");
    let run = json!({"manifest": manifest, "wait": 50});
    let run_id = server.call("apply", run).ok()["run_id"].clone();
    let _daemon = AgentProcess::start(&server.env, NODE, &nats.url(), "");
    let run = eventually("the summary of a run", async || {
        events_about(&nats, "inline").await.pop()
    })
    .await;
    assert_eq!(run.0, "ccm.v1.default.event.web1_lab.run.changed");
    let document = &run.1;
    assert_eq!(document["run_id"], run_id);
    assert_eq!(
        (&document["identity"], &document["caller"]),
        (&json!(NODE), &json!("choria=ann.mcollective"))
    );
    // By now every event was published once.
    for about in [motd, format!("/usr/bin/touch {other}"), "inline".into()] {
        assert_eq!(events_about(&nats, &about).await.len(), 1, "{about}");
    }
    let left = server.env.path(&format!("{NODE}/state/handover"));
    eventually("no file to hand over", async || {
        let count = left.read_dir().unwrap().count();
        when(count == 0, count)
    })
    .await;
}

#[tokio::test]
async fn events_of_a_killed_run_are_published_as_far_as_it_came() {
    let (server, nats) = (choria_server(), NatsServer::start());
    agent::init(&nats.client().await).await;
    let _daemon = AgentProcess::start(&server.env, NODE, &nats.url(), "");
    eventually("a daemon to hand over to", async || {
        let directory = format!("{NODE}/state/handover");
        when(server.env.exists(&directory), directory)
    })
    .await;
    let (first, begun) = (server.env.at("first"), server.env.at("begun"));
    let command = format!("/usr/bin/touch {first}");
    let rest = server
        .patient_manifest()
        .replace("for i", &format!("touch {begun}; for i"));
    let manifest = rest.replace(
        "resources:\n",
        &format!("resources:\n    - exec: {{name: {command}}}\n"),
    );
    server.call("apply", json!({ "manifest": manifest })).ok();
    let pid = server.holder().unwrap();
    eventually("the second resource", async || server.env.exists("begun")).await;
    assert_eq!(events_about(&nats, &command).await, [], "the run goes on");
    let killed = Command::new("kill").args(["-9", &pid]).status();
    assert!(killed.unwrap().success());
    let events = eventually("the event of the first resource", async || {
        let events = events_about(&nats, &command).await;
        when(!events.is_empty(), events)
    })
    .await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        events_about(&nats, "inline").await,
        [],
        "its end is not known"
    );
}
