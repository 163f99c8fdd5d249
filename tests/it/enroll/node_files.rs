//! Files that an enrolment writes on the node.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::Fleet;

#[test]
fn files_have_the_right_owner_and_mode() {
    let fleet = Fleet::start();
    let token = fleet.token(&[]);
    fleet.enroll("web1", &token).ok();
    for (name, mode) in [
        ("agent.creds", 0o600),
        ("ca.pem", 0o644),
        ("nats-context.json", 0o600),
        ("agent.yaml", 0o640),
    ] {
        let found = std::fs::metadata(fleet.env.path(&format!("web1/{name}"))).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        assert_eq!(found.uid(), rustix::process::geteuid().as_raw(), "{name}");
    }
    let names: Vec<_> = std::fs::read_dir(fleet.env.path("web1")).unwrap().collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn the_configuration_of_a_package_is_extended() {
    let fleet = Fleet::start();
    let token = fleet.token(&[]);
    let shipped = include_str!("../../../packaging/agent.yaml");
    fleet.env.write("web1/agent.yaml", shipped);
    fleet.enroll("web1", &token).ok();
    let text = fleet.env.read("web1/agent.yaml");
    assert!(text.starts_with(shipped.trim_end()), "{text}");
    assert!(text.contains("\nidentity: web1\n"), "{text}");
}

#[test]
fn a_different_configuration_is_replaced_only_with_force() {
    let fleet = Fleet::start();
    let token = fleet.token(&[]);
    let existing = "servers: nats://old.example.net\ninterval: 1m\n";
    fleet.env.write("web1/agent.yaml", existing);
    let refused = fleet.enroll("web1", &token).error(2);
    assert!(refused.contains("sets servers"), "{refused}");
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(fleet.env.read("web1/agent.yaml"), existing);
    // Nothing was requested: the token is not used.
    fleet.enroll_at("web1", "web1", &token, &["--force"]).ok();
    let text = fleet.env.read("web1/agent.yaml");
    assert!(text.starts_with("interval: 1m\n"), "{text}");
    assert!(!text.contains("old.example.net"), "{text}");
}

#[test]
fn credentials_of_another_fleet_are_replaced_only_with_force() {
    let (first, second) = (Fleet::start(), Fleet::start());
    let config = first.env.at("web1/agent.yaml");
    let (old, new) = (first.token(&[]), second.token(&[]));
    let enroll = |token: &str, more: &[&str]| {
        let args = ["agent", "enroll", "--name", "web1", "--config", &config];
        first.ccm(&[&args[..], &["--token", token], more].concat())
    };
    enroll(&old, &[]).ok();
    let refused = enroll(&new, &[]).error(2);
    assert!(refused.contains("belongs to another fleet"), "{refused}");
    enroll(&new, &["--force"]).ok();
    let context = first.env.read("web1/nats-context.json");
    assert!(context.contains(&second.url()), "{context}");
}

#[test]
fn a_reply_that_another_key_signed_is_refused() {
    let fleet = Fleet::start();
    let token = fleet.token(&[]);
    // The approver then signs with a key that the token does not name.
    fleet.ccm(&["fleet", "trust", "rotate", "agent"]).ok();
    let refused = fleet.enroll("web1", &token).error(1);
    assert!(refused.contains("signed by another key"), "{refused}");
    assert!(!fleet.env.exists("web1/agent.creds"));
}
