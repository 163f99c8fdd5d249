//! What the tests of all package managers have in common: a package `demo` in several versions,
//! and tables that are walked row by row, in noop and for real.

use super::TestEnv;
use super::root::ScratchRoot;

/// A package manager under test.
pub struct Manager {
    /// What events call it.
    pub provider: &'static str,
    /// What a resource says to get it, behind its `ensure`.
    pub properties: &'static str,
    /// A script that prints the version of `demo` that is really installed; nothing for none.
    pub look: &'static str,
}

const LOOK_DPKG: &str =
    "dpkg-query -W -f='${Version} ${db:Status-Status}' demo 2>&1 | sed -n 's/ installed$//p'";

/// The host's own, so nothing has to be said.
pub const APT: Manager = Manager {
    provider: "apt",
    properties: "",
    look: LOOK_DPKG,
};

pub const DNF: Manager = Manager {
    provider: "dnf",
    properties: ", provider: dnf",
    look: "rpm -q demo >/dev/null || exit 0; rpm -q --queryformat '%{VERSION}-%{RELEASE}' demo",
};

/// CFEngine's own module.
pub const APT_GET: Manager = Manager {
    provider: "cfengine/apt_get",
    properties: ", provider: cfengine/apt_get",
    look: LOOK_DPKG,
};

impl Manager {
    /// Returns the version of `demo` that is really installed; `absent` for none.
    pub fn look(&self, root: &ScratchRoot) -> String {
        match root.shell(self.look).ok().trim() {
            "" => "absent".into(),
            version => version.into(),
        }
    }

    /// Walks a decision table: for each `ensure` what a noop run says, how a real run comes out,
    /// and which version is there then.
    pub fn walk(&self, root: &ScratchRoot, rows: &[(&str, &str, &str, &str)]) {
        for (ensure, message, outcome, version) in rows {
            let entry = format!("demo: {{ensure: '{ensure}'{}}}", self.properties);
            let noop = root.packages(&entry, &["--noop"]);
            let noop_message = noop.event(0)["noop_message"].as_str().unwrap_or_default();
            assert_eq!(noop_message, *message, "{ensure}");
            let expected = match *message {
                "" => "stable",
                _ => "changed",
            };
            assert_eq!(noop.outcomes(), [expected], "{ensure} in noop");
            let applied = root.packages(&entry, &[]);
            assert_eq!(applied.outcomes(), [*outcome], "{:#}", applied.event(0));
            self.check(root, applied.event(0), version);
        }
    }

    /// Walks a table of package files: for each path and `ensure` how a run comes out, and which
    /// version is there then.
    pub fn walk_files(&self, root: &ScratchRoot, rows: &[(&str, &str, &str, &str)]) {
        for (file, ensure, outcome, version) in rows {
            let entry = format!("{file}: {{ensure: '{ensure}'{}}}", self.properties);
            let applied = root.packages(&entry, &[]);
            let event = applied.event(0);
            assert_eq!(applied.outcomes(), [*outcome], "{file} {ensure}: {event:#}");
            self.check(root, event, version);
        }
    }

    fn check(&self, root: &ScratchRoot, event: &serde_json::Value, version: &str) {
        assert_eq!(event["final_ensure"], version, "{event:#}");
        assert_eq!(event["provider"], self.provider);
        assert_eq!(self.look(root), version, "{event:#}");
    }
}

impl ScratchRoot {
    /// Applies one package that must fail, with an error that begins and goes on like this.
    pub fn fails(&self, entry: &str, start: &str, part: &str) {
        let failure = self.packages(entry, &[]).failure(0);
        let is_told = failure.starts_with(start) && failure.contains(part);
        assert!(is_told, "{failure}");
    }

    /// Returns a system whose apt knows these versions of `demo`, for all architectures.
    pub fn with_debs(versions: &[&str]) -> Self {
        let root = Self::new();
        for version in versions {
            root.deb("demo", version, "all", "", &[]);
        }
        root.use_apt_repository();
        root
    }

    /// Returns a system whose dnf knows these versions of `demo`.
    pub fn with_rpms(versions: &[&str]) -> Self {
        let root = Self::new();
        for version in versions {
            root.rpm("demo", version, "");
        }
        root.use_rpm_repository();
        root
    }

    /// Adds to apt's repository a package in two versions and architectures that must be installed
    /// side by side in one version.
    pub fn add_multi(&self) {
        for (version, arch) in [
            ("1.0", "amd64"),
            ("2.0", "amd64"),
            ("1.0", "i386"),
            ("2.0", "i386"),
        ] {
            self.deb("multi", version, arch, "Multi-Arch: same\n", &[]);
        }
        self.shell("dpkg --add-architecture i386").ok();
        self.use_apt_repository();
    }
}

/// A package module that upgrades nginx to 1.24, with a database next to itself.
const NGINX_MODULE: &str = r#"#!/bin/sh
db=$(dirname "$0")/installed
touch "$db"
case $1 in
supports-api-version) echo 1 ;;
get-package-data) printf 'PackageType=repo\nName=nginx\n' ;;
list-installed) sed 's/\(.*\)=\(.*\)/Name=\1\nVersion=\2\nArchitecture=all/' "$db" ;;
repo-install) echo nginx=1.24 >"$db" ;;
esac
"#;

/// Writes a package module and its database, in which nginx 1.22 is installed, to a directory. Returns
/// the provider of packages that uses it.
pub fn write_nginx_module(env: &TestEnv, directory: &str) -> String {
    let module = env.write(&format!("{directory}/module"), NGINX_MODULE);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&module, mode).unwrap();
    env.write(&format!("{directory}/installed"), "nginx=1.22\n");
    format!("cfengine/{module}")
}
