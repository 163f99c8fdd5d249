//! A flood of malicious messages: the agent keeps running within its memory limit, and no output has
//! secrets.

use std::path::Path;

use async_nats::HeaderMap;
use ccm_core::model::envelope::{DEADLINE, FILTER, NOOP, SIGNATURE, SIGNER, TIMESTAMP};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use serde_json::{Value, json};

use super::{NODE, request_signed};
use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, file_request, request_json};
use crate::support::nats::{MONITOR, NatsServer, own_address};
use crate::support::poll::{eventually, when};
use crate::support::setup::Setup;

/// How many hostile messages are sent.
const FLOOD: usize = 100_000;

/// How much an agent may grow meanwhile. What is in flight is bounded, so this does not depend on
/// how many messages there are.
const MOST_GROWTH: u64 = 128 << 20;

fn trust_lines(signer: &Signer) -> String {
    let key = signer.public_key();
    format!("trust:\n  signers:\n    - {{name: ops, key: {key}}}\n")
}

fn memory_of(agent: &AgentProcess) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

fn hostile_bodies() -> Vec<Vec<u8>> {
    let ensure = "io.choria.ccm.v1.resource.ensure.request";
    vec![
        Vec::new(),
        b"{".to_vec(),
        vec![0xff; 64],
        "[".repeat(2000).into_bytes(),
        "{\"a\":".repeat(500).into_bytes(),
        "a: &a [*a, *a]\n".repeat(50).into_bytes(),
        format!(r#"{{"protocol":"{ensure}","type":"nope","properties":{{}}}}"#).into_bytes(),
        format!(r#"{{"protocol":"{ensure}","type":"file","properties":[]}}"#).into_bytes(),
        format!("protocol: {ensure}\ntype: file\nproperties: {{name: '../x', ensure: present}}")
            .into_bytes(),
        "x".repeat(4000).into_bytes(),
    ]
}

fn hostile_headers(stranger: &Signer) -> Vec<HeaderMap> {
    let key = stranger.public_key();
    let deep = "(".repeat(2000);
    let filter = json!({"compound": [[{"expr": deep}]]}).to_string();
    let pairs: [&[(&str, &str)]; 7] = [
        &[],
        &[(NOOP, "perhaps")],
        &[(DEADLINE, "soon")],
        &[(FILTER, "{")],
        &[(FILTER, &filter)],
        &[(SIGNER, &key), (SIGNATURE, "AAAA"), (TIMESTAMP, "now")],
        &[(SIGNER, "U"), (SIGNATURE, "\u{fffd}")],
    ];
    let build = |pairs: &[(&str, &str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, *value);
        }
        headers
    };
    pairs.into_iter().map(build).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hostile_messages_changes_nothing_and_the_next_good_request_works() {
    let signer = Signer::generate();
    let quiet = "log_level: error\n";
    let strict = trust_lines(&signer) + quiet;
    let setup = Setup::process(NODE, &strict).await;
    let open = AgentProcess::start(&setup.env, "open.lab", &setup.server.url(), quiet);
    request_json(&setup.client, NODE, Verb::Ping, "").await;
    request_json(&setup.client, "open.lab", Verb::Ping, "").await;
    let before = memory_of(&setup.agent) + memory_of(&open);

    let raw = async_nats::connect(setup.server.url()).await.unwrap();
    let (bodies, headers) = (hostile_bodies(), hostile_headers(&Signer::generate()));
    for number in 0..FLOOD {
        let verb = Verb::ALL[number % Verb::ALL.len()];
        let subject = agent::subjects().all(verb).as_str().to_owned();
        let body = bodies[number / 9 % bodies.len()].clone();
        let headers = headers[number / 90 % headers.len()].clone();
        let sent =
            raw.publish_with_reply_and_headers(subject, "nobody.listens", headers, body.into());
        sent.await.unwrap();
    }
    raw.flush().await.unwrap();

    let node: ccm_core::model::node::NodeName = NODE.parse().unwrap();
    let subject = agent::subjects().node(&node.token(), Verb::Ping);
    let answer = eventually("an answer after the flood", async || {
        let mut headers = Headers::new();
        signer.sign(&subject, &mut headers, b"").unwrap();
        let limit = std::time::Duration::from_secs(5);
        let reply = setup
            .client
            .request(&subject, headers, "".into(), limit)
            .await
            .ok()?;
        reply.service_error().is_none().then_some(reply)
    })
    .await;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["identity"], NODE);
    let answer = eventually("a file after the flood", async || {
        let answer = request_json(
            &setup.client,
            "open.lab",
            Verb::Ensure,
            &file_request(&setup.env.path("f"), "x"),
        )
        .await;
        answer["state"].is_object().then_some(answer)
    })
    .await;
    assert_eq!(answer["state"]["failed"], false, "{answer}");
    let after = memory_of(&setup.agent) + memory_of(&open);
    assert!(after < before + MOST_GROWTH, "{before} grew to {after}");
}

/// Returns every file below a directory that holds the text.
fn holding(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if let Ok(bytes) = std::fs::read(&path)
            && bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn no_secret_is_in_events_logs_replies_metrics_audit_or_files() {
    const SECRET: &str = "hunter2hunter2";
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let jetstream = server.jetstream().await;
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "vault".into(),
        ..Default::default()
    };
    let bucket = jetstream.create_key_value(bucket).await.unwrap();
    bucket.put("db", SECRET.into()).await.unwrap();

    let mut env = TestEnv::new();
    env.set("PLANTED", SECRET);
    let signer = Signer::generate();
    let address = own_address();
    let lines = format!(
        "log_level: debug\nmonitor_port: {MONITOR}\nmonitor_address: {address}\n{}",
        trust_lines(&signer)
    );
    let running = AgentProcess::start(&env, NODE, &server.url(), &lines);
    request_json(&client, NODE, Verb::Ping, "").await;
    let target = tempfile::tempdir().unwrap();
    let file = |name: &str| target.path().join(name).display().to_string();
    let owned = |name: &str, content: &str| {
        json!({"name": file(name), "ensure": "present", "content": content, "sensitive": true,
               "owner": "root", "group": "root", "mode": "0600"})
    };
    let archive = json!({"name": file("a.tar.gz"), "ensure": "present",
        "url": format!("http://ann:{SECRET}@127.0.0.1:1/a.tar.gz"),
        "headers": {"Authorization": SECRET}, "username": "ann", "password": SECRET,
        "owner": "root", "group": "root"});
    let exec = json!({"name": "secret command", "command": format!("/bin/echo {SECRET}"),
        "environment": [format!("TOKEN={SECRET}")], "sensitive": true, "logoutput": true});
    // A secret that can be guessed is revealed by its checksum, too.
    let digest = ccm_core::system::Digest::of(SECRET.as_bytes()).to_string();
    let mut answers = String::new();
    for (type_name, properties) in [
        ("file", owned("plain", SECRET)),
        ("file", owned("kv", "{{ kvGet(\"vault\", \"db\") }}")),
        ("file", owned("environment", "{{ Environ.PLANTED }}")),
        ("archive", archive),
        ("exec", exec),
    ] {
        let body = json!({"protocol": "io.choria.ccm.v1.resource.ensure.request",
            "type": type_name, "properties": properties});
        let headers = Headers::new();
        let reply =
            request_signed(&client, &signer, Verb::Ensure, headers, &body.to_string()).await;
        answers += std::str::from_utf8(&reply.body).unwrap();
        let headers = Headers::new();
        let forged = agent::request(&client, NODE, Verb::Ensure, headers, &body.to_string()).await;
        answers += std::str::from_utf8(&forged.body).unwrap();
    }
    let body = json!({"protocol": "io.choria.ccm.v1.resource.status.request", "type": "file",
        "name": file("plain"), "properties": {"name": file("plain"), "sensitive": true}});
    let headers = Headers::new();
    let reply = request_signed(&client, &signer, Verb::Status, headers, &body.to_string()).await;
    let status = std::str::from_utf8(&reply.body).unwrap();
    assert!(status.contains("\"mode\":\"0600\""), "{status}");
    answers += status;
    for name in ["plain", "kv", "environment"] {
        let content = std::fs::read_to_string(file(name)).unwrap_or_default();
        assert_eq!(content, SECRET, "{name} was really there: {answers}");
    }
    let events = eventually("all events", async || {
        let events = agent::stored_events(&server).await;
        let is_last = |(subject, _): &(String, Value)| subject.contains(".exec.");
        let denied = |(subject, _): &(String, Value)| subject.ends_with("audit.denied");
        when(
            events.iter().any(is_last) && events.iter().any(denied),
            events,
        )
    })
    .await;
    let metrics = format!("http://{address}:{MONITOR}/metrics");
    let metrics = tokio::task::spawn_blocking(move || {
        std::process::Command::new("curl")
            .args(["-s", &metrics])
            .output()
    });
    let metrics = String::from_utf8(metrics.await.unwrap().unwrap().stdout).unwrap();
    assert!(metrics.contains("denied"), "{metrics}");
    for (place, text) in [
        ("answers", answers.as_str()),
        ("events", &format!("{events:?}")),
        ("log", &running.log()),
        ("metrics", &metrics),
    ] {
        assert!(!text.contains(SECRET), "{place}: {text}");
        assert!(!text.contains(&digest), "{place}: {text}");
    }
    assert_eq!(holding(env.root(), SECRET), Vec::<String>::new());
    assert_eq!(holding(env.root(), &digest), Vec::<String>::new());
}
