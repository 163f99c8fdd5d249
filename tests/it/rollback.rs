//! Rollbacks with a real server and real agents: they end when every node has reported what it had
//! before, and name the nodes that have not. Also the states in which rollouts end, in the same
//! words on the command line, in the API, on the page and in the metrics.
//!
//! Every bundle here writes its name to a file of each node.

use ccm_nats::streams::REPORTED;
use serde_json::{Value, json};

use crate::rollout::{failing_on, fleet, id, newest, progress, start, words};
use crate::support::Outcome;
use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::web::{Page, Web};

/// Stores a bundle that runs `first` on each node and then writes the bundle's name to a file.
fn push(fleet: &Fleet, name: &str, first: &str) {
    let path = fleet.env.at("{{ Facts.node }}.conf");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - first:\n            provider: shell\n            \
         command: {first:?}\n    - file:\n        - {path:?}:\n            ensure: present\n            \
         content: {name}\n            owner: root\n            group: root\n            \
         mode: '0644'\n            require: [exec#first]\n"
    );
    let file = fleet.env.write(&format!("{name}/manifest.yaml"), manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", name])
        .ok();
}

/// Returns the bundle whose content the file of a node has.
fn content(fleet: &Fleet, node: &str) -> String {
    fleet.env.read(&format!("{node}.conf")).trim().to_owned()
}

/// Returns a command that fails on a node while a file with its name exists.
fn failing_if_broken(fleet: &Fleet) -> String {
    format!("test ! -e {}", fleet.env.at("broken-{{ Facts.node }}"))
}

/// Rolls two bundles out, one after the other, and returns the id of the second rollout.
fn old_then_new(fleet: &Fleet, old: &str, flags: &[&str]) -> String {
    push(fleet, "old", old);
    push(fleet, "new", "true");
    start(fleet, "old", &[]).ok();
    start(fleet, "new", flags).ok();
    id(&newest(fleet))
}

fn roll_back(fleet: &Fleet, id: &str) -> Outcome {
    fleet.run(&["rollout", "rollback", id, "--lease", "2s"])
}

/// Returns the stored value of a key.
async fn stored(fleet: &Fleet, bucket: &str, key: &str) -> Value {
    let bucket = fleet.server.jetstream().await.get_key_value(bucket).await;
    let value = bucket.unwrap().get(format!("default.{key}")).await.unwrap();
    serde_json::from_slice(&value.unwrap()).unwrap()
}

/// Stores a rollout over the present one.
async fn store(fleet: &Fleet, rollout: &Value) {
    let bucket = fleet.server.jetstream().await;
    let bucket = bucket.get_key_value("CCM_ROLLOUTS").await.unwrap();
    let key = format!("default.{}", id(rollout));
    bucket.put(&key, rollout.to_string().into()).await.unwrap();
}

#[test]
fn a_rollback_ends_when_the_nodes_have_their_old_content() {
    let fleet = fleet(&["a", "b"]);
    let id = old_then_new(&fleet, "sleep 0.5", &[]);
    assert_eq!(content(&fleet, "a"), "new");
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        (content(&fleet, "a"), content(&fleet, "b")),
        ("old".into(), "old".into())
    );
    assert_eq!(
        outcome.stdout,
        format!(
            "rolling back\n  a restored\n  b restored\nrolled back\nrollout {id}: 2 restored\n"
        )
    );
}

#[test]
fn a_node_whose_old_bundle_fails_now_is_named_and_can_be_retried() {
    let fleet = fleet(&["a", "b"]);
    let id = old_then_new(&fleet, &failing_if_broken(&fleet), &[]);
    fleet.env.write("broken-b", "");
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.contains("  b failed: exec#first"),
        "{outcome:?}"
    );
    assert!(
        outcome.stdout.ends_with(&format!(
            "rolled back with failures\nrollout {id}: 1 failed, 1 restored\n"
        )),
        "{outcome:?}"
    );
    assert_eq!(content(&fleet, "b"), "new");
    let error = roll_back(&fleet, &id).error(2);
    assert!(error.contains("it is rolled back with failures"), "{error}");
    std::fs::remove_file(fleet.env.path("broken-b")).unwrap();
    let outcome = fleet.run(&["rollout", "retry", &id]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .ends_with(&format!("rolled back\nrollout {id}: 2 restored\n")),
        "{outcome:?}"
    );
    assert_eq!(content(&fleet, "b"), "old");
}

