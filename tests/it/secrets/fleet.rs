//! Encrypted values in a fleet: opened by the nodes that they are for, and shown by nobody.

use super::{SECRET, Site};
use crate::support::files_below;
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::web::Page;

#[test]
fn a_value_for_a_node_is_opened_by_that_node_alone() {
    let fleet = Fleet::of_three();
    let document = fleet.run(&["nodes", "--json"]).json();
    let nodes = document["nodes"].as_array().unwrap();
    let recipient = |name: &str| {
        let node = nodes.iter().find(|node| node["identity"] == name).unwrap();
        node["status"]["recipient"].as_str().unwrap().to_owned()
    };
    assert!(recipient("web1").starts_with("age1"));
    assert_ne!(recipient("web1"), recipient("web2"));
    let args = ["secrets", "encrypt", "--for", "Facts.node == 'web1'"];
    let sealed = fleet.env.ccm_with_input(&args, SECRET).ok();
    let target = fleet.env.at("{{ Facts.node }}.conf");
    fleet.env.write(
        "m.yaml",
        format!(
            "data: {{password: '{}'}}\nccm: {{resources: [{{file: {{name: '{target}', ensure: present, owner: root, group: root, mode: '0600', content: '{{{{ Data.password }}}}'}}}}]}}\n",
            sealed.trim()
        ),
    );
    let applied = fleet.run(&[
        "apply", "m.yaml", "--node", "web1", "--node", "web2", "--wait", "--jsonl",
    ]);
    assert_eq!(applied.code, Some(1), "{applied:?}");
    Site::has_no_secret(&format!("{applied:?}"));
    assert!(applied.stdout.contains("password"), "{applied:?}");
    let written = |name: &str| std::fs::read_to_string(fleet.env.path(name)).ok();
    assert_eq!(written("web1.conf").as_deref(), Some(SECRET));
    assert_eq!(written("web2.conf"), None);
    let events = fleet.run(&["events", "--json", "--since", "1h"]);
    Site::has_no_secret(&format!("{events:?}"));
    let unknown = ["secrets", "encrypt", "--for", "typo"];
    let _ = fleet.env.ccm_with_input(&unknown, SECRET).error(2);
}

/// The secrets of a key, of external data and of a bundle, each with the form that a template makes of it.
/// They are too short for a removal of their text.
const STORED: [(&str, &str); 3] = [
    ("k~1#", "a34xIw=="),
    ("e~2#", "ZX4yIw=="),
    ("b~3#", "Yn4zIw=="),
];

fn has_no_stored_secret(what: &str, text: &str) {
    for (plain, encoded) in STORED {
        assert!(!text.contains(plain), "{what}: {text}");
        assert!(!text.contains(encoded), "{what}: {text}");
    }
}

/// Writes a key of a bucket, which is created if it is missing.
fn put(server: &NatsServer, bucket: &str, key: &str, value: String) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let config = async_nats::jetstream::kv::Config {
            bucket: bucket.into(),
            ..Default::default()
        };
        let jetstream = server.jetstream().await;
        let bucket = jetstream.create_or_update_key_value(config).await.unwrap();
        bucket.put(key, value.into()).await.unwrap();
    });
}

/// Starts a node whose external data, a key and a bundle have an encrypted value each.
fn with_stored_secrets() -> Fleet {
    let mut fleet = Fleet::start(&[]);
    let external =
        |value: &str| format!("hierarchy: {{order: []}}\ndata: {{external: '{value}'}}\n");
    put(&fleet.server, "DATA", "site", external("not yet"));
    fleet.add("web1", &["web"], "external_data_url: kv://DATA/site\n");
    fleet.settle(1);
    let seal = |text: &str| {
        let args = ["secrets", "encrypt", "--for", "web1"];
        let sealed = fleet.env.ccm_with_input(&args, text).ok();
        sealed.trim().to_owned()
    };
    let [key, data, bundle] = STORED.map(|(plain, _)| seal(plain));
    put(&fleet.server, "VAULT", "db", key);
    put(&fleet.server, "DATA", "site", external(&data));
    fleet.stop("web1");
    fleet.resume("web1");
    fleet.settle(1);
    let show =
        |value: &str| format!("[[ {value} ]] [[ template(\"{{{{ toBase64({value}) }}}}\") ]]");
    let shown = ["kvGet('VAULT', 'db')", "Data.external", "Data.own"].map(show);
    let template = shown
        .join(" ")
        .replace("[[ kvGet('VAULT', 'db')", "[[ kvGet(\"VAULT\", \"db\")");
    fleet.env.write("site/templates/app.conf", &template);
    let file = |name: &str, more: &str| {
        let path = fleet.env.at(name);
        format!(
            "    - file:\n        - {path}: {{ensure: present, owner: root, group: root, mode: '0600', {more}}}\n"
        )
    };
    let content = "content: \"{{ kvGet('VAULT', 'db') }} {{ toBase64(kvGet('VAULT', 'db')) }} {{ Data.external }} {{ toBase64(Data.external) }} {{ Data.own }} {{ toBase64(Data.own) }}\"";
    let manifest = format!(
        "data: {{own: '{bundle}'}}\nccm:\n  resources:\n{}{}    - scaffold:\n        - {}: {{ensure: present, source: templates, engine: jet}}\n",
        file("content.conf", content),
        file("template.conf", "template: templates/app.conf, engine: jet"),
        fleet.env.at("scaffold"),
    );
    fleet.env.write("site/manifest.yaml", manifest);
    fleet
}

#[test]
fn values_of_a_bucket_external_data_and_a_bundle_are_shown_nowhere_by_a_rollout() {
    let fleet = with_stored_secrets();
    let page = Page::serve(&fleet.server);
    let site = fleet.env.at("site");
    fleet.run(&["bundle", "push", &site, "--name", "site"]).ok();
    let started = fleet.run(&["rollout", "start", "site", "--all"]);
    assert_eq!(started.code, Some(0), "{started:?}\n{}", fleet.log("web1"));
    let (forms, names) = (
        STORED.map(|(plain, encoded)| format!("{plain} {encoded}")),
        ["content.conf", "template.conf", "scaffold/app.conf"],
    );
    for name in names {
        assert_eq!(fleet.env.read(name).trim(), forms.join(" "), "{name}");
        // The next run has a difference to show.
        std::fs::write(fleet.env.path(name), "other\n").unwrap();
    }
    let drift = fleet.run(&["drift", "--refresh"]);
    let again = fleet.run(&["rollout", "start", "site", "--all", "--json"]);
    let events = fleet.run(&["events", "--json", "--since", "1h"]);
    assert!(events.stdout.contains("template.conf"), "{events:?}");
    for (what, outcome) in [
        ("rollout", &started),
        ("drift", &drift),
        ("second rollout", &again),
        ("events", &events),
        ("nodes", &fleet.run(&["nodes", "--json"])),
        ("rollouts", &fleet.run(&["rollout", "list", "--json"])),
    ] {
        has_no_stored_secret(what, &format!("{}{}", outcome.stdout, outcome.stderr));
    }
    has_no_stored_secret("log", &fleet.log("web1"));
    let node = page.until("/api/nodes/web1", |it| it.body.contains("template.conf"));
    has_no_stored_secret("page", &node.body);
    for path in ["/api/nodes", "/api/events", "/api/summary", "/api/rollouts"] {
        has_no_stored_secret(path, &page.get(path).body);
    }
    let state = fleet.state_of("web1");
    for name in files_below(&state) {
        let content = std::fs::read(state.join(&name)).unwrap();
        has_no_stored_secret(&name, &String::from_utf8_lossy(&content));
    }
}
