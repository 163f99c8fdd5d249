//! Packages with CFEngine's own apt_get module, as Debian ships it.

use crate::support::packages::APT_GET;
use crate::support::root::ScratchRoot;

const MODULE: &str = "/usr/share/cfengine3/masterfiles/modules/packages/vendored/apt_get.mustache";

fn system() -> ScratchRoot {
    let root = ScratchRoot::with_debs(&["1.0-1", "1.1-1", "1.2-1"]);
    let module =
        std::fs::read_to_string(MODULE).expect("apt_get of cfengine3 (scripts/test installs it)");
    root.write_program("/var/lib/cfengine3/modules/packages/apt_get", module);
    root
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
    ];
    APT_GET.walk(&system(), &rows);
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
    let rows = [
        (file, "present", "changed", "1.1-1"),
        (file, "present", "stable", "1.1-1"),
        (file, "absent", "changed", "absent"),
    ];
    APT_GET.walk_files(&root, &rows);
}

#[test]
fn all_architectures_of_a_package_are_upgraded_in_one_call() {
    let root = system();
    root.add_multi();
    root.shell("apt-get install -q -y multi:amd64=1.0 multi:i386=1.0")
        .ok();
    root.count(&["apt-get"]);
    let applied = root.packages("multi: {ensure: latest, provider: cfengine/apt_get}", &[]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.event(0));
    let installs: Vec<String> = root
        .counts()
        .into_iter()
        .filter(|line| line.contains(" install "))
        .collect();
    assert_eq!(installs.len(), 1, "{installs:?}");
    let versions = root.shell("dpkg-query -W -f='${Version} ' multi").ok();
    assert_eq!(versions, "2.0 2.0 ");
}

#[test]
fn a_plain_cfengine_stands_for_the_module_that_was_chosen() {
    let root = system();
    root.write_program(
        "/opt/mine",
        root.read("/var/lib/cfengine3/modules/packages/apt_get"),
    );
    let provider = |variable: &str| {
        let script = format!("{variable} ccm status package demo --provider cfengine --json");
        root.shell(&script).json()["provider"].clone()
    };
    assert_eq!(provider(""), "cfengine/apt_get");
    assert_eq!(provider("CCM_CFENGINE_MODULE="), "cfengine/apt_get");
    assert_eq!(
        provider("CCM_CFENGINE_MODULE=/opt/mine"),
        "cfengine//opt/mine"
    );
    let script = "CCM_CFENGINE_MODULE=/opt/mine ccm ensure package demo --provider cfengine --json";
    let event = root.shell(script).json();
    assert_eq!(event["provider"], "cfengine//opt/mine");
    let applied = root.packages(
        "demo: {ensure: absent, provider: cfengine}",
        &["--cfengine-module", "/opt/mine"],
    );
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.event(0));
    let failure = root
        .shell("CCM_CFENGINE_MODULE=none ccm status package demo --provider cfengine")
        .error(1);
    assert!(failure.contains("provider is not manageable"), "{failure}");
}

#[test]
fn what_the_module_can_not_do_is_an_error_with_its_reason() {
    let root = system();
    let entry = "none: {ensure: present, provider: cfengine/apt_get}";
    root.fails(
        entry,
        "failed to reach desired state: present: package is absent, expected present: ",
        "",
    );
}
