//! Rollouts with a real server and real agents: bundles, waves that halt, controllers that die,
//! nodes that are away, the way back, and drift.
//!
//! Every bundle here appends a line to a file of each node, so a file shows how often its node
//! really ran what.

use ccm_nats::streams::DESIRED;
use serde_json::{Value, json};

use crate::support::Outcome;
use crate::support::fleet::Fleet;
use crate::support::nats::Bus;
use crate::support::poll::{wait_for, when};

/// Starts agents without groups.
pub(crate) fn fleet(names: &[&str]) -> Fleet {
    let nodes: Vec<(&str, &[&str])> = names.iter().map(|name| (*name, &[][..])).collect();
    Fleet::start(&nodes)
}

/// Stores a bundle that runs `first` on each node and then notes the bundle's name.
pub(crate) fn push(fleet: &Fleet<impl Bus>, name: &str, first: &str) -> Value {
    let command = format!(
        "{first} && echo {name} >> {}",
        fleet.env.at("{{ Facts.node }}.log")
    );
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - run:\n            provider: shell\n            \
         command: \"{command}\"\n"
    );
    let file = fleet.env.write(&format!("{name}/manifest.yaml"), manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", name, "--json"])
        .json()
}

/// Returns a command that fails on these nodes.
pub(crate) fn failing_on(nodes: &str) -> String {
    format!("case {{{{ Facts.node }}}} in {nodes}) exit 1;; esac")
}

/// Returns what a node ran, in order.
pub(crate) fn ran(fleet: &Fleet<impl Bus>, node: &str) -> Vec<String> {
    let name = format!("{node}.log");
    match fleet.env.exists(&name) {
        true => fleet.env.read(&name).lines().map(str::to_owned).collect(),
        false => Vec::new(),
    }
}

pub(crate) fn start(fleet: &Fleet<impl Bus>, bundle: &str, flags: &[&str]) -> Outcome {
    let mut args = vec!["rollout", "start", bundle, "--all"];
    args.extend(flags);
    fleet.run(&args)
}

/// Returns the newest rollout.
pub(crate) fn newest(fleet: &Fleet<impl Bus>) -> Value {
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    all.as_array().unwrap().last().unwrap().clone()
}

pub(crate) fn id(rollout: &Value) -> String {
    rollout["id"].as_str().unwrap().to_owned()
}

/// Returns what became of each node, in one word each; those that nothing happened to are left out.
pub(crate) fn progress(rollout: &Value) -> Vec<(String, String)> {
    let nodes = rollout["nodes"].as_object().unwrap().iter();
    nodes
        .map(|(node, progress)| {
            let word = match progress {
                Value::String(word) => word.clone(),
                other => other.as_object().unwrap().keys().next().unwrap().clone(),
            };
            (node.clone(), word)
        })
        .collect()
}

