//! From a package to a managed node: install, enroll, start, one request from outside.

use super::lab::Lab;
use super::{INSTALLED, NEW, SBIN, deb, remove_ccm, rpm};
use crate::support::rpm as rpm_repository;
use crate::support::systemd::{SystemdHost, rpm_host, systemd_host};

/// Ensures a file on a node from outside, and finds it there.
fn assert_is_managed(lab: &Lab, host: &SystemdHost, node: &str) {
    let ensure = ["ensure", "file", "/root/managed", "--content", "hi\n"];
    let flags = ["--mode", "0644", "--node", node];
    lab.0.operator(&[&ensure[..], &flags].concat()).ok();
    assert_eq!(host.read("/root/managed"), "hi\n");
    assert_eq!(host.word("is-enabled", "ccm-agent"), "enabled");
    // Nothing is wrong, as the program itself sees it.
    let diagnosis = host.run(&[INSTALLED, "doctor"]);
    assert_eq!(diagnosis.code, Some(0), "{diagnosis:?}");
}

#[test]
fn a_machine_joins_the_fleet_with_apt_and_one_command() {
    let host = systemd_host();
    remove_ccm(&host);
    let lab = Lab::start(&host);
    host.install(&deb(NEW), "/root/ccm-fleet.deb");
    host.sh(&format!("{SBIN} apt-get install -q -y /root/ccm-fleet.deb"));
    lab.enroll(&host, "deb1.example.net");
    assert_is_managed(&lab, &host, "deb1.example.net");
    host.sh(&format!("{SBIN} dpkg -P ccm-fleet; rm /root/managed"));
}

#[test]
fn a_machine_joins_the_fleet_with_dnf_and_one_command() {
    let first = systemd_host();
    let host = rpm_host(&first);
    remove_ccm(&host);
    let lab = Lab::start(&first);
    let packages = tempfile::tempdir().unwrap();
    rpm_repository::build(packages.path(), "base", "1.0-1", rpm_repository::SHELL);
    host.copy_rpm_repository(packages.path());
    host.install(&rpm(NEW), "/root/ccm-fleet.rpm");
    host.sh(&format!("{SBIN} dnf -q -y install /root/ccm-fleet.rpm"));
    lab.enroll(&host, "rpm1.example.net");
    assert_is_managed(&lab, &host, "rpm1.example.net");
    host.sh(&format!(
        "{SBIN} dnf -q -y remove ccm-fleet shell; rm /root/managed"
    ));
    assert_eq!(host.word("is-active", "ccm-agent"), "inactive");
}
