//! What the fleet's stores show without a request to any node: queries over facts, also of nodes that
//! are offline, the history of runs, the status of nodes, and tables on terminals.

use ccm_nats::streams::{DESIRED, FACTS, NODES};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::AgentProcess;
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::{eventually, wait_for, when};

/// Waits until the facts of `count` nodes are stored.
async fn facts_stored(server: &NatsServer, count: usize) {
    let client = server.client().await;
    eventually("stored facts", async || {
        let bucket = client.bucket(FACTS).await.unwrap();
        let stored = bucket.entries(">").await.unwrap();
        when(stored.len() == count, stored)
    })
    .await;
}

fn rows(document: &Value) -> &Vec<Value> {
    rows_of(document, "nodes")
}

fn rows_of<'a>(document: &'a Value, field: &str) -> &'a Vec<Value> {
    document[field].as_array().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_finds_offline_nodes_by_their_stored_facts() {
    let mut fleet = Fleet::of_three();
    facts_stored(&fleet.server, 3).await;
    fleet.run(&["label", "web1", "role=web"]).ok();
    fleet.run(&["label", "web2", "role=web"]).ok();
    fleet.stop("web2");
    let query = "Facts.node startsWith \"web\" && Labels.role == \"web\"";
    let columns = "identity,status,version,groups,bundle,last_run,Facts.node,Labels.role";
    let found = fleet
        .run(&["query", query, "--columns", columns, "--json"])
        .json();
    let version = env!("CARGO_PKG_VERSION");
    let row = |name: &str, status: &str| {
        json!({
            "identity": name, "status": status, "version": version, "groups": ["web"],
            "bundle": [], "last_run": null, "Facts.node": name, "Labels.role": "web",
        })
    };
    assert_eq!(
        rows(&found),
        &[row("web1", "online"), row("web2", "offline")]
    );
    let csv = fleet.run(&[
        "query",
        query,
        "--csv",
        "--columns",
        "identity,groups,Facts.node",
    ]);
    assert_eq!(
        csv.ok(),
        "identity,groups,Facts.node\r\nweb1,web,web1\r\nweb2,web,web2\r\n"
    );
    let text = fleet.run(&["query", query, "--columns", "identity,status"]);
    assert_eq!(
        text.ok(),
        "IDENTITY  STATUS\nweb1      online\nweb2      offline\n"
    );
    let all = fleet.run(&["query"]).ok();
    assert_eq!(all.lines().count(), 4, "{all}");
    fleet.run(&["query", "Facts.node =="]).error(2);
    fleet.run(&["query", "--columns", "nonsense"]).error(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_selection_names_offline_nodes_that_match_by_fact_or_group() {
    let mut fleet = Fleet::of_three();
    facts_stored(&fleet.server, 3).await;
    fleet.stop("web2");
    for flags in [
        &["--fact", "node=web2"][..],
        &["--select", "Facts.node == 'web2'"],
    ] {
        let outcome = fleet.run(&[&["ping"], flags].concat());
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert_eq!(outcome.stdout, "web2: offline\n1 node: 1 no reply\n");
    }
    let outcome = fleet.run(&["ping", "--group", "web"]);
    assert!(outcome.stdout.starts_with("web2: offline\n"), "{outcome:?}");
    assert!(outcome.stdout.contains("web1: version"), "{outcome:?}");
    let outcome = fleet.run(&["ping", "--fact", "node=db1"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_that_do_not_change_are_not_stored_again() {
    let fleet = Fleet::start(&[("web1", &[])]);
    facts_stored(&fleet.server, 1).await;
    let client = fleet.server.client().await;
    let key = "default.web1";
    let revision = async |bucket: &str| {
        let bucket = client.bucket(bucket).await.unwrap();
        bucket.get(key).await.unwrap().unwrap().revision
    };
    let (stored, present) = (revision(FACTS).await, revision(NODES).await);
    eventually("three more beats", async || {
        let now = revision(NODES).await;
        when(now >= present + 3, now)
    })
    .await;
    assert_eq!(revision(FACTS).await, stored);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_without_stored_facts_works_as_before() {
    let mut fleet = Fleet::start(&[]);
    let jetstream = fleet.server.jetstream().await;
    jetstream.delete_stream("KV_CCM_FACTS").await.unwrap();
    fleet.add("web1", &["web"], "");
    fleet.add("web2", &["web"], "");
    fleet.settle(2);
    let outcome = fleet.run(&["ping", "--fact", "node=web1"]);
    assert!(outcome.ok().contains("1 node: 1 ok"));
    let found = fleet
        .run(&["query", "Facts.node == 'web1'", "--json"])
        .json();
    assert_eq!(rows(&found).len(), 1);
    wait_for("the reason in the log", || {
        let log = fleet.log("web1");
        when(log.contains("Could not store the facts of this node"), log)
    });
    fleet.stop("web1");
    fleet.run(&["ping", "--fact", "node=web1"]).error(2);
}

#[test]
fn runs_of_a_node_and_of_the_fleet_are_listed() {
    let fleet = Fleet::of_three();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    fleet.env.write("manifest.yaml", manifest);
    let failing = "ccm:\n  resources:\n    - exec:\n        - /bin/false: {}\n";
    fleet.env.write("failing.yaml", failing);
    fleet
        .run(&["apply", "manifest.yaml", "--all", "--wait"])
        .ok();
    let failed = fleet.run(&["apply", "failing.yaml", "--node", "web1", "--wait"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let all = wait_for("four runs", || {
        let runs = fleet.run(&["runs", "--json"]).json();
        when(runs["runs"].as_array().unwrap().len() == 4, runs)
    });
    assert_eq!(all["omitted"], 0);
    let outcomes = |args: &[&str]| -> Vec<String> {
        let document = fleet.run(&[args, &["--json"]].concat()).json();
        let runs = document["runs"].as_array().unwrap().iter();
        runs.map(|run| format!("{} {}", run["identity"], run["outcome"]).replace('"', ""))
            .collect()
    };
    let of_web1 = ["web1 changed", "web1 failed"];
    assert_eq!(outcomes(&["runs", "web1", "--since", "2d"]), of_web1);
    assert_eq!(outcomes(&["runs", "--node", "web1"]), of_web1);
    assert_eq!(outcomes(&["runs", "--outcome", "failed"]), ["web1 failed"]);
    assert_eq!(outcomes(&["runs", "--limit", "1"]), ["web1 failed"]);
    let text = fleet.run(&["runs", "web1", "db1"]);
    let lines: Vec<&str> = text.stdout.lines().collect();
    assert!(lines[0].starts_with("TIME"), "{text:?}");
    assert_eq!(lines.len(), 4, "{text:?}");
    let limited = fleet.run(&["runs", "--limit", "1"]);
    assert!(
        limited.stderr.contains("3 earlier runs not shown"),
        "{limited:?}"
    );
    fleet.run(&["runs", "--since", "soon"]).error(2);
}

/// Returns the row of a node in the table of nodes.
fn row(fleet: &Fleet, node: &str) -> String {
    let table = fleet.run(&["nodes"]).ok();
    let header = table.lines().next().unwrap();
    assert!(header.starts_with("NODE"), "{table}");
    let row = table.lines().find(|line| line.starts_with(node));
    row.unwrap_or_default().to_owned()
}

/// Waits until the row of a node has these words.
fn has_status(fleet: &Fleet, node: &str, words: &[&str]) {
    wait_for("the status", || {
        let row = row(fleet, node);
        when(words.iter().all(|word| row.contains(word)), row)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_node_is_one_word_and_its_reason() {
    let mut fleet = Fleet::start(&[]);
    let key = fleet.env.ccm(&["keys", "new", "ops.seed"]).ok();
    let public = key
        .split_whitespace()
        .find(|word| word.len() == 56)
        .unwrap();
    let signers = format!("trust: {{signers: [{{name: ops, key: {public}}}]}}\n");
    fleet.add("busy1", &[], "");
    fleet.add("open1", &[], "trust: {required: false}\n");
    fleet.add("paused1", &[], "");
    fleet.add("plain1", &[], "");
    fleet.add("gone1", &[], "");
    fleet.add("strict1", &[], &signers);
    fleet.settle(6);
    facts_stored(&fleet.server, 6).await;
    fleet
        .run(&["pause", "paused1", "--reason", "bad disk"])
        .ok();
    let denied = fleet.run(&["ensure", "exec", "/bin/true", "--node", "strict1"]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    fleet.stop("gone1");
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at(""));
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - waits: {{provider: shell, command: '{wait}', timeout: 10m}}\n"
    );
    fleet.env.write("manifest.yaml", manifest);
    fleet
        .run(&["apply", "manifest.yaml", "--node", "busy1"])
        .ok();
    has_status(&fleet, "busy1", &[" busy "]);
    has_status(
        &fleet,
        "open1",
        &[" no-trust ", "accepts unsigned requests"],
    );
    has_status(&fleet, "paused1", &[" paused ", "bad disk"]);
    has_status(&fleet, "gone1", &[" offline ", "last seen 2"]);
    has_status(&fleet, "strict1", &[" refusing ", "refused ensure"]);
    has_status(&fleet, "plain1", &[" online "]);
    let document = fleet.run(&["nodes", "paused1", "--json"]).json();
    let node = &rows(&document)[0];
    assert_eq!(
        (&node["state"], &node["condition"]),
        (&"paused".into(), &"paused".into())
    );
    // The presence of a newer agent makes the others old.
    let client = fleet.server.client().await;
    let mut newer = node["status"].clone();
    newer["identity"] = "newer1".into();
    newer["version"] = "999.0.0".into();
    newer["pause"] = Value::Null;
    let bucket = client.bucket(NODES).await.unwrap();
    let text = newer.to_string();
    bucket.put("default.newer1", text.into()).await.unwrap();
    has_status(&fleet, "plain1", &[" old-version ", "others have 999.0.0"]);
    has_status(&fleet, "newer1", &[" online "]);
}

#[test]
fn commands_without_another_argument_take_nodes() {
    let fleet = Fleet::of_three();
    let output = fleet.run(&["ping", "web1", "db1"]).ok();
    assert!(output.starts_with("db1, web1: version"), "{output}");
    let output = fleet.run(&["ping", "typo"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    let output = fleet.run(&["status", "file", "/etc/hostname", "web2"]).ok();
    assert!(output.starts_with("web2: "), "{output}");
    let output = fleet.run(&["facts", "node", "web1", "web2"]).ok();
    assert_eq!(output, "web1: \"web1\"\nweb2: \"web2\"\n2 nodes: 2 ok\n");
    let output = fleet.run(&["facts", "node"]).ok();
    assert!(output.ends_with("3 nodes: 3 ok\n"), "{output}");
    let output = fleet.run(&["facts", "db1"]).ok();
    assert!(output.starts_with("db1:\n"), "{output}");
    let error = fleet.run(&["facts", "node", "typo"]).error(2);
    assert!(error.contains("unknown node typo"), "{error}");
    let output = fleet.run(&["nodes", "db1", "--jsonl"]).ok();
    assert_eq!(output.lines().count(), 1, "{output}");
    let unknown = "0".repeat(27);
    fleet.run(&["cancel", &unknown, "web1"]).error(1);
    fleet.run(&["ping", "web1", "--all"]).error(2);
}

#[test]
fn commands_with_another_argument_take_nodes_after_it() {
    let fleet = Fleet::of_three();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    let file = fleet.env.write("manifest.yaml", manifest);
    let output = fleet.run(&["apply", &file, "web1", "db1", "--wait"]).ok();
    assert!(output.ends_with("2 nodes: 2 changed\n"), "{output}");
    let output = fleet
        .run(&["run", "web1", "web2", "--", "echo", "here"])
        .ok();
    assert!(
        output.starts_with("web1, web2: output:\nhere\n"),
        "{output}"
    );
    fleet.run(&["bundle", "push", &file, "--name", "app"]).ok();
    let rollout = ["rollout", "plan", "app", "db1", "web2", "--json"];
    let plan = fleet.run(&rollout).json();
    assert_eq!(
        plan["plan"]["waves"][0]["nodes"],
        json!(["db1", "web2"]),
        "{plan}"
    );
    let events = wait_for("events of both nodes", || {
        let events = fleet
            .run(&["events", "web1", "db1", "--type", "run", "--json"])
            .json();
        when(events["events"].as_array().unwrap().len() == 2, events)
    });
    let mut nodes: Vec<&str> = rows_of(&events, "events")
        .iter()
        .map(|event| event["node"].as_str().unwrap())
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["db1", "web1"]);
    fleet.run(&["apply", &file, "web1", "--all"]).error(2);
    fleet.run(&["run", "--", "true"]).error(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_cannot_be_read_are_counted() {
    let fleet = Fleet::start(&[]);
    let jetstream = fleet.server.jetstream().await;
    let subject = "ccm.v1.default.event.web1.run.failed";
    let stored = jetstream.publish(subject, "{}".into()).await.unwrap();
    stored.await.unwrap();
    let outcome = fleet.run(&["runs", "--json"]);
    let warning = format!("1 run could not be read, the last on {subject} at ");
    assert!(outcome.stderr.contains(&warning), "{outcome:?}");
    let document = outcome.json();
    assert_eq!(document["unreadable"], 1, "{document}");
}

/// Runs a command of `ccm fleet` on a terminal, with more environment variables.
fn on_terminal(fleet: &Fleet, args: &str, variables: &[(&str, &str)]) -> String {
    let command = format!("{} fleet {args}", env!("CARGO_BIN_EXE_ccm"));
    let output = fleet
        .env
        .program("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn colours_are_for_terminals_and_can_be_switched_off() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let colours = "\u{1b}[32monline\u{1b}[0m";
    assert!(on_terminal(&fleet, "nodes", &[]).contains(colours));
    for off in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        let text = on_terminal(&fleet, "nodes", &[off]);
        assert!(
            text.contains("online") && !text.contains('\u{1b}'),
            "{off:?}: {text}"
        );
    }
    assert!(on_terminal(&fleet, "nodes", &[("CLICOLOR", "1")]).contains(colours));
    assert!(!fleet.run(&["nodes"]).ok().contains('\u{1b}'));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_whose_only_node_is_down_lists_it_as_offline() {
    let mut fleet = Fleet::start(&[("web1", &[])]);
    facts_stored(&fleet.server, 1).await;
    fleet.stop("web1");
    let nodes = fleet.run(&["nodes"]);
    assert_eq!((nodes.code, nodes.stderr.as_str()), (Some(0), ""));
    let row = nodes.stdout.lines().nth(1).unwrap();
    assert!(row.starts_with("web1 ") && row.contains("offline"), "{row}");
    let ping = fleet.run(&["ping"]);
    assert_eq!(ping.code, Some(2), "{ping:?}");
    assert!(ping.stdout.contains("web1: offline"), "{ping:?}");
    // Offline nodes are never part of a subset.
    let error = fleet.run(&["ping", "--limit", "1"]).error(2);
    assert_eq!(
        error,
        "ccm: error: no node is online (1 known)\nccm: hint: `ccm fleet nodes` lists them\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_only_an_assignment_is_known_and_offline() {
    let fleet = Fleet::start(&[]);
    let client = fleet.server.client().await;
    let desired = client.bucket(DESIRED).await.unwrap();
    desired.put("default.new1", "{}".into()).await.unwrap();
    let nodes = fleet.run(&["nodes", "--json"]).json();
    let node = &rows(&nodes)[0];
    assert_eq!(
        (&node["identity"], &node["state"]),
        (&json!("new1"), &json!("offline"))
    );
    let ping = fleet.run(&["ping", "new1"]);
    assert_eq!(ping.code, Some(2), "{ping:?}");
    assert!(ping.stdout.contains("new1: offline"), "{ping:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_announces_itself_when_the_buckets_appear() {
    let (mut env, server) = (TestEnv::new(), NatsServer::start());
    env.set("NATS_URL", &server.url());
    let config = format!(
        "identity: web1\nstate_dir: {}\ncache_dir: {}\nservers: {}\nbeat: 1h\n",
        env.at("state"),
        env.at("cache"),
        server.url()
    );
    let agent = AgentProcess::with_config(&env, "web1", &config);
    wait_for("an agent without buckets", || {
        let log = agent.log();
        when(log.contains("Could not publish the presence"), log)
    });
    env.ccm(&["fleet", "init"]).ok();
    wait_for("the node", || {
        let nodes = env.ccm(&["fleet", "query", "--json"]).json();
        when(nodes["nodes"][0]["status"] == "online", nodes)
    });
    facts_stored(&server, 1).await;
    let ping = env.ccm(&["fleet", "ping"]).ok();
    assert!(ping.starts_with("web1: "), "{ping}");
}

#[test]
fn the_progress_of_a_request_counts_nodes_that_are_not_there() {
    let fleet = Fleet::of_three();
    let text = on_terminal(&fleet, "ping web1 web2 db1 typo", &[]);
    let pattern = regex::Regex::new(r"(\d+)/(\d+) nodes").unwrap();
    let drawn: Vec<(u64, u64)> = pattern
        .captures_iter(&text)
        .map(|found| (found[1].parse().unwrap(), found[2].parse().unwrap()))
        .collect();
    assert!(!drawn.is_empty(), "{text:?}");
    assert!(
        drawn.iter().all(|(at, of)| at <= of && *of == 4),
        "{text:?}"
    );
}
