//! Packages with the real dnf and rpm.

use crate::support::root::ScratchRoot;

/// A system whose dnf knows four versions of `demo`; the one with an epoch is the latest.
fn system() -> ScratchRoot {
    let root = ScratchRoot::new();
    for version in ["1.0-1", "1.1~rc1-1", "1.1-1", "2:0.9-1"] {
        root.rpm("demo", version);
    }
    root.use_rpm_repository();
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
    ] {
        let entry = format!("demo: {{ensure: '{ensure}', provider: dnf}}");
        let noop = root.packages(&entry, &["--noop"]);
        let said = noop.event(0)["noop_message"].as_str().unwrap_or_default();
        assert_eq!(said, message, "{ensure}");
        let applied = root.packages(&entry, &[]);
        assert_eq!(applied.outcomes(), [outcome], "{:#}", applied.event(0));
        assert_eq!(applied.event(0)["final_ensure"], version, "{ensure}");
        assert_eq!(applied.event(0)["provider"], "dnf");
        let real = root
            .shell("rpm -q --queryformat '%{VERSION}-%{RELEASE}' demo || true")
            .ok();
        match version {
            "absent" => assert!(real.contains("is not installed"), "{real}"),
            version => assert_eq!(real, version),
        }
    }
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
    let failure = root
        .packages("none: {ensure: present, provider: dnf}", &[])
        .failure(0);
    assert!(
        failure.starts_with("failed to Install package \"none\", dnf exited 1: "),
        "{failure}"
    );
    assert!(
        failure.contains("Unable to find a match: none"),
        "{failure}"
    );
    let failure = root
        .packages("demo: {ensure: '9.9', provider: dnf}", &[])
        .failure(0);
    assert!(
        failure.contains("Unable to find a match: demo-9.9"),
        "{failure}"
    );
    root.write(
        "/etc/yum.repos.d/local.repo",
        "[local]\nname=local\nbaseurl=file:///srv/gone\ngpgcheck=0\nskip_if_unavailable=0\n",
    );
    let entry = "demo: {ensure: latest, provider: dnf, update_index: always}";
    let failure = root.packages(entry, &[]).failure(0);
    assert!(
        failure.starts_with("failed to update the package index, dnf exited 1: ")
            && failure.contains("local"),
        "{failure}"
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
    for (file, ensure, outcome, version) in [
        (old, "present", "changed", "1.0-1"),
        (new, "latest", "changed", "1.1-1"),
        (old, "1.0-1", "changed", "1.0-1"),
        (new, "absent", "changed", "absent"),
    ] {
        let applied = root.packages(
            &format!("{file}: {{ensure: '{ensure}', provider: dnf}}"),
            &[],
        );
        assert_eq!(
            applied.outcomes(),
            [outcome],
            "{file} {ensure}: {:#}",
            applied.event(0)
        );
        assert_eq!(applied.event(0)["final_ensure"], version);
    }
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
