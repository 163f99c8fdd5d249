//! `ccm ensure service` and `ccm status service`, and what they refuse.

use super::{found, plain_unit, status};
use crate::support::systemd::systemd_host;

#[test]
fn the_command_line_manages_a_service() {
    let host = systemd_host();
    plain_unit(&host, "typed");
    let ensure = |args: &[&str]| {
        let mut line = vec!["ensure", "service", "typed", "--json"];
        line.extend(args);
        host.ccm(&line).json()
    };
    let noop = ensure(&["--enable", "--noop"]);
    assert_eq!(
        noop["noop_message"],
        "Would have started, would have enabled"
    );
    assert_eq!(found(&host, &["typed"]), [(false, false)]);
    assert_eq!(ensure(&["--enable"])["changed"], true);
    assert_eq!(found(&host, &["typed"]), [(true, true)]);
    assert_eq!(ensure(&[])["changed"], false);
    assert_eq!(ensure(&["stopped"])["final_ensure"], "stopped");
    assert_eq!(found(&host, &["typed"]), [(false, true)]);
    let _ = host
        .ccm(&["ensure", "svc", "typed", "stopped", "--disable"])
        .ok();
    assert_eq!(found(&host, &["typed"]), [(false, false)]);
}

#[test]
fn the_command_line_shows_a_service() {
    let host = systemd_host();
    plain_unit(&host, "shown");
    let text = host.ccm(&["status", "service", "shown"]).ok();
    let lines = [
        "name: shown",
        "provider: systemd",
        "enabled: false",
        "running: false",
    ];
    assert_eq!(text.trim().lines().collect::<Vec<_>>(), lines);
    host.sh("systemctl start shown");
    assert_eq!(status(&host, "shown")["running"], true);
}

#[test]
fn the_command_line_restarts_by_a_session_of_several_calls() {
    let host = systemd_host();
    plain_unit(&host, "serial");
    host.sh("systemctl start serial; rm -rf /root/session /root/conf");
    let pid = host.property("serial", "MainPID");
    let ccm = |args: &[&str]| {
        let mut line = vec!["ensure", "--session", "/root/session"];
        line.extend(args);
        host.ccm(&line).ok()
    };
    host.ccm(&["session", "new", "--directory", "/root/session"])
        .ok();
    ccm(&["file", "/root/conf", "--content", "x"]);
    let text = ccm(&["service", "serial", "-S", "file#/root/conf"]);
    assert!(text.contains("service#serial refreshed"), "{text}");
    assert_ne!(host.property("serial", "MainPID"), pid);
}

#[test]
fn bad_requests_are_refused_before_anything_is_touched() {
    let host = systemd_host();
    for (args, code, reason) in [
        (
            &["ensure", "service", "x", "--enable", "--disable"][..],
            2,
            "cannot specify both enable and disable flags",
        ),
        (
            &["ensure", "service", "x", "-S", "file#/x"],
            2,
            "session store should be set when using subscribe",
        ),
        (
            &["ensure", "service", "x", "present"],
            2,
            "invalid ensure property \"present\" expects \"running\" or \"stopped\"",
        ),
        (
            &["ensure", "service", "a;b"],
            2,
            "service name contains dangerous characters: \"a;b\"",
        ),
        (
            &["ensure", "service", "getty@tty1"],
            2,
            "service name contains invalid characters",
        ),
        (
            &["ensure", "service", "x", "--provider", "runit"],
            2,
            "invalid resource: provider not found",
        ),
        (
            &["status", "service", "a;b"],
            1,
            "service name contains dangerous characters: \"a;b\"",
        ),
        (
            &["status", "service", "--", "-x"],
            1,
            "service name must not start with a hyphen: \"-x\"",
        ),
    ] {
        let error = host.ccm(args).error(code);
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}
