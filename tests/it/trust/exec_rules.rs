//! A rule for a command permits that command line, and nothing that turns it into another.

use std::os::unix::fs::PermissionsExt as _;

use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use serde_json::{Value, json};

use super::{answer_to, ensure_body, trusting};
use crate::support::agent::start;
use crate::support::nats::NatsServer;

/// What is sent and whether the mark may appear. `ROOM` stands for a directory of the test's own,
/// in which `hello` is a program that makes the mark.
type Case = (&'static str, Value, bool);

async fn try_all(policy: &str, cases: Vec<Case>) {
    let server = NatsServer::start();
    let client = server.client().await;
    let room = tempfile::tempdir().unwrap();
    let here = room.path().display().to_string();
    let fill = |text: &str| text.replace("ROOM", &here);
    let mark = room.path().join("mark");
    let program = room.path().join("hello");
    std::fs::write(&program, fill("#!/bin/sh\n/usr/bin/touch ROOM/mark\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(room.path().join("templates")).unwrap();
    std::fs::write(room.path().join("templates/a"), "x").unwrap();
    let signer = Signer::generate();
    let running = start(
        &trusting(&signer, Some(&fill(policy)), room.path()),
        &server,
    )
    .await;
    for (type_name, properties, is_permitted) in cases {
        let _ = std::fs::remove_file(&mark);
        let properties: Value = serde_json::from_str(&fill(&properties.to_string())).unwrap();
        let body = ensure_body(type_name, &properties);
        let (code, answer) = answer_to(&client, &signer, Verb::Ensure, Headers::new(), &body).await;
        let is_denied = code == 403 || answer.to_string().contains("denied by policy");
        assert_eq!(is_denied, !is_permitted, "{properties}: {answer}");
        assert_eq!(mark.exists(), is_permitted, "{properties}: {answer}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_rule_that_names_a_command_permits_nothing_around_it() {
    // `touch` is found on the agent's own path.
    let policy = "{verbs: [ensure], types: [exec], names: ['touch ROOM/mark', 'date', hello]}";
    let cases = vec![
        ("exec", json!({"name": "touch ROOM/mark"}), true),
        ("exec", json!({"name": "hello", "path": "ROOM"}), false),
        (
            "exec",
            json!({"name": "date", "path": "ROOM:/bin", "onlyif": "hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch ROOM/mark", "environment": ["LD_PRELOAD=ROOM/x.so"]}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch ROOM/mark", "cwd": "ROOM"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch ROOM/mark", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "command": "ROOM/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "onlyif": "ROOM/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "unless": "ROOM/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch ROOM/mark", "creates": "ROOM/none"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "health_checks": [{"command": "ROOM/hello"}]}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "health_checks": [{"command": "touch ROOM/mark"}]}),
            false,
        ),
        // The same words, written in another way.
        ("exec", json!({"name": "touch   'ROOM'/mark"}), true),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_star_stays_in_its_word() {
    let policy = "{verbs: [ensure], types: [exec], names: ['echo *', 'touch ROOM/*']}";
    let cases = vec![
        ("exec", json!({"name": "touch ROOM/mark"}), true),
        ("exec", json!({"name": "echo a b"}), false),
        (
            "exec",
            json!({"name": "echo x;id", "provider": "shell"}),
            false,
        ),
        ("exec", json!({"name": "touch ROOM/mark /tmp"}), false),
        ("exec", json!({"name": "touch ROOM/../mark"}), false),
        (
            "exec",
            json!({"name": "echo x; touch ROOM/mark", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "echo x;ROOM/hello", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "echo $(ROOM/hello)", "provider": "shell"}),
            false,
        ),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_rule_permits_what_it_names() {
    let policy = "- {verbs: [ensure], types: [exec], commands: [hello], path: [ROOM], \
            environment: ['A=*'], cwd: ['ROOM'], guards: [/bin/true, 'ROOM/none']}\n\
        - {verbs: [ensure], types: [exec], commands: ['hello && true'], path: [ROOM, /bin], \
            shell: true}\n\
        - {verbs: [ensure], types: [exec], commands: ['/bin/true'], checks: ['ROOM/hello']}\n\
        - {verbs: [ensure], types: [exec], commands: ['touch **']}";
    let cases = vec![
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "ROOM"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "ROOM", "environment": ["A=1"],
                "cwd": "ROOM", "onlyif": "/bin/true", "creates": "ROOM/none"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "ROOM", "onlyif": "/bin/false"}),
            false,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "ROOM", "environment": ["B=1"]}),
            false,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello && true", "path": "ROOM:/bin",
                "provider": "shell"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello && true;id", "path": "ROOM:/bin",
                "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "/bin/true", "health_checks": [{"command": "ROOM/hello"}]}),
            true,
        ),
        ("exec", json!({"name": "touch ROOM/a ROOM/mark"}), true),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_post_command_of_a_scaffold_needs_a_rule_that_names_it() {
    let scaffold = json!({"name": "ROOM/out", "ensure": "present", "source": "ROOM/templates",
        "engine": "jet", "post": [{"*": "ROOM/hello"}]});
    let policy = "- {verbs: [ensure], types: [scaffold]}\n\
        - {verbs: [ensure], types: [exec], names: ['ROOM/hello']}";
    try_all(policy, vec![("scaffold", scaffold.clone(), false)]).await;
    let policy = "{verbs: [ensure], types: [scaffold], post: ['ROOM/hello'], lookups: [files]}";
    try_all(policy, vec![("scaffold", scaffold, true)]).await;
}
