//! Drift of real nodes: the result of a check is stored, shown as a difference, and the same for
//! later commands.

use ccm_nats::streams::{DESIRED, REPORTED};
use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::manifest;
use crate::support::poll::wait_for;
use crate::support::web::Web;

/// Starts nodes that are assigned a manifest, and waits until all have applied it.
fn assigned(nodes: &[&str], resources: &str) -> Fleet {
    let nodes: Vec<(&str, &[&str])> = nodes.iter().map(|name| (*name, &[][..])).collect();
    let fleet = Fleet::start(&nodes);
    let file = fleet.env.write("m.yaml", manifest(resources));
    fleet.run(&["bundle", "push", &file, "--name", "app"]).ok();
    let _ = fleet.run(&["rollout", "start", "app", "--all"]);
    wait_for("reports of all nodes", || {
        let nodes = drift(&fleet, &[]);
        nodes.iter().all(|node| node["state"] != "lagging")
    });
    fleet
}

/// Returns the drift of all nodes.
fn drift(fleet: &Fleet, flags: &[&str]) -> Vec<Value> {
    let mut args = vec!["drift", "--json"];
    args.extend(flags);
    let outcome = fleet.run(&args);
    let document: Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|err| panic!("{err}: {outcome:?}"));
    document["nodes"].as_array().unwrap().clone()
}

fn file(fleet_path: &str, more: &str) -> String {
    format!(
        "- file:\n    - {fleet_path}: {{ensure: present, content: \"good\\n\", owner: root, group: root, mode: '0644'{more}}}\n"
    )
}

/// Returns a path that tests may write to, in a directory that stays until the test ends.
fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_check_and_later_commands_agree() {
    let directory = tempfile::tempdir().unwrap();
    let motd = path(&directory, "motd");
    let fleet = assigned(&["a"], &file(&motd, ""));
    let before = drift(&fleet, &[]);
    assert_eq!(before[0]["state"], "converged", "{before:?}");
    assert_eq!(before[0]["source"], "run");
    std::fs::write(&motd, "bad\n").unwrap();
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["state"], "drifted", "{checked:?}");
    assert_eq!(checked[0]["source"], "check");
    assert_eq!(drift(&fleet, &[]), checked);
    assert_eq!(std::fs::read_to_string(&motd).unwrap(), "bad\n");
    let text = fleet.run(&["drift"]).stdout;
    assert!(text.contains(" by the check at "), "{text}");
    std::fs::write(&motd, "good\n").unwrap();
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["state"], "converged", "{checked:?}");
    assert_eq!(drift(&fleet, &[]), checked);
}

#[test]
fn a_check_without_a_reply_is_no_success() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = assigned(&["a"], &file(&path(&directory, "motd"), ""));
    assert_eq!(fleet.run(&["drift", "--refresh"]).code, Some(0));
    fleet.stop("a");
    let outcome = fleet.run(&["drift", "--refresh", "--timeout", "2s"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stdout.contains("no reply"), "{outcome:?}");
}

