//! Exchanges of the real `choria` and `nats` commands, recorded by `scripts/interop --record` and
//! kept in `tests/data/interop`: the recorded requests are sent again, and the replies must have
//! the form, the headers and the results of the recorded ones, which the real programs accepted.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::choria::Server;
use crate::support::poll::{LIMIT, eventually};
use crate::support::setup::Setup;

/// Keys whose values differ from machine to machine in their form, too.
const FREE: [&str; 2] = ["facts", "metadata"];

/// Keys whose values are the result of a request, and the same on every machine.
const SAME: [&str; 14] = [
    "action",
    "changed",
    "ensure",
    "error",
    "failed",
    "final_ensure",
    "noop",
    "noop_message",
    "outcome",
    "protocol",
    "provider",
    "requested_ensure",
    "skipped",
    "type",
];

/// Returns the recorded exchanges of a program, with their names.
fn exchanges(program: &str) -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/interop");
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(program))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "nothing is recorded of {program}");
    files
        .iter()
        .map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Fails unless a value has every key of a recorded one, with values of the same types, and the same
/// results. Further keys are allowed, as clients ignore them.
pub(crate) fn assert_form(path: &str, recorded: &Value, found: &Value) {
    if recorded.is_null() {
        return;
    }
    assert_eq!(kind(recorded), kind(found), "{path}: {recorded} {found}");
    match (recorded, found) {
        (Value::Object(recorded), Value::Object(_)) => {
            for (key, value) in recorded {
                if FREE.contains(&key.as_str()) {
                    continue;
                }
                let found = found.get(key);
                let found = found.unwrap_or_else(|| panic!("{path}: {key} is missing"));
                let path = format!("{path}.{key}");
                let is_scalar = !value.is_object() && !value.is_array();
                if SAME.contains(&key.as_str()) && is_scalar {
                    assert_eq!(value, found, "{path}");
                }
                assert_form(&path, value, found);
            }
        }
        (Value::Array(recorded), Value::Array(found)) => {
            if let (Some(recorded), Some(found)) = (recorded.first(), found.first()) {
                assert_form(&format!("{path}[0]"), recorded, found);
            }
        }
        _ => {}
    }
}

#[test]
fn requests_of_the_choria_server_get_replies_that_its_client_accepted() {
    let server = Server::new();
    for (name, exchange) in exchanges("choria") {
        let request = serde_json::to_vec(&exchange["request"]).unwrap();
        let reply = server.send(&request);
        let recorded = &exchange["reply"];
        assert_eq!(
            recorded["statuscode"].as_u64(),
            Some(reply.code),
            "{name}: {reply:?}"
        );
        assert_form(&name, &recorded["data"], &reply.data);
        // What the agent replied is what the client showed.
        let shown = &exchange["client"]["replies"][0];
        assert_eq!(shown["statuscode"], recorded["statuscode"], "{name}");
        assert_form(&name, &shown["data"], &recorded["data"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_the_nats_command_get_replies_that_it_accepted() {
    let setup = Setup::inside_with("web1.lab", |config, _| {
        config.groups = vec!["web".parse().unwrap()];
    })
    .await;
    let client = async_nats::connect(setup.server.url()).await.unwrap();
    for (name, exchange) in exchanges("nats") {
        for request in exchange["requests"].as_array().unwrap() {
            let recorded = request["replies"].as_array().unwrap();
            let Some(recorded) = recorded.first() else {
                continue;
            };
            let found = eventually(&format!("a reply to {name}"), async || {
                send(&client, request).await
            })
            .await;
            let headers = recorded["headers"].as_object().unwrap();
            for (key, value) in headers {
                let found = found.headers.as_ref().and_then(|it| it.get(key.as_str()));
                let found = found.map(|value| value.as_str());
                assert_eq!(found, value.as_str(), "{name}: header {key}");
            }
            let parse = |text: &str| match serde_json::from_str::<Value>(text) {
                Ok(document) => document,
                Err(error) => panic!("{name}: {error}: {text}"),
            };
            let payload = std::str::from_utf8(&found.payload).unwrap();
            let recorded = parse(recorded["payload"].as_str().unwrap());
            assert_form(&name, &recorded, &parse(payload));
        }
    }
    setup.agent.stop().await;
}

/// Sends a recorded request with the same subject, headers and payload.
async fn send(
    client: &async_nats::Client,
    request: &Value,
) -> Result<async_nats::Message, async_nats::RequestError> {
    let mut headers = async_nats::HeaderMap::new();
    for (key, value) in request["headers"].as_object().unwrap() {
        headers.insert(key.as_str(), value.as_str().unwrap());
    }
    let subject = request["subject"].as_str().unwrap().to_owned();
    let payload = request["payload"].as_str().unwrap().to_owned();
    let sent = async_nats::Request::new()
        .headers(headers)
        .payload(payload.into())
        .timeout(Some(LIMIT));
    client.send_request(subject, sent).await
}