pub(crate) fn words(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |pair: &(&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
    pairs.iter().map(owned).collect()
}

/// Returns generation and bundle names of what a node is assigned.
pub(crate) fn assigned(fleet: &Fleet<impl Bus>, node: &str) -> (u64, Vec<String>) {
    let drift = fleet.run(&["drift", "--json"]);
    let drift: Value = serde_json::from_str(&drift.stdout).unwrap();
    let nodes = drift["nodes"].as_array().unwrap();
    let Some(found) = nodes.iter().find(|it| it["node"] == node) else {
        return (0, Vec::new());
    };
    let manifests = found["manifests"].as_array().unwrap().iter();
    let names = manifests.map(|it| it["name"].as_str().unwrap().to_owned());
    (
        found["wanted_generation"].as_u64().unwrap(),
        names.collect(),
    )
}

#[test]
fn a_bundle_is_stored_once_and_kept_while_it_is_used() {
    let fleet = fleet(&["a"]);
    let first = push(&fleet, "app", "true");
    assert_eq!(first["new"], true);
    let second = push(&fleet, "app", "true");
    assert_eq!(second["new"], false);
    assert_eq!(first["digest"], second["digest"]);
    let other = push(&fleet, "app", "test 1 = 1");
    assert_ne!(first["digest"], other["digest"]);
    let list = fleet.run(&["bundle", "list", "--json"]).json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let short: String = first["digest"].as_str().unwrap().chars().take(8).collect();
    let old = format!("app@{short}");
    let shown = fleet.run(&["bundle", "show", &old, "--json"]).json();
    assert_eq!(shown["digest"], first["digest"]);
    assert_eq!(shown["files"][0]["name"], "manifest.yaml");
    start(&fleet, &old, &[]).ok();
    assert_eq!(ran(&fleet, "a"), ["app"]);
    let error = fleet.run(&["bundle", "rm", &old]).error(1);
    assert!(error.contains("is used by node default.a"), "{error}");
    fleet.run(&["bundle", "rm", "app"]).error(2);
    fleet.run(&["bundle", "rm", &old, "--force"]).ok();
    let error = fleet.run(&["bundle", "show", &old]).error(1);
    assert!(error.contains("does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_kept_while_an_assignment_is_unreadable() {
    let fleet = fleet(&[]);
    let pushed = push(&fleet, "app", "true");
    let short: String = pushed["digest"].as_str().unwrap().chars().take(8).collect();
    let name = format!("app@{short}");
    let client = fleet.server.client().await;
    let desired = client.bucket(DESIRED).await.unwrap();
    let newer = r#"{"protocol": "io.choria.ccm.v2.node.assignment"}"#;
    desired.put("default.a", newer.into()).await.unwrap();
    let shown = fleet.run(&["bundle", "show", &name]).ok();
    let line = "1 assignment could not be read and may name the bundle\n";
    assert!(shown.ends_with(line), "{shown}");
    let error = fleet.run(&["bundle", "rm", &name]).error(1);
    let users = "may be used by node default.a (unreadable assignment)";
    assert!(error.contains(users), "{error}");
    fleet.run(&["bundle", "rm", &name, "--force"]).ok();
}

#[test]
fn a_bad_manifest_is_not_stored() {
    let fleet = fleet(&[]);
    let file = fleet
        .env
        .write("bad.yaml", "ccm:\n  resources:\n    - nosuch: {}\n");
    let error = fleet
        .run(&["bundle", "push", &file, "--name", "app"])
        .error(2);
    assert!(error.contains("nosuch"), "{error}");
    assert_eq!(fleet.run(&["bundle", "list", "--json"]).json(), json!([]));
}

#[test]
fn a_canary_that_fails_halts_the_rollout_after_exactly_the_canary() {
    let fleet = fleet(&["a", "b", "c", "d"]);
    push(&fleet, "app", &failing_on("a"));
    let outcome = start(&fleet, "app", &["--canary", "1", "--max-failures", "9"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stdout.contains("halted: the canary failed: a"),
        "{outcome:?}"
    );
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "halted");
    assert_eq!(progress(&rollout), words(&[("a", "failed")]));
    for node in ["b", "c", "d"] {
        assert_eq!(ran(&fleet, node), [""; 0]);
        assert_eq!(assigned(&fleet, node), (0, vec![]));
    }
}

#[test]
fn a_percentage_of_failures_counts_from_the_smallest_sample_on() {
    let fleet = fleet(&["n1", "n2", "n3", "n4", "n5"]);
    let flags = [
        "--wave",
        "1",
        "--max-failures-percent",
        "40",
        "--min-sample",
        "3",
    ];
    // One of one is too many, but one is no sample; one of three is fine.
    push(&fleet, "one", &failing_on("n1"));
    let outcome = start(&fleet, "one", &flags);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done_with_failures");
    assert_eq!(progress(&rollout).len(), 5);
    // Two of three are not.
    push(&fleet, "two", &failing_on("n1|n2"));
    let outcome = start(&fleet, "two", &flags);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stdout.contains("2 of 3 failed, 40% allowed"),
        "{outcome:?}"
    );
    assert_eq!(
        progress(&newest(&fleet)),
        words(&[("n1", "failed"), ("n2", "failed"), ("n3", "changed")])
    );
}

#[test]
fn a_node_that_stays_silent_is_unreachable_and_not_failed() {
    let mut fleet = fleet(&["a", "b", "c"]);
    push(&fleet, "app", "true");
    // Its presence does not know yet.
    fleet.kill("b");
    let outcome = start(&fleet, "app", &["--node-timeout", "2s"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done_with_failures");
    // On a busy machine the others may report after the node timeout.
    let first = id(&rollout);
    wait_for("the reports of the others", || {
        let shown = fleet.run(&["rollout", "show", &first, "--json"]).json();
        let expected = [("a", "changed"), ("b", "unreachable"), ("c", "changed")];
        when(progress(&shown) == words(&expected), shown)
    });
    // Here the first one must report in time.
    let flags = [
        "--wave",
        "1",
        "--node-timeout",
        "20s",
        "--max-unreachable",
        "0",
    ];
    let outcome = start(&fleet, "app", &flags);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stdout.contains("1 of 2 unreachable, 0 allowed: b"),
        "{outcome:?}"
    );
    // It comes back, and is what it should be.
    fleet.resume("b");
    wait_for("convergence", || match ran(&fleet, "b") {
        runs if runs == ["app"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let outcome = fleet.run(&["rollout", "retry", &id(&newest(&fleet))]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(newest(&fleet)["state"]["name"], "done");
}

#[test]
fn a_node_that_was_away_for_the_whole_rollout_converges_when_it_returns() {
    let mut fleet = fleet(&["a", "b"]);
    fleet.run(&["label", "b", "tier=gold"]).ok();
    fleet.stop("b");
    push(&fleet, "app", "true");
    // A node that is known to be offline is not waited for.
    let outcome = start(&fleet, "app", &["--node-timeout", "1h"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(
        progress(&rollout),
        words(&[("a", "changed"), ("b", "unreachable")])
    );
    let drift = fleet.run(&["drift"]);
    assert_eq!(drift.code, Some(2), "{drift:?}");
    assert!(drift.stdout.contains("b lagging"), "{drift:?}");
    fleet.resume("b");
    let id = id(&rollout);
    wait_for("convergence", || {
        let shown = fleet.run(&["rollout", "show", &id, "--json"]).json();
        when(
            progress(&shown) == words(&[("a", "changed"), ("b", "changed")]),
            shown,
        )
    });
    assert_eq!(ran(&fleet, "b"), ["app"]);
    fleet.run(&["drift"]).ok();
}

#[test]
fn another_controller_finishes_what_a_killed_one_began() {
    let nodes = ["a", "b", "c", "d"];
    let fleet = fleet(&nodes);
    // The node of the first wave goes through, the others wait.
    let (taken, go) = (fleet.env.at("taken"), fleet.env.at("go"));
    let wait = format!("until [ -e {go} ] || [ ! -e {taken} ]; do sleep 0.05; done");
    push(
        &fleet,
        "app",
        &format!("(mkdir {taken} 2>/dev/null || {wait})"),
    );
    let flags = [
        "rollout", "start", "app", "--all", "--wave", "1", "--lease", "2s",
    ];
    let mut first = fleet.begin(&flags);
    wait_for("second wave", || {
        let all = fleet.run(&["rollout", "list", "--json"]).json();
        match all[0]["wave"].as_u64() {
            Some(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    first.kill().unwrap();
    first.wait().unwrap();
    fleet.env.write("go", "");
    let id = id(&newest(&fleet));
    let outcome = fleet.run(&["rollout", "drive", &id, "--lease", "2s"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "done");
    assert_eq!(rollout["lease"], Value::Null);
    for node in nodes {
        assert_eq!(ran(&fleet, node), ["app"], "{node}");
        assert_eq!(assigned(&fleet, node), (1, vec!["app".into()]));
    }
}

#[tokio::test]
async fn of_several_controllers_one_drives() {
    let nodes = ["a", "b", "c"];
    let fleet = fleet(&nodes);
    push(&fleet, "app", "sleep 0.2");
    start(&fleet, "app", &["--wave", "1", "--detach"]).ok();
    let id = id(&newest(&fleet));
    let drivers: Vec<_> = (0..3)
        .map(|_| fleet.begin(&["rollout", "drive", &id]))
        .collect();
    for mut driver in drivers {
        assert_eq!(driver.wait().unwrap().code(), Some(0));
    }
    for node in nodes {
        assert_eq!(ran(&fleet, node), ["app"], "{node}");
        assert_eq!(assigned(&fleet, node).0, 1);
    }
    let holders = fleet.lease_holders(&id).await;
    assert_eq!(holders.len(), 1, "{holders:?}");
}

#[tokio::test]
async fn what_a_dead_controller_intended_and_did_not_do_is_done_once() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    start(&fleet, "app", &["--wave", "1", "--detach"]).ok();
    let mut rollout = newest(&fleet);
    let id = id(&rollout);
    // It stored what it was about to do, and died before it did.
    let past = "2020-01-01T00:00:00Z";
    rollout["nodes"] = json!({"a": {"assigned": {"generation": 7, "at": past}}});
    rollout["previous"] = json!([{"assignment": null, "nodes": {"a": 0}}]);
    rollout["lease"] = json!({"holder": "dead", "duration": 1_000_000_000, "until": past});
    let bucket = fleet.server.jetstream().await;
    let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
    let key = format!("default.{id}");
    bucket.put(&key, rollout.to_string().into()).await.unwrap();
    let outcome = fleet.run(&["rollout", "drive"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(assigned(&fleet, "a"), (7, vec!["app".into()]));
    assert_eq!(assigned(&fleet, "b"), (1, vec!["app".into()]));
    assert_eq!(ran(&fleet, "a"), ["app"]);
    assert_eq!(ran(&fleet, "b"), ["app"]);
}

#[test]
fn the_page_drives_rollouts_that_start_while_it_drives_another() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "slow", "true");
    push(&fleet, "app", "true");
    let mut controller = fleet.begin(&["serve", "--listen", "127.0.0.1:0", "--drive"]);
    // Bakes for as long as the test takes.
    let slow = ["rollout", "start", "slow", "--node", "a", "--detach"];
    let baking = ["--bake", "1h", "--health-gate"];
    fleet.run(&[&slow[..], &baking].concat()).ok();
    wait_for("bake", || {
        let all = fleet.run(&["rollout", "list", "--json"]).json();
        when(all[0]["state"]["name"] == "baking", all)
    });
    let other = ["rollout", "start", "app", "--node", "b", "--detach"];
    fleet.run(&other).ok();
    wait_for("the second rollout", || {
        let all = fleet.run(&["rollout", "list", "--json"]).json();
        when(all[1]["state"]["name"] == "done", all)
    });
    assert_eq!(ran(&fleet, "b"), ["app"]);
    let pid = rustix::process::Pid::from_child(&controller);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(controller.wait().unwrap().code(), Some(0));
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    assert_eq!(all[0]["lease"], Value::Null, "{all}");
}

#[test]
fn a_controller_that_is_terminated_releases_its_lease() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    let flags = ["--wave", "1", "--bake", "1h", "--lease", "1h"];
    let mut args = vec!["rollout", "start", "app", "--all"];
    args.extend(flags);
    let mut controller = fleet.begin(&args);
    wait_for("bake", || {
        let all = fleet.run(&["rollout", "list", "--json"]).json();
        when(all[0]["state"]["name"] == "baking", all)
    });
    let pid = rustix::process::Pid::from_child(&controller);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(controller.wait().unwrap().code(), Some(1));
    let rollout = newest(&fleet);
    assert_eq!(rollout["lease"], Value::Null);
    assert_eq!(rollout["state"]["name"], "baking");
    assert!(ran(&fleet, "b").is_empty());
}

#[test]
fn an_unhealthy_canary_does_not_pass_the_health_gate() {
    let fleet = fleet(&["a", "b"]);
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true:\n            \
                    health_checks:\n              - {command: /bin/sh -c 'exit 2'}\n";
    let file = fleet.env.write("m.yaml", manifest);
    fleet.run(&["bundle", "push", &file, "--name", "app"]).ok();
    let outcome = start(&fleet, "app", &["--canary", "1", "--health-gate"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stdout.contains("halted: 1 unhealthy: a"),
        "{outcome:?}"
    );
    assert_eq!(progress(&newest(&fleet)), words(&[("a", "unhealthy")]));
}

#[test]
fn a_node_that_is_paused_meanwhile_is_passed_over() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    start(&fleet, "app", &["--detach"]).ok();
    fleet.run(&["pause", "a", "--reason", "disk"]).ok();
    wait_for("pause", || {
        let nodes = fleet.run(&["nodes", "--node", "a", "--json"]).ok();
        when(nodes.contains("disk"), nodes)
    });
    fleet.run(&["rollout", "drive"]).ok();
    assert_eq!(
        progress(&newest(&fleet)),
        words(&[("a", "skipped"), ("b", "changed")])
    );
    assert_eq!(assigned(&fleet, "a"), (0, vec![]));
    let plan = fleet.run(&["rollout", "plan", "app", "--all"]).ok();
    assert!(plan.contains("skipped: a (paused: disk)"), "{plan}");
}

#[test]
fn a_rollback_keeps_assignments_that_were_made_since() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "one", "true");
    push(&fleet, "two", "true");
    start(&fleet, "one", &[]).ok();
    let first = id(&newest(&fleet));
    fleet.run(&["rollout", "start", "two", "--node", "b"]).ok();
    fleet.run(&["rollout", "rollback", &first]).ok();
    let shown = fleet.run(&["rollout", "show", &first, "--json"]).json();
    assert_eq!(
        progress(&shown),
        words(&[("a", "restored"), ("b", "skipped")])
    );
    assert_eq!(assigned(&fleet, "a").1, [""; 0]);
    assert_eq!(assigned(&fleet, "b"), (2, vec!["two".into()]));
}

#[test]
fn a_rollback_restores_exactly_the_changed_nodes() {
    let fleet = fleet(&["a", "b", "c", "d"]);
    push(&fleet, "old", "true");
    push(&fleet, "new", &failing_on("c"));
    let old = ["rollout", "start", "old", "--node", "a", "--node", "d"];
    fleet.run(&old).ok();
    // Goes to a and b, fails on c, never reaches d.
    let outcome = start(&fleet, "new", &["--wave", "1"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(assigned(&fleet, "a"), (2, vec!["new".into()]));
    let id = id(&newest(&fleet));
    let outcome = fleet.run(&["rollout", "rollback", &id]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rollout = newest(&fleet);
    assert_eq!(rollout["state"]["name"], "rolled_back");
    assert_eq!(
        progress(&rollout),
        words(&[("a", "restored"), ("b", "restored"), ("c", "restored")])
    );
    assert_eq!(assigned(&fleet, "a"), (3, vec!["old".into()]));
    assert_eq!(assigned(&fleet, "b").1, [""; 0]);
    assert_eq!(assigned(&fleet, "c").1, [""; 0]);
    assert_eq!(assigned(&fleet, "d"), (1, vec!["old".into()]));
    assert_eq!(ran(&fleet, "a"), ["old", "new", "old"]);
    assert_eq!(ran(&fleet, "b"), ["new"]);
    assert_eq!(ran(&fleet, "d"), ["old"]);
}

#[test]
fn a_paused_rollout_waits_and_an_aborted_one_stays() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", "true");
    start(&fleet, "app", &["--detach"]).ok();
    let first = id(&newest(&fleet));
    // Its nodes are spoken for.
    let error = start(&fleet, "app", &[]).error(1);
    assert!(
        error.contains("is running and includes 2 of these nodes"),
        "{error}"
    );
    fleet
        .run(&["rollout", "pause", &first, "--reason", "lunch"])
        .ok();
    let shown = fleet.run(&["rollout", "show", &first]).ok();
    assert!(shown.contains(": lunch"), "{shown}");
    assert!(ran(&fleet, "a").is_empty());
    fleet.run(&["rollout", "resume", &first]).ok();
    assert_eq!(ran(&fleet, "a"), ["app"]);
    start(&fleet, "app", &["--detach"]).ok();
    let second = id(&newest(&fleet));
    let aborted = fleet.run(&["rollout", "abort", &second]);
    assert_eq!(aborted.code, Some(3), "{aborted:?}");
    assert!(
        aborted.stdout.ends_with("2 nodes not assigned\n"),
        "{aborted:?}"
    );
    let error = fleet.run(&["rollout", "resume", &second]).error(2);
    assert!(error.contains("it is aborted"), "{error}");
    let watched = fleet.run(&["rollout", "watch", &second]);
    assert_eq!(watched.code, Some(3), "{watched:?}");
    assert_eq!(ran(&fleet, "a"), ["app"]);
}

#[test]
fn a_plan_shows_the_waves_and_what_each_node_would_change() {
    let fleet = fleet(&["a", "b", "c"]);
    push(&fleet, "app", "true");
    let flags = ["--canary", "1", "--wave", "100%"];
    let mut args = vec!["rollout", "plan", "app", "--all", "--noop-first"];
    args.extend(flags);
    let output = fleet.run(&args).ok();
    assert!(
        output.contains("to 3 nodes in 2 waves\ncanary (1): a\nwave 1 (2): b, c\n"),
        "{output}"
    );
    assert!(output.contains("a, b, c: exec#run"), "{output}");
    args.push("--json");
    let plan = fleet.run(&args).json();
    assert_eq!(plan["plan"]["waves"][0]["nodes"], json!(["a"]));
    assert_eq!(plan["outlook"][2]["outcome"], "would_change");
    assert!(ran(&fleet, "a").is_empty(), "a plan changes nothing");
    assert_eq!(fleet.run(&["rollout", "list", "--json"]).json(), json!([]));
    let error = fleet
        .run(&["rollout", "plan", "app", "--node", "typo"])
        .error(2);
    assert!(error.contains("unknown nodes: typo"), "{error}");
    let error = fleet.run(&["rollout", "plan", "app"]).error(2);
    assert!(error.contains("\nccm: hint: select nodes"), "{error}");
}

#[test]
fn drift_is_shown_with_its_resource_and_the_last_event_that_changed_it() {
    let fleet = fleet(&["a", "b"]);
    let path = fleet.env.at("{{ Facts.node }}.txt");
    let manifest = format!(
        "ccm:\n  resources:\n    - file:\n        - {path:?}: {{ensure: present, content: good, \
         owner: root, group: root, mode: '0644'}}\n"
    );
    let file = fleet.env.write("m.yaml", manifest);
    fleet.run(&["bundle", "push", &file, "--name", "app"]).ok();
    start(&fleet, "app", &[]).ok();
    assert_eq!(
        fleet.run(&["drift", "--refresh"]).ok(),
        "2 nodes: 2 converged\n"
    );
    fleet.env.write("b.txt", "bad");
    let outcome = fleet.run(&["drift", "--refresh"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let mut lines = outcome.stdout.lines();
    assert!(
        lines.next().unwrap().starts_with("b drifted (app@"),
        "{outcome:?}"
    );
    assert!(
        lines.next().unwrap().starts_with("  file#$DIR/b.txt: "),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stdout
            .ends_with("2 nodes: 1 drifted, 1 converged\n"),
        "{outcome:?}"
    );
    assert_eq!(fleet.env.read("b.txt"), "bad", "a check changes nothing");
    let outcome = fleet.run(&["drift", "b", "--refresh"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("last changed at "), "{outcome:?}");
    let error = fleet.run(&["drift", "typo"]).error(2);
    assert!(error.contains("typo has no assignment"), "{error}");
}
