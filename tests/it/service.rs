//! The service type on a real systemd: every row of its tables, and units that start, fail, take
//! long, are masked, static or reloadable.

mod command_line;
mod unit_files;
mod with_package;

use std::process::Stdio;

use serde_json::Value;

use crate::support::systemd::{SystemdHost, systemd_host};

const RUNS: &str = "[Service]\nExecStart=/usr/bin/sleep infinity\n";
const AT_BOOT: &str = "[Install]\nWantedBy=multi-user.target\n";

/// Writes a unit that runs, and can be enabled.
fn plain_unit(host: &SystemdHost, name: &str) {
    host.unit(&format!("{name}.service"), &format!("{RUNS}{AT_BOOT}"));
}

/// Returns what services are, running and enabled, as systemd reports.
fn found(host: &SystemdHost, names: &[&str]) -> Vec<(bool, bool)> {
    let query = |question, yes: &'static str| {
        let mut argv = vec!["systemctl", question];
        argv.extend(names);
        let words = host.run(&argv).stdout;
        words.lines().map(|word| word == yes).collect::<Vec<_>>()
    };
    let enabled = query("is-enabled", "enabled");
    std::iter::zip(query("is-active", "active"), enabled).collect()
}

fn status(host: &SystemdHost, name: &str) -> Value {
    host.ccm(&["status", "service", name, "--json"]).json()
}

/// Returns two entries: a file with this content, and a service that subscribes to it.
fn subscribed(content: &str, service: &str) -> String {
    format!(
        "- file: {{name: /root/trigger, ensure: present, content: {content:?}, owner: root, group: root, mode: '0644'}}
- service: {{{service}, subscribe: ['file#/root/trigger']}}
"
    )
}

/// A row of the two tables: what is, what is wanted.
struct Row {
    unit: String,
    running: bool,
    enabled: bool,
    ensure: &'static str,
    enable: Option<bool>,
}

impl Row {
    fn all() -> Vec<Self> {
        let mut rows = Vec::new();
        for ensure in ["running", "stopped"] {
            for enable in [None, Some(true), Some(false)] {
                for (running, enabled) in
                    [(true, true), (true, false), (false, true), (false, false)]
                {
                    let unit = format!("row-{}", rows.len());
                    rows.push(Self {
                        unit,
                        running,
                        enabled,
                        ensure,
                        enable,
                    });
                }
            }
        }
        rows
    }

    fn entry(&self) -> String {
        let Self { unit, ensure, .. } = self;
        let enable = self
            .enable
            .map_or(String::new(), |it| format!(", enable: {it}"));
        format!("- service: {{name: {unit}, ensure: {ensure}{enable}}}\n")
    }

    fn wanted(&self) -> (bool, bool) {
        (
            self.ensure == "running",
            self.enable.unwrap_or(self.enabled),
        )
    }

    fn message(&self) -> &'static str {
        let (running, enabled) = self.wanted();
        match (
            running,
            running != self.running,
            enabled,
            enabled != self.enabled,
        ) {
            (_, false, _, false) => "",
            (true, true, _, false) => "Would have started",
            (false, true, _, false) => "Would have stopped",
            (_, false, true, true) => "Would have enabled",
            (_, false, false, true) => "Would have disabled",
            (true, true, true, true) => "Would have started, would have enabled",
            (true, true, false, true) => "Would have started, would have disabled",
            (false, true, true, true) => "Would have stopped, would have enabled",
            (false, true, false, true) => "Would have stopped, would have disabled",
        }
    }
}

