//! The unit of the approver, on a real systemd: it approves, and can read no other secret.

use super::{NEW, SBIN, deb, remove_ccm};
use crate::support::nats::tool;
use crate::support::poll::{wait_for, when};
use crate::support::systemd::{SystemdHost, systemd_host};

/// The server as a service of the host.
const SERVER: &str =
    "[Service]\nExecStart=/usr/local/bin/nats-server -c /etc/choria/ccm/trust/nats.conf\n";

/// Secrets of the trust directory that the approver does not need.
const HIDDEN: [&str; 7] = [
    "keys/operator.seed",
    "keys/account.seed",
    "keys/role-operator.seed",
    "keys/ca.key",
    "signer.seed",
    "tls/server.key",
    "creds/operator-admin.creds",
];

fn start_fleet(host: &SystemdHost) {
    remove_ccm(host);
    host.install(&deb(NEW), "/root/ccm-fleet.deb");
    host.install(&tool("nats-server"), "/usr/local/bin/nats-server");
    host.unit("nats-server.service", SERVER);
    host.sh(&format!(
        "{SBIN} dpkg -i /root/ccm-fleet.deb
         ccm fleet trust init /etc/choria/ccm/trust --listen 127.0.0.1:4222
         systemctl daemon-reload
         systemctl start nats-server"
    ));
    let init = "ccm fleet init --context /etc/choria/ccm/trust/contexts/controller-main.json";
    wait_for("a server", || {
        let outcome = host.run(&["sh", "-c", init]);
        when(outcome.code == Some(0), format!("{outcome:?}"))
    });
}

#[test]
fn the_approver_runs_as_a_unit_that_can_read_one_signing_key() {
    let host = systemd_host();
    start_fleet(&host);
    host.sh("systemctl enable --now ccm-enroll");
    let token = host.sh("ccm fleet enroll token create");
    host.write("/root/enroll.token", &token);
    host.sh("chmod 0600 /root/enroll.token");
    let enroll = "ccm agent enroll --name web1 --token-file /root/enroll.token --wait 60s";
    let enrolled = host.sh(enroll);
    assert!(enrolled.starts_with("enrolled web1"), "{enrolled}");
    let pid = host.property("ccm-enroll", "MainPID");
    let root = format!("/proc/{pid}/root/etc/choria/ccm/trust");
    for secret in HIDDEN {
        let file = format!("/etc/choria/ccm/trust/{secret}");
        assert!(host.exists(&file), "{secret}");
        let read = host.run(&["head", "-c", "1", &format!("{root}/{secret}")]);
        assert!(read.stdout.is_empty(), "{secret}: {read:?}");
    }
    let own = host.run(&["head", "-c", "1", &format!("{root}/keys/role-agent.seed")]);
    assert_eq!(own.stdout, "S");
    host.sh(&format!(
        "systemctl disable --now ccm-enroll; systemctl stop nats-server
         {SBIN} dpkg -P ccm-fleet
         rm /etc/systemd/system/nats-server.service /usr/local/bin/nats-server"
    ));
}
