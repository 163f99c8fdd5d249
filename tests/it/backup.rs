//! `ccm fleet backup` and `restore`, on real servers that lose everything in between.

use ccm_nats::kv::Entry;
use serde_json::Value;

use crate::support::TestEnv;
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::{wait_for, when};
use crate::support::web::Page;

/// Assigns the file `<node>.out` with this content to all nodes.
fn roll_out(fleet: &Fleet, content: &str) {
    let file = fleet.env.at("{{ Facts.node }}.out");
    let manifest = format!(
        "ccm:\n  resources:\n    - file:\n        - '{file}': {{ensure: present, content: {content}, owner: root, group: root, mode: '0644'}}\n"
    );
    fleet.env.write("app/manifest.yaml", manifest);
    let directory = fleet.env.at("app");
    fleet
        .run(&["bundle", "push", &directory, "--name", "app"])
        .ok();
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
}

/// Returns the entries of a bucket.
fn entries(server: &NatsServer, bucket: &str) -> Vec<Entry> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = server.client().await;
        let bucket = client.bucket(bucket).await.unwrap();
        bucket.entries(">").await.unwrap()
    })
}

fn generation(server: &NatsServer, node: &str) -> u64 {
    let all = entries(server, "CCM_DESIRED");
    let key = format!("default.{node}");
    let entry = all.iter().find(|entry| entry.key == key).unwrap();
    let assignment: Value = serde_json::from_slice(&entry.value).unwrap();
    assignment["generation"].as_u64().unwrap()
}

/// Waits until a managed file has this content.
fn expect_file(fleet: &Fleet, node: &str, content: &str) {
    let file = fleet.env.path(&format!("{node}.out"));
    wait_for("the managed file", || {
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        when(found == content, format!("{found:?} {}", fleet.log(node)))
    });
}

#[test]
fn nodes_go_on_after_all_storage_was_lost_and_restored() {
    let mut fleet = Fleet::start(&[("web1", &[]), ("web2", &[])]);
    fleet.run(&["label", "web1", "tier=gold"]).ok();
    roll_out(&fleet, "first");
    roll_out(&fleet, "second");
    let directory = fleet.env.at("backup");
    fleet.run(&["backup", &directory]).ok();
    let buckets = ["CCM_DESIRED", "CCM_ROLLOUTS", "CCM_LABELS"];
    let before = buckets.map(|bucket| entries(&fleet.server, bucket));
    fleet.server.lose_storage();
    fleet.run(&["restore", &directory]).ok();
    // Same keys, values and revisions.
    assert_eq!(buckets.map(|bucket| entries(&fleet.server, bucket)), before);
    fleet.settle(2);
    let nodes = fleet.run(&["nodes", "--json"]).ok();
    assert!(nodes.contains("gold"), "{nodes}");
    // An assignment is applied from the restored bucket, with the restored bundle.
    fleet.kill("web1");
    std::fs::remove_file(fleet.env.path("web1.out")).unwrap();
    std::fs::remove_dir_all(fleet.state_of("web1")).unwrap();
    fleet.resume("web1");
    expect_file(&fleet, "web1", "second");
    // Generations go on.
    let last = generation(&fleet.server, "web1");
    roll_out(&fleet, "third");
    assert_eq!(generation(&fleet.server, "web1"), last + 1);
    expect_file(&fleet, "web2", "third");
    // What happened before the backup is there.
    let events = fleet.run(&["events", "--jsonl"]).ok();
    assert!(events.contains("web1.out"), "{events}");
    let rollouts = fleet.run(&["rollout", "list", "--json"]).json();
    assert_eq!(rollouts.as_array().unwrap().len(), 3, "{rollouts}");
}