#[test]
fn now_and_boot_go_where_they_are_wanted_and_stay() {
    let host = systemd_host();
    let rows = Row::all();
    let names = |which: fn(&Row) -> bool| -> String {
        let units = rows.iter().filter(|row| which(row));
        units.map(|row| format!(" {}", row.unit)).collect()
    };
    for row in &rows {
        plain_unit(&host, &row.unit);
    }
    let (running, enabled) = (names(|row| row.running), names(|row| row.enabled));
    host.sh(&format!(
        "systemctl start{running}; systemctl enable{enabled}"
    ));
    let entries: String = rows.iter().map(Row::entry).collect();

    let noop = host.apply(&entries, &["--noop"]);
    for (index, row) in rows.iter().enumerate() {
        let event = noop.event(index);
        let message = event["noop_message"].as_str().unwrap_or_default();
        assert_eq!(message, row.message(), "{event:#}");
        assert_eq!(event["changed"], !message.is_empty(), "{event:#}");
    }
    let units: Vec<&str> = rows.iter().map(|row| row.unit.as_str()).collect();
    let before: Vec<_> = rows.iter().map(|row| (row.running, row.enabled)).collect();
    assert_eq!(found(&host, &units), before);

    let applied = host.apply(&entries, &[]);
    for (index, row) in rows.iter().enumerate() {
        let event = applied.event(index);
        let is_stable = row.message().is_empty();
        let (running, enabled) = row.wanted();
        assert_eq!(event["failed"], false, "{event:#}");
        assert_eq!(event["changed"], !is_stable, "{event:#}");
        assert_eq!(event["refreshed"], false, "{event:#}");
        assert_eq!(event["provider"], "systemd", "{event:#}");
        assert_eq!(event["final_ensure"], row.ensure, "{event:#}");
        assert_eq!(event["status"]["stable"], is_stable, "{event:#}");
        assert_eq!(event["status"]["metadata"]["running"], running, "{event:#}");
        assert_eq!(event["status"]["metadata"]["enabled"], enabled, "{event:#}");
    }
    let wanted: Vec<_> = rows.iter().map(Row::wanted).collect();
    assert_eq!(found(&host, &units), wanted);

    let again = host.apply(&entries, &[]);
    assert_eq!(again.outcomes(), vec!["stable"; rows.len()]);
}

#[test]
fn a_subscription_restarts_a_running_service_exactly_once() {
    let host = systemd_host();
    plain_unit(&host, "listens");
    host.sh("rm -f /root/trigger; systemctl start listens");
    let first = host.property("listens", "MainPID");
    let entries = subscribed("a", "name: listens");

    let noop = host.apply(&entries, &["--noop"]);
    assert_eq!(noop.outcomes(), ["changed", "refreshed"]);
    let message = &noop.event(1)["noop_message"];
    assert_eq!(message, "Would have restarted via subscribe");
    assert_eq!(host.property("listens", "MainPID"), first);

    assert_eq!(
        host.apply(&entries, &[]).outcomes(),
        ["changed", "refreshed"]
    );
    let second = host.property("listens", "MainPID");
    assert_ne!(second, first);

    assert_eq!(host.apply(&entries, &[]).outcomes(), ["stable", "stable"]);
    assert_eq!(host.property("listens", "MainPID"), second);
    let starts = host.sh("journalctl --sync; journalctl -u listens -o cat --no-pager");
    let starts = starts.lines().filter(|line| line.starts_with("Started "));
    assert_eq!(starts.count(), 2);
}

#[test]
fn a_subscription_starts_what_is_stopped_and_leaves_alone_what_should_be() {
    let host = systemd_host();
    plain_unit(&host, "rests");
    host.sh("rm -f /root/trigger; systemctl stop rests");

    let entries = subscribed("a", "name: rests, ensure: stopped");
    for flags in [&["--noop"][..], &[]] {
        let applied = host.apply(&entries, flags);
        assert_eq!(applied.outcomes(), ["changed", "stable"]);
    }
    assert_eq!(host.word("is-active", "rests"), "inactive");

    let entries = subscribed("b", "name: rests");
    let noop = host.apply(&entries, &["--noop"]);
    assert_eq!(noop.event(1)["noop_message"], "Would have started");
    assert_eq!(noop.event(1)["refreshed"], false);
    assert_eq!(host.apply(&entries, &[]).outcomes(), ["changed", "changed"]);
    assert_eq!(host.word("is-active", "rests"), "active");

    let entries = subscribed("c", "name: rests, ensure: stopped");
    assert_eq!(host.apply(&entries, &[]).outcomes(), ["changed", "changed"]);
    assert_eq!(host.word("is-active", "rests"), "inactive");
}

