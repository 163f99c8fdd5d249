//! Samples of messages: what the program really prints and stores, with fixed ids and times.

use std::sync::LazyLock;

use ccm_nats::Verb;
use ccm_nats::streams::{DESIRED, FACTS, LABELS, NODES, REPORTED, ROLLOUTS};
use regex::Regex;
use serde_json::{Value, json};

use super::{choria_samples, enrolment_samples, type_events};
use crate::support::fleet::Fleet;
use crate::support::poll::{eventually, wait_for};
use crate::support::{Outcome, TestEnv};

/// Returns a sample as a block of JSON.
pub(super) fn sample(what: &str) -> String {
    let (document, scratch) = match what {
        "event" => local(&[
            "ensure",
            "file",
            "/srv/motd",
            "--content",
            "hello",
            "--json",
        ]),
        "event-noop" => local(&[
            "ensure",
            "file",
            "/srv/motd",
            "--content",
            "hello",
            "--json",
            "--noop",
        ]),
        "event-failed" => local(&["ensure", "exec", "/bin/false", "--json"]),
        type_event if type_event.starts_with("event-of-") => {
            let (event, scratch) = type_events::event(type_event.trim_start_matches("event-of-"));
            (event, scratch)
        }
        request if request.starts_with("request-") => {
            let name = request.trim_start_matches("request-");
            let (_, _, body) = REQUESTS.iter().find(|(other, ..)| *other == name).unwrap();
            (serde_json::from_str(body).unwrap(), String::new())
        }
        "ensure-response" => ensure_response(),
        "run" => run(),
        other => (stored(other), String::new()),
    };
    let text = serde_json::to_string_pretty(&normal(document)).unwrap();
    let text = text.replace(&scratch, "");
    format!("```json\n{text}\n```")
}

fn parse(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|err| panic!("{err}: {outcome:?}"))
}

/// Returns what a command prints, with files below a scratch directory, and the directory.
fn local(args: &[&str]) -> (Value, String) {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("srv")).unwrap();
    let args: Vec<String> = args
        .iter()
        .map(|word| word.replace("/srv", &env.at("srv")))
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    (parse(&env.ccm(&args)), "$DIR".into())
}

fn ensure_response() -> (Value, String) {
    let env = TestEnv::new();
    let request = json!({
        "protocol": "io.choria.ccm.v1.resource.ensure.request",
        "type": "file",
        "properties": {"name": env.at("motd"), "ensure": "absent"},
    });
    let outcome = env.ccm_with_input(&["ensure", "api", "pipe"], &request.to_string());
    (parse(&outcome), "$DIR".into())
}

/// Returns the summary that `ccm apply --json` prints.
fn run() -> (Value, String) {
    let env = TestEnv::new();
    let manifest = format!(
        "ccm:\n  resources:\n    - file: {{name: {}, ensure: absent}}\n",
        env.at("motd")
    );
    env.write("site.yaml", manifest);
    let mut document = parse(&env.ccm(&["apply", "site.yaml", "--json"]));
    (document["summary"].take(), "$DIR".into())
}

/// Requests that are sent to the fleet's node, by name; the node gets them in this order.
const REQUESTS: [(&str, Verb, &str); 9] = [
    (
        "status",
        Verb::Status,
        r#"{"protocol": "io.choria.ccm.v1.resource.status.request", "type": "file", "name": "/nonexistent/motd"}"#,
    ),
    (
        "apply",
        Verb::Apply,
        r#"{"protocol": "io.choria.ccm.v1.manifest.apply.request", "wait": true, "noop": true,
            "manifest": {"ccm": {"resources": [{"file": {"name": "/nonexistent/motd", "ensure": "absent"}}]}}}"#,
    ),
    ("facts", Verb::Facts, r#"{"path": "node"}"#),
    (
        "pause",
        Verb::Pause,
        r#"{"reason": "maintenance", "for": "2h"}"#,
    ),
    (
        "resume",
        Verb::Resume,
        r#"{"reason": "maintenance is over"}"#,
    ),
    (
        "cancel",
        Verb::Cancel,
        r#"{"run_id": "3GpVtBn0dgoYSmbFKtjTWDUsMWL", "now": true}"#,
    ),
    ("ping", Verb::Ping, "{}"),
    (
        "error",
        Verb::Ensure,
        r#"{"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "file", "propertes": {}}"#,
    ),
    (
        "apply-source",
        Verb::Apply,
        r#"{"protocol": "io.choria.ccm.v1.manifest.apply.request", "noop": true, "data": {"port": 8080},
            "manifest": {"ccm": {"resources": [{"file": {"name": "/nonexistent/motd", "ensure": "absent"}}]}}}"#,
    ),
];

