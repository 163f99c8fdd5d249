//! Packages with CFEngine's own apt_get module, as Debian ships it.

use crate::support::root::ScratchRoot;

const MODULE: &str = "/usr/share/cfengine3/masterfiles/modules/packages/vendored/apt_get.mustache";

fn system() -> ScratchRoot {
    let root = ScratchRoot::new();
    for version in ["1.0-1", "1.1-1", "1.2-1"] {
        root.deb("demo", version, "all", "", &[]);
    }
    root.use_apt_repository();
    let module =
        std::fs::read_to_string(MODULE).expect("apt_get of cfengine3 (scripts/test installs it)");
    root.write_program("/var/lib/cfengine3/modules/packages/apt_get", module);
    root
}

#[test]
fn every_row_of_the_decision_table_holds() {
    let root = system();
    for (ensure, message, outcome, version) in [
        (
            "1.0-1",
            "Would have installed version 1.0-1",
            "changed",
            "1.0-1",
        ),
        ("present", "", "stable", "1.0-1"),
        ("1.1-1", "Would have upgraded to 1.1-1", "changed", "1.1-1"),
        (
            "1.0-1",
            "Would have downgraded to 1.0-1",
            "changed",
            "1.0-1",
        ),
        (
            "latest",
            "Would have upgraded to latest",
            "changed",
            "1.2-1",
        ),
        ("latest", "Would have upgraded to latest", "stable", "1.2-1"),
        ("absent", "Would have uninstalled", "changed", "absent"),
        ("absent", "", "stable", "absent"),
        (
            "present",
            "Would have installed version present",
            "changed",
            "1.2-1",
        ),
    ] {
        let entry = format!("demo: {{ensure: '{ensure}', provider: cfengine/apt_get}}");
        let noop = root.packages(&entry, &["--noop"]);
        let said = noop.event(0)["noop_message"].as_str().unwrap_or_default();
        assert_eq!(said, message, "{ensure}");
        let applied = root.packages(&entry, &[]);
        assert_eq!(applied.outcomes(), [outcome], "{:#}", applied.event(0));
        assert_eq!(applied.event(0)["final_ensure"], version, "{ensure}");
        assert_eq!(applied.event(0)["provider"], "cfengine/apt_get");
    }
}

#[test]
fn the_module_lists_what_dpkg_lists() {
    let root = system();
    let listed = root
        .shell("dpkg-query -W -f='${Package} ${Version}\\n'")
        .ok();
    let entries: String = listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| format!("{name}: {{ensure: '{version}', provider: cfengine}}\n"))
        .collect();
    root.count(&["python3"]);
    let applied = root.packages(&entries, &[]);
    let outcomes = applied.outcomes();
    assert_eq!(outcomes.len(), listed.lines().count());
    assert!(
        outcomes.iter().all(|outcome| *outcome == "stable"),
        "{:#}",
        applied.document
    );
    assert_eq!(
        root.counts().len(),
        2,
        "one for the API version, one for the list"
    );
}

#[test]
fn a_package_file_goes_through_the_module() {
    let root = system();
    let file = "/srv/apt/demo_1.1-1_all.deb";
    let entry = format!("{file}: {{ensure: present, provider: cfengine/apt_get}}");
    let applied = root.packages(&entry, &[]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.event(0));
    assert_eq!(applied.event(0)["final_ensure"], "1.1-1");
    assert_eq!(root.packages(&entry, &[]).outcomes(), ["stable"]);
}

#[test]
fn what_the_module_can_not_do_is_an_error_with_its_reason() {
    let root = system();
    let entry = "none: {ensure: present, provider: cfengine/apt_get}";
    let failure = root.packages(entry, &[]).failure(0);
    assert!(
        failure.starts_with(
            "failed to reach desired state: present: package is absent, expected present: "
        ),
        "{failure}"
    );
}