#[test]
fn a_subscription_to_what_never_ran_fails_also_where_it_would_be_ignored() {
    let host = systemd_host();
    plain_unit(&host, "astray");
    for ensure in ["running", "stopped"] {
        let entry = format!(
            "- service: {{name: astray, ensure: {ensure}, subscribe: ['file#/nowhere']}}\n"
        );
        let applied = host.apply(&entry, &[]);
        assert_eq!(applied.failure(0), "no events found for file#/nowhere");
    }
    assert_eq!(host.word("is-active", "astray"), "inactive");
}

#[test]
fn a_refresh_reloads_a_unit_that_can_and_restarts_the_others() {
    let host = systemd_host();
    let reloads = format!("{RUNS}ExecReload=/usr/bin/touch /root/was-reloaded\n");
    host.unit("reloads.service", &reloads);
    plain_unit(&host, "rigid");
    host.sh("rm -f /root/trigger /root/was-reloaded; systemctl start reloads rigid");
    let (soft, rigid) = (
        host.property("reloads", "MainPID"),
        host.property("rigid", "MainPID"),
    );

    let entries = subscribed("a", "name: reloads, reload: true");
    let noop = host.apply(&entries, &["--noop"]);
    let message = &noop.event(1)["noop_message"];
    assert_eq!(message, "Would have reloaded via subscribe");
    assert!(!host.exists("/root/was-reloaded"));
    assert_eq!(
        host.apply(&entries, &[]).outcomes(),
        ["changed", "refreshed"]
    );
    assert!(host.exists("/root/was-reloaded"));
    assert_eq!(host.property("reloads", "MainPID"), soft);

    let entries = subscribed("b", "name: rigid, reload: true");
    assert_eq!(
        host.apply(&entries, &[]).outcomes(),
        ["changed", "refreshed"]
    );
    assert_ne!(host.property("rigid", "MainPID"), rigid);

    // A reload would leave the old command running.
    host.unit("reloads.service", &reloads.replace("infinity", "1d"));
    let entries = subscribed("c", "name: reloads, reload: true");
    let noop = host.apply(&entries, &["--noop"]);
    let message = &noop.event(1)["noop_message"];
    assert_eq!(message, "Would have restarted via subscribe");
    assert_eq!(
        host.apply(&entries, &[]).outcomes(),
        ["changed", "refreshed"]
    );
    assert!(host.property("reloads", "ExecStart").contains("sleep 1d"));
    assert_ne!(host.property("reloads", "MainPID"), soft);
}

#[test]
fn a_start_that_fails_says_why_and_the_run_goes_on() {
    let host = systemd_host();
    plain_unit(&host, "after");
    host.unit(
        "fails.service",
        "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo port 80 is taken >&2; exit 3'\n",
    );
    let entries = "- service: {name: fails}\n- service: {name: after}\n";
    let applied = host.apply(entries, &[]);
    assert_eq!(applied.outcomes(), ["failed", "changed"]);
    let failure = applied.failure(0);
    for part in [
        "could not start service fails: exit code 1: Job for fails.service failed",
        "; result exit-code; last journal lines: ",
        "port 80 is taken",
    ] {
        assert!(failure.contains(part), "{part:?} is not in {failure:?}");
    }
    assert!(!failure.contains('\n'), "{failure:?}");
    let output = applied.event(0)["output"].as_str().unwrap();
    assert!(
        output.starts_with("Job for fails.service failed"),
        "{output}"
    );
    assert!(output.contains("\nport 80 is taken\n"), "{output}");
}

#[test]
fn a_start_that_takes_too_long_is_reported_as_a_timeout() {
    let host = systemd_host();
    host.unit(
        "hangs.service",
        "[Service]\nType=oneshot\nTimeoutStartSec=300ms\nExecStart=/usr/bin/sleep infinity\n",
    );
    let failure = host.apply("- service: {name: hangs}\n", &[]).failure(0);
    assert!(failure.contains("; result timeout; "), "{failure}");
}