/// Records of a small fleet after a rollout, by name.
static RECORDS: LazyLock<Value> = LazyLock::new(|| {
    let mut fleet = Fleet::start(&[("web1", &["web"])]);
    let manifest = "ccm:\n  resources:\n    - file: {name: /nonexistent/motd, ensure: absent}\n";
    fleet.env.write("site/manifest.yaml", manifest);
    fleet
        .run(&["bundle", "push", "site", "--name", "site"])
        .ok();
    fleet.run(&["rollout", "start", "site", "--all"]).ok();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut records = runtime.block_on(async {
        let jetstream = fleet.server.jetstream().await;
        let mut records = json!({});
        for (name, bucket, key) in [
            ("presence", NODES, "default.web1"),
            ("assignment", DESIRED, "default.web1"),
            ("report", REPORTED, "default.web1"),
        ] {
            let store = jetstream.get_key_value(bucket).await.unwrap();
            // A node updates its presence after its report.
            let record = eventually("the record after the run", async || {
                let value = store.get(key).await.unwrap().unwrap();
                let record: Value = serde_json::from_slice(&value).unwrap();
                (record["generation"] == 1 && record["current_run"].is_null()).then_some(record)
            });
            records[name] = record.await;
        }
        assert!(jetstream.get_key_value(ROLLOUTS).await.is_ok());
        fleet.run(&["label", "web1", "role=web"]).ok();
        for (name, bucket) in [("facts", FACTS), ("labels", LABELS)] {
            let store = jetstream.get_key_value(bucket).await.unwrap();
            let value = store.get("default.web1").await.unwrap().unwrap();
            records[name] = serde_json::from_slice(&value).unwrap();
        }
        records
    });
    // A node with signers publishes what it decides, here on a request without a signature.
    let key = "UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO";
    let trust = format!("trust: {{signers: [{{name: operations, key: {key}}}]}}\n");
    fleet.add("db1", &["db"], &trust);
    fleet.settle(2);
    let denied = fleet.run(&["pause", "db1", "--reason", "maintenance"]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    let audit = wait_for("an audit event", || {
        let events = fleet.run(&["events", "--type", "audit", "--jsonl"]).stdout;
        let line = events.lines().next().map(ToOwned::to_owned);
        line.ok_or(events)
    });
    records["audit-event"] = serde_json::from_str(&audit).unwrap();
    let events = fleet.run(&["events", "--type", "run", "--jsonl"]);
    let line = events.stdout.lines().last().unwrap();
    records["run-event"] = serde_json::from_str(line).unwrap();
    let ping = fleet.run(&["ping", "web1", "--jsonl"]);
    let line = ping.stdout.lines().next().unwrap().to_owned();
    records["ping-reply"] = serde_json::from_str(&line).unwrap();
    let list = fleet.run(&["rollout", "list", "--json"]);
    let rollouts = parse(&list);
    records["rollout"] = rollouts.get(0).unwrap_or(&rollouts["rollouts"][0]).clone();
    runtime.block_on(async {
        let client = async_nats::connect(fleet.server.url()).await.unwrap();
        for (name, verb, body) in REQUESTS {
            let subject = format!("ccm.v1.default.node.web1.{verb}");
            let reply = client.request(subject, body.into()).await.unwrap();
            records[format!("reply-{name}")] = serde_json::from_slice(&reply.payload).unwrap();
        }
    });
    records
});

/// Messages of enrolment, and records of a fleet with a trust directory.
static ENROLMENT: LazyLock<Value> = LazyLock::new(enrolment_samples::records);

/// Events for Choria's tools, and registrations.
static CHORIA: LazyLock<Value> = LazyLock::new(choria_samples::records);

fn stored(what: &str) -> Value {
    let records = match what {
        "registration" => &*CHORIA,
        "signers" => &*ENROLMENT,
        what if what.starts_with("choria-") => &*CHORIA,
        what if what.starts_with("enrol") => &*ENROLMENT,
        _ => &*RECORDS,
    };
    let found = records.get(what);
    found.unwrap_or_else(|| panic!("no sample {what}")).clone()
}

/// Returns a message as JSON.
pub(super) fn parse_bytes(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

/// Facts that are the same on every machine.
fn facts() -> Value {
    json!({"host": {"info": {"hostname": "web1", "os": "linux", "platform": "debian"}}})
}

/// Returns a document in which everything that differs between runs has a fixed value.
fn normal(document: Value) -> Value {
    static FIXED: LazyLock<[(Regex, &str); 9]> = LazyLock::new(|| {
        [
            (
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:\d\d)",
                "2027-01-15T08:00:00Z",
            ),
            (r"^[0-9A-Za-z]{27}$", "3GpVtBn0dgoYSmbFKtjTWDUsMWL"),
            (
                r"\b[0-9a-f]{64}\b",
                "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            ),
            (r"^\d{8}-\d{6}-[0-9a-z]+$", "20270115-080000-dshj"),
            (
                r"^age1[0-9a-z]{58}$",
                "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
            ),
            (
                r"\b[UA][A-Z2-7]{55}\b",
                "UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO",
            ),
            (r"\b[0-9a-f]{10}\b", "8f47e494da"),
            (r"^[0-9a-f-]{16,36}$", "5f0c3a1e9b7d4c26"),
            (r"\b[a-z0-9_-]+@[A-Za-z0-9.-]+\b", "ann@ops1"),
        ]
        .map(|(pattern, text)| (Regex::new(pattern).unwrap(), text))
    });
    match document {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| {
                let value = match (key.as_str(), value) {
                    ("duration" | "total_duration" | "runtime", Value::Number(_)) => {
                        1_200_000.into()
                    }
                    ("pid" | "seq" | "revision", Value::Number(_)) => 7.into(),
                    ("milliseconds" | "pending", Value::Number(_)) => 0.into(),
                    ("timestamp" | "check_time", Value::Number(_)) => 1_800_000_000.into(),
                    ("previous_run_time", Value::Number(_)) => 1_200_000.into(),
                    ("jwt", Value::String(_)) => "eyJ0eXAiOiJKV1Qi…".into(),
                    ("signature", Value::String(_)) => "Cqy2tkcJKzWsSVF0…".into(),
                    ("facts", Value::Object(_)) => facts(),
                    ("version", Value::String(text)) if text == env!("CARGO_PKG_VERSION") => {
                        "0.1.0".into()
                    }
                    (_, value) => normal(value),
                };
                (key, value)
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(normal).collect(),
        Value::String(text) => {
            let fixed = FIXED.iter().fold(text, |text, (pattern, value)| {
                pattern.replace_all(&text, *value).into_owned()
            });
            Value::String(fixed)
        }
        other => other,
    }
}
