//! The unit that we ship, as it is, on a real systemd: everything that resources do works under its
//! sandbox, and what it forbids is forbidden. Then the same with the strict drop-in.

use std::sync::MutexGuard;

use crate::support::deb::Deb;
use crate::support::poll::wait_for;
use crate::support::systemd::{SystemdHost, systemd_host};

const UNIT: &str = include_str!("../../packaging/systemd/ccm-agent.service");
const STRICT: &str = include_str!("../../packaging/systemd/ccm-agent.service.d/strict.conf");

/// Does what package scripts do: makes a user, a program with a set-id bit, a device, a mount, and
/// sends systemd a request.
const POSTINST: &str = "#!/bin/sh\nset -e\nuseradd --system boxed\nchown boxed /usr/bin/boxed-id\n\
chmod 4755 /usr/bin/boxed-id\nmknod /var/lib/boxed.null c 1 3\nmkdir -p /mnt/boxed\n\
mount -t tmpfs tmpfs /mnt/boxed\ntouch /mnt/boxed/seen\nsystemctl daemon-reload\n";

const SERVICE: &str = "[Service]\nExecStart=/usr/bin/sleep infinity\n";

/// Answers every connection with the same bytes, after it has read the request.
const WEB_SOCKET: &str = "[Socket]\nListenStream=127.0.0.1:8099\nAccept=yes\n";
const WEB_SERVICE: &str = "[Service]\nStandardInput=socket\nStandardOutput=socket\n\
ExecStart=/bin/sh -c 'while read -r line && [ \"$${#line}\" -gt 1 ]; do :; done; cat /srv/answer'\n";

/// Tries what a sandbox may forbid, and prints a line for each: a name, and whether it worked.
/// A call fails if it may not be made; any other error counts as made. Of the calls ptrace asks to be
/// traced, personality wants another one, and reboot only asks that three keys reboot no more.
const PROBE: &str = r#"
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name works"; else echo "$name fails"; fi; }
call() { perl -e 'my ($n, @a) = map { int } @ARGV; my $r = syscall($n, @a); exit($r == -1 && $! == 1)' "$@"; }
try ptrace call PTRACE 0 0 0 0
try personality call PERSONALITY 8
try reboot call REBOOT 4276215469 672274793 0 0
try realtime chrt --fifo 1 true
try namespace unshare --mount true
try setid sh -c 'rm -f /root/setid; cp /bin/true /root/setid && chmod 4755 /root/setid'
try sysctl sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
try kmsg sh -c 'test -r /dev/kmsg'
try sudo runuser -u nobody -- id
grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
"#;

fn probe_script() -> String {
    let (ptrace, personality, reboot) = match cfg!(target_arch = "x86_64") {
        true => ("101", "135", "169"),
        false => ("117", "92", "142"),
    };
    PROBE
        .replace("PTRACE", ptrace)
        .replace("PERSONALITY", personality)
        .replace("REBOOT", reboot)
}

/// An agent as a service of the host; stopped and removed in the end.
struct Boxed {
    host: MutexGuard<'static, SystemdHost>,
}

