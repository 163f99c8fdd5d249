//! Events that a real agent publishes for Choria's tools: each type on its subject, valid by the
//! standard's schema and right field by field.

use std::collections::BTreeSet;

use ccm_nats::Verb;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request_json};
use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, when};

const NODE: &str = "web1.lab";

/// A manifest with one health check that measures something, and one that hides what it says.
const MANIFEST: &str = "ccm:
  resources:
    - exec:
        - /bin/true:
            health_checks:
              - {name: load, command: '/bin/echo OK fine | load1=0.5s;1;2', timeout: 5s}
        - /bin/echo:
            sensitive: true
            health_checks:
              - {name: hidden, command: /bin/echo hunter2}
";

/// Receives everything that is published for Choria's tools.
struct Subscriber(async_nats::Subscriber);

impl Subscriber {
    async fn of(server: &NatsServer) -> Self {
        let client = async_nats::connect(server.url()).await.unwrap();
        let subscriber = client.subscribe("choria.>").await.unwrap();
        client.flush().await.unwrap();
        Self(subscriber)
    }

    /// Returns the next event on a subject, once it is known to be valid; others are passed over.
    async fn receive(&mut self, subject: &str) -> Value {
        self.receive_matching(subject, |_| true).await
    }

    async fn receive_matching(&mut self, subject: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let listening = async {
            loop {
                let message = self.0.next().await.unwrap();
                let event: Value = serde_json::from_slice(&message.payload).unwrap();
                assert_valid(&event);
                assert!(
                    message.headers.is_none(),
                    "structured events have no headers"
                );
                if message.subject.as_str() == subject && wanted(&event) {
                    return event;
                }
            }
        };
        let received = tokio::time::timeout(LIMIT, listening).await;
        received.unwrap_or_else(|_| panic!("nothing on {subject}"))
    }
}

/// Fails unless an event is one of CloudEvents 1.0.
fn assert_valid(event: &Value) {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/cloudevent.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap();
    let faults: Vec<String> = validator
        .iter_errors(event)
        .map(|err| err.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:?} in {event:#}");
}

/// Fails unless the envelope is right for its data.
fn assert_envelope(event: &Value, source: &str, type_name: &str) {
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["source"], source);
    assert_eq!(event["type"], type_name);
    assert_eq!(event["subject"], NODE);
    assert_eq!(event["datacontenttype"], "application/json");
    let data = &event["data"];
    assert_eq!(data["protocol"], type_name);
    assert_eq!(data["identity"], NODE);
    let time = event["time"].as_str().unwrap();
    let time = chrono::DateTime::parse_from_rfc3339(time).unwrap();
    assert_eq!(data["timestamp"], time.timestamp());
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(|key| &**key)
        .collect()
}

fn assert_lifecycle(event: &Value, news: &str, more: &[&str]) {
    let type_name = format!("io.choria.lifecycle.v1.{news}");
    assert_envelope(event, "io.choria.lifecycle", &type_name);
    let data = &event["data"];
    assert_eq!(event["id"], data["id"]);
    assert_eq!(data["component"], "ccm");
    let common = ["protocol", "id", "identity", "component", "timestamp"];
    let wanted: BTreeSet<&str> = common.iter().chain(more).copied().collect();
    assert_eq!(keys(data), wanted);
    if more.contains(&"version") {
        assert_eq!(data["version"], env!("CARGO_PKG_VERSION"));
    }
}

fn assert_watcher(event: &Value, type_name: &str, machine: &str, name: &str, more: &[&str]) {
    let protocol = format!("io.choria.machine.watcher.{type_name}.v1.state");
    assert_envelope(event, "io.choria.machine", &protocol);
    let data = &event["data"];
    assert_eq!(data["type"], type_name);
    assert_eq!(data["machine"], machine);
    assert_eq!(data["name"], name);
    assert_eq!(data["version"], env!("CARGO_PKG_VERSION"));
    assert_ne!(
        event["id"], data["id"],
        "the one is the event's, the other the machine's"
    );
    let common = [
        "protocol",
        "identity",
        "id",
        "version",
        "timestamp",
        "type",
        "machine",
        "name",
    ];
    let wanted: BTreeSet<&str> = common.iter().chain(more).copied().collect();
    assert_eq!(keys(data), wanted);
}

/// An agent that keeps [`MANIFEST`] in place.
struct Keeper {
    _env: TestEnv,
    agent: AgentProcess,
}

impl Keeper {
    /// Starts it, with more lines in its file.
    fn start(server: &NatsServer, lines: &str) -> Self {
        let env = TestEnv::new();
        let file = env.write("base.yaml", MANIFEST);
        let lines = format!("{lines}manifests: [{file}]\n");
        let agent = AgentProcess::start(&env, NODE, &server.url(), &lines);
        Self { _env: env, agent }
    }
}

/// What makes an agent talk.
const EVENTS: &str = "choria: {events: true}\n";

#[tokio::test]
async fn lifecycle_events_are_published_from_startup_to_shutdown() {
    let server = NatsServer::start();
    let mut subscriber = Subscriber::of(&server).await;
    let env = TestEnv::new();
    let lines = "choria: {events: true, alive_interval: 1s}\n";
    let agent = AgentProcess::start(&env, NODE, &server.url(), lines);
    let startup = subscriber
        .receive("choria.lifecycle.event.startup.ccm")
        .await;
    assert_lifecycle(&startup, "startup", &["version"]);
    let alive = subscriber.receive("choria.lifecycle.event.alive.ccm").await;
    assert_lifecycle(&alive, "alive", &["version"]);
    assert_ne!(startup["id"], alive["id"]);
    agent.signal("TERM");
    let shutdown = subscriber
        .receive("choria.lifecycle.event.shutdown.ccm")
        .await;
    assert_lifecycle(&shutdown, "shutdown", &[]);
    assert_eq!(agent.wait(), Some(0));
}

