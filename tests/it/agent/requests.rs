//! Requests to an agent: every verb, malformed bodies, headers, filters, deadlines and pauses.

use ccm_core::model::envelope;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::{Headers, ReplyLimits, Verb};
use serde_json::{Value, json};
use tokio::time::Duration;

use crate::support::agent::{self, config, file_request, request, request_json, start, subjects};
use crate::support::nats::{NatsServer, python};
use crate::support::poll::{LIMIT, eventually, when};
use crate::support::setup::Setup;

const NODE: &str = "web1.example.net";

fn error_of(body: &Value) -> &str {
    body["error"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn ensure_changes_the_file_and_its_event_is_in_the_stream() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    let answer = request_json(
        &setup.client,
        NODE,
        Verb::Ensure,
        &file_request(&file, "hi\n"),
    )
    .await;
    assert_eq!(
        answer["protocol"],
        "io.choria.ccm.v1.resource.ensure.response"
    );
    assert_eq!(answer["state"]["changed"], true, "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hi\n");
    let found = eventually("one event", async || {
        let events = agent::stored_events(&setup.server).await;
        when(!events.is_empty(), events)
    })
    .await;
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].0,
        "ccm.v1.default.event.web1_example_net.file.changed"
    );
    assert_eq!(found[0].1, answer["state"]);
}

#[tokio::test]
async fn a_client_of_another_project_gets_a_reply() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    let request = file_request(&file, "hello\n");
    let url = setup.server.url();
    let output = tokio::task::spawn_blocking(move || python("ensure.py", &[&url, &request]));
    assert_eq!(
        output.await.unwrap(),
        "web1.example.net True\nccm.v1.default.event.web1_example_net.file.changed\n"
    );
}

#[tokio::test]
async fn every_malformed_body_gets_an_answer_in_the_protocol_of_its_verb() {
    let setup = Setup::inside(NODE).await;
    let ensure = "io.choria.ccm.v1.resource.ensure.response";
    let status = "io.choria.ccm.v1.resource.status.response";
    let apply = "io.choria.ccm.v1.manifest.apply.response";
    for (verb, body, protocol, error) in [
        (Verb::Ensure, "", ensure, "invalid protocol \"\""),
        (Verb::Ensure, "{", ensure, "invalid protocol \"\""),
        (Verb::Ensure, "\u{0}\u{1}", ensure, "invalid protocol \"\""),
        (
            Verb::Ensure,
            r#"{"protocol":"io.choria.ccm.v1.resource.ensure.request","type":"nope","properties":{}}"#,
            ensure,
            "invalid resource: unknown resource type nope",
        ),
        (
            Verb::Ensure,
            r#"{"protocol":"io.choria.ccm.v1.resource.ensure.request","type":"file","properties":{"name":"a","ensure":"present"}}"#,
            ensure,
            "file path must be absolute",
        ),
        (Verb::Status, "x", status, "invalid protocol \"\""),
        (
            Verb::Status,
            r#"{"protocol":"io.choria.ccm.v1.resource.status.request","type":"exec","name":"x"}"#,
            status,
            "exec resources do not support retrieving status",
        ),
        (
            Verb::Status,
            r#"{"protocol":"io.choria.ccm.v1.resource.status.request","type":"file","name":"../x"}"#,
            status,
            "file name must be an absolute path, got \"../x\"",
        ),
        (Verb::Apply, "[]", apply, "invalid protocol \"\""),
        (
            Verb::Apply,
            r#"{"protocol":"io.choria.ccm.v1.manifest.apply.request"}"#,
            apply,
            "missing manifest or source in request",
        ),
    ] {
        let reply = request(&setup.client, NODE, verb, Headers::new(), body).await;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answer["protocol"], protocol, "{verb} {body}");
        assert!(error_of(&answer).contains(error), "{verb} {body}: {answer}");
        assert_eq!(reply.service_error().unwrap().0, 400, "{verb} {body}");
        assert_eq!(reply.header(envelope::IDENTITY), Some(NODE));
    }
    for (verb, body, error) in [
        (
            Verb::Facts,
            "no.such.fact",
            "no fact matches \"no.such.fact\"",
        ),
        (
            Verb::Pause,
            "{}",
            "invalid pause request: reason is required",
        ),
        (
            Verb::Cancel,
            "x",
            "invalid run_id \"x\": expected 27 letters and digits",
        ),
        (Verb::Cancel, "", "missing run_id in request"),
        (
            Verb::Facts,
            r#"{"paths":"x"}"#,
            "unknown field `paths`, expected `path` or `query`",
        ),
    ] {
        let answer = request_json(&setup.client, NODE, verb, body).await;
        assert_eq!(error_of(&answer), error, "{verb}");
    }
}

