//! An upgrade of the agents as a rollout of their own package: each agent restarts in the middle, and
//! nothing is lost.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::lab::Lab;
use super::{NEW, OLD, SBIN, deb, remove_ccm, rpm};
use crate::support::poll::{wait_for, when};
use crate::support::rpm as rpm_repository;
use crate::support::systemd::{SystemdHost, rpm_host, systemd_host};

/// The recipe of docs/install.md, between two files that show that the run was complete. The last
/// command takes longer than the package's scripts.
const MANIFEST: &str = "ccm:
  resources:
    - file:
        - /root/before:
            {ensure: present, content: before, owner: root, group: root, mode: '0644'}
    - package:
        - ccm-fleet:
            ensure: NEW-1
    - exec:
        - slow: {provider: shell, command: 'sleep 2; touch /root/slept', creates: /root/slept}
    - file:
        - /root/after:
            {ensure: present, content: after, owner: root, group: root, mode: '0644'}
";

/// A system of the other family, as its name says: packages are then dnf's.
const ROCKY: &str =
    "NAME=\"Rocky Linux\"\nID=rocky\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.3\"\n";

fn repository(files: &[&Path]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        let to = directory.path().join(file.file_name().unwrap());
        std::fs::copy(file, to).unwrap();
    }
    directory
}

/// Installs the old version from a repository that also has the new one.
fn install_deb(host: &SystemdHost) {
    remove_ccm(host);
    let packages = repository(&[&deb(OLD), &deb(NEW)]);
    host.copy_apt_repository(packages.path());
    host.sh(&format!("{SBIN} apt-get install -q -y ccm-fleet={OLD}-1"));
}

fn install_rpm(host: &SystemdHost) {
    remove_ccm(host);
    host.sh("rm /etc/os-release");
    host.write("/etc/os-release", ROCKY);
    let packages = repository(&[&rpm(OLD), &rpm(NEW)]);
    rpm_repository::build(packages.path(), "base", "1.0-1", rpm_repository::SHELL);
    host.copy_rpm_repository(packages.path());
    host.sh(&format!("{SBIN} dnf -q -y install ccm-fleet-{OLD}-1"));
}

fn main_pid(host: &SystemdHost) -> String {
    host.property("ccm-agent", "MainPID")
}

/// Asserts that a node ran everything once, and that every event was stored once.
fn assert_nothing_lost(lab: &Lab, host: &SystemdHost, node: &str, old_pid: &str) {
    wait_for("an agent that was restarted", || {
        let pid = main_pid(host);
        let is_active = host.word("is-active", "ccm-agent") == "active";
        when(is_active && pid != "0" && pid != old_pid, pid)
    });
    let changed = wait_for("all events", || {
        let events = lab.events(node, "changed");
        let runs = events.iter().filter(|event| type_of(event) == "run");
        when(runs.count() > 0, events.clone())
    });
    let names: Vec<&str> = changed.iter().map(name_of).collect();
    let wanted = ["/root/before", "ccm-fleet", "slow", "/root/after"];
    for name in wanted {
        let count = names.iter().filter(|it| **it == name).count();
        assert_eq!(count, 1, "{name} on {node}: {names:?}");
    }
    let ids: BTreeSet<&str> = changed.iter().map(id_of).collect();
    assert_eq!(ids.len(), changed.len(), "{changed:#?}");
    let failed = lab.events(node, "failed");
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(host.read("/root/after"), "after");
}

/// Returns the event in a line of the feed.
fn body(line: &Value) -> &Value {
    if line["event"].is_object() {
        &line["event"]
    } else {
        line
    }
}

fn type_of(line: &Value) -> &str {
    match body(line)["type"].as_str() {
        Some(name) => name,
        None => "run",
    }
}

fn name_of(line: &Value) -> &str {
    body(line)["name"].as_str().unwrap_or_default()
}

fn id_of(line: &Value) -> &str {
    body(line)["event_id"].as_str().unwrap()
}

#[test]
fn a_rollout_of_the_package_upgrades_agents_that_restart_after_their_run() {
    let first = systemd_host();
    let second = rpm_host(&first);
    install_deb(&first);
    install_rpm(&second);
    let lab = Lab::start(&first);
    let nodes = [
        (&*first, "deb1.example.net"),
        (&*second, "rpm1.example.net"),
    ];
    for (host, node) in nodes {
        lab.enroll(host, node);
    }
    let pids = nodes.map(|(host, _)| main_pid(host));
    let file = lab
        .0
        .env
        .write("upgrade/manifest.yaml", MANIFEST.replace("NEW", NEW));
    let directory = file.trim_end_matches("/manifest.yaml");
    lab.0
        .operator(&["bundle", "push", directory, "--name", "upgrade"])
        .ok();
    let start = ["rollout", "start", "upgrade", "--all", "--canary", "1"];
    let flags = ["--bake", "1s", "--health-gate"];
    lab.0.controller(&[&start[..], &flags].concat()).ok();
    let rollouts = lab.0.operator(&["rollout", "list", "--json"]).json();
    let rollout = rollouts.as_array().unwrap().last().unwrap();
    assert_eq!(rollout["state"]["name"], "done", "{rollout:#}");
    let waves = rollout["plan"]["waves"].as_array().unwrap();
    assert_eq!(waves[0]["canary"], true, "{waves:#?}");
    for ((host, node), pid) in nodes.into_iter().zip(&pids) {
        assert_nothing_lost(&lab, host, node, pid);
    }
    let installed = first.sh("dpkg-query -W -f '${Version} ${Status}' ccm-fleet");
    assert_eq!(installed, format!("{NEW}-1 install ok installed"));
    let installed = second.sh("rpm -q ccm-fleet");
    assert_eq!(installed, format!("ccm-fleet-{NEW}-1.x86_64\n"));
    first.sh(&format!(
        "{SBIN} dpkg -P ccm-fleet; rm /root/before /root/slept /root/after"
    ));
    second.sh(&format!(
        "{SBIN} dnf -q -y remove ccm-fleet shell; rm /root/before /root/slept /root/after"
    ));
}
