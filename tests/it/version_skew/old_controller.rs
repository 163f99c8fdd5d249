//! Today's agent with requests and assignments of a controller of the previous version, and what
//! that controller reads of it.

use std::path::Path;

use ccm_nats::kv::Bucket;
use ccm_nats::streams::{DESIRED, NODES, REPORTED};
use ccm_nats::{Bytes, Headers, Verb};
use serde_json::{Value, json};

use super::{NODE, assert_readable, recorded};
use crate::support::agent::{self, stored_events};
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;

const KEY: &str = "default.web1_example_net";

fn verb(name: &str) -> Verb {
    let all = [
        Verb::Ensure,
        Verb::Status,
        Verb::Apply,
        Verb::Facts,
        Verb::Ping,
    ];
    let all = all.into_iter().chain([Verb::Pause, Verb::Resume]);
    all.into_iter().find(|verb| verb.as_str() == name).unwrap()
}

#[tokio::test]
async fn requests_of_the_previous_version_are_obeyed() {
    let setup = Setup::inside(NODE).await;
    let requests = recorded("requests.json");
    for request in requests.as_array().unwrap() {
        let mut headers = Headers::new();
        for (name, value) in request["headers"].as_object().unwrap() {
            headers.set(name, value.as_str().unwrap()).unwrap();
        }
        let body = request["body"].as_str().unwrap();
        let body = body.replace("@DIR@", setup.env.root().to_str().unwrap());
        let verb = verb(request["verb"].as_str().unwrap());
        let reply = agent::request(&setup.client, NODE, verb, headers, &body).await;
        assert_eq!(reply.service_error(), None, "{request:#}");
    }
    assert_eq!(setup.env.read("ensured"), "hi\n");
    eventually("the applied manifest", async || setup.env.exists("managed")).await;
}

#[tokio::test]
async fn replies_have_everything_that_the_previous_version_reads() {
    let setup = Setup::inside(NODE).await;
    let body = agent::file_request(&setup.env.path("managed"), "x");
    let reply = agent::request_json(&setup.client, NODE, Verb::Ensure, &body).await;
    assert_readable(&recorded("ensure_reply.json"), &reply, "ensure");
}

async fn document(bucket: &Bucket) -> Option<Value> {
    let entry = bucket.get(KEY).await.unwrap()?;
    Some(serde_json::from_slice(&entry.value).unwrap())
}

/// Stores a bundle that writes a file, and returns its digest.
fn push_bundle(setup: &Setup<ccm_agent::Agent>) -> String {
    let target = setup.env.at("managed");
    let text = format!(
        "ccm:\n  resources:\n    - file:\n        - {target}:\n            \
         {{ensure: present, content: x, owner: root, group: root, mode: '0644'}}\n"
    );
    let file = setup.env.write("app/manifest.yaml", text);
    let directory = Path::new(&file)
        .parent()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let push = [
        "fleet", "bundle", "push", &directory, "--name", "app", "--json",
    ];
    let url = setup.server.url();
    let pushed = setup
        .env
        .ccm(&[&push[..], &["--server", &url]].concat())
        .json();
    pushed["digest"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_assignment_of_the_previous_version_is_applied_and_the_report_can_be_read_by_it() {
    let setup = Setup::inside_with(NODE, |config, _| {
        config.groups = vec!["web".parse().unwrap()];
    })
    .await;
    let mut assignment = recorded("assignment.json");
    assignment["manifests"][0]["digest"] = json!(push_bundle(&setup));
    let desired = setup.client.bucket(DESIRED).await.unwrap();
    let body = Bytes::from(assignment.to_string());
    desired.put(KEY, body).await.unwrap();
    let nudge = agent::subjects().node(
        &NODE
            .parse::<ccm_core::model::node::NodeName>()
            .unwrap()
            .token(),
        Verb::Nudge,
    );
    setup
        .client
        .publish(&nudge, Headers::new(), Bytes::new())
        .await
        .unwrap();
    let reported = setup.client.bucket(REPORTED).await.unwrap();
    let report = eventually("a report", async || {
        let report = document(&reported).await;
        report.filter(|report| report["generation"] == 1 && report["run"].is_object())
    })
    .await;
    assert_eq!(report["run"]["outcome"], "changed", "{report:#}");
    assert_readable(&recorded("report.json"), &report, "report");
    let nodes = setup.client.bucket(NODES).await.unwrap();
    let presence = eventually("presence with a run", async || {
        let presence = document(&nodes).await;
        presence.filter(|it| it["last_run"].is_object() && it["generation"] == 1)
    })
    .await;
    assert_readable(&recorded("presence.json"), &presence, "presence");
    let events = eventually("events", async || {
        let events = stored_events(&setup.server).await;
        when(events.len() >= 2, events)
    })
    .await;
    let of = |part: &str| events.iter().find(|(subject, _)| subject.contains(part));
    assert_readable(
        &recorded("event.json"),
        &of(".file.changed").unwrap().1,
        "event",
    );
    let run = &of(".run.changed").unwrap().1;
    assert_readable(&recorded("run_summary.json"), run, "run");
}