#[test]
fn a_service_that_starts_well_and_does_not_run_is_found_out() {
    let host = systemd_host();
    let idle = format!("[Unit]\nConditionPathExists=/nowhere\n{RUNS}");
    host.unit("idle.service", &idle);
    host.unit(
        "once.service",
        "[Service]\nType=oneshot\nExecStart=/bin/true\n",
    );
    host.unit(
        "stays.service",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n",
    );
    let entries = "- service: {name: idle}\n- service: {name: once}\n- service: {name: stays}\n";
    let applied = host.apply(entries, &[]);
    assert_eq!(applied.outcomes(), ["failed", "failed", "changed"]);
    let expected = "failed to reach desired state: running: service is stopped, expected running; last journal";
    for index in [0, 1] {
        let failure = applied.failure(index);
        assert!(failure.starts_with(expected), "{failure}");
    }
    assert!(
        applied.failure(0).contains("unmet condition"),
        "{applied:?}"
    );
}

#[test]
fn a_unit_on_its_way_is_judged_when_it_has_arrived() {
    let host = systemd_host();
    let slow =
        |command| format!("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={command}\n");
    host.unit("slow.service", &slow("/usr/bin/sleep 0.7"));
    let gate = "/bin/sh -c 'until [ -e /run/slower-may-end ]; do sleep 0.02; done'";
    host.unit("slower.service", &slow(gate));
    host.unit(
        "lingers.service",
        &format!("{RUNS}ExecStop=/usr/bin/sleep 0.7\n"),
    );

    host.sh("systemctl start --no-block slow");
    let applied = host.apply("- service: {name: slow}\n", &[]);
    assert_eq!(applied.outcomes(), ["stable"]);

    host.sh("systemctl start lingers; systemctl stop --no-block lingers");
    let applied = host.apply("- service: {name: lingers, ensure: stopped}\n", &[]);
    assert_eq!(applied.outcomes(), ["stable"]);
    host.sh("systemctl start lingers; systemctl stop --no-block lingers");
    let applied = host.apply("- service: {name: lingers}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    assert_eq!(host.word("is-active", "lingers"), "active");

    // Longer than we wait for: starting it joins the start that is under way. It gets to its end
    // only once that is so, which the lock shows.
    host.sh("systemctl start --no-block slower");
    let entry = "- service: {name: slower}\n";
    let noop = host.apply(entry, &["--noop"]);
    assert_eq!(noop.event(0)["noop_message"], "Would have started");
    let release = "while flock --nonblock /run/ccm-service.lock true; do sleep 0.02; done
        touch /run/slower-may-end";
    let mut other = host.command(&["sh", "-c", release]).spawn().unwrap();
    assert_eq!(host.apply(entry, &[]).outcomes(), ["changed"]);
    assert_eq!(host.word("is-active", "slower"), "active");
    assert!(other.wait().unwrap().success());
}

#[test]
fn a_masked_unit_counts_as_disabled_and_refuses_to_start() {
    let host = systemd_host();
    // What lies in /etc can't be masked, only what a package brought.
    let unit = format!("{RUNS}{AT_BOOT}");
    host.write("/usr/lib/systemd/system/veiled.service", &unit);
    host.sh("systemctl mask veiled");
    let applied = host.apply(
        "- service: {name: veiled, ensure: stopped, enable: false}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["stable"]);
    let failure = host.apply("- service: {name: veiled}\n", &[]).failure(0);
    let expected = "could not start service veiled: exit code 1: Failed to start veiled.service: \
                    Unit veiled.service is masked";
    assert!(failure.starts_with(expected), "{failure}");
    let entry = "- service: {name: veiled, ensure: stopped, enable: true}\n";
    let noop = host.apply(entry, &["--noop"]);
    assert_eq!(noop.event(0)["noop_message"], "Would have enabled");
    let failure = host.apply(entry, &[]).failure(0);
    let expected = "could not enable service veiled: exit code 1: Failed to enable unit: \
                    Unit file /etc/systemd/system/veiled.service is masked";
    assert_eq!(failure, expected);
}

#[test]
fn a_static_unit_counts_as_enabled_and_cannot_be_disabled() {
    let host = systemd_host();
    host.unit("fixed.service", RUNS);
    let applied = host.apply("- service: {name: fixed, enable: true}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    let again = host.apply("- service: {name: fixed, enable: true}\n", &[]);
    assert_eq!(again.outcomes(), ["stable"]);
    let failure = host
        .apply("- service: {name: fixed, enable: false}\n", &[])
        .failure(0);
    assert_eq!(
        failure,
        "failed to reach desired state: running: service is enabled, expected disabled \
         (systemd state: static)"
    );
}

#[test]
fn every_word_systemd_has_for_boot_is_understood() {
    let host = systemd_host();
    let unit = format!("{RUNS}{AT_BOOT}");
    let brought = |name: &str| {
        host.write(&format!("/usr/lib/systemd/system/{name}.service"), &unit);
    };
    for name in ["w-on", "w-on-runtime", "w-off"] {
        plain_unit(&host, name);
    }
    for name in ["w-masked", "w-masked-runtime"] {
        brought(name);
    }
    host.unit("w-static.service", RUNS);
    host.unit("w-real.service", &format!("{unit}Alias=w-alias.service\n"));
    host.unit(
        "w-indirect.service",
        &format!("{RUNS}[Install]\nAlso=w-off.service\n"),
    );
    for name in ["w-linked", "w-linked-runtime"] {
        host.write(&format!("/root/{name}.service"), &unit);
    }
    host.sh("mkdir -p /etc/systemd/system-generators
        printf '#!/bin/sh\\ncp /etc/systemd/system/w-off.service $1/w-generated.service\\n' \
            > /etc/systemd/system-generators/w
        chmod +x /etc/systemd/system-generators/w
        systemctl daemon-reload
        systemctl enable w-on w-real
        systemctl enable --runtime w-on-runtime
        systemctl mask w-masked
        systemctl mask --runtime w-masked-runtime
        systemctl link /root/w-linked.service
        systemctl link --runtime /root/w-linked-runtime.service
        systemd-run --unit w-transient sleep infinity");
    for (unit, word, enabled) in [
        ("w-on", "enabled", true),
        ("w-on-runtime", "enabled-runtime", true),
        ("w-alias", "alias", true),
        ("w-static", "static", true),
        ("w-indirect", "indirect", true),
        ("w-generated", "generated", true),
        ("w-transient", "transient", true),
        ("w-off", "disabled", false),
        ("w-linked", "linked", false),
        ("w-linked-runtime", "linked-runtime", false),
        ("w-masked", "masked", false),
        ("w-masked-runtime", "masked-runtime", false),
    ] {
        assert_eq!(host.word("is-enabled", unit), word);
        let metadata = status(&host, unit);
        assert_eq!(metadata["enabled"], enabled, "{unit}: {metadata}");
        assert_eq!(
            metadata["running"],
            unit == "w-transient",
            "{unit}: {metadata}"
        );
    }
}

#[test]
fn an_unknown_unit_is_not_found_in_every_mode() {
    let host = systemd_host();
    for flags in [&["--noop"][..], &[]] {
        let applied = host.apply("- service: {name: nope}\n", flags);
        assert_eq!(applied.failure(0), "service nope not found");
    }
    let error = host.ccm(&["status", "service", "nope"]).error(1);
    assert!(error.contains("service nope not found"), "{error}");
}

#[test]
fn a_change_waits_for_another_change_of_services() {
    let host = systemd_host();
    let gate = "ExecStartPre=/usr/bin/test -e /run/let-go\n";
    host.unit("queues.service", &format!("{RUNS}{gate}"));
    let holder =
        "flock /run/ccm-service.lock sh -c 'touch /run/held; sleep 0.7; touch /run/let-go'";
    let mut other = host
        .command(&["sh", "-c", holder])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    host.sh("until [ -e /run/held ]; do sleep 0.02; done");
    let applied = host.apply("- service: {name: queues}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    assert!(other.wait().unwrap().success());
}
