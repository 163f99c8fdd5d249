//! The package module that we are: every command by itself on real apt and dnf, and the real
//! cf-agent making promises with it.

use crate::support::Outcome;
use crate::support::packages::{APT, DNF, Manager};
use crate::support::root::ScratchRoot;

impl ScratchRoot {
    /// Runs one command of our module.
    fn module(&self, flags: &str, command: &str, request: &str) -> Outcome {
        self.write("/root/request", request);
        self.shell(&format!(
            "ccm cfengine module {flags} {command} </root/request"
        ))
    }

    /// Writes the wrapper, and one before it that counts the commands; see `counts`.
    fn install_module(&self, flags: &str) {
        let script = format!("mkdir /opt/real && ccm cfengine install --dir /opt/real {flags}");
        assert_eq!(self.shell(&script).ok(), "/opt/real/ccm\n");
        self.write_program(
            "/opt/counted",
            "#!/bin/sh\nprintf '%s\\n' \"$1\" >>/var/tmp/started\nexec /opt/real/ccm \"$@\"\n",
        );
    }

    /// Lets the real agent keep promises, and returns what it said.
    fn promise(&self, promises: &str) -> String {
        self.write(
            "/root/policy.cf",
            format!(
                "body common control {{ bundlesequence => {{ \"packages\" }}; }}
body package_module ours {{
    query_installed_ifelapsed => \"0\";
    query_updates_ifelapsed => \"0\";
    module_path => \"/opt/counted\";
}}
bundle agent packages {{ packages: {promises} }}\n"
            ),
        );
        let script = "cd /root && chmod 600 policy.cf && cf-agent -KI -f ./policy.cf 2>&1";
        self.shell(script).ok()
    }

    /// Keeps promises about `demo` one after the other, each twice: the first run makes it so and
    /// names the commands that did it, the second finds nothing to do.
    fn keep(&self, manager: &Manager, rows: &[(&str, &str, &str)]) {
        for (promise, version, change) in rows {
            let promise = format!("{promise}, package_module => ours;");
            for expected in [*change, ""] {
                self.counts();
                let output = self.promise(&promise);
                assert!(!output.contains("error:"), "{promise} {output}");
                let changes = ["repo-install", "file-install", "remove"];
                let calls = self.counts();
                let changed: Vec<&str> = calls
                    .iter()
                    .map(String::as_str)
                    .filter(|call| changes.contains(call))
                    .collect();
                assert_eq!(changed.join(" "), expected, "{promise} {output}");
                assert_eq!(manager.look(self), *version, "{promise} {output}");
            }
        }
    }
}

const VERSIONS: [&str; 3] = ["1.0-1", "1.1-1", "2:0.9-1"];

