//! Requests of `ccm fleet` to real agents with a real server, and to nodes that don't exist.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::Outcome;
use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};

/// Returns the nodes of JSON lines with their outcomes, in the order of their names.
fn outcomes(lines: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = lines
        .lines()
        .map(|line| {
            let node: Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| node[key].as_str().unwrap().to_owned();
            (text("node"), text("outcome"))
        })
        .collect();
    found.sort();
    found
}

fn names(outcome: &Outcome) -> Vec<String> {
    outcomes(&outcome.stdout)
        .into_iter()
        .map(|node| node.0)
        .collect()
}

#[test]
fn each_way_to_choose_nodes_reaches_those_and_no_others() {
    let fleet = Fleet::of_three();
    let list = fleet.env.write("list", "web2 # the second\ndb1\n");
    fleet.run(&["label", "db1", "tier=gold"]).ok();
    for (flags, nodes) in [
        (&[][..], &["db1", "web1", "web2"][..]),
        (&["--all"], &["db1", "web1", "web2"]),
        (&["--node", "web1"], &["web1"]),
        (&["--node", "web1", "--node", "db1"], &["db1", "web1"]),
        (&["--node", "/^web/"], &["web1", "web2"]),
        (&["--group", "web"], &["web1", "web2"]),
        (&["--fact", "node=db1"], &["db1"]),
        (&["--fact", "label.tier=gold"], &["db1"]),
        (
            &["--select", "Facts.node startsWith 'web'"],
            &["web1", "web2"],
        ),
        (&["--nodes", &list], &["db1", "web2"]),
        (&["--limit", "1"], &["db1"]),
        (&["--group", "web", "--limit", "1"], &["web1"]),
    ] {
        let mut args = vec!["ping", "--jsonl"];
        args.extend(flags);
        let outcome = fleet.run(&args);
        assert_eq!(outcome.code, Some(0), "{flags:?}: {outcome:?}");
        assert_eq!(names(&outcome), nodes, "{flags:?}");
    }
    let sample = |seed| names(&fleet.run(&["ping", "--jsonl", "--sample", "2", "--seed", seed]));
    assert_eq!(sample("1").len(), 2);
    assert_eq!(sample("1"), sample("1"));
    let piped = fleet.run(&["nodes", "--group", "web", "--jsonl"]).ok();
    let args = ["fleet", "ping", "--jsonl", "--nodes", "-"];
    let outcome = fleet.env.ccm_with_input(&args, &piped);
    assert_eq!(names(&outcome), ["web1", "web2"]);
}

