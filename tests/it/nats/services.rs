//! Discovery as other tools see it: every verb on every subject, valid against the schemas, and
//! asked by a client that nobody here wrote.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ccm_nats::micro::{Endpoint, RunningService, Service, serve};
use ccm_nats::{Connection, Headers, NatsError, Reply, ReplyLimits, Subject};
use serde_json::{Value, json};

use crate::support::nats::{NatsServer, python};
use crate::support::poll::{LIMIT, eventually, when};

fn service(id: &str) -> Service {
    Service {
        name: "ccm".into(),
        id: id.into(),
        version: "0.4.0".into(),
        description: "configuration agent".into(),
        metadata: BTreeMap::from([("identity".into(), id.replace('_', "."))]),
    }
}

fn endpoints() -> Vec<Endpoint> {
    let endpoint = |name: &str, subject: &str| Endpoint {
        name: name.into(),
        subject: subject.parse().unwrap(),
        metadata: BTreeMap::from([("scope".into(), "all".into())]),
    };
    vec![
        endpoint("ping", "t.all.ping"),
        endpoint("apply", "t.all.apply"),
    ]
}

async fn start(connection: &Connection, id: &str) -> RunningService {
    serve(connection, service(id), endpoints()).await.unwrap()
}

/// Answers what comes: pings with JSON, everything else with an error.
fn answering(mut served: RunningService) {
    tokio::spawn(async move {
        while let Some(request) = served.requests.recv().await {
            let answered = match request.endpoint {
                0 => request.reply(Headers::new(), r#"{"ok":true}"#.into()).await,
                _ => {
                    let body = r#"{"error":"no such manifest"}"#.into();
                    request.fail(404, "no such\nmanifest", body).await
                }
            };
            answered.unwrap();
        }
    });
}

fn subject(text: &str) -> Subject {
    text.parse().unwrap()
}

async fn request(connection: &Connection, on: &str) -> Result<Reply, NatsError> {
    let (on, headers) = (subject(on), Headers::new());
    connection.request(&on, headers, "".into(), LIMIT).await
}

async fn ask(connection: &Connection, on: &str) -> Result<Value, NatsError> {
    let reply = request(connection, on).await?;
    Ok(serde_json::from_slice(&reply.body).unwrap())
}

fn assert_valid(kind: &str, document: &Value) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/micro");
    let file = data.join(format!("{}_response.json", kind.to_lowercase()));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(document)
        .map(|err| err.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?} in {document:#}");
}

#[tokio::test]
async fn every_verb_answers_on_every_subject() {
    let server = NatsServer::start();
    let connection = server.client().await;
    answering(start(&connection, "web1_lab").await);
    for verb in ["PING", "INFO", "STATS"] {
        for on in [
            format!("$SRV.{verb}"),
            format!("$SRV.{verb}.ccm"),
            format!("$SRV.{verb}.ccm.web1_lab"),
        ] {
            let document = ask(&connection, &on).await.unwrap();
            assert_valid(verb, &document);
            assert_eq!(document["metadata"]["identity"], "web1.lab");
        }
    }
    let other = ask(&connection, "$SRV.PING.ccm.web2_lab")
        .await
        .unwrap_err();
    assert!(matches!(other, NatsError::NoResponders(_)));
}

#[tokio::test]
async fn requests_and_errors_are_counted_with_their_time() {
    let server = NatsServer::start();
    let connection = server.client().await;
    answering(start(&connection, "web1").await);
    for _ in 0..3 {
        assert_eq!(
            ask(&connection, "t.all.ping").await.unwrap(),
            json!({"ok": true})
        );
    }
    let reply = request(&connection, "t.all.apply").await.unwrap();
    assert_eq!(reply.service_error(), Some((404, "no such manifest")));
    assert_eq!(reply.body, r#"{"error":"no such manifest"}"#);
    let stats = ask(&connection, "$SRV.STATS.ccm").await.unwrap();
    let (ping, apply) = (&stats["endpoints"][0], &stats["endpoints"][1]);
    assert_eq!(
        (&ping["num_requests"], &ping["num_errors"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(
        (&apply["num_requests"], &apply["num_errors"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(apply["last_error"], "404:no such manifest");
    let (all, average) = (&ping["processing_time"], &ping["average_processing_time"]);
    assert_eq!(all.as_u64().unwrap() / 3, average.as_u64().unwrap());
}

#[tokio::test]
async fn every_instance_hears_every_request() {
    let server = NatsServer::start();
    let connection = server.client().await;
    for number in 0..5 {
        answering(start(&server.client().await, &format!("web{number}")).await);
    }
    let stop = ReplyLimits {
        expected: Some(5),
        silence: LIMIT,
        deadline: LIMIT,
    };
    let on = subject("t.all.ping");
    let asked = connection.request_many(&on, Headers::new(), "".into(), stop);
    let mut replies = asked.await.unwrap();
    let mut count = 0;
    while replies.next().await.is_some() {
        count += 1;
    }
    assert_eq!(count, 5);
}

#[tokio::test]
async fn a_full_queue_is_told_at_once_and_discovery_goes_on() {
    let server = NatsServer::start();
    let connection = server.client().await;
    // Nobody takes requests from it.
    let served = start(&connection, "web1").await;
    for _ in 0..256 {
        connection
            .publish(&subject("t.all.ping"), Headers::new(), "".into())
            .await
            .unwrap();
    }
    let reply = request(&connection, "t.all.ping").await.unwrap();
    assert_eq!(reply.service_error(), Some((503, "busy")));
    assert!(ask(&connection, "$SRV.INFO.ccm").await.is_ok());
    drop(served);
    eventually("the service ends when dropped", async || {
        let on = subject("$SRV.PING.ccm");
        let short = Duration::from_millis(100);
        let asked = connection.request(&on, Headers::new(), "".into(), short);
        let asked = asked.await;
        when(matches!(asked, Err(NatsError::NoResponders(_))), asked)
    })
    .await
    .unwrap_err();
}

#[tokio::test]
async fn an_answer_that_is_too_large_becomes_an_error_that_says_so() {
    let server = NatsServer::with("max_payload: 1024");
    let connection = server.client().await;
    let mut served = start(&connection, "web1").await;
    tokio::spawn(async move {
        let request = served.requests.recv().await.unwrap();
        let answered = request.reply(Headers::new(), vec![b'x'; 4096].into()).await;
        assert!(answered.is_err());
    });
    let reply = request(&connection, "t.all.ping").await.unwrap();
    let (code, text) = reply.service_error().unwrap();
    assert!(code == 500 && text.contains("4096 bytes"), "{code} {text}");
}

#[tokio::test]
async fn a_service_outlives_its_server() {
    let mut server = NatsServer::start();
    let connection = server.client().await;
    answering(start(&connection, "web1").await);
    let mut state = connection.state();
    server.restart();
    let again = |link: &ccm_nats::ConnectionState| matches!(link, ccm_nats::ConnectionState::Up { connects: 2 });
    state.wait_for(again).await.unwrap();
    assert!(ask(&server.client().await, "t.all.ping").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_implementation_finds_and_asks_the_fleet() {
    let server = NatsServer::start();
    for number in 0..3 {
        answering(start(&server.client().await, &format!("web{number}")).await);
    }
    let url = server.url();
    let said = tokio::task::spawn_blocking(move || python("micro.py", &[&url, "t.all.apply", "3"]));
    let said: Value = serde_json::from_str(&said.await.unwrap()).unwrap();
    for reply in said["replies"].as_array().unwrap() {
        assert_eq!(reply["body"], json!({"error": "no such manifest"}));
        assert_eq!(reply["headers"]["Nats-Service-Error-Code"], "404");
    }
    for verb in ["PING", "INFO", "STATS"] {
        let mut ids: Vec<&str> = Vec::new();
        for reply in said[verb].as_array().unwrap() {
            assert_valid(verb, &reply["body"]);
            ids.push(reply["body"]["id"].as_str().unwrap());
        }
        ids.sort_unstable();
        assert_eq!(ids, ["web0", "web1", "web2"], "{verb}");
    }
}
