//! The reason for the whole: a package, its configuration and its service, from nothing to
//! running, and from change to change with one restart each.

use crate::support::deb::Deb;
use crate::support::systemd::{SystemdHost, systemd_host};

/// Notes each start with the configuration it found, or stays.
const PROGRAM: &str = "#!/bin/sh\n[ \"$1\" = note ] || exec sleep infinity\n\
                       cat /etc/greeter.conf >>/var/tmp/greeter.starts\n";
/// Has noted its start before it counts as started.
const UNIT: &str = "[Service]\nExecStartPre=/usr/bin/greeter note\nExecStart=/usr/bin/greeter\n\
                    [Install]\nWantedBy=multi-user.target\n";
/// Starts the service at the first installation, as packages of Debian do.
const POSTINST: &str = "#!/bin/sh\nset -e\nsystemctl daemon-reload\n\
                        if [ -z \"$2\" ]; then systemctl start greeter; fi\n";

fn greeter(version: &str) -> Deb<'_> {
    Deb {
        name: "greeter",
        version,
        arch: "all",
        control: "",
        files: &[
            ("DEBIAN/conffiles", "/etc/greeter.conf\n"),
            ("DEBIAN/postinst", POSTINST),
            ("etc/greeter.conf", "as packaged\n"),
            ("usr/bin/greeter", PROGRAM),
            ("usr/lib/systemd/system/greeter.service", UNIT),
        ],
    }
}

/// Returns the three of them, the service listening to both others.
fn entries(version: &str, configuration: &str) -> String {
    format!(
        "- package: {{name: greeter, ensure: '{version}'}}
- file: {{name: /etc/greeter.conf, ensure: present, content: \"{configuration}\\n\", owner: root, group: root, mode: '0644', require: ['package#greeter']}}
- service: {{name: greeter, enable: true, require: ['package#greeter'], subscribe: ['package#greeter', 'file#/etc/greeter.conf']}}
"
    )
}

/// Returns the configuration that each start found, and which start is the one that runs now.
fn starts(host: &SystemdHost) -> (Vec<String>, String) {
    let starts = host.read("/var/tmp/greeter.starts");
    (
        starts.lines().map(Into::into).collect(),
        host.property("greeter", "InvocationID"),
    )
}

#[test]
fn a_package_its_file_and_its_service_change_together_with_one_restart() {
    let host = systemd_host();
    host.use_apt_repository(&[greeter("1.0"), greeter("2.0")]);

    // It was started by its package, and once more because its configuration is another.
    let first = entries("1.0", "first");
    let applied = host.apply(&first, &[]);
    assert_eq!(
        applied.outcomes(),
        ["changed", "changed", "refreshed"],
        "{applied:#?}"
    );
    let (found, running) = starts(&host);
    assert_eq!(found, ["as packaged", "first"]);
    assert_eq!(host.word("is-enabled", "greeter"), "enabled");

    // Nothing to do, nothing done.
    for flags in [&[][..], &["--noop"]] {
        assert_eq!(host.apply(&first, flags).outcomes(), ["stable"; 3]);
    }
    assert_eq!(starts(&host), (found, running.clone()));

    // Another configuration: said in noop, done in a run, once.
    let second = entries("1.0", "second");
    let noop = host.apply(&second, &["--noop"]);
    assert_eq!(noop.outcomes(), ["stable", "changed", "refreshed"]);
    let message = &noop.event(2)["noop_message"];
    assert_eq!(message, "Would have restarted via subscribe");
    assert_eq!(starts(&host).1, running);
    let applied = host.apply(&second, &[]);
    assert_eq!(applied.outcomes(), ["stable", "changed", "refreshed"]);
    assert_eq!(starts(&host).0, ["as packaged", "first", "second"]);
    assert_eq!(host.apply(&second, &[]).outcomes(), ["stable"; 3]);

    // Another version and another configuration at once: still one restart.
    let third = entries("2.0", "third");
    let applied = host.apply(&third, &[]);
    assert_eq!(applied.outcomes(), ["changed", "changed", "refreshed"]);
    let (found, running) = starts(&host);
    assert_eq!(found, ["as packaged", "first", "second", "third"]);
    assert_eq!(host.apply(&third, &[]).outcomes(), ["stable"; 3]);
    assert_eq!(starts(&host), (found, running));

    // What systemd itself counts: no restart of its own, and as many starts as were noted.
    assert_eq!(host.property("greeter", "NRestarts"), "0");
    let log = host.sh("journalctl --sync; journalctl -u greeter -o cat --no-pager");
    let starts = log.lines().filter(|line| line.starts_with("Started "));
    assert_eq!(starts.count(), 4, "{log}");
}