#[test]
fn the_real_agent_keeps_its_promises_with_apt() {
    let root = ScratchRoot::with_debs(&VERSIONS);
    root.install_module("");
    let file = r#""/srv/apt/demo_1.1-1_all.deb" policy => "present""#;
    root.keep(
        &APT,
        &[
            (r#""demo" policy => "present""#, "2:0.9-1", "repo-install"),
            (r#""demo" policy => "absent""#, "absent", "remove"),
            (
                r#""demo" policy => "present", version => "1.0-1""#,
                "1.0-1",
                "repo-install",
            ),
            (
                r#""demo" policy => "present", version => "latest""#,
                "2:0.9-1",
                "repo-install",
            ),
            (
                r#""demo" policy => "present", version => "1.1-1", architecture => "all""#,
                "1.1-1",
                "repo-install",
            ),
            (r#""demo" policy => "absent", version => "1.1-1""#, "absent", "remove"),
            (file, "1.1-1", "file-install"),
            (
                r#""demo" policy => "present", version => "latest", options => { "-o", "APT::Get::AllowUnauthenticated=1" }"#,
                "2:0.9-1",
                "repo-install",
            ),
            (r#""demo" policy => "absent""#, "absent", "remove"),
            (
                r#""demo" policy => "present", version => "latest""#,
                "2:0.9-1",
                "repo-install",
            ),
        ],
    );
}

#[test]
fn the_real_agent_keeps_its_promises_with_dnf() {
    let root = ScratchRoot::with_rpms(&VERSIONS);
    root.install_module("--provider dnf");
    let file = r#""/srv/rpm/noarch/demo-1.0-1.noarch.rpm" policy => "present""#;
    root.keep(
        &DNF,
        &[
            (r#""demo" policy => "present""#, "0.9-1", "repo-install"),
            (
                r#""demo" policy => "present", version => "1.0-1""#,
                "1.0-1",
                "repo-install",
            ),
            (
                r#""demo" policy => "present", version => "latest""#,
                "0.9-1",
                "repo-install",
            ),
            (r#""demo" policy => "absent""#, "absent", "remove"),
            (file, "1.0-1", "file-install"),
            (
                r#""demo" policy => "present", version => "2:0.9-1", architecture => "noarch""#,
                "0.9-1",
                "repo-install",
            ),
        ],
    );
}

#[test]
fn the_real_agent_upgrades_all_architectures_at_once() {
    let root = ScratchRoot::new();
    root.add_multi();
    root.install_module("");
    root.shell("apt-get install -q -y multi:amd64=1.0 multi:i386=1.0")
        .ok();
    root.count(&["apt-get"]);
    let latest = r#""multi" policy => "present", version => "latest", package_module => ours;"#;
    let output = root.promise(latest);
    assert!(!output.contains("error:"), "{output}");
    let installs = root
        .counts()
        .into_iter()
        .filter(|line| line.contains(" install "))
        .count();
    assert_eq!(installs, 1, "{output}");
    let versions = root.shell("dpkg-query -W -f='${Version} ' multi").ok();
    assert_eq!(versions, "2.0 2.0 ");
    let one = r#""multi" policy => "absent", architecture => "i386", package_module => ours;"#;
    let output = root.promise(one);
    let left = "dpkg-query -W -f='${Architecture} ${db:Status-Status} ' multi";
    assert_eq!(root.shell(left).ok(), "amd64 installed ", "{output}");
}

#[test]
fn the_real_agent_logs_why_a_promise_was_not_kept() {
    let root = ScratchRoot::with_debs(&VERSIONS);
    let script = "#!/bin/sh\necho no repair yet >&2\nexit 3\n";
    root.deb("broken", "1.0", "all", "", &[("DEBIAN/postinst", script)]);
    root.use_apt_repository();
    root.install_module("");
    for (promise, reason) in [
        (
            r#""none" policy => "present""#,
            "ErrorMessage=failed to install package \"none\", apt-get exited 100: E: Unable to locate package none",
        ),
        (
            r#""demo" policy => "present", version => "9.9""#,
            "E: Version '9.9' for 'demo' was not found",
        ),
        (
            r#""/srv/none.deb" policy => "present""#,
            "ErrorMessage=could not read package file /srv/none.deb",
        ),
        (
            r#""demo:amd64" policy => "present""#,
            "ErrorMessage=name the architecture in the promise's architecture",
        ),
        (r#""broken" policy => "present""#, "no repair yet"),
    ] {
        let output = root.promise(&format!("{promise}, package_module => ours;"));
        assert!(output.contains("error: "), "{promise}: {output}");
        assert!(output.contains(reason), "{promise}: {output}");
    }
}

#[test]
fn every_command_answers_on_real_apt() {
    let root = ScratchRoot::with_debs(&VERSIONS);
    root.add_multi();
    let module = |command: &str, request: &str| root.module("", command, request).ok();
    assert_eq!(module("supports-api-version", ""), "1\n");
    assert_eq!(
        module("get-package-data", "File=demo\nVersion=latest\n"),
        "PackageType=repo\nName=demo\n"
    );
    assert_eq!(
        module("get-package-data", "File=/srv/apt/multi_2.0_i386.deb\n"),
        "PackageType=file\nName=multi\nVersion=2.0\nArchitecture=i386\n"
    );
    let request = "Name=demo\nVersion=1.0-1\nName=multi\nVersion=1.0\nArchitecture=i386\n\
                   Name=multi\nVersion=1.0\nArchitecture=amd64\n";
    assert_eq!(module("repo-install", request), "");
    let updates = "Name=demo\nVersion=2:0.9-1\nArchitecture=all\n";
    let listed = module("list-updates", "");
    assert!(listed.contains(updates), "{listed}");
    assert_eq!(
        listed.matches("Name=multi\nVersion=2.0\n").count(),
        2,
        "{listed}"
    );
    assert_eq!(module("list-updates-local", ""), listed);
    let format = r"Name=${Package}\nVersion=${Version}\nArchitecture=${Architecture}\n";
    let known = root.shell(&format!("dpkg-query -W -f='{format}'")).ok();
    assert_eq!(module("list-installed", "options=anything\n"), known);
    assert_eq!(module("repo-install", "Name=demo\nName=multi\n"), "");
    assert_eq!(module("list-updates-local", ""), "");
    let request = "File=/srv/apt/demo_1.1-1_all.deb\n";
    assert_eq!(module("file-install", request), "");
    assert_eq!(APT.look(&root), "1.1-1");
    assert_eq!(module("remove", "Name=demo\nVersion=9\n"), "");
    assert_eq!(APT.look(&root), "1.1-1");
    assert_eq!(module("remove", "Name=demo\nName=multi\n"), "");
    let left = module("list-installed", "");
    assert!(
        !left.contains("Name=demo") && !left.contains("Name=multi"),
        "{left}"
    );
    let error = module("repo-install", "Name=demo\nName=none\n");
    assert_eq!(
        error,
        "ErrorMessage=failed to install package \"demo, none\", apt-get exited 100: E: Unable to locate package none\n"
    );
    root.module("", "list-everything", "").error(2);
}

#[test]
fn every_command_answers_on_real_dnf() {
    let root = ScratchRoot::with_rpms(&VERSIONS);
    root.rpm("other", "1-1", "");
    root.use_rpm_repository();
    let module = |command: &str, request: &str| {
        let flags = "--provider dnf";
        root.module(flags, command, request).ok()
    };
    assert_eq!(module("supports-api-version", ""), "1\n");
    assert_eq!(module("list-installed", ""), "");
    assert_eq!(
        module(
            "get-package-data",
            "File=/srv/rpm/noarch/demo-0.9-1.noarch.rpm\n"
        ),
        "PackageType=file\nName=demo\nVersion=2:0.9-1\nArchitecture=noarch\n"
    );
    assert_eq!(
        module("get-package-data", "File=demo\n"),
        "PackageType=repo\nName=demo\n"
    );
    assert_eq!(module("list-updates-local", ""), "", "without a cache");
    assert_eq!(
        module("repo-install", "Name=demo\nVersion=1.1-1\nName=other\n"),
        ""
    );
    let others = "Name=other\nVersion=1-1\nArchitecture=noarch\n";
    let listed = module("list-installed", "");
    assert!(
        listed.contains("Name=demo\nVersion=1.1-1\nArchitecture=noarch\n")
            && listed.contains(others),
        "{listed}"
    );
    let updates = "Name=demo\nVersion=2:0.9-1\nArchitecture=noarch\n";
    assert_eq!(module("list-updates", ""), updates);
    assert_eq!(module("list-updates-local", ""), updates);
    assert_eq!(module("repo-install", "Name=demo\nVersion=1.0-1\n"), "");
    assert_eq!(DNF.look(&root), "1.0-1", "an older version");
    assert_eq!(module("repo-install", "Name=demo\n"), "");
    assert_eq!(DNF.look(&root), "0.9-1");
    assert_eq!(module("list-updates-local", ""), "");
    let request = "File=/srv/rpm/noarch/demo-1.1-1.noarch.rpm\n";
    assert_eq!(module("file-install", request), "");
    assert_eq!(DNF.look(&root), "1.1-1", "an older file");
    assert_eq!(module("remove", "Name=demo\n"), "");
    assert_eq!(module("list-installed", ""), others);
    let error = module("repo-install", "Name=none\n");
    assert!(
        error.starts_with(
            "Name=none\nErrorMessage=failed to Install package \"none\", dnf exited 1: "
        ) && error.contains("Unable to find a match: none")
            && error.lines().count() == 2,
        "{error}"
    );
}