impl Boxed {
    fn new() -> Self {
        let host = systemd_host();
        host.sh(
            "ln -sf /usr/local/bin/ccm /usr/bin/ccm
             mkdir -p /etc/choria/ccm /srv/app/bin /etc/systemd/system/ccm-agent.service.d
             echo program >/srv/app/bin/app
             tar -C /srv -czf /srv/app.tar.gz app
             size=$(stat -c %s /srv/app.tar.gz)
             printf 'HTTP/1.1 200 OK\\r\\nContent-Length: %s\\r\\nConnection: close\\r\\n\\r\\n' $size >/srv/answer
             cat /srv/app.tar.gz >>/srv/answer
             rm -f /etc/systemd/system/ccm-agent.service.d/*",
        );
        host.unit("web.socket", WEB_SOCKET);
        host.unit("web@.service", WEB_SERVICE);
        host.unit("ccm-agent.service", UNIT);
        host.write("/root/probe.sh", &probe_script());
        host.sh("systemctl daemon-reload; systemctl restart web.socket");
        forget(&host);
        host.unit(
            "boxed.service",
            &format!("{SERVICE}[Install]\nWantedBy=multi-user.target\n"),
        );
        Self { host }
    }

    /// Starts the agent with a manifest and waits until its last resource, a file, is there.
    fn converge(&self, resources: &str) {
        let host = &self.host;
        host.sh("rm -f /root/last");
        let indented: String = resources.lines().map(|it| format!("    {it}\n")).collect();
        let last = "    - file: {name: /root/last, ensure: present, content: done, owner: root, group: root, mode: '0600'}\n";
        host.write(
            "/etc/choria/ccm/site.yaml",
            &format!("ccm:\n  resources:\n{indented}{last}"),
        );
        host.write(
            "/etc/choria/ccm/agent.yaml",
            "identity: boxed.lab\nservers: nats://127.0.0.1:1\nmanifests: [/etc/choria/ccm/site.yaml]\n",
        );
        host.sh("chmod 600 /etc/choria/ccm/agent.yaml; systemctl restart ccm-agent");
        wait_for("the last resource", || {
            let is_there = host.exists("/root/last");
            is_there.then_some(()).ok_or_else(|| self.log())
        });
    }

    fn log(&self) -> String {
        let host = &self.host;
        host.sh("journalctl --sync; journalctl -u ccm-agent -o cat --no-pager -n 100")
    }

    /// Returns what worked where a script was run: in a plain service, or by the agent.
    fn probed(text: &str) -> Vec<&str> {
        text.lines()
            .filter_map(|line| line.strip_suffix(" works"))
            .collect()
    }

    /// Returns the exposure that systemd counts, from 0 to 100.
    fn exposure(&self) -> u32 {
        let command = "systemd-analyze security --no-pager ccm-agent.service || true";
        let text = self.host.sh(command);
        let last = text
            .lines()
            .rev()
            .find(|line| line.contains("exposure level"));
        let last = last.unwrap_or_else(|| panic!("{text}"));
        println!("{last}");
        let words = last.split_whitespace();
        let number: f64 = words.filter_map(|word| word.parse().ok()).next().unwrap();
        format!("{:.0}", number * 10.0).parse().unwrap()
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        let _ = self.host.run(&[
            "sh",
            "-c",
            "PATH=$PATH:/usr/sbin:/sbin
             systemctl stop ccm-agent web.socket boxed; umount /mnt/boxed
             apt-get purge -q -y boxed; rm -f /var/lib/boxed.null; userdel boxed
             rm -rf /etc/systemd/system/ccm-agent.service* /etc/systemd/system/web* /usr/bin/ccm
             systemctl daemon-reload; systemctl reset-failed",
        ]);
    }
}

/// What both sandboxes must let through.
const EVERYDAY: &str = "- file: {name: /etc/boxed.conf, ensure: present, content: one, owner: root, group: root, mode: '0644'}
- file: {name: /usr/lib/boxed.conf, ensure: present, content: two, owner: daemon, group: daemon, mode: '0640'}
- file: {name: /tmp/boxed.conf, ensure: present, content: three, owner: root, group: root, mode: '0644'}
- file: {name: /home/boxed, ensure: directory, owner: daemon, group: daemon, mode: '0750'}
- service: {name: boxed, ensure: running, enable: true, subscribe: ['file#/etc/boxed.conf']}
- archive: {name: /var/tmp/boxed.tar.gz, url: 'http://127.0.0.1:8099/boxed.tar.gz', owner: root, group: root, ensure: present, extract_parent: /opt/boxed, creates: /opt/boxed/app/bin/app}
- exec: {name: as-another, provider: shell, command: 'runuser -u nobody -- id -un >/var/tmp/boxed.who'}
- exec: {name: probe, provider: shell, command: 'sh /root/probe.sh >/var/tmp/boxed.probe'}
";

fn assert_everyday(host: &SystemdHost) {
    assert_eq!(host.read("/etc/boxed.conf"), "one");
    assert_eq!(host.read("/tmp/boxed.conf"), "three");
    let owner = "stat -c '%U %a' /usr/lib/boxed.conf /home/boxed";
    assert_eq!(host.sh(owner), "daemon 640\ndaemon 750\n");
    assert_eq!(host.word("is-active", "boxed"), "active");
    assert_eq!(host.word("is-enabled", "boxed"), "enabled");
    assert_eq!(host.read("/opt/boxed/app/bin/app"), "program\n");
    assert_eq!(host.read("/var/tmp/boxed.who"), "nobody\n");
}

fn forget(host: &SystemdHost) {
    host.sh(
        "systemctl disable --now boxed 2>/dev/null || true
         rm -rf /etc/boxed.conf /usr/lib/boxed.conf /tmp/boxed.conf /home/boxed /opt/boxed /var/tmp/boxed*",
    );
}

#[test]
fn the_unit_lets_every_resource_work_and_forbids_what_none_needs() {
    let boxed = Boxed::new();
    let host = &boxed.host;
    host.use_apt_repository(&[Deb {
        name: "boxed",
        version: "1.0",
        arch: "all",
        control: "",
        files: &[
            ("DEBIAN/postinst", POSTINST),
            ("usr/bin/boxed-id", "#!/bin/sh\nid -un\n"),
        ],
    }]);
    let plain = host.sh("systemd-run --quiet --pipe --wait sh /root/probe.sh");
    let package = "- package: {name: boxed, ensure: '1.0'}\n";
    boxed.converge(&format!("{package}{EVERYDAY}"));
    assert_everyday(host);
    let mode = host.sh("stat -c '%U %a' /usr/bin/boxed-id; test -c /var/lib/boxed.null");
    assert_eq!(mode, "boxed 4755\n", "{}", boxed.log());
    // What a package mounts is visible to every process.
    assert!(host.exists("/mnt/boxed/seen"), "{}", boxed.log());

    // The same script, in a service without a sandbox and run by the agent.
    let inside = host.read("/var/tmp/boxed.probe");
    let (plain, boxed_in) = (Boxed::probed(&plain), Boxed::probed(&inside));
    for call in ["ptrace", "personality", "reboot"] {
        assert!(
            plain.contains(&call) && !boxed_in.contains(&call),
            "{call}: {plain:?} {inside}"
        );
    }
    assert!(!boxed_in.contains(&"realtime"), "{inside}");
    for kept in ["namespace", "setid", "sysctl", "sudo"] {
        assert_eq!(
            boxed_in.contains(&kept),
            plain.contains(&kept),
            "{kept}: {plain:?} {inside}"
        );
    }
    let bounding = host.property("ccm-agent", "CapabilityBoundingSet");
    for gone in [
        "cap_sys_module",
        "cap_sys_time",
        "cap_sys_boot",
        "cap_sys_rawio",
        "cap_audit_control",
    ] {
        assert!(!bounding.contains(gone), "{bounding}");
    }
    let exposure = boxed.exposure();
    assert!(exposure < 80, "{exposure}");

    // A second run changes nothing, and a change restarts the service.
    let first = host.property("boxed", "MainPID");
    let changed = EVERYDAY.replace("content: one", "content: other");
    boxed.converge(&format!("{package}{changed}"));
    assert_eq!(host.read("/etc/boxed.conf"), "other");
    assert_ne!(host.property("boxed", "MainPID"), first, "{}", boxed.log());
}

#[test]
fn the_strict_drop_in_costs_what_it_says_and_nothing_else() {
    let boxed = Boxed::new();
    let host = &boxed.host;
    host.unit("ccm-agent.service.d/strict.conf", STRICT);
    host.sh("systemctl daemon-reload");
    boxed.converge(EVERYDAY);
    assert_everyday(host);
    let inside = host.read("/var/tmp/boxed.probe");
    for gone in [
        "ptrace",
        "personality",
        "reboot",
        "realtime",
        "namespace",
        "setid",
        "sysctl",
        "kmsg",
    ] {
        assert!(!Boxed::probed(&inside).contains(&gone), "{gone}: {inside}");
    }
    assert!(Boxed::probed(&inside).contains(&"sudo"), "{inside}");
    assert!(inside.contains("NoNewPrivs:\t1"), "{inside}");
    let exposure = boxed.exposure();
    assert!(exposure < 45, "{exposure}");
}
