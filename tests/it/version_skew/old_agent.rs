//! Today's controller with an agent of the previous version, which refuses fields of requests that it
//! does not know, and with a rollout that a controller of that version left.

use async_nats::jetstream::kv::Store;
use async_nats::{Client, HeaderMap, Message};
use chrono::Utc;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::recorded;
use crate::doctor::Diagnosis;
use crate::rollout;
use crate::support::fleet::Fleet;
use crate::support::poll::{eventually, when};

/// The node with the old agent.
const OLD: &str = "old1";
const KEY: &str = "default.old1";

/// Headers that the previous version knows.
const HEADERS: [&str; 9] = [
    "Ccm-Request-Id",
    "Ccm-Noop",
    "Ccm-Diff",
    "Ccm-Filter",
    "Ccm-Deadline",
    "Ccm-Caller",
    "Ccm-Signer",
    "Ccm-Timestamp",
    "Ccm-Signature",
];

/// Fields of requests that the previous version knows.
fn known_fields(verb: &str) -> &'static [&'static str] {
    match verb {
        "ensure" => &["protocol", "type", "properties"],
        "status" => &["protocol", "type", "name", "properties"],
        "apply" => &[
            "protocol",
            "manifest",
            "source",
            "noop",
            "health_check_only",
            "data",
            "governor",
            "wait",
        ],
        "pause" => &["reason", "until"],
        _ => &[],
    }
}

/// An agent that behaves as the previous version did. Ends when dropped.
struct OldAgent(JoinHandle<()>);

