//! The trust directory: issued users, revocation, rotation, and the modes of secrets.

use std::os::unix::fs::PermissionsExt as _;

use super::Fleet;

#[test]
fn secrets_are_readable_by_their_owner_only() {
    let fleet = Fleet::without_approver(&[]);
    for name in [
        "keys",
        "creds",
        "contexts",
        "keys/signer.seed",
        "tls/server.key",
    ] {
        let path = fleet.env.path(&format!("trust/{name}"));
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
    }
}

#[test]
fn an_existing_directory_is_not_overwritten() {
    let fleet = Fleet::without_approver(&[]);
    let directory = fleet.env.at("trust");
    let error = fleet.ccm(&["fleet", "trust", "init", &directory]).error(2);
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn issued_credentials_connect_and_revoked_ones_do_not() {
    let fleet = Fleet::without_approver(&[]);
    let issue = ["fleet", "trust", "issue", "operator", "ann", "--save"];
    fleet.ccm(&issue).ok();
    let context = fleet.context("operator-ann");
    let nodes = ["fleet", "nodes", "--context", &context];
    fleet.ccm(&nodes).ok();
    fleet
        .ccm(&["fleet", "trust", "revoke", "operator", "ann"])
        .ok();
    let error = fleet.ccm(&nodes).error(1);
    assert!(error.contains("authorization violation"), "{error}");
    let list = fleet.ccm(&["fleet", "trust", "list"]).ok();
    let ann = list.lines().find(|line| line.contains(" ann ")).unwrap();
    assert!(ann.contains("revoked"), "{list}");
}

#[test]
fn a_name_with_credentials_is_issued_again_only_with_replace() {
    let fleet = Fleet::without_approver(&[]);
    let issue = ["fleet", "trust", "issue", "monitor", "page"];
    let creds = fleet.ccm(&issue).ok();
    assert!(
        creds.starts_with("-----BEGIN NATS USER JWT-----"),
        "{creds}"
    );
    let error = fleet.ccm(&issue).error(2);
    assert!(error.contains("--replace"), "{error}");
    let replaced = fleet.ccm(&[&issue[..], &["--replace"]].concat()).ok();
    assert_ne!(replaced, creds);
}

#[test]
fn a_user_can_keep_its_own_seed() {
    let fleet = Fleet::without_approver(&[]);
    let seed = fleet.env.at("own.seed");
    let key = fleet.ccm(&["keys", "new", &seed]).ok();
    let issue = ["fleet", "trust", "issue", "operator", "bob", "--public-key"];
    let jwt = fleet.ccm(&[&issue[..], &[key.trim()]].concat()).ok();
    assert_eq!(jwt.matches('.').count(), 2, "{jwt}");
    assert!(!jwt.contains("SEED"), "{jwt}");
}

#[test]
fn a_rotated_key_overlaps_with_the_previous_one_until_it_is_retired() {
    let fleet = Fleet::without_approver(&[]);
    let ccm = |args: &[&str]| fleet.ccm(&[&["fleet", "trust"], args].concat());
    let nodes = |name: &str| {
        let context = fleet.context(&format!("operator-{name}"));
        fleet.ccm(&["fleet", "nodes", "--context", &context])
    };
    ccm(&["issue", "operator", "old", "--save"]).ok();
    ccm(&["rotate", "operator"]).ok();
    ccm(&["issue", "operator", "new", "--save"]).ok();
    nodes("old").ok();
    nodes("new").ok();
    let list = ccm(&["list"]).ok();
    let old = list.lines().find(|line| line.contains(" old ")).unwrap();
    assert!(old.contains("old key"), "{list}");
    let refused = ccm(&["rotate", "operator", "--retire"]).error(2);
    assert!(refused.contains("is used by admin, old"), "{refused}");
    ccm(&["rotate", "operator", "--retire", "--force"]).ok();
    nodes("new").ok();
    let error = nodes("old").error(1);
    assert!(error.contains("authorization violation"), "{error}");
}

#[test]
fn a_change_without_a_server_is_stored_and_pushed_later() {
    let mut fleet = Fleet::without_approver(&[]);
    fleet
        .ccm(&["fleet", "trust", "issue", "operator", "ann", "--save"])
        .ok();
    let mut server = fleet.processes.remove(0);
    server.kill().unwrap();
    server.wait().unwrap();
    let revoke = ["fleet", "trust", "revoke", "operator", "ann"];
    let error = fleet.ccm(&revoke).error(1);
    assert!(error.contains("ccm fleet trust push"), "{error}");
    fleet.start_server();
    fleet.ccm(&["fleet", "trust", "push"]).ok();
    let context = fleet.context("operator-ann");
    let error = fleet
        .ccm(&["fleet", "nodes", "--context", &context])
        .error(1);
    assert!(error.contains("authorization violation"), "{error}");
}

#[test]
fn a_new_server_certificate_is_signed_by_the_same_ca() {
    let mut fleet = Fleet::without_approver(&[]);
    let before = fleet.env.read("trust/tls/server.pem");
    fleet.ccm(&["fleet", "trust", "rotate", "tls"]).ok();
    assert_ne!(fleet.env.read("trust/tls/server.pem"), before);
    let mut server = fleet.processes.remove(0);
    server.kill().unwrap();
    server.wait().unwrap();
    fleet.start_server();
    let context = fleet.context("operator-admin");
    fleet.ccm(&["fleet", "nodes", "--context", &context]).ok();
}

#[test]
fn given_certificates_are_used() {
    let fleet = Fleet::without_approver(&[]);
    let file = |name: &str| fleet.env.at(&format!("trust/tls/{name}"));
    let other = fleet.env.at("other");
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let init = [
        "fleet",
        "trust",
        "init",
        &other,
        "--host",
        "nats.example.net",
    ];
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    fleet.ccm(&[&init[..], &tls].concat()).ok();
    let config = fleet.env.read("other/nats.conf");
    assert!(config.contains(&format!("cert_file: {cert:?}")), "{config}");
    let context = fleet.env.read("other/contexts/operator-admin.json");
    assert!(context.contains(&ca), "{context}");
    assert!(context.contains("tls://nats.example.net:4222"), "{context}");
    assert!(!fleet.env.exists("other/keys/ca.key"));
}

#[test]
fn without_a_trust_directory_the_error_names_the_flag() {
    let env = crate::support::TestEnv::new();
    let error = env.ccm(&["fleet", "trust", "list"]).error(2);
    assert!(error.contains("--trust-dir"), "{error}");
}
