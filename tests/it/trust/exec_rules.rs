//! A rule for a command permits that command line, and nothing that turns it into another.

use std::os::unix::fs::PermissionsExt as _;

use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Verb};
use serde_json::{Value, json};

use super::{answer_to, ensure_body, trusting};
use crate::support::agent::start;
use crate::support::nats::NatsServer;

/// What is sent and whether the mark may appear. `DIR` stands for a directory of the test's own,
/// in which `hello` is a program that makes the mark.
type Case = (&'static str, Value, bool);

async fn try_all(policy: &str, cases: Vec<Case>) {
    let server = NatsServer::start();
    let client = server.client().await;
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().display().to_string();
    let fill = |text: &str| text.replace("DIR", &here);
    let mark = dir.path().join("mark");
    let program = dir.path().join("hello");
    std::fs::write(&program, fill("#!/bin/sh\n/usr/bin/touch DIR/mark\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(dir.path().join("templates")).unwrap();
    std::fs::write(dir.path().join("templates/a"), "x").unwrap();
    let signer = Signer::generate();
    let running = start(&trusting(&signer, Some(&fill(policy)), dir.path()), &server).await;
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
    let policy = "{verbs: [ensure], types: [exec], names: ['touch DIR/mark', 'date', hello]}";
    let cases = vec![
        ("exec", json!({"name": "touch DIR/mark"}), true),
        ("exec", json!({"name": "hello", "path": "DIR"}), false),
        (
            "exec",
            json!({"name": "date", "path": "DIR:/bin", "onlyif": "hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch DIR/mark", "environment": ["LD_PRELOAD=DIR/x.so"]}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch DIR/mark", "cwd": "DIR"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch DIR/mark", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "command": "DIR/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "onlyif": "DIR/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "unless": "DIR/hello"}),
            false,
        ),
        (
            "exec",
            json!({"name": "touch DIR/mark", "creates": "DIR/none"}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "health_checks": [{"command": "DIR/hello"}]}),
            false,
        ),
        (
            "exec",
            json!({"name": "date", "health_checks": [{"command": "touch DIR/mark"}]}),
            false,
        ),
        // The same words, written in another way.
        ("exec", json!({"name": "touch   'DIR'/mark"}), true),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_star_stays_in_its_word() {
    let policy = "{verbs: [ensure], types: [exec], names: ['echo *', 'touch DIR/*']}";
    let cases = vec![
        ("exec", json!({"name": "touch DIR/mark"}), true),
        ("exec", json!({"name": "echo a b"}), false),
        (
            "exec",
            json!({"name": "echo x;id", "provider": "shell"}),
            false,
        ),
        ("exec", json!({"name": "touch DIR/mark /tmp"}), false),
        ("exec", json!({"name": "touch DIR/../mark"}), false),
        (
            "exec",
            json!({"name": "echo x; touch DIR/mark", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "echo x;DIR/hello", "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "echo $(DIR/hello)", "provider": "shell"}),
            false,
        ),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_rule_permits_what_it_names() {
    let policy = "- {verbs: [ensure], types: [exec], commands: [hello], path: [DIR], \
            environment: ['A=*'], cwd: ['DIR'], guards: [/bin/true, 'DIR/none']}\n\
        - {verbs: [ensure], types: [exec], commands: ['hello && true'], path: [DIR, /bin], \
            shell: true}\n\
        - {verbs: [ensure], types: [exec], commands: ['/bin/true'], checks: ['DIR/hello']}\n\
        - {verbs: [ensure], types: [exec], commands: ['touch **']}";
    let cases = vec![
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "DIR"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "DIR", "environment": ["A=1"],
                "cwd": "DIR", "onlyif": "/bin/true", "creates": "DIR/none"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "DIR", "onlyif": "/bin/false"}),
            false,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello", "path": "DIR", "environment": ["B=1"]}),
            false,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello && true", "path": "DIR:/bin",
                "provider": "shell"}),
            true,
        ),
        (
            "exec",
            json!({"name": "x", "command": "hello && true;id", "path": "DIR:/bin",
                "provider": "shell"}),
            false,
        ),
        (
            "exec",
            json!({"name": "/bin/true", "health_checks": [{"command": "DIR/hello"}]}),
            true,
        ),
        ("exec", json!({"name": "touch DIR/a DIR/mark"}), true),
    ];
    try_all(policy, cases).await;
}

#[tokio::test]
async fn a_post_command_of_a_scaffold_needs_a_rule_that_names_it() {
    let scaffold = json!({"name": "DIR/out", "ensure": "present", "source": "DIR/templates",
        "engine": "jet", "post": [{"*": "DIR/hello"}]});
    let policy = "- {verbs: [ensure], types: [scaffold]}\n\
        - {verbs: [ensure], types: [exec], names: ['DIR/hello']}";
    try_all(policy, vec![("scaffold", scaffold.clone(), false)]).await;
    let policy = "{verbs: [ensure], types: [scaffold], post: ['DIR/hello'], lookups: [files]}";
    try_all(policy, vec![("scaffold", scaffold, true)]).await;
}
