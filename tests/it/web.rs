//! `ccm fleet serve`: the API over real HTTP, before a real NATS server, without a browser.

use std::io::{BufRead as _, BufReader};

use ccm_nats::streams::REPORTED;
use serde_json::{Value, json};

use crate::support::nats::NatsServer;
use crate::support::simulation::Simulation;
use crate::support::web::{Page, Response, TOKEN, Web, run};
use crate::support::{TestEnv, agent};

/// Reads a stream of events until one is wanted, and returns its name, id and data.
fn read_until(
    stream: impl std::io::Read,
    is_wanted: impl Fn(&str, &Value) -> bool,
) -> (String, String, Value) {
    let (mut name, mut id) = (String::new(), String::new());
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("event: ") {
            name = text.into();
        } else if let Some(text) = line.strip_prefix("id: ") {
            id = text.into();
        } else if let Some(text) = line.strip_prefix("data: ") {
            let data = serde_json::from_str(text).unwrap_or(Value::Null);
            if is_wanted(&name, &data) {
                return (name, id, data);
            }
        }
    }
    panic!("the stream ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_of_a_node_is_listed_and_can_be_filtered() {
    let web = Web::start().await;
    web.presence("web1", json!({"groups": ["web"]})).await;
    web.presence(
        "web2",
        json!({"pause": {"reason": "disk swap", "since": "2026-01-15T08:00:00Z"}}),
    )
    .await;
    web.presence("web3", json!({"last_run": run("web3", "failed", 1)}))
        .await;
    web.presence("web4", json!({})).await;
    web.report(
        "web4",
        json!({"drift": [{"type": "file", "name": "/etc/motd", "message": "content differs",
                          "since": "2026-01-15T08:00:00Z"}]}),
    )
    .await;
    web.report("db1", json!({})).await;
    web.assign("web1", 3).await;
    let states = |answer: &Response| -> Vec<String> {
        let document = answer.json();
        let rows = document["nodes"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {}", row["name"], row["state"]).replace('"', ""))
            .collect()
    };
    // Presence and reports arrive in any order.
    web.until("/api/nodes", |answer| {
        states(answer)
            == [
                "db1 offline",
                "web1 stable",
                "web2 paused",
                "web3 failed",
                "web4 drifted",
            ]
    });
    let bad = web.get("/api/nodes?state=failed,drifted").json();
    assert_eq!(bad["matched"], 2);
    let first = web.get("/api/nodes?q=WEB&limit=3").json();
    assert_eq!(
        (&first["matched"], &first["next"]),
        (&json!(4), &json!("web3"))
    );
    let rest = web.get("/api/nodes?q=web&limit=3&after=web3").json();
    assert_eq!(rest["nodes"][0]["name"], "web4");
    assert_eq!(rest["next"], Value::Null);

    let one = web.until("/api/nodes/web1", |answer| {
        answer.json()["assignment"]["generation"] == 3
    });
    let one = one.json();
    assert_eq!(one["facts"]["os"]["name"], "debian");
    assert_eq!(one["node"]["lagging"], true);
    let summary = web.get("/api/summary").json();
    assert_eq!(summary["totals"]["states"]["paused"], 1);
    assert_eq!(summary["timeline"].as_array().unwrap().len(), 60);
    let metrics = web.get("/metrics").body;
    assert!(
        metrics.contains("ccm_fleet_nodes{state=\"drifted\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("ccm_fleet_drifted_resources 1\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_filtered_and_counted() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    web.event("web1", "/etc/a", "changed", 1).await;
    web.event("web1", "/etc/b", "failed", 2).await;
    web.ran("web1", "failed", 3).await;
    web.until("/api/events", |answer| {
        answer.json()["events"].as_array().unwrap().len() == 3
    });
    let failed = web.get("/api/events?outcome=failed&type=file").json();
    assert_eq!(failed["events"][0]["text"], "file#/etc/b failed: disk full");
    assert_eq!(failed["events"].as_array().unwrap().len(), 1);
    web.until_state("web1", "failed");
    let node = web.get("/api/nodes/web1").json();
    assert_eq!(node["resources"].as_array().unwrap().len(), 2);
    assert_eq!(node["node"]["note"], "package#nginx: no candidate");
    let metrics = web.get("/metrics").body;
    let line = "ccm_fleet_events_total{type=\"file\",outcome=\"changed\"} 1\n";
    assert!(metrics.contains(line), "{metrics}");
    for bad in [
        "/api/events?colour=red",
        "/api/nodes?state=sad",
        "/api/stream?after=x",
    ] {
        let answer = web.get(bad);
        assert_eq!(answer.status, 400, "{bad}");
        assert!(answer.json()["error"].is_string(), "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_sends_new_events_and_resumes_after_the_last_one() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let mark = web.get("/api/summary").json()["mark"]
        .as_str()
        .unwrap()
        .to_owned();
    let stream = web.request("GET", &format!("/api/stream?after={mark}"), &[], "");
    web.event("web1", "/etc/a", "changed", 1).await;
    web.ran("web1", "failed", 2).await;
    let (_, id, _) = read_until(stream, |name, data| {
        name == "news" && data["nodes"][0]["state"] == "failed"
    });
    // More events while no client is connected.
    web.presence("web2", json!({})).await;
    web.until_state("web2", "stable");
    let again = web.request("GET", "/api/stream", &[("Last-Event-ID", &id)], "");
    let (_, _, data) = read_until(again, |name, _| name == "news");
    assert_eq!(data["nodes"][0]["name"], "web2");
    assert_eq!(data["events"], json!([]));
    let foreign = web.request("GET", "/api/stream?after=1-1", &[], "");
    let (name, _, _) = read_until(foreign, |name, _| name != "hello");
    assert_eq!(name, "resync");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_away_is_read_again() {
    let mut web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    web.nats.restart();
    web.until("/healthz", |answer| answer.status == 200);
    web.connection = web.nats.client().await;
    web.presence("web2", json!({})).await;
    web.until_state("web2", "stable");
    web.event("web2", "/etc/a", "changed", 1).await;
    web.until("/api/events", |answer| {
        answer.json()["events"].as_array().unwrap().len() == 1
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_refuses_actions() {
    let web = Web::start().await;
    let answer = web.post("/api/nodes/web1/pause", TOKEN, &json!({}));
    assert_eq!(answer.status, 403);
    assert_eq!(
        answer.json()["error"],
        "actions are disabled: start the server with --allow-actions"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_knows_the_token_pauses_ensures_and_resumes_a_real_agent() {
    let web = Web::with_actions().await;
    let home = tempfile::tempdir().unwrap();
    let agent = agent::start(&agent::config("web1", home.path()), &web.nats).await;
    web.until_state("web1", "stable");
    let refused = web.post("/api/nodes/web1/pause", "wrong", &json!({}));
    assert_eq!(refused.status, 401);
    let reply = web.post(
        "/api/nodes/web1/pause",
        TOKEN,
        &json!({"reason": "disk swap"}),
    );
    assert_eq!(
        (reply.status, &reply.json()["outcome"]),
        (200, &json!("changed"))
    );
    web.until_state("web1", "paused");
    let reply = web.post("/api/nodes/web1/resume", TOKEN, &json!({}));
    assert_eq!(reply.status, 200);
    web.until_state("web1", "stable");
    let file = home.path().join("motd");
    let request: Value = serde_json::from_str(&agent::file_request(&file, "hello")).unwrap();
    let reply = web.post("/api/nodes/web1/ensure", TOKEN, &request);
    assert_eq!(reply.json()["outcome"], "changed", "{}", reply.body);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello");
    let resource = web.until("/api/nodes/web1", |answer| {
        answer.json()["resources"].as_array().unwrap().len() == 1
    });
    assert_eq!(resource.json()["resources"][0]["outcome"], "changed");
    let unknown = web.post("/api/nodes/nobody/pause", TOKEN, &json!({}));
    assert_eq!(unknown.json()["outcome"], "no_reply", "{}", unknown.body);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_unreadable_report_is_failed_until_it_reports_again() {
    let web = Web::start().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let reports = web.connection.bucket(REPORTED).await.unwrap();
    reports.put("default.web1", "{}".into()).await.unwrap();
    web.until_state("web1", "failed");
    let node = web.get("/api/nodes/web1").json();
    let note = node["node"]["note"].as_str().unwrap();
    assert!(
        note.starts_with("report is unreadable: missing field"),
        "{node}"
    );
    assert_eq!(node["unreadable"][0]["record"], "report");
    let metrics = web.get("/metrics").body;
    assert!(
        metrics.contains("ccm_fleet_unreadable_records_total 1\n"),
        "{metrics}"
    );
    reports.delete("default.web1").await.unwrap();
    web.until_state("web1", "stable");
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_shown_paused_and_aborted() {
    let web = Web::with_actions().await;
    web.rollout(
        "r1",
        json!({"nodes": {"web1": {"failed": {"reason": "no candidate"}}}}),
    )
    .await;
    let shown = web.until("/api/rollouts/r1", |answer| answer.status == 200);
    let shown = shown.json();
    assert_eq!(shown["rollout"]["waves"][0]["tally"]["failed"], 1);
    assert_eq!(shown["nodes"][0][0]["reason"], "no candidate");
    let paused = web.post("/api/rollouts/r1/pause", TOKEN, &json!({"reason": "lunch"}));
    assert_eq!(
        (paused.status, &paused.json()["word"]),
        (200, &json!("paused"))
    );
    web.until("/api/rollouts/r1", |answer| {
        answer.json()["rollout"]["state"]["reason"] == "lunch"
    });
    let twice = web.post("/api/rollouts/r1/pause", TOKEN, &json!({}));
    assert_eq!(twice.status, 409, "{}", twice.body);
    let aborted = web.post("/api/rollouts/r1/abort", TOKEN, &json!({}));
    assert_eq!(aborted.json()["word"], "aborted");
    let unknown = web.post("/api/rollouts/r2/abort", TOKEN, &json!({}));
    assert_eq!(unknown.status, 404);
    web.rollout("r3", json!({"collective": "other"})).await;
    let foreign = web.post("/api/rollouts/r3/abort", TOKEN, &json!({}));
    assert_eq!(foreign.status, 404, "other collectives are none of ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_restrictive_security_headers() {
    let web = Web::start().await;
    for path in [
        "/",
        "/app.js",
        "/api/summary",
        "/nowhere",
        "/api/nodes/none",
    ] {
        let head = web.get(path).head;
        assert!(
            head.contains("content-security-policy: default-src 'self';"),
            "{path}: {head}"
        );
        assert!(
            head.contains("x-content-type-options: nosniff"),
            "{path}: {head}"
        );
    }
    let evil = web.fetch("GET", "/api/nodes", &[("Host", "evil.example")], "");
    assert_eq!(evil.status, 403);
}

#[test]
fn an_address_beyond_loopback_requires_a_token() {
    let env = TestEnv::new();
    let outcome = env.ccm(&["fleet", "serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("--token-file"),
        "{}",
        outcome.stderr
    );
    let outcome = env.ccm(&["fleet", "serve", "--allow-actions"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_stream_of_events_is_noticed_and_so_is_its_return() {
    let nats = NatsServer::start();
    let connection = nats.client().await;
    agent::init(&connection).await;
    let jetstream = nats.jetstream().await;
    jetstream.delete_stream("CCM_EVENTS").await.unwrap();
    let page = Page::serve(&nats);
    let unwell = page.until("/healthz", |answer| answer.body.contains("event stream"));
    assert_eq!(unwell.status, 503);
    assert_eq!(page.get("/api/summary").json()["complete"], false);
    agent::init(&connection).await;
    page.until("/healthz", |answer| answer.status == 200);
    assert_eq!(page.get("/api/summary").json()["complete"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_reaches_many_nodes_and_equal_replies_are_grouped() {
    let web = Web::with_actions().await;
    let _nodes = Simulation::start(&web.nats, 5, &[]);
    web.until("/api/nodes?state=stable", |answer| {
        answer.json()["matched"] == 5
    });
    let names: Vec<String> = (0..5).map(|it| format!("sim0000{it}.sim.lab")).collect();
    let mut requested = names.clone();
    requested.push("nobody".into());
    let paused = web.post(
        "/api/pause",
        TOKEN,
        &json!({"nodes": requested, "reason": "disk swap", "for": "2h"}),
    );
    assert_eq!(paused.status, 200, "{}", paused.body);
    let reply = paused.json();
    assert_eq!(reply["requested"], 6);
    assert_eq!(reply["replies"][0]["nodes"], json!(["nobody"]));
    assert_eq!(reply["replies"][0]["outcome"], "no_reply");
    assert_eq!(reply["replies"][1]["nodes"], json!(names));
    web.until("/api/nodes?state=paused", |answer| {
        answer.json()["matched"] == 5
    });
    let resumed = web.post("/api/resume", TOKEN, &json!({ "nodes": names }));
    assert_eq!(resumed.json()["replies"][0]["text"], "resumed");
    for (body, reason) in [
        (json!({"nodes": []}), "0 nodes in the request"),
        (json!({"nodes": ["a b"]}), "a b"),
        (json!({"nodes": ["a"], "colour": "red"}), "colour"),
    ] {
        let refused = web.post("/api/resume", TOKEN, &body);
        assert!((400..500).contains(&refused.status), "{}", refused.status);
        let message = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(message.contains(reason), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_noop_only_reports_what_would_change() {
    let web = Web::with_actions().await;
    let home = tempfile::tempdir().unwrap();
    let _agent = agent::start(&agent::config("web1", home.path()), &web.nats).await;
    web.until_state("web1", "stable");
    let file = home.path().join("motd");
    let request: Value = serde_json::from_str(&agent::file_request(&file, "hello\n")).unwrap();
    let path = "/api/ensure?noop=true&diff=true";
    let reply = web.post(path, TOKEN, &json!({"nodes": ["web1"], "request": request}));
    let answer = reply.json()["replies"][0].clone();
    assert_eq!(answer["outcome"], "would_change", "{answer}");
    let diff = answer["diff"]["text"].as_str().unwrap();
    assert!(diff.contains("+hello"), "{diff}");
    let single = web.post("/api/nodes/web1/ensure?noop=true", TOKEN, &request);
    assert_eq!(single.json()["outcome"], "would_change", "{}", single.body);
    assert!(!file.exists());
}
