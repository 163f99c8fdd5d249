//! Packages with the real apt and dpkg.

use std::fmt::Write as _;

use crate::support::packages::APT;
use crate::support::root::ScratchRoot;

/// A system whose apt knows four versions of `demo`; the one with an epoch is the latest.
fn system() -> ScratchRoot {
    ScratchRoot::with_debs(&["1.0-1", "1.1~rc1-1", "1.1-1", "2:0.9-1"])
}

#[test]
fn every_row_of_the_decision_table_holds() {
    let rows = [
        (
            "present",
            "Would have installed version present",
            "changed",
            "2:0.9-1",
        ),
        ("present", "", "stable", "2:0.9-1"),
        (
            "1.0-1",
            "Would have downgraded to 1.0-1",
            "changed",
            "1.0-1",
        ),
        ("1.0-1", "", "stable", "1.0-1"),
        ("0:1.0-1", "", "stable", "1.0-1"),
        (
            "1.1~rc1-1",
            "Would have upgraded to 1.1~rc1-1",
            "changed",
            "1.1~rc1-1",
        ),
        ("1.1-1", "Would have upgraded to 1.1-1", "changed", "1.1-1"),
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
            "2:0.9-1",
        ),
        (
            "latest",
            "Would have upgraded to latest",
            "stable",
            "2:0.9-1",
        ),
        ("absent", "Would have uninstalled", "changed", "absent"),
        ("absent", "", "stable", "absent"),
        (
            "1.1-1",
            "Would have installed version 1.1-1",
            "changed",
            "1.1-1",
        ),
        ("absent", "Would have uninstalled", "changed", "absent"),
        (
            "latest",
            "Would have installed latest",
            "changed",
            "2:0.9-1",
        ),
    ];
    APT.walk(&system(), &rows);
}

#[test]
fn a_stable_manifest_of_two_hundred_packages_starts_one_process() {
    let root = ScratchRoot::new();
    let mut status = root.read("/var/lib/dpkg/status");
    let mut entries = String::new();
    for number in 0..200 {
        let _ = write!(
            status,
            "\nPackage: many{number}\nStatus: install ok installed\nVersion: 1.{number}\n\
             Architecture: all\nMaintainer: Nobody <nobody@example.net>\nDescription: one of many\n"
        );
        let _ = writeln!(entries, "many{number}: {{ensure: '1.{number}'}}");
    }
    root.write("/var/lib/dpkg/status", status);
    root.count(&["dpkg-query", "apt-get", "apt-cache", "rpm", "dnf"]);
    let applied = root.packages(&entries, &[]);
    assert_eq!(applied.outcomes(), ["stable"; 200]);
    let started = root.counts();
    assert_eq!(started.len(), 1, "{started:?}");

    root.ccm(&["ensure", "package", "many7"]).ok();
    let started = root.counts();
    assert_eq!(started.len(), 1, "{started:?}");
    assert!(
        started[0].ends_with(" many7"),
        "a single one is queried alone: {started:?}"
    );
}

#[test]
fn what_an_exec_installs_is_seen_by_the_packages_behind_it() {
    let root = system();
    let applied = root.apply(
        "    - package: {name: demo, ensure: absent}
    - exec: {name: /usr/bin/apt-get install -q -y demo}
    - package: {name: demo, ensure: '2:0.9-1', alias: again}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["stable", "changed", "stable"]);
}