#[test]
fn a_drifted_file_shows_what_differs() {
    let directory = tempfile::tempdir().unwrap();
    let motd = path(&directory, "motd");
    let fleet = assigned(&["a"], &file(&motd, ""));
    std::fs::write(&motd, "bad \u{1b}[31mred\n").unwrap();
    std::fs::set_permissions(&motd, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let outcome = fleet.run(&["drift", "--refresh"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let text = outcome.stdout;
    for part in [
        format!("  file#{motd}: content or attributes differ (since "),
        "\n    -bad red\n    +good\n".into(),
        format!("    {motd}: mode 0600 -> 0644\n"),
    ] {
        assert!(text.contains(&part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("created"), "{text}");
    std::fs::remove_file(&motd).unwrap();
    let text = fleet.run(&["drift", "--refresh"]).stdout;
    assert!(text.contains("Would have created the file"), "{text}");
}

#[test]
fn the_content_of_a_sensitive_file_is_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let secret = path(&directory, "secret");
    let fleet = assigned(&["a"], &file(&secret, ", sensitive: true"));
    std::fs::write(&secret, "s3cret\n").unwrap();
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["state"], "drifted", "{checked:?}");
    let text = checked[0].to_string();
    assert!(text.contains("differs (sensitive)"), "{text}");
    assert!(!text.contains("s3cret") && !text.contains("good"), "{text}");
}

#[test]
fn an_exec_without_a_guard_is_not_checkable_and_no_drift() {
    let directory = tempfile::tempdir().unwrap();
    let marker = path(&directory, "marker");
    let fleet = assigned(
        &["a"],
        &format!(
            "- exec: {{name: open, command: /bin/true}}\n\
             - exec: {{name: guarded, command: 'touch {marker}', creates: {marker}}}\n"
        ),
    );
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["state"], "converged", "{checked:?}");
    let unchecked = &checked[0]["unchecked"];
    assert_eq!(unchecked.as_array().unwrap().len(), 1, "{unchecked}");
    assert_eq!(unchecked[0]["name"], "open");
    let text = fleet.run(&["drift", "a"]).ok();
    let line = "  exec#open: not checkable: no creates, onlyif, unless or refreshonly\n";
    assert!(text.contains(line), "{text}");
    std::fs::remove_file(&marker).unwrap();
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["drift"][0]["name"], "guarded", "{checked:?}");
}

#[test]
fn what_a_check_cannot_see_keeps_the_result_of_the_run() {
    let fleet = assigned(&["a"], "- exec: {name: open, command: /bin/false}\n");
    let before = drift(&fleet, &[]);
    assert_eq!(before[0]["state"], "drifted", "{before:?}");
    let checked = drift(&fleet, &["--refresh"]);
    assert_eq!(checked[0]["drift"], before[0]["drift"], "{checked:?}");
    assert_eq!(checked[0]["state"], "drifted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_read_is_named() {
    let web = Web::start().await;
    let drifted = json!([{
        "type": "file", "name": "/etc/motd", "message": "differs", "since": "2027-01-15T08:00:00Z"
    }]);
    web.assign("a", 1).await;
    web.report("a", json!({"drift": drifted})).await;
    let subject = "ccm.v1.default.event.a.file.changed";
    let jetstream = web.nats.jetstream().await;
    let stored = jetstream.publish(subject, "{}".into()).await.unwrap();
    stored.await.unwrap();
    let outcome = web.fleet(&["drift", "a"]);
    let warning = format!("ccm: warning: 1 event could not be read, the last on {subject} at ");
    assert!(outcome.stderr.contains(&warning), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_unreadable_record_is_neither_unassigned_nor_lagging() {
    let fleet = Fleet::start(&[]);
    let client = fleet.server.client().await;
    let assignment = json!({
        "protocol": "io.choria.ccm.v1.node.assignment", "generation": 1,
        "manifests": [{"name": "app", "digest": "ab".repeat(32)}],
        "assigned": "2027-01-15T08:00:00Z",
    });
    for (bucket, key, value) in [
        (DESIRED, "default.a", json!({"generation": "one"})),
        (DESIRED, "default.b", assignment),
        (REPORTED, "default.b", json!({"identity": 7})),
    ] {
        let bucket = client.bucket(bucket).await.unwrap();
        bucket.put(key, value.to_string().into()).await.unwrap();
    }
    let nodes = drift(&fleet, &[]);
    let states: Vec<&Value> = nodes.iter().map(|node| &node["state"]).collect();
    assert_eq!(states, ["unreadable", "unreadable"], "{nodes:?}");
    let outcome = fleet.run(&["drift"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    for part in [
        "a unreadable: record default.a of bucket CCM_DESIRED is unreadable: ",
        "b unreadable (app@abababababab): record default.b of bucket CCM_REPORTED is unreadable: ",
        "2 nodes: 2 unreadable\n",
    ] {
        assert!(outcome.stdout.contains(part), "{part:?}: {outcome:?}");
    }
}

#[test]
fn drift_is_shown_for_selected_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let motd = path(&directory, "motd-{{ Facts.node }}");
    let fleet = assigned(&["a", "b", "c"], &file(&motd, ""));
    let names = |flags: &[&str]| -> Vec<String> {
        let nodes = drift(&fleet, flags).into_iter();
        nodes
            .map(|node| node["node"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["a", "c"]), ["a", "c"]);
    assert_eq!(names(&["--fact", "node=b"]), ["b"]);
    assert_eq!(names(&["--node", "/[bc]/"]), ["b", "c"]);
    let text = fleet.run(&["drift", "b"]).ok();
    assert!(text.starts_with("b converged ("), "{text}");
    let error = fleet.run(&["drift", "a", "typo"]).error(2);
    assert!(error.contains("node typo has no assignment"), "{error}");
}