#[tokio::test]
async fn a_yaml_body_is_as_good_as_json() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    let body = format!(
        "protocol: io.choria.ccm.v1.resource.ensure.request\ntype: file\nproperties:\n  - {}:\n      ensure: present\n      content: \"yaml\\n\"\n      owner: root\n      group: root\n      mode: 0600\n",
        file.display()
    );
    let answer = request_json(&setup.client, NODE, Verb::Ensure, &body).await;
    assert_eq!(answer["state"]["changed"], true, "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "yaml\n");
}

#[tokio::test]
async fn the_noop_header_changes_nothing_and_says_what_it_would_do() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    let headers = Headers::new().with(envelope::NOOP, "true").unwrap();
    let body = file_request(&file, "hi\n");
    let reply = request(&setup.client, NODE, Verb::Ensure, headers, &body).await;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answer["state"]["noop"], true, "{answer}");
    assert_eq!(
        answer["state"]["noop_message"],
        "Would have created the file"
    );
    assert!(!file.exists());
}

#[tokio::test]
async fn a_diff_is_in_the_reply_only_when_it_is_requested() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    std::fs::write(&file, "old\n").unwrap();
    let headers = Headers::new()
        .with(envelope::NOOP, "true")
        .and_then(|headers| headers.with(envelope::DIFF, "true"))
        .unwrap();
    let body = file_request(&file, "new\n");
    let reply = request(&setup.client, NODE, Verb::Ensure, headers, &body).await;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    let diff = answer["diff"].as_str().unwrap();
    assert!(diff.ends_with("@@ -1 +1 @@\n-old\n+new\n"), "{diff}");
    let reply = request(&setup.client, NODE, Verb::Ensure, Headers::new(), &body).await;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answer.get("diff"), None, "not requested");
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_answered_and_nothing_is_done() {
    let setup = Setup::inside(NODE).await;
    let file = setup.env.root().join("motd");
    let headers = Headers::new()
        .with(envelope::DEADLINE, "2020-01-01T00:00:00Z")
        .unwrap();
    let body = file_request(&file, "hi\n");
    let reply = request(&setup.client, NODE, Verb::Ensure, headers, &body).await;
    assert_eq!(reply.service_error(), Some((408, "deadline has passed")));
    assert!(!file.exists());
}

#[tokio::test]
async fn a_run_whose_deadline_passes_begins_no_further_resource() {
    let setup = Setup::inside(NODE).await;
    let late = setup.env.root().join("late");
    // The first resource ends when the deadline is over, whenever that is.
    let deadline = SystemClock.now() + chrono::TimeDelta::seconds(3);
    let wait = format!(
        "while [ $(date +%s) -le {} ]; do sleep 0.1; done",
        deadline.timestamp() + 1
    );
    let body = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "wait": true,
        "manifest": {"ccm": {"resources": [
            {"exec": [{"wait": {"provider": "shell", "command": wait}}]},
            {"exec": [{format!("/usr/bin/touch {}", late.display()): {}}]},
        ]}},
    });
    let headers = Headers::new()
        .with(envelope::DEADLINE, &deadline.to_rfc3339())
        .unwrap();
    let reply = request(&setup.client, NODE, Verb::Apply, headers, &body.to_string()).await;
    let answer = String::from_utf8_lossy(&reply.body);
    assert!(answer.contains("deadline passed"), "{answer}");
    assert!(!late.exists());
}

