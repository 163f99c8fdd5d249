//! Bundles: what the controller packs is what a node fetches, reads and takes.

use std::fs;
use std::path::Path;

use ccm_core::run::manifest_source;
use ccm_core::system::SystemClock;
use ccm_fleet::bundle;
use ccm_nats::{BlockingClient, Settings};
use ccm_template::env::Facts;

use crate::support::Outcome;
use crate::support::fleet::Fleet;

#[test]
fn a_packed_directory_is_a_source_that_a_node_can_fetch() {
    let source = tempfile::tempdir().unwrap();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    fs::create_dir(source.path().join("a")).unwrap();
    // Sorts before the manifest, and must not be taken for it.
    fs::write(source.path().join("a/manifest.yaml"), "another").unwrap();
    fs::write(source.path().join("manifest.yaml"), manifest).unwrap();
    let packed = bundle::pack(source.path(), &Facts::Unknown).unwrap();

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("app.tar.gz"), &packed.bytes).unwrap();
    let bus = BlockingClient::lazy("test", || Settings::plain("nats://127.0.0.1:1"));
    let fetched =
        manifest_source::fetch("app.tar.gz", dir.path(), dir.path(), &SystemClock, &bus).unwrap();
    assert_eq!(
        fs::read_to_string(&fetched.manifest_path).unwrap(),
        manifest
    );
    assert!(
        fetched
            .directory
            .join(Path::new("a/manifest.yaml"))
            .is_file()
    );
}

/// Pushes a manifest with a text as its resources.
fn push(fleet: &Fleet, resources: &str, more: &[&str]) -> Outcome {
    let manifest = format!("ccm:\n  resources:\n{resources}");
    fleet.env.write("site/manifest.yaml", manifest);
    let site = fleet.env.at("site");
    let args = ["bundle", "push", &site, "--name", "site"];
    fleet.run(&[&args[..], more].concat())
}

#[test]
fn every_example_can_be_pushed_from_any_machine() {
    let fleet = Fleet::start(&[]);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for example in fs::read_dir(examples).unwrap() {
        let path = example.unwrap().path();
        if !path.is_dir() || path.ends_with("topology") {
            // The README, and configurations of NATS servers.
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let directory = path.to_str().unwrap();
        let args = ["bundle", "push", directory, "--name", name, "--json"];
        let pushed = fleet.run(&args).json();
        assert_eq!(pushed["new"], true, "{name}: {pushed}");
        let unchecked = pushed["unchecked"].as_array().unwrap();
        // What these need of a node is known.
        let needs_values = ["fleet", "hierarchy", "shop", "site"].contains(&name);
        assert_eq!(!unchecked.is_empty(), needs_values, "{name}: {unchecked:?}");
        count += 1;
    }
    assert!(count >= 6, "{count}");
    let list = fleet.run(&["bundle", "list"]).ok();
    assert!(list.starts_with("BUNDLE"), "{list}");
    assert_eq!(list.lines().count(), count + 1);
}

const DEPENDENT: &str = "    - file:\n        - \"{{ Facts.root }}/motd\":\n            ensure: present\n            \
                         content: hi\n            owner: \"{{ Environ.OWNER }}\"\n            group: root\n            mode: 0644\n";

#[test]
fn a_push_names_what_it_could_not_check() {
    let fleet = Fleet::start(&[]);
    let output = push(&fleet, DEPENDENT, &[]).ok();
    assert!(output.contains("stored (1 file"), "{output}");
    let line = "  $DIR/site/manifest.yaml:4:11: file#{{ Facts.root }}/motd: facts are not known\n";
    assert!(output.contains(line), "{output}");
    let line = "file#{{ Facts.root }}/motd: environment variables of the node are not known\n";
    assert!(output.contains(line), "{output}");
    assert!(
        output.contains("use --as-node NODE or --facts FILE"),
        "{output}"
    );
}

#[test]
fn a_push_refuses_what_is_wrong_on_every_node() {
    let fleet = Fleet::start(&[]);
    for (resources, reason) in [
        (
            "    - file:\n        - \"{{ Facts.root }}/x\": {ensur: present}\n",
            "ensur",
        ),
        (
            "    - fil:\n        - \"{{ Facts.root }}/x\": {}\n",
            "did you mean",
        ),
        (
            "    - exec:\n        - \"/bin/echo {{ Facts. }}\": {}\n",
            "invalid expression",
        ),
        (
            "    - file:\n        - relative: {ensure: present}\n",
            "must be absolute",
        ),
        (
            "    - exec:\n        - /bin/true: {require: ['exec#/bin/false'], cwd: \"{{ Facts.root }}\"}\n",
            "not defined before",
        ),
    ] {
        let error = push(&fleet, resources, &[]).error(2);
        assert!(error.contains(reason), "{resources}: {error}");
        for part in [" --> $DIR/site/manifest.yaml:", "^\n", "= help: "] {
            assert!(error.contains(part), "{resources}: {error}");
        }
    }
    assert_eq!(
        fleet.run(&["bundle", "list", "--json"]).json(),
        serde_json::json!([])
    );
}

#[test]
fn given_facts_are_used_to_check_a_manifest() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let resources = "    - exec:\n        - \"/bin/echo {{ Facts.node + 1 }}\": {}\n        \
                     - \"/bin/echo {{ Facts.network.primaryIP }}\": {}\n";
    push(&fleet, resources, &[]).ok();
    let file = fleet.env.write("facts.yaml", "node: web1\n");
    for flags in [
        &["--facts", &file][..],
        &["--as-node", "web1"],
        &["--fact", "node=web1"],
    ] {
        let error = push(&fleet, resources, flags).error(2);
        assert!(error.contains("invalid operation"), "{flags:?}: {error}");
    }
    let file = fleet.env.write("facts.yaml", "node: 1\n");
    let output = push(&fleet, resources, &["--facts", &file]).ok();
    // A section that every node has and the file does not is unknown, not empty.
    assert!(output.contains("network facts are not known"), "{output}");
    let error = push(&fleet, resources, &["--as-node", "typo"]).error(2);
    assert!(
        error.contains("no facts of node typo are stored"),
        "{error}"
    );
}

#[test]
fn two_versions_of_a_bundle_are_compared() {
    let fleet = Fleet::start(&[]);
    let exec = |command: &str| format!("    - exec:\n        - {command}: {{}}\n");
    fleet.env.write("site/files/a", "one\ntwo\n");
    let old = push(&fleet, &exec("/bin/true"), &["--json"]).json();
    fleet.env.write("site/files/a", "one\nthree\n");
    fleet.env.write("site/files/b", "new\n");
    push(&fleet, &exec("/bin/echo"), &[]).ok();
    let old = format!("site@{}", &old["digest"].as_str().unwrap()[..12]);
    let text = fleet.run(&["bundle", "diff", &old, "site"]).ok();
    for part in [
        "--- a/manifest.yaml\n+++ b/manifest.yaml\n",
        "-        - /bin/true: {}\n+        - /bin/echo: {}\n",
        "-two\n+three\n",
        "--- /dev/null\n+++ b/files/b\n@@ -0,0 +1 @@\n+new\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let document = fleet
        .run(&["bundle", "diff", &old, "site", "--json"])
        .json();
    assert_eq!(document["files"][0]["change"], "modified");
    assert_eq!(document["files"][2]["change"], "added");
    let same = fleet.run(&["bundle", "diff", "site", "site"]).ok();
    assert!(same.ends_with("are equal\n"), "{same}");
    fleet.run(&["bundle", "diff", "site", "other"]).error(1);
}
