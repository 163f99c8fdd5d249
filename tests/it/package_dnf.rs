//! Packages with the real dnf and rpm.

use crate::support::packages::DNF;
use crate::support::root::ScratchRoot;

/// A system whose dnf knows four versions of `demo`; the one with an epoch is the latest.
fn system() -> ScratchRoot {
    ScratchRoot::with_rpms(&["1.0-1", "1.1~rc1-1", "1.1-1", "2:0.9-1"])
}

#[test]
fn every_row_of_the_decision_table_holds() {
    let rows = [
        (
            "1.0-1",
            "Would have installed version 1.0-1",
            "changed",
            "1.0-1",
        ),
        ("1.0-1", "", "stable", "1.0-1"),
        ("1.0", "", "stable", "1.0-1"),
        ("present", "", "stable", "1.0-1"),
        (
            "1.1~rc1-1",
            "Would have upgraded to 1.1~rc1-1",
            "changed",
            "1.1~rc1-1",
        ),
        ("1.1", "Would have upgraded to 1.1", "changed", "1.1-1"),
        (
            "1.1~rc1-1",
            "Would have downgraded to 1.1~rc1-1",
            "changed",
            "1.1~rc1-1",
        ),
        (
            "latest",
            "Would have upgraded to latest",
            "changed",
            "0.9-1",
        ),
        ("latest", "Would have upgraded to latest", "stable", "0.9-1"),
        ("2:0.9-1", "", "stable", "0.9-1"),
        (
            "0:1.1-1",
            "Would have downgraded to 0:1.1-1",
            "changed",
            "1.1-1",
        ),
        ("absent", "Would have uninstalled", "changed", "absent"),
        ("absent", "", "stable", "absent"),
        (
            "present",
            "Would have installed version present",
            "changed",
            "0.9-1",
        ),
        ("absent", "Would have uninstalled", "changed", "absent"),
        ("latest", "Would have installed latest", "changed", "0.9-1"),
    ];
    DNF.walk(&system(), &rows);
}

#[test]
fn a_run_of_many_lists_once_and_knows_every_spelling() {
    let root = system();
    root.shell("dnf install -y -q demo-1.1-1").ok();
    root.count(&["rpm", "dnf", "dpkg-query", "apt-get"]);
    let applied = root.packages(
        "defaults: {provider: dnf}
demo: {ensure: present}
demo.noarch: {ensure: '1.1-1'}
demo-1.1: {ensure: present}
demo-1.1-1.noarch: {ensure: present}
other: {ensure: absent}",
        &[],
    );
    assert_eq!(applied.outcomes(), ["stable"; 5], "{:#}", applied.document);
    let started = root.counts();
    assert_eq!(started.len(), 1, "{started:?}");
    for name in ["demo.noarch", "demo-1.1", "demo-1.1-1.noarch"] {
        let one = root.ccm(&["status", "package", name, "--provider", "dnf", "--json"]);
        assert_eq!(one.json()["version"], "1.1-1", "{name}");
    }
}

#[test]
fn failures_carry_what_dnf_said() {
    let root = system();
    root.fails(
        "none: {ensure: present, provider: dnf}",
        "failed to Install package \"none\", dnf exited 1: ",
        "Unable to find a match: none",
    );
    root.fails(
        "demo: {ensure: '9.9', provider: dnf}",
        "failed to Install package \"demo\", dnf exited 1: ",
        "Unable to find a match: demo-9.9",
    );
    assert_eq!(DNF.look(&root), "absent");
    root.write(
        "/etc/yum.repos.d/local.repo",
        "[local]\nname=local\nbaseurl=file:///srv/gone\ngpgcheck=0\nskip_if_unavailable=0\n",
    );
    let entry = "demo: {ensure: latest, provider: dnf, update_index: always}";
    root.fails(
        entry,
        "failed to update the package index, dnf exited 1: ",
        "local",
    );
    root.use_rpm_repository();
    assert_eq!(root.packages(entry, &[]).outcomes(), ["changed"]);
}