#[tokio::test]
async fn filters_decide_on_the_node_and_the_others_stay_silent() {
    let server = NatsServer::start();
    let client = server.client().await;
    let dir = tempfile::tempdir().unwrap();
    let mut agents = Vec::new();
    for (name, groups) in [
        ("a.lab", vec!["web"]),
        ("b.lab", vec!["web", "db"]),
        ("c.lab", vec![]),
    ] {
        let mut config = config(name, &dir.path().join(name));
        config.groups = groups.iter().map(|group| group.parse().unwrap()).collect();
        agents.push(start(&config, &server).await);
    }
    request_json(&client, "c.lab", Verb::Ping, "").await;
    for (filter, expected) in [
        ("{}", vec!["a.lab", "b.lab", "c.lab"]),
        (r#"{"identity":["a.lab","/^c/"]}"#, vec!["a.lab", "c.lab"]),
        (r#"{"cf_class":["web"]}"#, vec!["a.lab", "b.lab"]),
        (r#"{"cf_class":["web","db"]}"#, vec!["b.lab"]),
        (
            r#"{"fact":[{"fact":"host.info.os","operator":"==","value":"linux"}]}"#,
            vec!["a.lab", "b.lab", "c.lab"],
        ),
        (
            r#"{"compound":[[{"expr":"identity == 'b.lab' && Facts.host.info.os == 'linux'"}]]}"#,
            vec!["b.lab"],
        ),
        (r#"{"identity":["nobody"]}"#, vec![]),
    ] {
        // A reply may be late; one too many comes each time.
        eventually(filter, async || {
            let headers = Headers::new().with(envelope::FILTER, filter).unwrap();
            let stop = ReplyLimits {
                expected: None,
                silence: Duration::from_millis(700),
                deadline: Duration::from_secs(3),
            };
            let subject = subjects().all(Verb::Ping);
            let replies = client.request_many(&subject, headers, "".into(), stop);
            let mut replies = replies.await.unwrap();
            let mut found = Vec::new();
            while let Some(reply) = replies.next().await {
                found.push(reply.header(envelope::IDENTITY).unwrap().to_owned());
            }
            found.sort();
            when(found == expected, found)
        })
        .await;
    }
}

#[tokio::test]
async fn a_group_is_reached_by_its_own_subject() {
    let setup = Setup::inside_with(NODE, |config, _| {
        config.groups = vec!["web".parse().unwrap()];
    })
    .await;
    let subject = subjects().group(&"web".parse().unwrap(), Verb::Ping);
    let reply = setup
        .client
        .request(&subject, Headers::new(), "".into(), LIMIT);
    assert_eq!(reply.await.unwrap().header(envelope::IDENTITY), Some(NODE));
}

#[tokio::test]
async fn reads_do_not_wait_for_a_run_and_a_full_queue_says_busy() {
    let setup = Setup::inside_with(NODE, |config, _| {
        config.queue = 1;
    })
    .await;
    let fifo = setup.env.root().join("fifo");
    let manifest = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": {"ccm": {"resources": [
            {"exec": [{"wait": {"command": "/bin/sh -c 'read line < FIFO'".replace("FIFO", fifo.to_str().unwrap()), "logoutput": true}}]},
        ]}},
    })
    .to_string();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let first = request_json(&setup.client, NODE, Verb::Apply, &manifest).await;
    assert_eq!(first["state"], "accepted", "{first}");
    eventually("the run has begun", async || {
        let status = request_json(&setup.client, NODE, Verb::Ping, "").await;
        when(status["current_run"]["run_id"] == first["run_id"], status)
    })
    .await;
    let file = setup.env.root().join("motd");
    let status = json!({
        "protocol": "io.choria.ccm.v1.resource.status.request", "type": "file", "name": file,
    });
    let state = request_json(&setup.client, NODE, Verb::Status, &status.to_string()).await;
    assert_eq!(state["state"]["ensure"], "absent", "{state}");
    assert_eq!(
        request_json(&setup.client, NODE, Verb::Facts, "host.info.os").await,
        "linux"
    );
    let second = request_json(&setup.client, NODE, Verb::Apply, &manifest).await;
    assert_eq!(second["state"], "accepted");
    let third = request(&setup.client, NODE, Verb::Apply, Headers::new(), &manifest).await;
    assert_eq!(third.service_error().unwrap().0, 429);
    let answer: Value = serde_json::from_slice(&third.body).unwrap();
    assert_eq!(error_of(&answer), "busy: 1 runs are waiting already");
    for run in [&second["run_id"], &first["run_id"]] {
        let body = serde_json::json!({"run_id": run, "now": true}).to_string();
        let answer = request_json(&setup.client, NODE, Verb::Cancel, &body).await;
        assert_eq!(
            answer["protocol"], "io.choria.ccm.v1.node.status",
            "{answer}"
        );
    }
    let last = eventually("the run was cancelled", async || {
        let status = request_json(&setup.client, NODE, Verb::Ping, "").await;
        when(
            status.get("current_run").is_none() && status.get("last_run").is_some(),
            status,
        )
    })
    .await;
    assert_eq!(last["last_run"]["outcome"], "failed", "{last}");
}