#[test]
fn a_stopped_node_is_named_and_restored_when_it_returns() {
    let mut fleet = fleet(&["a", "b"]);
    // A node that is known to be offline is not waited for.
    let id = old_then_new(&fleet, "true", &["--node-timeout", "1h"]);
    fleet.stop("b");
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stdout.contains("  b unreachable: offline\n"),
        "{outcome:?}"
    );
    assert!(
        outcome.stdout.ends_with(&format!(
            "rolled back with failures\nrollout {id}: 1 unreachable, 1 restored\n"
        )),
        "{outcome:?}"
    );
    assert_eq!(content(&fleet, "a"), "old");
    fleet.resume("b");
    let shown = wait_for("return", || {
        let shown = fleet.run(&["rollout", "show", &id]).ok();
        when(shown.contains("  b restored"), shown)
    });
    assert!(
        shown.contains("rolled back with failures; all nodes have converged since\n"),
        "{shown}"
    );
    assert_eq!(content(&fleet, "b"), "old");
}

#[tokio::test]
async fn a_node_that_does_not_report_its_old_state_in_time_is_named() {
    let mut fleet = fleet(&["a"]);
    let id = old_then_new(&fleet, "true", &[]);
    let mut rollout = stored(&fleet, "CCM_ROLLOUTS", &id).await;
    rollout["settings"]["node_timeout"] = json!(1_000_000_000);
    store(&fleet, &rollout).await;
    // Its presence does not know yet.
    fleet.kill("a");
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stdout.contains("  a unreachable: "), "{outcome:?}");
    assert_eq!(content(&fleet, "a"), "new");
}

#[test]
fn a_paused_node_is_named_and_restored_when_it_is_resumed() {
    let fleet = fleet(&["a"]);
    let id = old_then_new(&fleet, "true", &["--node-timeout", "1h"]);
    fleet.run(&["pause", "a", "--reason", "disk"]).ok();
    wait_for("pause", || {
        let nodes = fleet.run(&["nodes", "--node", "a", "--json"]).ok();
        when(nodes.contains("disk"), nodes)
    });
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stdout.contains("  a unreachable: paused: disk\n"),
        "{outcome:?}"
    );
    assert_eq!(content(&fleet, "a"), "new");
    fleet.run(&["resume", "a"]).ok();
    wait_for("old content", || match content(&fleet, "a") {
        old if old == "old" => Ok(()),
        other => Err(other),
    });
}

#[tokio::test]
async fn a_node_without_an_assignment_before_reports_the_empty_one() {
    let fleet = fleet(&["a"]);
    push(&fleet, "new", "true");
    start(&fleet, "new", &[]).ok();
    let outcome = roll_back(&fleet, &id(&newest(&fleet)));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let report = stored(&fleet, "CCM_REPORTED", "a").await;
    assert_eq!(
        (&report["generation"], &report["manifests"]),
        (&json!(2), &json!([]))
    );
}