#[test]
fn a_package_file_is_managed_by_its_path() {
    let root = system();
    let (old, new) = (
        "/srv/rpm/noarch/demo-1.0-1.noarch.rpm",
        "/srv/rpm/noarch/demo-1.1-1.noarch.rpm",
    );
    let rows = [
        (old, "present", "changed", "1.0-1"),
        (new, "latest", "changed", "1.1-1"),
        (old, "1.0-1", "changed", "1.0-1"),
        (new, "absent", "changed", "absent"),
    ];
    DNF.walk_files(&root, &rows);
}

#[test]
fn the_distribution_decides_between_two_package_managers() {
    let root = system();
    let provider = |root: &ScratchRoot| {
        let state = root.ccm(&["status", "package", "demo", "--json"]).json();
        state["provider"].as_str().unwrap().to_owned()
    };
    assert_eq!(provider(&root), "apt");
    root.shell(
        "rm /etc/os-release && printf 'ID=rocky\\nID_LIKE=\"rhel fedora\"\\n' >/etc/os-release",
    )
    .ok();
    assert_eq!(provider(&root), "dnf");
    root.shell("printf 'ID=arch\\n' >/etc/os-release").ok();
    assert_eq!(provider(&root), "apt");
}

/// Fails until the file exists.
const BROKEN: &str = "%pre -p <lua>
if not posix.stat('/etc/repaired') then error('no repair yet') end
";

#[test]
fn a_broken_scriptlet_is_reported_detected_and_repaired() {
    let root = ScratchRoot::new();
    root.rpm("demo", "1.0-1", BROKEN);
    root.use_rpm_repository();
    let entry = "demo: {ensure: present, provider: dnf}";
    root.fails(
        entry,
        "failed to Install package \"demo\", dnf exited 1: ",
        "no repair yet",
    );
    let failed = root.packages(entry, &[]);
    let output = failed.event(0)["output"].as_str().unwrap();
    assert!(output.contains("no repair yet"), "{output}");
    assert_eq!(DNF.look(&root), "absent");
    root.write("/etc/repaired", "");
    assert_eq!(root.packages(entry, &[]).outcomes(), ["changed"]);
    assert_eq!(DNF.look(&root), "1.0-1");
}

#[test]
fn the_event_of_an_upgrade_has_the_old_version() {
    let root = system();
    let ensure = |version: &str| {
        let applied = root.packages(
            &format!("demo: {{ensure: '{version}', provider: dnf}}"),
            &[],
        );
        applied.event(0).clone()
    };
    let event = ensure("1.0-1");
    assert_eq!(event["previous"]["ensure"], "absent", "{event:#}");
    let event = ensure("1.1-1");
    assert_eq!(event["previous"]["ensure"], "1.0-1", "{event:#}");
    assert_eq!(ensure("1.1-1").get("previous"), None, "nothing changed");
}

#[test]
fn a_held_lock_is_waited_for_and_then_named() {
    let root = system();
    let ensure = "ccm ensure package demo --provider dnf --json";
    // Another run is waited for until the timeout, dnf's own lock as long as dnf waits for it.
    let outcome = root.shell(&format!(
        "mkfifo /var/tmp/pipe
        flock /run/ccm-package.lock sh -c 'touch /var/tmp/held; cat' </var/tmp/pipe &
        exec 3>/var/tmp/pipe
        while ! test -e /var/tmp/held; do sleep 0.1; done
        {ensure} --lock-timeout 1s >/var/tmp/first || true
        exec 3>&-
        sleep 5 3>&- &
        mkdir -p /var/lib/dnf
        printf %s $! >/var/lib/dnf/rpmdb_lock.pid
        {ensure} >/var/tmp/second
        ! kill -0 $!"
    ));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let first: serde_json::Value = serde_json::from_str(&root.read("/var/tmp/first")).unwrap();
    let failure = first["error"][0].as_str().unwrap();
    assert!(
        failure.contains("/run/ccm-package.lock is still locked by"),
        "{failure}"
    );
    let second: serde_json::Value = serde_json::from_str(&root.read("/var/tmp/second")).unwrap();
    assert_eq!(second["final_ensure"], "0.9-1", "{second:#}");
}
