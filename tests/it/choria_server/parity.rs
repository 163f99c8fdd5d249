//! The Choria server of `ccm agent` gives the same replies as the external agent, apart from ids,
//! times and durations.

use serde_json::{Value, json};

use super::{Call, Lab, NODE};
use crate::choria::Server;

/// Keys whose values differ from run to run.
const VARYING: [&str; 11] = [
    "duration",
    "end_time",
    "ended",
    "event_id",
    "last_run",
    "mtime",
    "run_id",
    "start_time",
    "started",
    "timestamp",
    "total_duration",
];

/// Returns a reply without values that differ from run to run, and with the same directory.
fn normalized(value: &Value, directory: &str) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| match VARYING.contains(&key.as_str()) {
                true => (key.clone(), json!("varying")),
                false => (key.clone(), normalized(value, directory)),
            })
            .collect(),
        Value::Array(list) => {
            let list = list.iter().map(|value| normalized(value, directory));
            Value::Array(list.collect())
        }
        Value::String(text) => text.replace(directory, "DIR").into(),
        other => other.clone(),
    }
}

/// Returns the requests, in order, for files below a directory.
fn requests(directory: &str) -> Vec<(&'static str, Value)> {
    let path = format!("{directory}/motd");
    let properties = json!({"content": "hi\n", "owner": "root", "group": "root", "mode": "0644"});
    let ensure = |more: Value| {
        let mut data = json!({"type": "file", "name": path, "ensure": "present",
                              "properties": properties, "wait": 50});
        for (key, value) in more.as_object().unwrap() {
            data[key] = value.clone();
        }
        data
    };
    let manifest = |command: &str| {
        let manifest = json!({"ccm": {"resources": [{"exec": [{command: {}}]}]}});
        json!({"manifest": manifest.to_string(), "wait": 50})
    };
    vec![
        ("ping", json!({})),
        ("run_status", json!({})),
        ("status", json!({"type": "file", "name": path})),
        ("ensure", ensure(json!({"noop": true}))),
        ("ensure", ensure(json!({}))),
        ("ensure", ensure(json!({}))),
        ("status", json!({"type": "file", "name": path})),
        ("ensure", ensure(json!({"name": "relative"}))),
        ("ensure", json!({"type": "file"})),
        ("status", json!({"type": "nothing", "name": "x"})),
        ("apply", manifest("/bin/true")),
        ("run_status", json!({})),
        ("ping", json!({})),
        ("apply", manifest("/bin/false")),
        ("run_status", json!({})),
        ("apply", json!({"manifest": "{", "wait": 50})),
        ("apply", json!({})),
        ("run_status", json!({"run_id": "nothing"})),
        ("facts", json!({"query": "host.info.os"})),
        ("facts", json!({"query": "nothing"})),
        ("reboot", json!({})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_give_the_same_replies() {
    let lab = Lab::new().await;
    let external = Server::new();
    external.configure(&format!("identity = {NODE}\n"));
    let inside = lab.setup.env.root().to_str().unwrap().to_owned();
    let outside = external.env.root().to_str().unwrap().to_owned();
    for (one, other) in requests(&inside).into_iter().zip(requests(&outside)) {
        let (action, data) = one;
        let reply = lab.reply(&Call::rpc("ccm", action, data.clone())).await;
        let found = json!({"code": reply["statuscode"], "message": reply["statusmsg"],
                           "data": reply["data"]});
        let wanted = external.call(other.0, other.1);
        let wanted = json!({"code": wanted.code, "message": wanted.message, "data": wanted.data});
        assert_eq!(
            normalized(&found, &inside),
            normalized(&wanted, &outside),
            "{action} {data}"
        );
    }
    lab.setup.agent.stop().await;
}
