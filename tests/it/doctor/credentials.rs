//! `ccm doctor` on enrolled nodes: credentials, TLS and revocation.

use super::{Diagnosis, diagnose};
use crate::enroll::Fleet;
use crate::support::poll::wait_for;

const NODE: &str = "web1.example.net";

/// Enrolls a node, whose agent is not started.
fn enrolled() -> Fleet {
    let fleet = Fleet::start();
    fleet.prepare(NODE);
    let token = fleet.token(&[]);
    fleet.enroll(NODE, &token).ok();
    fleet
}

fn diagnose_node(fleet: &Fleet) -> Diagnosis {
    diagnose(&fleet.env, &fleet.env.at(&format!("{NODE}/agent.yaml")))
}

fn set_mode(fleet: &Fleet, mode: u32) {
    let file = fleet.env.path(&format!("{NODE}/agent.creds"));
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn an_enrolled_node_has_everything_it_needs() {
    let mut fleet = enrolled();
    fleet.agent(NODE);
    let found = diagnose_node(&fleet);
    found.assert(
        "credentials",
        "ok",
        &format!("of {NODE}, without expiry"),
        "",
    );
    for name in ["server", "permissions", "clock", "trust", "agent"] {
        assert_eq!(found.state(name), "ok", "{:#}", found.document);
    }
    assert_eq!(found.code, Some(0), "{:#}", found.document);
}

#[test]
fn credentials_that_others_can_read_are_named() {
    let fleet = enrolled();
    set_mode(&fleet, 0o644);
    let found = diagnose_node(&fleet);
    found.assert(
        "credentials",
        "warning",
        "can be read by other users",
        "chmod 0600",
    );
}

#[test]
fn credentials_of_another_node_are_named() {
    let fleet = enrolled();
    let config = format!("{NODE}/agent.yaml");
    let text = fleet.env.read(&config);
    fleet.env.write(
        &config,
        text.replace(NODE, "web2.example.net")
            .replace("/web2.example.net/", "/web1.example.net/"),
    );
    let found = diagnose_node(&fleet);
    found.assert(
        "credentials",
        "failed",
        &format!("belongs to {NODE}"),
        "identity",
    );
}

#[test]
fn missing_credentials_are_named() {
    let fleet = enrolled();
    std::fs::remove_file(fleet.env.path(&format!("{NODE}/agent.creds"))).unwrap();
    diagnose_node(&fleet).assert("credentials", "failed", "no such file", "ccm agent enroll");
}

#[test]
fn expired_credentials_are_named_with_their_end() {
    let fleet = enrolled();
    let issue = [
        "fleet",
        "trust",
        "issue",
        "agent",
        "web2",
        "--expires",
        "1s",
    ];
    let creds = fleet.ccm(&issue).ok();
    let config = format!("{NODE}/agent.yaml");
    let text = fleet.env.read(&config);
    fleet
        .env
        .write_secret(&format!("{NODE}/agent.creds"), creds);
    fleet.env.write(
        &config,
        text.replace(&format!("identity: {NODE}"), "identity: web2"),
    );
    // They may expire between the two checks.
    let found = wait_for("expiry", || {
        let found = diagnose_node(&fleet);
        let checks = ["credentials", "server"];
        if checks.iter().all(|check| found.state(check) == "failed") {
            Ok(found)
        } else {
            Err(found.document)
        }
    });
    found.assert("credentials", "failed", "expired at", "ccm agent enroll");
    found.assert("server", "failed", "", "expired");
}

#[test]
fn a_revoked_node_is_told_apart_from_a_server_that_is_down() {
    let fleet = enrolled();
    fleet.ccm(&["fleet", "trust", "revoke", "agent", NODE]).ok();
    let found = diagnose_node(&fleet);
    found.assert("server", "failed", "authorization violation", "revoked");
    assert_eq!(found.state("credentials"), "ok");
}

#[test]
fn a_server_with_a_certificate_of_another_ca_is_named() {
    let fleet = enrolled();
    let other = fleet.env.at("other");
    fleet.ccm(&["fleet", "trust", "init", &other]).ok();
    let ca = fleet.env.read("other/tls/ca.pem");
    fleet.env.write(&format!("{NODE}/ca.pem"), ca);
    diagnose_node(&fleet).assert("server", "failed", "certificate", "compare the CA");
}
