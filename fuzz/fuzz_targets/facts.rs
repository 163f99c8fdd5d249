//! Any bytes in each of the files that facts are read from, and as the kernel's answer about the
//! network: facts are data that can be sent.

#![no_main]

use std::sync::Arc;

use ccm_core::facts::{Gatherer, Places, network_of};
use ccm_core::system::FixedClock;
use ccm_fuzz::{put, room};
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
    let room = room();
    let place = |name: &str| room.path().join(name);
    let file = place(FILES[usize::from(*choice) % FILES.len()]);
    put(&file, bytes);
    let places = Places {
        proc: place("proc"),
        sys: place("sys"),
        etc: place("etc"),
        dev: place("dev"),
        root: place("root"),
        config: vec![place("config")],
    };
    let clock = FixedClock::new(DateTime::UNIX_EPOCH);
    check(&Gatherer::new(places, Arc::new(clock)).all());
});

fn check(facts: &Value) {
    let json = serde_json::to_string(facts).expect("facts can be written");
    let again: Value = serde_json::from_str(&json).expect("facts can be read");
    assert_eq!(*facts, again);
}
