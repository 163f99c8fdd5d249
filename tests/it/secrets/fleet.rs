//! Encrypted values in a fleet: opened by the nodes that they are for, and shown by nobody.

use super::{SECRET, Site};
use crate::support::fleet::Fleet;

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
