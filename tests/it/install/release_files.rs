//! What `scripts/package` publishes beside the packages: a tarball, an SBOM and checksums.

use std::process::Command;

use serde_json::Value;

use super::{NEW, packages};

/// Returns what a command printed that ran in the directory of the packages.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(packages())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the name of a file for the platform of this machine.
fn name(extension: &str) -> String {
    let arch = std::env::consts::ARCH;
    format!("ccm-fleet-{NEW}-{arch}-linux-gnu.{extension}")
}

#[test]
fn checksums_name_every_file_and_are_right() {
    let checked = run("sha256sum", &["--check", "SHA256SUMS"]);
    let mut checked: Vec<&str> = checked
        .lines()
        .map(|line| line.strip_suffix(": OK").unwrap())
        .collect();
    checked.sort_unstable();
    let files = std::fs::read_dir(packages()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|it| it.starts_with("ccm-fleet")).collect();
    names.sort_unstable();
    assert_eq!(checked, names);
    // Of two versions: a .deb, an .rpm, a tarball and an SBOM.
    assert_eq!(names.len(), 8, "{names:?}");
}

#[test]
fn the_sbom_names_the_program_and_its_dependencies() {
    let text = std::fs::read_to_string(packages().join(name("cdx.json"))).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["bomFormat"], "CycloneDX");
    let program = &document["metadata"]["component"];
    assert_eq!(
        (&program["name"], &program["version"]),
        (&"ccm".into(), &NEW.into())
    );
    let components = document["components"].as_array().unwrap();
    for dependency in ["ccm-fleet", "async-nats", "rustls"] {
        let is_it = |component: &Value| component["name"] == dependency;
        assert!(components.iter().any(is_it), "{dependency}");
    }
}

#[test]
fn the_tarball_contains_the_program_with_its_version_and_all_other_files() {
    let directory = tempfile::tempdir().unwrap();
    let archive = name("tar.gz");
    run(
        "tar",
        &["-xzf", &archive, "-C", directory.path().to_str().unwrap()],
    );
    let tree = directory.path().join(archive.trim_end_matches(".tar.gz"));
    let packed = run(tree.join("bin/ccm").to_str().unwrap(), &["--version"]);
    assert_eq!(packed, run(env!("CARGO_BIN_EXE_ccm"), &["--version"]));
    for file in [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "share/agent.yaml",
        "share/controller.env",
        "share/man/ccm.1.gz",
        "share/completions/ccm.zsh",
        "share/systemd/ccm-agent.service",
        "share/nats/agent.conf",
        "share/prometheus/alerts.yaml",
        "share/grafana/ccm-fleet.json",
        "share/schemas/manifest.json",
    ] {
        assert!(tree.join(file).is_file(), "{file}");
    }
}

#[test]
fn every_documented_command_has_a_manual_page() {
    let listed = run("tar", &["-tzf", &name("tar.gz")]);
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/commands");
    let mut commands = 0;
    for file in std::fs::read_dir(reference).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let names = headings.map(|line| line.trim_start_matches('#').trim());
        for command in names.filter(|name| *name == "ccm" || name.starts_with("ccm ")) {
            let page = format!("/share/man/{}.1.gz\n", command.replace(' ', "-"));
            assert!(listed.contains(&page), "{page}");
            commands += 1;
        }
    }
    assert!(commands > 100, "{commands}");
}
