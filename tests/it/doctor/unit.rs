//! `ccm doctor` on a real systemd: the unit of the agent.

use super::Diagnosis;
use crate::support::poll::{wait_for, when};
use crate::support::systemd::{SystemdHost, systemd_host};

const UNIT: &str = include_str!("../../../packaging/systemd/ccm-agent.service");

fn diagnose(host: &SystemdHost) -> Diagnosis {
    Diagnosis::read(&host.ccm(&["doctor", "--json"]))
}

fn configure(host: &SystemdHost, text: &str) {
    host.sh("mkdir -p /etc/choria/ccm");
    host.write("/etc/choria/ccm/agent.yaml", text);
    host.sh("chmod 0640 /etc/choria/ccm/agent.yaml");
}

#[test]
fn the_state_of_the_unit_is_named_with_the_last_lines_of_its_log() {
    let host = systemd_host();
    host.sh("ln -sf /usr/local/bin/ccm /usr/bin/ccm; rm -rf /var/lib/choria");
    host.unit("ccm-agent.service", UNIT);
    host.sh("systemctl daemon-reload; systemctl disable --now ccm-agent; systemctl reset-failed ccm-agent || true");
    configure(
        &host,
        "identity: web1\nservers: ['nats://127.0.0.1:4999']\n",
    );
    diagnose(&host).assert(
        "unit",
        "failed",
        "is inactive (dead)",
        "systemctl enable --now ccm-agent",
    );
    host.sh("systemctl start ccm-agent");
    diagnose(&host).assert(
        "unit",
        "warning",
        "does not start at boot",
        "systemctl enable",
    );
    host.sh("systemctl enable ccm-agent");
    diagnose(&host).assert("unit", "ok", "is active (running), enabled", "");
    configure(&host, "identity: web1\nnonsense: 1\n");
    let _ = host.run(&["systemctl", "restart", "ccm-agent"]);
    let found = wait_for("a failed unit", || {
        let found = diagnose(&host);
        let text = found.check("unit")["found"].as_str().unwrap().to_owned();
        when(
            text.contains("nonsense") && text.contains("auto-restart"),
            text,
        )
        .map(|_| found)
    });
    found.assert(
        "unit",
        "failed",
        "result exit-code, restarted",
        "journalctl -u ccm-agent",
    );
    assert_eq!(found.state("configuration"), "failed");
    host.sh(
        "systemctl disable --now ccm-agent; rm -rf /etc/choria /var/lib/choria /usr/bin/ccm
         rm /etc/systemd/system/ccm-agent.service; systemctl daemon-reload",
    );
}