#[test]
fn another_controller_finishes_the_rollback_of_a_killed_one() {
    let fleet = fleet(&["a", "b"]);
    // The old bundle waits while there is a file `wait`.
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at("wait"));
    let id = old_then_new(&fleet, &wait, &["--parallel", "1"]);
    fleet.env.write("wait", "");
    let mut first = fleet.begin(&["rollout", "rollback", &id, "--lease", "2s"]);
    wait_for("first node", || {
        let rollout = newest(&fleet);
        when(progress(&rollout) == words(&[("a", "restoring")]), rollout)
    });
    first.kill().unwrap();
    first.wait().unwrap();
    std::fs::remove_file(fleet.env.path("wait")).unwrap();
    let outcome = fleet.run(&["rollout", "drive", &id, "--lease", "2s"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(newest(&fleet)["state"]["name"], "rolled_back");
    assert_eq!(
        (content(&fleet, "a"), content(&fleet, "b")),
        ("old".into(), "old".into())
    );
}

#[tokio::test]
async fn a_restore_that_a_dead_controller_intended_is_written_by_another() {
    let fleet = fleet(&["a", "b"]);
    let id = old_then_new(&fleet, "true", &[]);
    let mut rollout = stored(&fleet, "CCM_ROLLOUTS", &id).await;
    let past = "2020-01-01T00:00:00Z";
    rollout["state"] = json!({"name": "rolling_back"});
    rollout["nodes"] = json!({"a": {"restoring": {"generation": 7, "at": past}}});
    rollout["lease"] = json!({"holder": "dead", "duration": 1_000_000_000, "until": past});
    store(&fleet, &rollout).await;
    let outcome = fleet.run(&["rollout", "drive"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let assigned = stored(&fleet, "CCM_DESIRED", "a").await;
    assert_eq!(
        (&assigned["generation"], &assigned["manifests"][0]["name"]),
        (&json!(7), &json!("old"))
    );
    assert_eq!(
        (content(&fleet, "a"), content(&fleet, "b")),
        ("old".into(), "old".into())
    );
}

/// Checks that every reader of a rollout sees the same state.
fn check_state(fleet: &Fleet, page: &Page, id: &str, state: &str, code: i32) {
    let watched = fleet.run(&["rollout", "watch", id]);
    assert_eq!(watched.code, Some(code), "{watched:?}");
    let shown = fleet.run(&["rollout", "show", id]).ok();
    let line = shown.lines().find_map(|it| it.strip_prefix("state:     "));
    // A reason or a name follows.
    let is_state = |line: &str| {
        let rest = line.strip_prefix(state);
        rest.is_some_and(|it| it.is_empty() || it.starts_with(": ") || it.starts_with(" by "))
    };
    assert!(line.is_some_and(is_state), "{shown}");
    let listed = fleet.run(&["rollout", "list"]).ok();
    let is_listed = |line: &str| line.contains(id) && line.contains(&format!(" {state} "));
    assert!(listed.lines().any(is_listed), "{listed}");
    let stored = fleet.run(&["rollout", "show", id, "--json"]).json();
    assert_eq!(stored["state"]["name"], state.replace(' ', "_"));
    page.until(&format!("/api/rollouts/{id}"), |answer| {
        answer.json()["rollout"]["word"] == state
    });
    let metrics = page.get("/metrics").body;
    for line in [
        format!("ccm_fleet_rollout_state{{rollout=\"{id}\",state=\"{state}\"}} 1"),
        format!("ccm_fleet_rollouts{{state=\"{state}\"}} 1"),
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    }
}

#[test]
fn a_rollout_with_a_failed_node_is_done_with_failures_everywhere() {
    let fleet = fleet(&["a", "b"]);
    let page = Page::serve(&fleet.server).settled();
    push(&fleet, "app", &failing_on("b"));
    let outcome = start(&fleet, "app", &["--max-failures", "1"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.contains("\ndone with failures\n"),
        "{outcome:?}"
    );
    let id = id(&newest(&fleet));
    check_state(&fleet, &page, &id, "done with failures", 1);
}

#[test]
fn a_rollout_with_an_unreachable_node_is_done_with_failures_everywhere() {
    let mut fleet = fleet(&["a", "b"]);
    let page = Page::serve(&fleet.server).settled();
    push(&fleet, "app", "true");
    fleet.run(&["label", "b", "tier=gold"]).ok();
    fleet.stop("b");
    let outcome = start(&fleet, "app", &[]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome.stdout.contains("  b unreachable: offline\n"),
        "{outcome:?}"
    );
    let id = id(&newest(&fleet));
    check_state(&fleet, &page, &id, "done with failures", 2);
    let outcome = roll_back(&fleet, &id);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    check_state(&fleet, &page, &id, "rolled back with failures", 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_report_cannot_be_read_is_unreachable_for_that_reason() {
    let fleet = fleet(&["a"]);
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at("wait"));
    push(&fleet, "app", &wait);
    fleet.env.write("wait", "");
    let client = fleet.server.client().await;
    let reports = client.bucket(REPORTED).await.unwrap();
    reports.put("default.a", "{}".into()).await.unwrap();
    let outcome = start(&fleet, "app", &["--node-timeout", "2s"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let line = "  a unreachable: record default.a of bucket CCM_REPORTED is unreadable: missing";
    assert!(outcome.stdout.contains(line), "{outcome:?}");
    std::fs::remove_file(fleet.env.path("wait")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_shown_with_a_warning_about_a_report_that_cannot_be_read() {
    let web = Web::start().await;
    web.rollout("r1", json!({"state": {"name": "done"}})).await;
    web.report("web1", json!({})).await;
    web.report("web2", json!({"identity": "web1"})).await;
    let shown = web.fleet(&["rollout", "show", "r1"]);
    let warnings: Vec<&str> = shown
        .stderr
        .lines()
        .filter(|line| line.contains("Skipped an unreadable fleet record"))
        .collect();
    assert_eq!(warnings.len(), 1, "{shown:?}");
    for part in [
        "CCM_REPORTED",
        "default.web2",
        "the record has the identity web1",
    ] {
        assert!(warnings[0].contains(part), "{part}: {shown:?}");
    }
    shown.ok();
}

#[test]
fn a_rollout_is_done_and_rolled_back_everywhere() {
    let fleet = fleet(&["a"]);
    let page = Page::serve(&fleet.server).settled();
    push(&fleet, "app", "true");
    start(&fleet, "app", &[]).ok();
    let id = id(&newest(&fleet));
    check_state(&fleet, &page, &id, "done", 0);
    roll_back(&fleet, &id).ok();
    check_state(&fleet, &page, &id, "rolled back", 0);
}

#[test]
fn an_aborted_rollout_names_the_nodes_with_its_assignment() {
    let fleet = fleet(&["a", "b", "c"]);
    let page = Page::serve(&fleet.server).settled();
    let wait = format!("while [ -e {} ]; do sleep 0.05; done", fleet.env.at("wait"));
    push(
        &fleet,
        "app",
        &format!("case {{{{ Facts.node }}}} in a) ;; *) {wait};; esac"),
    );
    fleet.env.write("wait", "");
    let mut controller = fleet.begin(&["rollout", "start", "app", "--all", "--wave", "1"]);
    wait_for("second node", || {
        let all = fleet.run(&["rollout", "list", "--json"]).json();
        let nodes = &all[0]["nodes"];
        when(nodes["a"] == "changed" && nodes["b"].is_object(), all)
    });
    let id = id(&newest(&fleet));
    let outcome = fleet.run(&["rollout", "abort", &id]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        format!(
            "rollout {id} is aborted\n1 node with the new assignment: a\n\
             1 node under way with the new assignment: b\n1 node not assigned\n"
        )
    );
    assert_eq!(controller.wait().unwrap().code(), Some(3));
    std::fs::remove_file(fleet.env.path("wait")).unwrap();
    wait_for("node under way", || fleet.env.exists("b.conf"));
    check_state(&fleet, &page, &id, "aborted", 3);
}

#[test]
fn a_rollout_beyond_its_limits_is_halted_everywhere() {
    let fleet = fleet(&["a", "b"]);
    let page = Page::serve(&fleet.server).settled();
    push(&fleet, "app", &failing_on("a"));
    let outcome = start(&fleet, "app", &["--canary", "1"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    check_state(&fleet, &page, &id(&newest(&fleet)), "halted", 3);
}

#[test]
fn a_resumed_rollout_ends_with_its_own_exit_code() {
    let fleet = fleet(&["a", "b"]);
    push(&fleet, "app", &failing_if_broken(&fleet));
    fleet.env.write("broken-a", "");
    let outcome = start(&fleet, "app", &["--wave", "1"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    let id = id(&newest(&fleet));
    let outcome = fleet.run(&["rollout", "resume", &id]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.contains("\ndone with failures\n"),
        "{outcome:?}"
    );
    assert_eq!(content(&fleet, "b"), "app");
    let outcome = fleet.run(&["rollout", "retry", &id]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    std::fs::remove_file(fleet.env.path("broken-a")).unwrap();
    let outcome = fleet.run(&["rollout", "retry", &id]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(content(&fleet, "a"), "app");
}

#[test]
fn a_noop_rollout_says_what_would_change() {
    let fleet = fleet(&["a"]);
    let page = Page::serve(&fleet.server).settled();
    push(&fleet, "app", "true");
    let outcome = start(&fleet, "app", &["--noop"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("  a would change\n"), "{outcome:?}");
    assert!(
        outcome.stdout.ends_with(": 1 would change\n"),
        "{outcome:?}"
    );
    assert!(!outcome.stdout.contains("changed"), "{outcome:?}");
    assert!(!fleet.env.exists("a.conf"));
    let rollout = newest(&fleet);
    assert_eq!(progress(&rollout), words(&[("a", "would_change")]));
    let id = id(&rollout);
    let shown = page.until(&format!("/api/rollouts/{id}"), |answer| {
        answer.status == 200 && answer.json()["rollout"]["word"] == "done"
    });
    assert_eq!(shown.json()["nodes"][0][0]["progress"], "would change");
    let metrics = page.get("/metrics").body;
    let line = format!("ccm_fleet_rollout_nodes{{rollout=\"{id}\",outcome=\"would change\"}} 1");
    assert!(metrics.lines().any(|it| it == line), "{metrics}");
}
