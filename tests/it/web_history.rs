//! Runs, bundles and their differences over HTTP, as the page shows them.

use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::web::{Page, Web};

/// Adds up a count of all days.
fn sum(document: &Value, field: &str) -> u64 {
    let days = document["days"].as_array().unwrap().iter();
    days.map(|day| day[field].as_u64().unwrap()).sum()
}

#[test]
fn a_run_has_its_own_events_and_what_commands_printed() {
    let fleet = Fleet::start(&[("web1", &["web"])]);
    let page = Page::serve(&fleet.server).settled();
    let broken = fleet.env.write("broken", "");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - first: {{provider: shell, command: \"echo begun\", logoutput: true}}\n        \
         - second: {{provider: shell, command: \"echo no disk >&2; test ! -e {broken}\"}}\n"
    );
    page.push_manifest("app", &manifest);
    let failed = fleet.run(&["rollout", "start", "app", "--all", "--max-failures", "1"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    std::fs::remove_file(fleet.env.path("broken")).unwrap();
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
    let runs = page.until("/api/nodes/web1/runs", |answer| {
        answer.json()["runs"].as_array().unwrap().len() == 2
    });
    let runs = runs.json();
    assert_eq!(
        (&runs["runs"][0]["outcome"], &runs["runs"][1]["outcome"]),
        (&json!("changed"), &json!("failed"))
    );
    assert_eq!(
        (sum(&runs, "changed"), sum(&runs, "failed")),
        (3, 1),
        "{runs}"
    );
    let id = runs["runs"][1]["run_id"].as_str().unwrap();
    let run = page.get(&format!("/api/nodes/web1/runs/{id}")).json();
    let events: Vec<(&str, &str, &str)> = run["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| {
            let text = |field: &str| event[field].as_str().unwrap();
            (text("name"), text("outcome"), text("output"))
        })
        .collect();
    assert_eq!(
        events,
        [
            ("first", "changed", "begun"),
            ("second", "failed", "no disk")
        ]
    );
    let short = page.get("/api/nodes/web1/runs?limit=1").json();
    assert_eq!(
        (short["runs"].as_array().unwrap().len(), &short["omitted"]),
        (1, &json!(1))
    );
    let unknown = page.get("/api/nodes/web1/runs/3Ouil37bUs2V3TmTG2OoEYtuLS3");
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    assert_eq!(page.get("/api/nodes/web1/runs/x").status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_run_that_cannot_be_read_are_counted() {
    let fleet = Fleet::start(&[("web1", &["web"])]);
    let page = Page::serve(&fleet.server).settled();
    let jetstream = fleet.server.jetstream().await;
    page.push_manifest(
        "app",
        "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n",
    );
    for unreadable in 1..=2 {
        for _ in 0..unreadable {
            let subject = "ccm.v1.default.event.web1.exec.changed";
            let stored = jetstream.publish(subject, "{}".into()).await.unwrap();
            stored.await.unwrap();
        }
        fleet.run(&["rollout", "start", "app", "--all"]).ok();
        let runs = page.until("/api/nodes/web1/runs", |answer| {
            answer.json()["runs"].as_array().unwrap().len() == unreadable
        });
        let runs = runs.json();
        let id = runs["runs"][0]["run_id"].as_str().unwrap();
        let run = page.get(&format!("/api/nodes/web1/runs/{id}")).json();
        assert_eq!(run["events"][0]["name"], "/bin/true", "{run}");
        assert_eq!(run["unreadable"], unreadable, "{run}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_counts_days_and_names_failing_nodes() {
    let web = Web::start().await;
    for node in ["web1", "web2"] {
        web.presence(node, json!({})).await;
        web.until_state(node, "stable");
    }
    for (node, outcome, number) in [
        ("web1", "changed", 1),
        ("web1", "failed", 2),
        ("web1", "failed", 3),
        ("web2", "failed", 4),
        ("web2", "changed", 5),
    ] {
        web.ran(node, outcome, number).await;
    }
    web.until_state("web1", "failed");
    let history = web.until("/api/history", |answer| {
        let failing = &answer.json()["failing"];
        failing[0]["runs"] == 2 && failing.as_array().unwrap().len() == 1
    });
    let history = history.json();
    assert_eq!(history["failing"][0]["node"], "web1");
    assert_eq!(
        history["failing"][0]["error"],
        "package#nginx: no candidate"
    );
    assert_eq!(history["days"].as_array().unwrap().len(), 14);
    assert_eq!(
        (sum(&history, "changed"), sum(&history, "failed")),
        (2, 3),
        "{history}"
    );
}

fn digest(bundle: &Value) -> &str {
    bundle["digest"].as_str().unwrap()
}

#[test]
fn bundles_are_listed_with_their_nodes_and_compared() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let page = Page::serve(&fleet.server).settled();
    page.push("app", 1);
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
    page.push("app", 2);
    let listed = page.until("/api/bundles", |answer| {
        let bundles = &answer.json()["bundles"];
        bundles.as_array().unwrap().len() == 2 && bundles[1]["nodes"] == 1
    });
    let listed = listed.json();
    let (new, old) = (&listed["bundles"][0], &listed["bundles"][1]);
    assert_eq!(new["nodes"], 0);
    let shown = page
        .get(&format!("/api/bundles/app/{}", digest(old)))
        .json();
    assert_eq!(
        (&shown["nodes"], &shown["files"][0]["name"]),
        (&json!(["web1"]), &json!("manifest.yaml"))
    );
    let path = format!(
        "/api/bundles/app/{}/diff?against={}",
        digest(new),
        digest(old)
    );
    let found = page.get(&path).json();
    assert_eq!(found["files"][0]["change"], "modified");
    let diff = found["files"][0]["diff"].as_str().unwrap();
    assert!(diff.contains("+        - /bin/true 1: {}\n"), "{diff}");
    for (path, status) in [
        ("/api/bundles/none/abcd", 404),
        ("/api/bundles/app/x", 400),
        ("/api/bundles/app/0000", 404),
    ] {
        assert_eq!(page.get(path).status, status, "{path}");
    }
}
