//! The unit of the approver, on a real systemd: it approves, and can read no other secret.

use super::{INSTALLED, NEW, SBIN, deb, remove_ccm};
use crate::support::nats::tool;
use crate::support::poll::{wait_for, when};
use crate::support::systemd::{SystemdHost, systemd_host};

/// The server as a service of the host.
const SERVER: &str =
    "[Service]\nExecStart=/usr/local/bin/nats-server -c /etc/choria/ccm/trust/nats.conf\n";

const TRUST: &str = "/etc/choria/ccm/trust";

/// Secrets of the trust directory that the approver does not need.
const HIDDEN: [&str; 7] = [
    "keys/operator.seed",
    "keys/account.seed",
    "keys/role-operator.seed",
    "keys/ca.key",
    "keys/signer.seed",
    "tls/server.key",
    "creds/operator-admin.creds",
];

/// Installs the package on a host, and starts a server with a new trust directory there.
pub(super) fn start_fleet(host: &SystemdHost) {
    remove_ccm(host);
    host.install(&deb(NEW), "/root/ccm-fleet.deb");
    host.install(&tool("nats-server"), "/usr/local/bin/nats-server");
    host.unit("nats-server.service", SERVER);
    host.sh(&format!(
        "{SBIN} dpkg -i /root/ccm-fleet.deb
         {INSTALLED} fleet trust init {TRUST} --listen 127.0.0.1:4222
         systemctl daemon-reload
         systemctl start nats-server"
    ));
    let context = format!("{TRUST}/contexts/controller-main.json");
    wait_for("a server", || {
        let outcome = host.run(&[INSTALLED, "fleet", "init", "--context", &context]);
        when(outcome.code == Some(0), format!("{outcome:?}"))
    });
}

/// Removes the server and the package.
pub(super) fn remove_server(host: &SystemdHost) {
    host.sh(&format!(
        "systemctl disable --now ccm-enroll; systemctl stop nats-server
         {SBIN} dpkg -P ccm-fleet
         rm /etc/systemd/system/nats-server.service /usr/local/bin/nats-server"
    ));
}

/// Returns the first byte of a file in the trust directory, as the approver reads it.
fn first_byte(host: &SystemdHost, file: &str) -> String {
    let pid = host.property("ccm-enroll", "MainPID");
    let path = format!("/proc/{pid}/root{TRUST}/{file}");
    host.run(&["head", "-c", "1", &path]).stdout
}

/// Asserts that a secret exists and that the approver can't read it.
fn assert_hidden(host: &SystemdHost, secret: &str) {
    assert!(host.exists(&format!("{TRUST}/{secret}")), "{secret}");
    assert_eq!(first_byte(host, secret), "", "{secret}");
}

#[test]
fn the_approver_runs_as_a_unit_that_can_read_one_signing_key() {
    let host = systemd_host();
    start_fleet(&host);
    host.sh("systemctl enable --now ccm-enroll");
    let token = host.sh(&format!("{INSTALLED} fleet enroll token create"));
    host.write("/root/enroll.token", &token);
    host.sh("chmod 0600 /root/enroll.token");
    let enrolled = host.sh(&format!(
        "{INSTALLED} agent enroll --name web1 --token-file /root/enroll.token --wait 60s"
    ));
    assert!(enrolled.starts_with("enrolled web1"), "{enrolled}");
    for secret in HIDDEN {
        assert_hidden(&host, secret);
    }
    assert_eq!(first_byte(&host, "keys/role-agent.seed"), "S");
    remove_server(&host);
}

#[test]
fn the_approver_can_read_no_request_signer_before_and_after_a_rotation() {
    let host = systemd_host();
    start_fleet(&host);
    // As an earlier version created it.
    host.sh(&format!(
        "mv {TRUST}/keys/signer.seed {TRUST}/signer.seed; systemctl enable --now ccm-enroll"
    ));
    // Started when the program is: before that, the process has no sandbox yet.
    wait_for("the approver", || {
        let pid = host.property("ccm-enroll", "MainPID");
        let program = host.run(&["readlink", &format!("/proc/{pid}/exe")]);
        let is_started = program.stdout.trim() == INSTALLED;
        when(is_started, format!("{program:?}"))
    });
    assert_hidden(&host, "signer.seed");
    host.sh(&format!("{INSTALLED} fleet trust rotate signer"));
    for secret in ["keys/signer.seed", "keys/signer-previous.seed"] {
        assert_hidden(&host, secret);
    }
    assert!(!host.exists(&format!("{TRUST}/signer.seed")));
    remove_server(&host);
}
