//! The packages that `scripts/package` builds, on real dpkg, real dnf and a booted systemd: install,
//! enroll, upgrade, remove and purge.

mod approver_unit;
mod container;
mod controller_unit;
mod lab;
mod new_node;
mod release_files;
mod upgrade;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::poll::wait_for;
use crate::support::root::ScratchRoot;
use crate::support::rpm::SHELL;
use crate::support::systemd::{SystemdHost, systemd_host};

const OLD: &str = "0.0.9";
const NEW: &str = env!("CARGO_PKG_VERSION");

/// dpkg needs the programs of the administrator.
const SBIN: &str = "export PATH=/usr/sbin:/sbin:$PATH;";

const CONFIG: &str = "/etc/choria/ccm/agent.yaml";

/// The program of the package. The program under test is also at the start of the PATH of hosts.
const INSTALLED: &str = "/usr/bin/ccm";

/// Last line of the configuration that the old version has.
const OLD_CONFIG: &str = "# Shipped with the old version.\n";

/// Builds packages of the program under test in two versions, once for all tests.
fn packages() -> &'static Path {
    static PACKAGES: OnceLock<PathBuf> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let dist = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let _ = std::fs::remove_dir_all(&dist);
        std::fs::create_dir_all(&dist).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let new_config = root.join("packaging/agent.yaml");
        let old_config = dist.join("agent.yaml");
        let text = std::fs::read_to_string(&new_config).unwrap();
        std::fs::write(&old_config, text + OLD_CONFIG).unwrap();
        for (version, config) in [(OLD, &old_config), (NEW, &new_config)] {
            let output = Command::new(root.join("scripts/package"))
                .args(["--bin", env!("CARGO_BIN_EXE_ccm"), "--dist"])
                .arg(&dist)
                .args(["--package-version", version, "--agent-config"])
                .arg(config)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        dist
    })
}

fn deb(version: &str) -> PathBuf {
    packages().join(format!("ccm-fleet_{version}-1_amd64.deb"))
}

fn rpm(version: &str) -> PathBuf {
    packages().join(format!("ccm-fleet-{version}-1.x86_64.rpm"))
}

/// Returns a system with both versions of a package below /root.
fn system(package: fn(&str) -> PathBuf, name: &str) -> ScratchRoot {
    let root = ScratchRoot::new();
    for version in [OLD, NEW] {
        let to = root.path(&format!("/root/{version}.{name}"));
        std::fs::copy(package(version), to).unwrap();
    }
    root
}

fn deb_system() -> ScratchRoot {
    system(deb, "deb")
}

fn rpm_system() -> ScratchRoot {
    let root = system(rpm, "rpm");
    root.rpm("base", "1.0-1", SHELL);
    root.use_rpm_repository();
    root
}

/// Prints mode and owner of the files that a package must have. Debian and rpm systems have completions of
/// zsh in different directories.
const LIST: &str = "stat -c '%a %U:%G %n' /usr/bin/ccm /etc/choria/ccm/agent.yaml \
    /etc/choria/ccm/controller.env /usr/lib/tmpfiles.d/ccm.conf \
    /usr/share/bash-completion/completions/ccm /usr/share/fish/vendor_completions.d/ccm.fish \
    /usr/share/zsh/ZSH/_ccm \
    /usr/share/man/man1/ccm.1.gz /usr/share/man/man1/ccm-fleet-rollout-start.1.gz \
    /usr/share/ccm-fleet/prometheus/alerts.yaml /usr/share/ccm-fleet/grafana/ccm-fleet.json \
    /usr/share/ccm-fleet/nats/agent.conf /usr/share/ccm-fleet/schemas/manifest.json \
    /usr/share/ccm-fleet/schemas/hiera_data.json /usr/share/ccm-fleet/schemas/agent_config.json";

const LISTED: &str = "755 root:root /usr/bin/ccm
640 root:root /etc/choria/ccm/agent.yaml
640 root:root /etc/choria/ccm/controller.env
644 root:root /usr/lib/tmpfiles.d/ccm.conf
644 root:root /usr/share/bash-completion/completions/ccm
644 root:root /usr/share/fish/vendor_completions.d/ccm.fish
644 root:root /usr/share/zsh/ZSH/_ccm
644 root:root /usr/share/man/man1/ccm.1.gz
644 root:root /usr/share/man/man1/ccm-fleet-rollout-start.1.gz
644 root:root /usr/share/ccm-fleet/prometheus/alerts.yaml
644 root:root /usr/share/ccm-fleet/grafana/ccm-fleet.json
644 root:root /usr/share/ccm-fleet/nats/agent.conf
644 root:root /usr/share/ccm-fleet/schemas/manifest.json
644 root:root /usr/share/ccm-fleet/schemas/hiera_data.json
644 root:root /usr/share/ccm-fleet/schemas/agent_config.json
";