#[tokio::test]
async fn every_run_of_a_manifest_is_published_as_a_watcher_state() {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let mut subscriber = Subscriber::of(&server).await;
    let _keeper = Keeper::start(&server, EVENTS);
    let subject = "choria.machine.watcher.ccm_manifest.state";
    let more = ["previous_outcome", "previous_run_time"];
    let first = subscriber.receive(subject).await;
    assert_watcher(&first, "ccm_manifest", "ccm", "base", &more);
    assert_eq!(first["data"]["previous_outcome"], "changes");
    assert!(first["data"]["previous_run_time"].as_u64().unwrap() > 0);

    for (manifest, outcome) in [
        ("ccm: {resources: [{exec: {name: /bin/false}}]}", "error"),
        (
            "ccm: {resources: [{exec: {name: /bin/x, creates: /etc}}]}",
            "stable",
        ),
        ("ccm: {resources: [{nosuch: {}}]}", "error"),
    ] {
        let request = json!({
            "protocol": "io.choria.ccm.v1.manifest.apply.request",
            "manifest": manifest,
            "wait": true,
        });
        request_json(&client, NODE, Verb::Apply, &request.to_string()).await;
        let state = subscriber.receive(subject).await;
        assert_watcher(&state, "ccm_manifest", "ccm", "inline", &more);
        assert_eq!(state["data"]["previous_outcome"], outcome, "{manifest}");
        assert_eq!(state["data"]["id"], first["data"]["id"], "the same agent");
    }
}

#[tokio::test]
async fn every_health_check_is_published_as_scout_expects_it() {
    let server = NatsServer::start();
    let mut subscriber = Subscriber::of(&server).await;
    let _keeper = Keeper::start(&server, EVENTS);
    let subject = "choria.machine.watcher.nagios.state";
    let more = [
        "plugin",
        "status",
        "status_code",
        "output",
        "check_time",
        "perfdata",
        "runtime",
        "history",
        "annotations",
    ];
    let load = subscriber.receive(subject).await;
    assert_watcher(&load, "nagios", "load", "load", &more);
    let data = &load["data"];
    assert_eq!(data["plugin"], "/bin/echo OK fine | load1=0.5s;1;2");
    assert_eq!(data["status"], "OK");
    assert_eq!(data["status_code"], 0);
    assert_eq!(data["output"], "OK fine | load1=0.5s;1;2");
    assert!(data["check_time"].as_i64() <= data["timestamp"].as_i64());
    let perfdata = json!([{"unit": "s", "label": "load1", "value": 0.5}]);
    assert_eq!(data["perfdata"], perfdata);
    assert!(data["runtime"].as_f64().unwrap() > 0.0);
    assert_eq!(data["annotations"], json!({"resource": "exec#/bin/true"}));
    let history = data["history"].as_array().unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0]["status"], 0);
    assert_eq!(history[0]["perfdata"], perfdata);
    let hidden = subscriber.receive(subject).await;
    assert_watcher(&hidden, "nagios", "hidden", "hidden", &more);
    assert!(!hidden.to_string().contains("hunter2"), "{hidden}");
}

#[tokio::test]
async fn nothing_is_published_unless_it_is_configured() {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let mut subscriber = Subscriber::of(&server).await;
    let Keeper { agent, _env } = Keeper::start(&server, "");
    eventually("the run is stored", async || {
        let events = agent::stored_events(&server).await;
        events.iter().any(|(subject, _)| subject.contains(".run."))
    })
    .await;
    agent.signal("TERM");
    assert_eq!(agent.wait(), Some(0));
    // Published last, so received first only if nothing was published before.
    let raw = async_nats::connect(server.url()).await.unwrap();
    raw.publish("choria.end", "{}".into()).await.unwrap();
    let first = tokio::time::timeout(LIMIT, subscriber.0.next())
        .await
        .unwrap();
    assert_eq!(first.unwrap().subject.as_str(), "choria.end");
}

#[tokio::test]
async fn events_during_an_outage_are_published_after_it() {
    let mut server = NatsServer::start();
    let jetstream = server.jetstream().await;
    let stream = async_nats::jetstream::stream::Config {
        name: "CHORIA".into(),
        subjects: vec!["choria.>".into()],
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    server.stop();
    let Keeper { agent, _env } = Keeper::start(&server, EVENTS);
    eventually("the run is over", async || {
        let log = agent.log();
        when(log.contains("Session: resources=2"), log)
    })
    .await;
    server.resume();
    for subject in [
        "choria.lifecycle.event.startup.ccm",
        "choria.machine.watcher.nagios.state",
        "choria.machine.watcher.ccm_manifest.state",
    ] {
        let event = eventually(subject, async || {
            let jetstream = server.jetstream().await;
            let stream = jetstream.get_stream("CHORIA").await.ok()?;
            let message = stream.get_last_raw_message_by_subject(subject).await.ok()?;
            Some(serde_json::from_slice::<Value>(&message.payload).unwrap())
        })
        .await;
        assert_valid(&event);
    }
}