#[test]
fn missing_nodes_are_named_with_their_cause() {
    let mut fleet = Fleet::of_three();
    let output = fleet.run(&["ping"]).ok();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        output,
        format!("db1, web1, web2: version {version}, idle\n3 nodes: 3 ok\n")
    );
    // Dead, and its presence does not know yet.
    fleet.kill("web2");
    for flags in [&[][..], &["--group", "web"]] {
        let mut args = vec!["ping", "--timeout", "60s"];
        args.extend(flags);
        let outcome = fleet.run(&args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let line = "web2: no reply: the agent is not connected\n";
        assert!(outcome.stdout.starts_with(line), "{outcome:?}");
    }
    // Known by its label, and gone with a goodbye.
    fleet.run(&["label", "db1", "tier=gold"]).ok();
    fleet.stop("db1");
    let outcome = fleet.run(&["ping", "--node", "db1", "--node", "typo"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        "db1: offline\ntypo: unknown node\n2 nodes: 2 no reply\n"
    );
    let table = fleet.run(&["nodes"]).ok();
    let row = table.lines().find(|line| line.starts_with("db1")).unwrap();
    assert!(row.contains("offline"), "{table}");
}

#[test]
fn a_resource_changes_on_the_chosen_nodes_only() {
    let fleet = Fleet::of_three();
    let path = fleet.env.at("{{ Facts.node }}.txt");
    let ensure = |flags: &[&str]| {
        let mut args = vec!["ensure", "file", &path, "--content", "hi\n"];
        args.extend(flags);
        fleet.run(&args)
    };
    let output = ensure(&["--noop", "--diff", "--group", "web"]).ok();
    assert!(
        output.starts_with("web1:\n---") && output.contains("\n+hi\nweb2:\n---"),
        "{output}"
    );
    let output = ensure(&["--noop", "--group", "web"]).ok();
    assert!(output.contains("would change"), "{output}");
    assert!(output.ends_with("2 nodes: 2 would change\n"), "{output}");
    assert!(!fleet.env.exists("web1.txt"));
    let output = ensure(&["--group", "web"]).ok();
    assert_eq!(
        output,
        "web1: file#$DIR/web1.txt changed to present\n\
         web2: file#$DIR/web2.txt changed to present\n2 nodes: 2 changed\n"
    );
    assert_eq!(fleet.env.read("web2.txt"), "hi\n");
    assert!(!fleet.env.exists("db1.txt"));
    // Stable nodes print nothing.
    assert_eq!(ensure(&["--all"]).ok().lines().count(), 2);
    assert!(fleet.env.exists("db1.txt"));
    let state = fleet
        .run(&["status", "file", &fleet.env.at("web1.txt"), "--all"])
        .ok();
    assert_eq!(
        state,
        "db1, web1, web2: file#$DIR/web1.txt present\n3 nodes: 3 ok\n"
    );
    let properties = fleet.env.write("properties", "content: other\n");
    let outcome = ensure(&["--node", "db1", "--properties", &properties]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(fleet.env.read("db1.txt"), "other");
}

#[test]
fn a_common_failure_is_printed_once_and_sets_the_exit_code() {
    let fleet = Fleet::of_three();
    let outcome = fleet.run(&["ensure", "exec", "/bin/false", "--all"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let mut lines = outcome.stdout.lines();
    let line = lines.next().unwrap();
    assert!(
        line.starts_with("db1, web1, web2: exec#/bin/false failed: "),
        "{outcome:?}"
    );
    assert_eq!(lines.next(), Some("3 nodes: 3 failed"));
}

#[test]
fn batches_halt_when_more_fail_than_may() {
    let fleet = Fleet::of_three();
    let fail = |flags: &[&str]| {
        let mut args = vec!["ensure", "exec", "/bin/false", "--all", "--json"];
        args.extend(flags);
        let outcome = fleet.run(&args);
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
        (outcome.code, document)
    };
    let (code, document) = fail(&["--batch", "1", "--max-failures", "1"]);
    assert_eq!(code, Some(3));
    assert_eq!(document["halted"], true);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(document["not_contacted"], json!(["web2"]));
    let (code, document) = fail(&["--batch", "34%", "--max-failures", "100%"]);
    assert_eq!(code, Some(1));
    assert_eq!(document["halted"], false);
    assert_eq!(document["summary"]["failed"], 3);
    let halted = fleet.run(&[
        "ensure",
        "exec",
        "/bin/false",
        "--all",
        "--batch",
        "2",
        "--max-failures",
        "0",
    ]);
    assert_eq!(halted.code, Some(3));
    assert!(
        halted
            .stdout
            .ends_with("2 nodes: 2 failed; halted after 2 failures, 1 not contacted\n"),
        "{halted:?}"
    );
}

#[test]
fn commands_that_change_nodes_require_a_selection() {
    let fleet = Fleet::start(&[]);
    for args in [
        &["ensure", "exec", "/bin/true"][..],
        &["apply", "manifest.yaml"],
        &["pause", "--reason", "x"],
        &["resume"],
    ] {
        let error = fleet.run(args).error(2);
        assert!(error.contains("\nccm: hint: select nodes"), "{error}");
    }
    let error = fleet.run(&["ping"]).error(2);
    assert_eq!(
        error,
        "ccm: error: the fleet has no nodes\nccm: hint: run `ccm agent` on a machine to add it\n"
    );
    let error = fleet.run(&["ping", "--node", "Web_1"]).error(2);
    assert!(error.contains("invalid identity"), "{error}");
}

#[test]
fn a_paused_node_refuses_changes_and_says_why() {
    let fleet = Fleet::of_three();
    let output = fleet
        .run(&["pause", "web1", "--reason", "disk swap", "--for", "2h"])
        .ok();
    assert_eq!(
        output,
        "web1: paused for 2h0m0s: disk swap\n1 node: 1 changed\n"
    );
    let change = ["ensure", "exec", "/bin/true", "--group", "web"];
    let outcome = fleet.run(&change);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let line = outcome.stdout.lines().next().unwrap();
    assert!(line.starts_with("web1: node is paused by "), "{line}");
    assert!(line.ends_with(": disk swap; resume it first"), "{line}");
    wait_for("pause in the table", || {
        let table = fleet.run(&["nodes"]).ok();
        let row = table.lines().find(|line| line.starts_with("web1"));
        when(
            row.is_some_and(|row| row.contains("paused") && row.contains("disk swap")),
            table,
        )
    });
    let output = fleet.run(&["resume", "web1"]).ok();
    assert_eq!(output, "web1: resumed\n1 node: 1 changed\n");
    fleet.run(&change).ok();
}

#[test]
fn labels_are_set_shown_and_removed() {
    let fleet = Fleet::start(&[]);
    let label = |args: &[&str]| {
        let mut all = vec!["label", "web1.example.net", "--create"];
        all.extend(args);
        fleet.run(&all).ok()
    };
    assert_eq!(label(&[]), "");
    assert_eq!(label(&["role=web", "rack=a1"]), "rack=a1\nrole=web\n");
    assert_eq!(label(&["rack-", "role=db"]), "role=db\n");
    let document: Value = serde_json::from_str(&label(&["--json"])).unwrap();
    assert_eq!(
        document,
        json!({"node": "web1.example.net", "labels": {"role": "db"}})
    );
    // A node with a label is known, and offline until it has a presence record.
    let nodes = fleet.run(&["nodes", "--json"]).json();
    assert_eq!(nodes["nodes"][0]["identity"], "web1.example.net");
    assert_eq!(nodes["nodes"][0]["state"], "offline");
    assert_eq!(nodes["nodes"][0]["labels"], json!({"role": "db"}));
    let error = fleet.run(&["label", "web1", "role"]).error(2);
    assert!(error.contains("expected NAME=VALUE"), "{error}");
    fleet.run(&["label", "web1.example.net", "role-"]).ok();
    let nodes = fleet.run(&["nodes", "--json"]).json();
    assert_eq!(nodes["nodes"], json!([]), "no node is known any more");
}

#[test]
fn a_manifest_is_sent_with_the_request_and_its_run_is_printed() {
    let fleet = Fleet::of_three();
    let file = fleet.env.at("{{ Facts.node }}.out");
    let manifest = format!(
        "ccm:\n  resources:\n    - file:\n        - '{file}':\n            ensure: present\n            \
         content: '{{{{ Data.text }}}}'\n            owner: root\n            group: root\n            \
         mode: '0644'\n"
    );
    fleet.env.write("manifest.yaml", manifest);
    fleet.env.write("data.yaml", "text: hello\n");
    let outcome = fleet.run(&[
        "apply",
        "manifest.yaml",
        "--data",
        "data.yaml",
        "--group",
        "web",
        "--wait",
    ]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .starts_with("web1: 1 changed: file#$DIR/web1.out changed to present\n"),
        "{outcome:?}"
    );
    assert_eq!(fleet.env.read("web1.out"), "hello");
    assert!(!fleet.env.exists("db1.out"));
    let accepted = fleet.run(&["apply", "manifest.yaml", "--node", "db1", "--noop"]);
    let accepted = accepted.ok();
    assert!(accepted.starts_with("db1: accepted as run "), "{accepted}");
    let bad = fleet
        .env
        .write("bad.yaml", "ccm: {resources: [{fil: []}]}\n");
    let outcome = fleet.run(&["apply", &bad, "--node", "db1", "--wait"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    fleet.run(&["apply", "ftp://x/y", "--all"]).error(2);
    fleet.run(&["apply", "missing.yaml", "--all"]).error(2);
}

#[test]
fn a_run_is_cancelled_wherever_it_is() {
    let fleet = Fleet::of_three();
    // It lasts as long as the test.
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at(""));
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - waits:\n            provider: shell\n            \
         command: '{wait}'\n            timeout: 10m\n    - exec:\n        - /bin/true: {{}}\n"
    );
    fleet.env.write("manifest.yaml", manifest);
    let accepted = fleet
        .run(&["apply", "manifest.yaml", "--node", "web2", "--json"])
        .json();
    let run = accepted["nodes"][0]["reply"]["run_id"].as_str().unwrap();
    let output = fleet.run(&["cancel", run]).ok();
    assert_eq!(output, "web2: cancelled\n3 nodes: 1 changed, 2 ok\n");
    let unknown = "0".repeat(27);
    let error = fleet.run(&["cancel", &unknown]).error(1);
    assert_eq!(error, format!("ccm: error: no node has run {unknown}\n"));
}

#[test]
fn an_interrupt_prints_the_replies_so_far() {
    let fleet = Fleet::of_three();
    // It lasts as long as the test on one of them.
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at(""));
    let command = &format!("test {{{{ Facts.node }}}} != web2 || {wait}");
    let mut asking = fleet
        .env
        .command(&["fleet", "ensure", "exec", command, "--all", "--jsonl"]);
    asking.args(["--provider", "shell"]);
    asking.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut asking = asking.spawn().unwrap();
    let mut lines = BufReader::new(asking.stdout.take().unwrap()).lines();
    let mut received: Vec<String> = lines.by_ref().take(2).map(Result::unwrap).collect();
    kill_process(Pid::from_child(&asking), Signal::INT).unwrap();
    received.extend(lines.map(Result::unwrap));
    assert_eq!(asking.wait().unwrap().code(), Some(2));
    let found = outcomes(&received.join("\n"));
    let expected = [
        ("db1", "changed"),
        ("web1", "changed"),
        ("web2", "no_reply"),
    ];
    assert_eq!(found, expected.map(|(node, it)| (node.into(), it.into())));
}

#[test]
fn facts_are_folded_where_they_are_equal() {
    let fleet = Fleet::of_three();
    let output = fleet.run(&["facts", "node", "--group", "web"]).ok();
    assert_eq!(output, "web1: \"web1\"\nweb2: \"web2\"\n2 nodes: 2 ok\n");
    let outcome = fleet.run(&["facts", "no.such.fact", "--all"]);
    assert_eq!(outcome.code, Some(1));
    assert_eq!(
        outcome.stdout,
        "db1, web1, web2: no fact matches \"no.such.fact\"\n3 nodes: 3 failed\n"
    );
    let all = fleet.run(&["facts", "--node", "db1"]).ok();
    assert!(all.contains("node: db1"), "{all}");
}

#[test]
fn events_are_shown_by_node_type_and_outcome() {
    let fleet = Fleet::of_three();
    fleet
        .run(&["ensure", "exec", "/bin/true", "--group", "web"])
        .ok();
    fleet
        .run(&["ensure", "exec", "/bin/false", "--node", "db1"])
        .error(1);
    wait_for("three events", || {
        let all = fleet.run(&["events", "--type", "exec", "--jsonl"]).ok();
        match all.lines().count() {
            3 => Ok(()),
            _ => Err(all),
        }
    });
    for (flags, count) in [
        (&["--node", "web1"][..], 1),
        (&["--node", "web1", "--node", "web2"], 2),
        (&["--outcome", "failed"], 1),
        (&["--outcome", "changed", "--type", "exec"], 2),
        (&["--outcome", "changed", "--type", "file"], 0),
        (&["--type", "exec", "--limit", "2"], 2),
        (&["--since", "2020-01-01T00:00:00Z"], 3),
    ] {
        let mut args = vec!["events", "--json", "--type", "exec"];
        if flags.contains(&"--type") {
            args.truncate(2);
        }
        args.extend(flags);
        let document = fleet.run(&args).json();
        let events = document["events"].as_array().unwrap();
        assert_eq!(events.len(), count, "{flags:?}: {document}");
    }
    let error = fleet.run(&["events", "--type", "fiel"]).error(2);
    assert!(error.contains("a similar value exists: 'file'"), "{error}");
    let failed = fleet.run(&["events", "--outcome", "failed"]).ok();
    assert!(failed.contains(" db1 exec#/bin/false failed: "), "{failed}");
    let document = fleet
        .run(&["events", "--node", "web1", "--type", "exec", "--json"])
        .json();
    let event = &document["events"][0];
    assert_eq!(event["node"], "web1");
    assert_eq!(event["outcome"], "changed");
    assert_eq!(event["event"]["name"], "/bin/true");
    assert!(event["seq"].as_u64().unwrap() > 0, "{event}");
}

#[test]
fn events_are_followed_as_they_happen() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let mut following = fleet
        .env
        .command(&["fleet", "events", "--follow", "--type", "exec", "--jsonl"]);
    following.args(["--since", "1h", "--limit", "2"]);
    following.stdout(Stdio::piped());
    let following = following.spawn().unwrap();
    for command in ["/bin/true", "/bin/echo"] {
        fleet.run(&["ensure", "exec", command, "--all"]).ok();
    }
    let output = following.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let seen: Vec<String> = text
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            event["event"]["name"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(seen, ["/bin/true", "/bin/echo"]);
}

#[test]
fn documents_have_the_same_shape_for_every_verb() {
    let fleet = Fleet::start(&[("web1", &[])]);
    for (args, protocol) in [
        (&["ping"][..], Some("io.choria.ccm.v1.node.status")),
        (&["facts"], None),
        (
            &["status", "file", "/etc/passwd"],
            Some("io.choria.ccm.v1.resource.status.response"),
        ),
        (
            &["ensure", "exec", "/bin/true", "--all"],
            Some("io.choria.ccm.v1.resource.ensure.response"),
        ),
        (
            &["pause", "web1", "--reason", "x"],
            Some("io.choria.ccm.v1.node.status"),
        ),
        (&["resume", "web1"], Some("io.choria.ccm.v1.node.status")),
    ] {
        let mut all = args.to_vec();
        all.push("--json");
        let document = fleet.run(&all).json();
        let keys = |value: &Value| -> Vec<String> {
            let entries = value.as_object().unwrap();
            entries.keys().cloned().collect()
        };
        assert_eq!(
            keys(&document),
            [
                "verb",
                "request_id",
                "nodes",
                "not_contacted",
                "halted",
                "summary"
            ],
            "{args:?}"
        );
        assert_eq!(document["verb"], args[0]);
        assert_eq!(
            keys(&document["summary"]),
            [
                "total",
                "failed",
                "denied",
                "busy",
                "no_reply",
                "changed",
                "would_change",
                "ok"
            ]
        );
        let node = &document["nodes"][0];
        assert_eq!(
            keys(node),
            ["node", "outcome", "message", "milliseconds", "reply"]
        );
        if let Some(protocol) = protocol {
            assert_eq!(node["reply"]["protocol"], protocol, "{args:?}");
        }
        all.pop();
        all.push("--jsonl");
        let outcome = fleet.run(&all);
        assert_eq!(names(&outcome), ["web1"]);
        assert!(outcome.stderr.starts_with("1 node: "), "{outcome:?}");
    }
}

#[test]
fn a_fleet_that_was_never_made_says_how_to_make_it() {
    let fleet = Fleet::start(&[]);
    let mut jetstream = fleet.env.command(&["fleet", "nodes"]);
    let other = crate::support::nats::NatsServer::start();
    jetstream.env("NATS_URL", other.url());
    let output = jetstream.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.ends_with("\nccm: hint: run `ccm fleet init`\n"),
        "{error}"
    );
}
