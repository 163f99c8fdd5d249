//! When systemd is made to read its unit files again: for a unit that needs it, in a run that
//! changes something, and not more often than that.

use super::{AT_BOOT, RUNS, plain_unit, status};
use crate::support::systemd::systemd_host;

/// Returns the entry of a unit file.
fn file(name: &str, unit: &str) -> String {
    format!(
        "- file: {{name: /etc/systemd/system/{name}.service, ensure: present, content: {unit:?}, owner: root, group: root, mode: '0644'}}\n"
    )
}

/// Returns the entry of a service that subscribes to its unit file.
fn service(name: &str) -> String {
    format!("- service: {{name: {name}, subscribe: ['file#/etc/systemd/system/{name}.service']}}\n")
}

#[test]
fn unit_files_are_read_again_once_and_only_by_a_run_that_needs_it() {
    let host = systemd_host();
    for name in ["fresh-a", "fresh-b"] {
        plain_unit(&host, name);
    }
    host.sh("systemctl start fresh-a fresh-b");
    let before = host.daemon_reloads();
    let unit = format!("{RUNS}{AT_BOOT}").replace("infinity", "1d");
    let entries = file("fresh-a", &unit)
        + &file("fresh-b", &unit)
        + &service("fresh-a")
        + &service("fresh-b");

    let noop = host.apply(&entries, &["--noop"]);
    assert_eq!(
        noop.outcomes(),
        ["changed", "changed", "refreshed", "refreshed"]
    );
    // Written by someone else: neither noop nor status acts on that.
    host.unit("fresh-a.service", &unit);
    let _ = host.apply("- service: {name: fresh-a, ensure: stopped}\n", &["--noop"]);
    status(&host, "fresh-a");
    assert_eq!(host.property("fresh-a", "NeedDaemonReload"), "yes");
    assert_eq!(host.daemon_reloads(), before);

    host.unit("fresh-a.service", &format!("{RUNS}{AT_BOOT}# old\n"));
    let applied = host.apply(&entries, &[]);
    assert_eq!(
        applied.outcomes(),
        ["changed", "changed", "refreshed", "refreshed"]
    );
    assert_eq!(host.daemon_reloads(), before + 1);
    for name in ["fresh-a", "fresh-b"] {
        assert!(host.property(name, "ExecStart").contains("sleep 1d"));
        let pid = host.property(name, "MainPID");
        let line = host.read(&format!("/proc/{pid}/cmdline"));
        assert!(line.ends_with("sleep\u{0}1d\u{0}"), "{line:?}");
    }

    assert_eq!(host.apply(&entries, &[]).outcomes(), ["stable"; 4]);
    assert_eq!(host.daemon_reloads(), before + 1);
}

#[test]
fn a_unit_that_changes_after_the_first_reload_is_not_restarted_with_its_old_file() {
    let host = systemd_host();
    for name in ["turn-a", "turn-b"] {
        plain_unit(&host, name);
    }
    host.sh("systemctl start turn-a turn-b");
    let before = host.daemon_reloads();
    let unit = format!("{RUNS}{AT_BOOT}").replace("infinity", "1d");
    let both = |name| file(name, &unit) + &service(name);
    let entries = both("turn-a") + &both("turn-b");
    let applied = host.apply(&entries, &[]);
    assert_eq!(
        applied.outcomes(),
        ["changed", "refreshed", "changed", "refreshed"]
    );
    assert_eq!(host.daemon_reloads(), before + 2);
    assert!(host.property("turn-b", "ExecStart").contains("sleep 1d"));
}

#[test]
fn a_unit_file_made_in_the_same_run_is_started_without_reading_all_again() {
    let host = systemd_host();
    let before = host.daemon_reloads();
    let entries = file("newborn", RUNS) + &service("newborn");
    assert_eq!(host.apply(&entries, &[]).outcomes(), ["changed", "changed"]);
    assert_eq!(host.word("is-active", "newborn"), "active");
    assert_eq!(host.daemon_reloads(), before);
}
