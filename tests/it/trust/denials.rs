//! Every command of `ccm fleet` reports a permission violation as one, at once and not as a missing
//! reply, also if there are many.

use std::collections::BTreeSet;

use ccm_nats::streams::NODES;
use serde_json::{Value, json};

use crate::support::agent;
use crate::support::nats::NatsServer;
use crate::support::{Outcome, TestEnv};

/// More than the requests that are sent at once.
const MANY: usize = 1500;

const RUN: &str = "3Ouil37bUs2V3TmTG2OoEYtuLS3";

/// Commands that work without a connection, have a server of their own, are agents, need a backup,
/// or report denials as checks that were not made.
const OTHERS: [&str; 7] = [
    "doctor",
    "enroll",
    "permissions",
    "restore",
    "sign",
    "simulate",
    "trust",
];

/// A server with a user who may do nothing, and one who may only read the stores.
fn server() -> NatsServer {
    NatsServer::with(
        r#"authorization { users: [
             { user: admin, password: pw }
             { user: nobody, password: pw, permissions: { publish: { deny: ">" } } }
             { user: reader, password: pw, permissions: { publish: { deny: "ccm.>" } } }
           ] }"#,
    )
}

fn env(server: &NatsServer, user: &str) -> TestEnv {
    let mut env = TestEnv::new();
    env.set("NATS_URL", &url(server, user));
    env
}

fn url(server: &NatsServer, user: &str) -> String {
    server.url().replace("//", &format!("//{user}:pw@"))
}

fn expect_denial(args: &[&str], outcome: &Outcome, lacks: &str) {
    assert_ne!(outcome.code, Some(0), "{args:?}: {outcome:?}");
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    let expected = format!("permission denied: the role of this NATS user lacks {lacks}");
    assert!(text.contains(&expected), "{args:?}: {text}");
    for wrong in ["timed out", "no reply"] {
        assert!(!text.contains(wrong), "{args:?}: {text}");
    }
}

/// Stores the presence of nodes.
async fn present(server: &NatsServer, names: &[String]) {
    let settings = ccm_nats::Settings::plain(&url(server, "admin")).unwrap();
    let mode = ccm_nats::ConnectMode::Once(crate::support::poll::LIMIT);
    let admin = ccm_nats::connect(&settings, mode, "test").await.unwrap();
    agent::init(&admin).await;
    let nodes = admin.bucket(NODES).await.unwrap();
    for name in names {
        let status = json!({
            "protocol": "io.choria.ccm.v1.node.status",
            "identity": name,
            "collective": "default",
            "version": "1",
            "started": "2027-01-15T08:00:00Z",
            "timestamp": "2027-01-15T08:00:00Z",
            "beat": 3600,
        });
        let key = format!("default.{name}");
        nodes.put(&key, status.to_string().into()).await.unwrap();
    }
}

#[test]
fn every_command_reports_that_the_user_may_do_nothing() {
    let server = server();
    let env = env(&server, "nobody");
    env.write("m.yaml", "ccm: {resources: [{exec: {name: /bin/true}}]}\n");
    env.write(
        "app/manifest.yaml",
        "ccm: {resources: [{exec: {name: /bin/true}}]}\n",
    );
    let commands: [&[&str]; 34] = [
        &["init"],
        &["backup", "copy"],
        &["forget", "web1", "--yes"],
        &["nodes"],
        &["query"],
        &["ping"],
        &["facts"],
        &["status", "file", "/etc/motd"],
        &["ensure", "exec", "/bin/true", "--all"],
        &["run", "--all", "--", "/bin/true"],
        &["apply", "m.yaml", "--all"],
        &["events"],
        &["events", "--follow"],
        &["events", "--durable", "x"],
        &["runs"],
        &["pause", "web1", "--reason", "x"],
        &["resume", "web1"],
        &["cancel", RUN],
        &["label", "web1", "a=b"],
        &["bundle", "list"],
        &["bundle", "push", "app", "--name", "app"],
        &["bundle", "show", "app"],
        &[
            "bundle",
            "rm",
            "app@0000000000000000000000000000000000000000000000000000000000000000",
        ],
        &["rollout", "list"],
        &["rollout", "start", "app", "--all"],
        &["rollout", "plan", "app", "--all"],
        &["rollout", "show", "r1"],
        &["rollout", "watch", "r1"],
        &["rollout", "drive", "r1"],
        &["rollout", "abort", "r1"],
        &["rollout", "rollback", "r1"],
        &["drift"],
        &["drift", "--refresh"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for command in commands {
        let args = [&["fleet"], command].concat();
        expect_denial(command, &env.ccm(&args), "publish on $JS.API.");
    }
    let help = env.ccm(&["fleet", "--help"]).ok();
    let listed = help.split("Commands:\n").nth(1).unwrap();
    let listed = listed.split("\n\n").next().unwrap().lines();
    let names: BTreeSet<&str> = listed
        .filter_map(|it| it.split_whitespace().next())
        .collect();
    let checked = commands.map(|command| command[0]).into_iter().chain(OTHERS);
    let mut missing = names;
    checked.for_each(|name| {
        missing.remove(name);
    });
    missing.remove("help");
    assert_eq!(missing, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_reports_that_it_is_forbidden() {
    let server = server();
    present(&server, &["web1".into(), "web2".into()]).await;
    let env = env(&server, "reader");
    env.write("m.yaml", "ccm: {resources: [{exec: {name: /bin/true}}]}\n");
    let commands: [(&[&str], &str); 9] = [
        (&["ping"], "ping"),
        (&["facts"], "facts"),
        (&["status", "file", "/etc/motd"], "status"),
        (&["ensure", "exec", "/bin/true"], "ensure"),
        (&["apply", "m.yaml"], "apply"),
        (&["apply", "m.yaml", "--wait"], "apply"),
        (&["pause", "--reason", "x"], "pause"),
        (&["resume"], "resume"),
        (&["cancel", RUN], "cancel"),
    ];
    for (command, verb) in commands {
        // One message to all nodes, and one to each.
        for (selection, scope) in [(&["--all"][..], "all"), (&["--node", "/web/"], "node.web1")] {
            let args = [&["fleet"], command, selection].concat();
            let lacks = format!("publish on ccm.v1.default.{scope}.{verb}");
            expect_denial(&args, &env.ccm(&args), &lacks);
        }
    }
    let run = ["fleet", "run", "--all", "--", "/bin/true"];
    let lacks = "publish on ccm.v1.default.all.ensure";
    expect_denial(&run, &env.ccm(&run), lacks);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_denials_of_many_requests_are_all_reported() {
    let server = server();
    let names: Vec<String> = (0..MANY).map(|number| format!("n{number}")).collect();
    present(&server, &names).await;
    let env = env(&server, "reader");
    let args = [
        "ensure",
        "exec",
        "/bin/true",
        "--node",
        "/./",
        "--timeout",
        "10s",
        "--jsonl",
    ];
    let outcome = env.ccm(&[&["fleet"], &args[..]].concat());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let lines = outcome.stdout.lines();
    let replies: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let others: Vec<&Value> = replies
        .iter()
        .filter(|reply| reply.get("node").is_some() && reply["outcome"] != "denied")
        .collect();
    assert!(others.is_empty(), "{} such as {}", others.len(), others[0]);
    assert!(replies.len() >= MANY);
}