#[test]
fn a_rollback_works_after_a_restore() {
    let mut fleet = Fleet::start(&[("web1", &[])]);
    roll_out(&fleet, "first");
    roll_out(&fleet, "second");
    let directory = fleet.env.at("backup");
    fleet.run(&["backup", &directory, "--without-events"]).ok();
    fleet.server.lose_storage();
    // The events are not in the backup; the restored streams are kept.
    fleet.run(&["restore", &directory]).ok();
    fleet.run(&["init"]).ok();
    fleet.settle(1);
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    let last = all.as_array().unwrap().last().unwrap()["id"].clone();
    fleet
        .run(&["rollout", "rollback", last.as_str().unwrap()])
        .ok();
    expect_file(&fleet, "web1", "first");
}

#[test]
fn existing_data_is_replaced_by_force_only() {
    let fleet = Fleet::start(&[("web1", &[])]);
    fleet.run(&["label", "web1", "tier=gold"]).ok();
    let directory = fleet.env.at("backup");
    fleet.run(&["backup", &directory]).ok();
    fleet.run(&["label", "web1", "tier=silver"]).ok();
    let refused = fleet.run(&["restore", &directory]);
    let error = refused.error(2);
    assert!(error.contains("KV_CCM_LABELS (1 message)"), "{error}");
    assert!(error.contains("--force"), "{error}");
    assert_eq!(fleet.run(&["label", "web1"]).ok(), "tier=silver\n");
    fleet.run(&["restore", &directory, "--force"]).ok();
    assert_eq!(fleet.run(&["label", "web1"]).ok(), "tier=gold\n");
}

#[test]
fn a_page_follows_a_restore() {
    let fleet = Fleet::start(&[("web1", &[])]);
    fleet.run(&["label", "web1", "tier=gold"]).ok();
    let directory = fleet.env.at("backup");
    fleet.run(&["backup", &directory]).ok();
    fleet.run(&["label", "web1", "tier=silver"]).ok();
    let page = Page::serve(&fleet.server).settled();
    let shows = |label: &str| {
        wait_for(label, || {
            let nodes = page.get("/api/nodes/web1").body;
            when(nodes.contains(label), nodes)
        });
    };
    shows("silver");
    fleet.run(&["restore", &directory, "--force"]).ok();
    shows("gold");
    // It goes on with what is new.
    fleet.run(&["label", "web1", "tier=bronze"]).ok();
    shows("bronze");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    env.set("NATS_URL", &server.url());
    env.ccm(&["fleet", "init"]).ok();
    let label = ["fleet", "label", "web1", "tier=gold", "--create"];
    env.ccm(&label).ok();
    let directory = env.at("backup");
    env.ccm(&["fleet", "backup", &directory]).ok();
    let file = env.path("backup/KV_CCM_LABELS.snapshot");
    let mut content = std::fs::read(&file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&file, content).unwrap();
    let error = env
        .ccm(&["fleet", "restore", &directory, "--force"])
        .error(1);
    assert!(
        error.contains("KV_CCM_LABELS.snapshot is damaged"),
        "{error}"
    );
    assert_eq!(env.ccm(&["fleet", "label", "web1"]).ok(), "tier=gold\n");
}

#[test]
fn a_failed_backup_leaves_nothing_behind() {
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    env.set("NATS_URL", &server.url());
    let work = env.at("work");
    std::fs::create_dir(&work).unwrap();
    let directory = env.at("work/backup");
    let error = env.ccm(&["fleet", "backup", &directory]).error(2);
    assert!(error.contains("the fleet has no streams"), "{error}");
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
    env.ccm(&["fleet", "init"]).ok();
    env.ccm(&["fleet", "backup", &directory]).ok();
    let error = env.ccm(&["fleet", "backup", &directory]).error(2);
    assert!(error.contains("exists already"), "{error}");
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1);
}

#[test]
fn a_backup_is_readable_by_its_owner_only() {
    use std::os::unix::fs::MetadataExt as _;
    let mut env = TestEnv::new();
    let server = NatsServer::start();
    env.set("NATS_URL", &server.url());
    env.ccm(&["fleet", "init"]).ok();
    let directory = env.at("backup");
    env.ccm(&["fleet", "backup", &directory]).ok();
    let mode = |path: &std::path::Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(&env.path("backup")), 0o700);
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}