/// Asserts that a system has every file of the package.
fn assert_installed(root: &ScratchRoot, zsh: &str) {
    let listed = root.shell_without_ccm(&LIST.replace("ZSH", zsh)).ok();
    assert_eq!(listed, LISTED.replace("ZSH", zsh));
}

#[test]
fn a_deb_installs_the_program_its_configuration_and_its_documentation() {
    let root = deb_system();
    root.shell_without_ccm(&format!("dpkg -i /root/{NEW}.deb"))
        .ok();
    assert_installed(&root, "vendor-completions");
    let version = root.shell_without_ccm("ccm --version").ok();
    assert!(version.starts_with(&format!("ccm {NEW} (")), "{version}");
    // Completion scripts find the program in PATH, not where it was built.
    let script = root.read("/usr/share/bash-completion/completions/ccm");
    assert!(!script.contains("target/"), "{script}");
}

#[test]
fn removing_a_deb_keeps_configuration_and_state_and_purging_removes_both() {
    let root = deb_system();
    root.shell_without_ccm(&format!(
        "dpkg -i /root/{NEW}.deb
         cd /etc/choria/ccm
         touch agent.creds agent.seed ca.pem nats-context.json
         mkdir -p source /var/lib/choria/ccm/spool
         dpkg -r ccm-fleet"
    ))
    .ok();
    let left = "ls -d /usr/bin/ccm /etc/choria/ccm /var/lib/choria/ccm 2>/dev/null || true";
    assert_eq!(
        root.shell_without_ccm(left).ok(),
        "/etc/choria/ccm\n/var/lib/choria/ccm\n"
    );
    root.shell_without_ccm("dpkg -P ccm-fleet").ok();
    assert_eq!(root.shell_without_ccm(left).ok(), "");
    assert_eq!(root.shell_without_ccm("ls -d /etc/choria || true").ok(), "");
}

