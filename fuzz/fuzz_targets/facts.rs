//! Files that facts are read from, and netlink responses of the kernel. Property: facts round-trip
//! through JSON.

#![no_main]

use std::sync::Arc;

use ccm_core::facts::{FactPaths, Gatherer, network_of};
use ccm_core::system::FixedClock;
use ccm_fuzz::{temp_dir, write_file};
use ccm_value::Value;
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 20] = [
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/vmstat",
    "proc/swaps",
    "proc/stat",
    "proc/uptime",
    "proc/filesystems",
    "proc/modules",
    "proc/mounts",
    "proc/1/mountinfo",
    "proc/self/cgroup",
    "proc/bus/pci/devices",
    "etc/os-release",
    "etc/lsb-release",
    "etc/debian_version",
    "etc/redhat-release",
    "etc/SuSE-release",
    "etc/machine-id",
    "config/facts.json",
    "config/facts.yaml",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    check(&network_of(bytes));
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    let file = path(FILES[usize::from(*choice) % FILES.len()]);
    write_file(&file, bytes);
    let paths = FactPaths {
        proc: path("proc"),
        sys: path("sys"),
        etc: path("etc"),
        dev: path("dev"),
        root: path("root"),
        config: vec![path("config")],
    };
    let clock = FixedClock::new(DateTime::UNIX_EPOCH);
    check(&Gatherer::new(paths, Arc::new(clock)).all());
});

fn check(facts: &Value) {
    let json = serde_json::to_string(facts).expect("serialize facts");
    let again: Value = serde_json::from_str(&json).expect("deserialize facts");
    assert_eq!(*facts, again);
}