impl Drop for OldAgent {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl OldAgent {
    async fn start(fleet: &Fleet) -> Self {
        let client = async_nats::connect(fleet.server.url()).await.unwrap();
        let jetstream = async_nats::jetstream::new(client.clone());
        let nodes = jetstream.get_key_value("CCM_NODES").await.unwrap();
        let desired = jetstream.get_key_value("CCM_DESIRED").await.unwrap();
        let reported = jetstream.get_key_value("CCM_REPORTED").await.unwrap();
        let own = client
            .subscribe("ccm.v1.default.node.old1.*")
            .await
            .unwrap();
        let all = client.subscribe("ccm.v1.default.all.*").await.unwrap();
        let mut requests = futures_util::stream::select(own, all);
        beat(&nodes).await;
        Self(tokio::spawn(async move {
            let mut interval = tokio::time::interval(std::time::Duration::from_secs(1));
            loop {
                tokio::select! {
                    _ = interval.tick() => beat(&nodes).await,
                    Some(message) = requests.next() => {
                        if message.subject.ends_with(".nudge") {
                            report(&desired, &reported).await;
                        } else {
                            serve(&client, &message).await;
                        }
                    }
                }
            }
        }))
    }
}

/// Publishes the presence of the old agent.
async fn beat(nodes: &Store) {
    let mut presence = recorded("presence.json");
    presence["identity"] = json!(OLD);
    presence["groups"] = json!([]);
    presence["timestamp"] = json!(Utc::now().to_rfc3339());
    nodes.put(KEY, presence.to_string().into()).await.unwrap();
}

/// Reports the assignment as applied.
async fn report(desired: &Store, reported: &Store) {
    let Some(assignment) = desired.get(KEY).await.unwrap() else {
        return;
    };
    let assignment: Value = serde_json::from_slice(&assignment).unwrap();
    // An old reader needs these fields and ignores others.
    for field in recorded("assignment.json").as_object().unwrap().keys() {
        assert!(assignment.get(field).is_some(), "{field} in {assignment:#}");
    }
    let mut report = recorded("report.json");
    report["identity"] = json!(OLD);
    report["run"]["identity"] = json!(OLD);
    for field in ["generation", "manifests"] {
        report[field] = assignment[field].clone();
    }
    report["run"]["generation"] = assignment["generation"].clone();
    report["timestamp"] = json!(Utc::now().to_rfc3339());
    reported.put(KEY, report.to_string().into()).await.unwrap();
}

/// Answers a request, or refuses it because of something unknown.
async fn serve(client: &Client, message: &Message) {
    let Some(reply) = message.reply.clone() else {
        return;
    };
    let verb = message.subject.rsplit('.').next().unwrap().to_owned();
    let mut headers = HeaderMap::new();
    headers.insert("Ccm-Identity", OLD);
    let body = match unknown(&verb, message) {
        Some(name) => {
            headers.insert("Nats-Service-Error-Code", "400");
            let text = format!("unknown field {name:?}");
            headers.insert("Nats-Service-Error", text.as_str());
            let protocol = format!("io.choria.ccm.v1.manifest.{verb}.response");
            json!({ "protocol": protocol, "error": text })
        }
        None => answer(&verb),
    };
    let body = body.to_string().into();
    client
        .publish_with_headers(reply, headers, body)
        .await
        .unwrap();
}

/// Returns the first header or field that the previous version does not know.
fn unknown(verb: &str, message: &Message) -> Option<String> {
    let headers = message.headers.iter().flat_map(HeaderMap::iter);
    let mut names = headers.map(|(name, _)| name.to_string());
    let header = names.find(|name| name.starts_with("Ccm-") && !HEADERS.contains(&name.as_str()));
    let body: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
    let known = known_fields(verb);
    let mut fields = body
        .as_object()
        .into_iter()
        .flat_map(|body| body.keys().cloned());
    header.or_else(|| fields.find(|name| !known.contains(&name.as_str())))
}

fn answer(verb: &str) -> Value {
    match verb {
        "ensure" => recorded("ensure_reply.json"),
        _ => {
            let mut presence = recorded("presence.json");
            presence["identity"] = json!(OLD);
            presence
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_previous_version_is_listed_as_old_and_obeys() {
    let fleet = rollout::fleet(&["new1"]);
    let _old = OldAgent::start(&fleet).await;
    let nodes = fleet.run(&["nodes", "--json"]).json();
    let rows = nodes["nodes"].as_array().unwrap();
    let old = rows.iter().find(|row| row["identity"] == OLD).unwrap();
    assert_eq!(old["condition"], "old-version", "{old:#}");
    let pinged = fleet.run(&["ping"]).ok();
    assert!(pinged.contains("old1: version 0.0.9"), "{pinged}");
    let ensure = ["ensure", "exec", "/bin/true", "--node", OLD];
    let ensured = fleet.run(&ensure).ok();
    assert!(ensured.contains("1 node: 1 changed"), "{ensured}");
    let found = Diagnosis::read(&fleet.run(&["doctor", "--json"]));
    found.assert("nodes_version", "warning", "older than", "upgrade");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_today_reaches_an_agent_of_the_previous_version() {
    let fleet = rollout::fleet(&["new1"]);
    let _old = OldAgent::start(&fleet).await;
    rollout::push(&fleet, "app", "true");
    rollout::start(&fleet, "app", &["--canary", "1"]).ok();
    let rollout = rollout::newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done", "{rollout:#}");
    assert_eq!(rollout::progress(&rollout).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feature_that_the_previous_version_lacks_is_refused_with_its_name() {
    let fleet = rollout::fleet(&[]);
    let _old = OldAgent::start(&fleet).await;
    rollout::push(&fleet, "app", "true");
    rollout::start(&fleet, "app", &[]).ok();
    // A check of the assignment is a field of the request that the old agent does not know.
    let refreshed = fleet.run(&["drift", "--refresh", OLD]);
    assert!(
        refreshed.stdout.contains("unknown field \"check\""),
        "{refreshed:?}"
    );
    assert_eq!(refreshed.code, Some(1), "{refreshed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_the_previous_version_is_continued() {
    let fleet = rollout::fleet(&["web1"]);
    let pushed = rollout::push(&fleet, "app", "true");
    let mut rollout = recorded("rollout.json");
    rollout["bundle"]["digest"] = pushed["digest"].clone();
    rollout["plan"]["waves"][0]["nodes"] = json!(["web1"]);
    let jetstream = fleet.server.jetstream().await;
    let rollouts = jetstream.get_key_value("CCM_ROLLOUTS").await.unwrap();
    let id = rollout["id"].as_str().unwrap();
    let body = rollout.to_string();
    rollouts
        .put(format!("default.{id}"), body.into())
        .await
        .unwrap();
    fleet.run(&["rollout", "drive", id]).ok();
    assert_eq!(rollout::ran(&fleet, "web1"), ["app"]);
    let stored = eventually("a finished rollout", async || {
        let stored = rollout::newest(&fleet);
        when(stored["state"]["name"] == "done", stored)
    })
    .await;
    assert_eq!(stored["id"], id);
}