#[test]
fn purging_a_deb_keeps_the_keys_of_the_fleet_and_files_of_the_administrator() {
    let root = deb_system();
    root.shell_without_ccm(&format!(
        "dpkg -i /root/{NEW}.deb
         ccm fleet trust init /etc/choria/ccm/trust --listen 127.0.0.1:4222
         touch /etc/choria/ccm/agent.creds /etc/choria/ccm/page-access.yaml"
    ))
    .ok();
    let list = "cd /etc/choria/ccm; ls -A; find trust -type f | sort | xargs sha256sum";
    let before = root.shell_without_ccm(list).ok();
    let purged = root.shell_without_ccm("dpkg -P ccm-fleet");
    assert_eq!(purged.code, Some(0), "{purged:?}");
    for kept in [
        "/etc/choria/ccm/trust (the keys",
        "/etc/choria/ccm/page-access.yaml",
    ] {
        assert!(purged.stderr.contains(kept), "{purged:?}");
    }
    let after = root.shell_without_ccm(list).ok();
    let removed = ["agent.creds", "agent.yaml", "controller.env"];
    let wanted: Vec<&str> = before
        .lines()
        .filter(|line| !removed.contains(line))
        .collect();
    assert_eq!(after.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn upgrading_a_deb_with_the_apt_provider_keeps_a_changed_configuration() {
    let root = deb_system();
    for version in [OLD, NEW] {
        std::fs::copy(deb(version), root.path(&format!("/srv/apt/{version}.deb"))).unwrap();
    }
    root.use_apt_repository();
    let manifest =
        format!("ccm:\n  resources:\n    - package:\n        - ccm-fleet: {{ensure: {NEW}-1}}\n");
    root.write("/root/upgrade.yaml", manifest);
    root.shell_without_ccm(&format!(
        "apt-get install -q -y ccm-fleet={OLD}-1; echo 'noop: true' >>{CONFIG}"
    ))
    .ok();
    let old = root.read(CONFIG);
    assert!(old.ends_with(&format!("{OLD_CONFIG}noop: true\n")), "{old}");
    root.shell_without_ccm("ccm apply /root/upgrade.yaml").ok();
    let installed = root.shell_without_ccm("dpkg-query -W -f '${Version}' ccm-fleet");
    assert_eq!(installed.ok(), format!("{NEW}-1"));
    assert_eq!(root.read(CONFIG), old);
    let new = root.read(&format!("{CONFIG}.dpkg-dist"));
    assert_eq!(new, include_str!("../../packaging/agent.yaml"));
}

#[test]
fn an_rpm_installs_the_same_files() {
    let root = rpm_system();
    root.shell_without_ccm(&format!("dnf -q -y install /root/{NEW}.rpm"))
        .ok();
    assert_installed(&root, "site-functions");
}

#[test]
fn upgrading_an_rpm_keeps_a_changed_configuration_and_removing_saves_it() {
    let root = rpm_system();
    root.shell_without_ccm(&format!(
        "dnf -q -y install /root/{OLD}.rpm; echo 'noop: true' >>{CONFIG}"
    ))
    .ok();
    root.shell_without_ccm(&format!("dnf -q -y install /root/{NEW}.rpm"))
        .ok();
    let installed = root.shell_without_ccm("rpm -q ccm-fleet").ok();
    assert_eq!(installed, format!("ccm-fleet-{NEW}-1.x86_64\n"));
    let kept = root.read(CONFIG);
    assert!(
        kept.ends_with(&format!("{OLD_CONFIG}noop: true\n")),
        "{kept}"
    );
    let new = root.read(&format!("{CONFIG}.rpmnew"));
    assert_eq!(new, include_str!("../../packaging/agent.yaml"));
    root.shell_without_ccm("dnf -q -y remove ccm-fleet").ok();
    let saved = root.shell_without_ccm(&format!("tail -1 {CONFIG}.rpmsave"));
    assert_eq!(saved.ok(), "noop: true\n");
}

/// Removes what other tests left of the program on a booted host, whatever way they ended.
fn remove_ccm(host: &SystemdHost) {
    host.sh(&format!(
        "{SBIN} systemctl stop ccm-agent ccm-enroll ccm-controller nats-server 2>/dev/null || true
         dpkg -P ccm-fleet 2>/dev/null || true
         if command -v rpm >/dev/null; then rpm -e ccm-fleet shell base 2>/dev/null || true; fi
         rm -f /usr/bin/ccm /etc/systemd/system/ccm-agent.service
         rm -rf /etc/choria /var/lib/choria /etc/systemd/system/ccm-*.service.d
         rm -f /root/managed /root/before /root/slept /root/after
         systemctl daemon-reload"
    ));
}

/// Puts both versions of the .deb on the booted host; nothing of the package is installed yet.
fn copy_debs(host: &SystemdHost) {
    for version in [OLD, NEW] {
        host.install(&deb(version), &format!("/root/{version}.deb"));
    }
    remove_ccm(host);
}

#[test]
fn the_installed_unit_starts_on_request_and_an_upgrade_restarts_it() {
    let host = systemd_host();
    copy_debs(&host);
    host.sh(&format!("{SBIN} dpkg -i /root/{OLD}.deb"));
    // Installing starts nothing: a node without configuration has nothing to do.
    assert_eq!(host.word("is-enabled", "ccm-agent"), "disabled");
    assert_eq!(host.word("is-active", "ccm-agent"), "inactive");
    for unit in [
        "ccm-agent",
        "ccm-agent-restart",
        "ccm-controller",
        "ccm-enroll",
    ] {
        let file = format!("/lib/systemd/system/{unit}.service");
        let verified = host.run(&["systemd-analyze", "verify", "--man=no", &file]);
        assert_eq!(verified.stderr, "", "{unit}");
    }
    host.write(
        CONFIG,
        "identity: packaged.lab\nservers: [\"nats://127.0.0.1:4999\"]\nmanifests: [/root/motd.yaml]\n\
         splay: false\ninterval: 30s\n",
    );
    host.sh(&format!("chmod 0640 {CONFIG}"));
    host.write(
        "/root/motd.yaml",
        "ccm:\n  resources:\n    - file:\n        - /root/motd:\n            ensure: present\n            \
         content: installed\n            owner: root\n            group: root\n            mode: '0644'\n",
    );
    host.sh("systemctl enable --now ccm-agent");
    wait_for("the agent applies its manifest", || {
        host.exists("/root/motd").then_some(())
    });
    let before = host.property("ccm-agent", "MainPID");
    host.sh(&format!("{SBIN} dpkg --force-confold -i /root/{NEW}.deb"));
    assert_eq!(host.word("is-active", "ccm-agent"), "active");
    assert_ne!(host.property("ccm-agent", "MainPID"), before);
    host.sh(&format!(
        "{SBIN} dpkg -P ccm-fleet; rm -f /root/motd /root/motd.yaml"
    ));
    assert_eq!(host.word("is-active", "ccm-agent"), "inactive");
    assert!(!host.exists("/etc/choria/ccm"));
}