#[tokio::test]
async fn a_paused_node_changes_nothing_until_it_is_resumed() {
    let setup = Setup::inside(NODE).await;
    let headers = Headers::new().with(envelope::CALLER, "ann").unwrap();
    let pause = r#"{"reason":"disk swap","for":"2h"}"#;
    request(&setup.client, NODE, Verb::Pause, headers, pause).await;
    let file = setup.env.root().join("motd");
    let body = file_request(&file, "hi\n");
    let reply = request(&setup.client, NODE, Verb::Ensure, Headers::new(), &body).await;
    let text = "node is paused by ann: disk swap; resume it first";
    assert_eq!(reply.service_error(), Some((423, text)));
    let noop = Headers::new().with(envelope::NOOP, "true").unwrap();
    let reply = request(&setup.client, NODE, Verb::Ensure, noop, &body).await;
    assert_eq!(reply.service_error(), None, "looking is allowed");
    assert!(!file.exists());
    let status = request_json(&setup.client, NODE, Verb::Resume, "").await;
    assert_eq!(status.get("pause"), None);
    let answer = request_json(&setup.client, NODE, Verb::Ensure, &body).await;
    assert_eq!(answer["state"]["changed"], true);
}

#[tokio::test]
async fn an_apply_that_waits_answers_with_its_summary_and_what_changed() {
    let setup = Setup::inside(NODE).await;
    let files: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| setup.env.root().join(name))
        .collect();
    std::fs::write(&files[0], "{{ Data.text }}").unwrap();
    let manifest = format!(
        "data: {{text: old}}\nccm:\n  resources:\n    - file:\n        - defaults: {{ensure: present, owner: root, group: root, mode: '0644'}}\n        - {}: {{content: \"{{{{ Data.text }}}}\"}}\n        - {}: {{content: same}}\n",
        files[0].display(),
        files[1].display()
    );
    std::fs::write(&files[1], "same").unwrap();
    let body = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": manifest, "data": {"text": "new"}, "wait": true,
    });
    let answer = request_json(&setup.client, NODE, Verb::Apply, &body.to_string()).await;
    assert_eq!(answer["state"], "finished", "{answer}");
    assert_eq!(answer["run"]["outcome"], "changed", "{answer}");
    assert_eq!(answer["run"]["summary"]["total_resources"], 2);
    assert_eq!(answer["events"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), "new");
    let subjects = eventually("two events and a summary", async || {
        let events = agent::stored_events(&setup.server).await;
        (events.len() == 3).then(|| events.into_iter().map(|(subject, _)| subject).collect())
    })
    .await;
    let subjects: Vec<String> = subjects;
    assert_eq!(
        subjects,
        [
            "ccm.v1.default.event.web1_example_net.file.changed",
            "ccm.v1.default.event.web1_example_net.file.stable",
            "ccm.v1.default.event.web1_example_net.run.changed",
        ]
    );
}