#[test]
fn a_broken_maintainer_script_is_reported_detected_and_repaired() {
    let root = ScratchRoot::new();
    let script = "#!/bin/sh\ntest -e /etc/repaired || { echo no repair yet >&2; exit 3; }\n";
    root.deb("broken", "1.0", "all", "", &[("DEBIAN/postinst", script)]);
    root.use_apt_repository();
    let entry = "broken: {ensure: present}";
    root.fails(
        entry,
        "failed to install package \"broken\", apt-get exited 100: ",
        "no repair yet; dpkg: error processing",
    );
    let failed = root.packages(entry, &[]);
    let output = failed.event(0)["output"].as_str().unwrap();
    assert!(output.contains("\nno repair yet\n"), "{output}");
    let state = root.ccm(&["status", "package", "broken", "--json"]).json();
    assert_eq!(state["version"], "absent");
    assert_eq!(state["extended"]["status"], "half-configured");
    root.write("/etc/repaired", "");
    let applied = root.packages(entry, &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    assert_eq!(applied.event(0)["final_ensure"], "1.0");
    assert_eq!(applied.event(0)["previous"]["ensure"], "absent");
}

#[test]
fn the_event_of_an_upgrade_has_the_old_version() {
    let root = system();
    let _ = root.packages("demo: {ensure: 1.0-1}", &[]);
    let applied = root.packages("demo: {ensure: 1.1-1}", &[]);
    let event = applied.event(0);
    assert_eq!(event["previous"]["ensure"], "1.0-1", "{event:#}");
    assert_eq!(event["final_ensure"], "1.1-1");
    let again = root.packages("demo: {ensure: 1.1-1}", &[]);
    assert_eq!(again.event(0).get("previous"), None);
    let latest = root.packages("demo: {ensure: latest}", &[]);
    assert_eq!(latest.event(0)["previous"]["ensure"], "1.1-1");
    let latest = root.packages("demo: {ensure: latest}", &[]);
    assert_eq!(latest.event(0).get("previous"), None, "nothing changed");
}

#[test]
fn a_missing_version_and_an_unknown_package_are_clear_errors() {
    let root = system();
    let applied = root.packages(
        "demo: {ensure: '9.9'}\nnone: {ensure: present}\nnothing: {ensure: latest}\ndem.: {ensure: present}",
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "failed to install package \"demo\", apt-get exited 100: E: Version '9.9' for 'demo' was not found"
    );
    assert_eq!(
        applied.failure(1),
        "failed to install package \"none\", apt-get exited 100: E: Unable to locate package none"
    );
    assert_eq!(
        applied.failure(2),
        "could not find Candidate: line in apt-cache policy output for nothing"
    );
    // To apt-get by itself a dot makes a search of a name, and `dem.` would install `demo`.
    let failure = applied.failure(3);
    assert!(
        failure.contains("E: Unable to locate package dem."),
        "{failure}"
    );
    let state = root.ccm(&["status", "package", "demo"]).ok();
    assert!(state.contains("version: absent"), "{state}");
    root.deb("demo", "9.9", "all", "", &[]);
    root.use_apt_repository();
    let applied = root.packages("demo: {ensure: '9.9'}", &[]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.event(0));
}

#[test]
fn hostile_names_and_versions_start_no_process() {
    let root = ScratchRoot::new();
    root.count(&[
        "dpkg-query",
        "apt-get",
        "apt-cache",
        "rpm",
        "dnf",
        "dpkg-deb",
    ]);
    for (name, ensure) in [
        ("a;id", "present"),
        ("$(id)", "present"),
        ("a b", "present"),
        ("~ninstalled", "present"),
        ("?installed", "present"),
        ("a-", "absent"),
        ("a*", "absent"),
        ("a/unstable", "latest"),
        ("a=1", "latest"),
        ("../a.deb", "present"),
        ("/srv/../a.deb", "present"),
        ("/etc/passwd", "present"),
        ("a", "1 --allow-unauthenticated"),
        ("a", "1$(id)"),
        ("a", "1/unstable"),
    ] {
        for provider in ["apt", "dnf"] {
            let args = ["ensure", "package", name, ensure, "--provider", provider];
            let error = root.ccm(&args).error(2);
            assert!(error.contains("package"), "{name} {ensure}: {error}");
        }
    }
    let error = root.ccm(&["ensure", "package", "--", "-rf"]).error(2);
    assert!(error.contains("must not start with a hyphen"), "{error}");
    assert_eq!(root.counts(), [""; 0]);
}

/// Holds dpkg's lock until its standard input ends.
const HOLD: &str = "python3 -c 'import fcntl, sys
lock = open(\"/var/lib/dpkg/lock-frontend\", \"w\")
fcntl.lockf(lock, fcntl.LOCK_EX)
open(\"/var/tmp/held\", \"w\")
sys.stdin.read()'";

#[test]
fn a_held_lock_is_waited_for_and_then_named() {
    let root = system();
    // The pipe ends after the first try; the second finds the lock free, or waits until it is.
    let outcome = root.shell(&format!(
        "mkfifo /var/tmp/pipe
        {HOLD} </var/tmp/pipe &
        exec 3>/var/tmp/pipe
        while ! test -e /var/tmp/held; do sleep 0.1; done
        ccm ensure package demo --lock-timeout 1s --json >/var/tmp/first || true
        {{ sleep 2; exec 3>&-; }} &
        exec 3>&-
        ccm ensure package demo --json >/var/tmp/second"
    ));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let first: serde_json::Value = serde_json::from_str(&root.read("/var/tmp/first")).unwrap();
    let failure = first["error"][0].as_str().unwrap();
    assert!(
        failure.contains("lock (/var/lib/dpkg/lock-frontend), is another process using it?"),
        "{failure}"
    );
    let second: serde_json::Value = serde_json::from_str(&root.read("/var/tmp/second")).unwrap();
    assert_eq!(second["final_ensure"], "2:0.9-1");
}

#[test]
fn an_index_is_updated_once_and_only_when_it_should_be() {
    let root = system();
    root.deb("late", "1", "all", "", &[]);
    root.deb("later", "1", "all", "", &[]);
    root.use_apt_repository();
    root.count(&["apt-get"]);
    let updates = |root: &ScratchRoot| {
        let started = root.counts();
        started
            .iter()
            .filter(|line| line.contains(" update "))
            .count()
    };
    let many = "demo: {ensure: present, update_index: always}
late: {ensure: present, update_index: always}
later: {ensure: present, update_index: always}";
    assert_eq!(root.packages(many, &["--noop"]).outcomes(), ["changed"; 3]);
    assert_eq!(updates(&root), 0, "in noop");
    assert_eq!(root.packages(many, &[]).outcomes(), ["changed"; 3]);
    assert_eq!(updates(&root), 1, "for three packages");
    assert_eq!(root.packages(many, &[]).outcomes(), ["stable"; 3]);
    assert_eq!(updates(&root), 0, "when nothing changes");

    let stale = "demo: {ensure: '1.0-1', update_index: stale, index_max_age: 12h}";
    assert_eq!(root.packages(stale, &[]).outcomes(), ["changed"]);
    assert_eq!(updates(&root), 0, "when it is fresh");
    root.shell("touch -d '2 days ago' /var/lib/apt/lists/partial")
        .ok();
    let stale = stale.replace("1.0-1", "1.1-1");
    assert_eq!(root.packages(&stale, &[]).outcomes(), ["changed"]);
    assert_eq!(updates(&root), 1, "when it is stale");
}

#[test]
fn a_repository_that_is_down_is_named_and_tried_again() {
    let root = system();
    root.write(
        "/etc/apt/sources.list",
        "deb [trusted=yes] file:/srv/gone ./\n",
    );
    let entry = "demo: {ensure: latest, update_index: always}";
    root.fails(
        entry,
        "failed to update the package index, apt-get exited 100: ",
        "/srv/gone",
    );
    root.use_apt_repository();
    assert_eq!(root.packages(entry, &[]).outcomes(), ["changed"]);
}

#[test]
fn an_edited_configuration_file_survives_upgrade_removal_and_return() {
    let root = ScratchRoot::new();
    for version in ["1", "2"] {
        let files = [
            ("DEBIAN/conffiles", "/etc/conf.cfg\n"),
            ("etc/conf.cfg", version),
        ];
        root.deb("conf", version, "all", "", &files);
    }
    root.use_apt_repository();
    assert_eq!(
        root.packages("conf: {ensure: '1'}", &[]).outcomes(),
        ["changed"]
    );
    root.write("/etc/conf.cfg", "mine");
    assert_eq!(
        root.packages("conf: {ensure: latest}", &[]).outcomes(),
        ["changed"]
    );
    assert_eq!(root.read("/etc/conf.cfg"), "mine");
    let removed = root.packages("conf: {ensure: absent}", &[]);
    assert_eq!(removed.outcomes(), ["changed"]);
    assert_eq!(
        removed.event(0)["status"]["metadata"]["extended"]["status"],
        "config-files"
    );
    assert_eq!(
        root.packages("conf: {ensure: absent}", &[]).outcomes(),
        ["stable"]
    );
    assert_eq!(
        root.packages("conf: {ensure: present}", &[]).outcomes(),
        ["changed"]
    );
    assert_eq!(root.read("/etc/conf.cfg"), "mine");
}

#[test]
fn architectures_stand_side_by_side() {
    let root = ScratchRoot::new();
    root.add_multi();
    let both = "multi:amd64: {ensure: '1.0'}\nmulti:i386: {ensure: '1.0'}\nmulti: {ensure: '1.0'}";
    let both = both
        .replace("multi:", "'multi:")
        .replace(": {", "': {")
        .replace("'multi':", "multi:");
    let applied = root.packages(&both, &[]);
    assert_eq!(
        applied.outcomes(),
        ["changed", "changed", "stable"],
        "{:#}",
        applied.document
    );
    assert_eq!(applied.event(1)["status"]["metadata"]["arch"], "i386");
    assert_eq!(root.packages(&both, &[]).outcomes(), ["stable"; 3]);
    let one = root
        .ccm(&["ensure", "package", "multi", "1.0", "--json"])
        .json();
    assert_eq!(one["changed"], false);
    root.ccm(&["ensure", "package", "multi:i386", "absent"])
        .ok();
    let left = root.ccm(&["status", "package", "multi", "--json"]).json();
    assert_eq!(left["arch"], "amd64");
}

#[test]
fn a_package_file_is_managed_by_its_path() {
    let root = system();
    let old = "/srv/apt/demo_1.0-1_all.deb";
    let new = "/srv/apt/demo_1.1-1_all.deb";
    let rows = [
        (old, "present", "changed", "1.0-1"),
        (new, "present", "stable", "1.0-1"),
        (new, "latest", "changed", "1.1-1"),
        (old, "latest", "stable", "1.1-1"),
        (old, "1.0-1", "changed", "1.0-1"),
        (new, "absent", "changed", "absent"),
    ];
    APT.walk_files(&root, &rows);
    root.fails(
        "/srv/none.deb: {ensure: present}",
        "could not read package file /srv/none.deb: ",
        "",
    );
}
