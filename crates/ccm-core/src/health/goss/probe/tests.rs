//! Commands of the probes, completeness of the attribute tables, and time limits. Results on a real
//! machine are tested with the documents in `tests/data/goss`.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use chrono::DateTime;

use super::super::{Outcome, document, run, test_entry};
use super::*;
use crate::health::{ProbeError, ProbeEvent};
use crate::system::{
    Accounts, Clock as _, FixedClock, Output, RunError, ScriptedRunner, SystemClock, SystemRunner,
};
use ccm_template::Env;
use ccm_template::expr::Cache;

/// Tests rules with a scripted runner and returns the findings in order.
fn findings(runner: &ScriptedRunner, rules: &str) -> Vec<String> {
    let (accounts, env, programs) = (Accounts::default(), Env::default(), Cache::default());
    let probes = Probes {
        runner,
        clock: &FixedClock::new(DateTime::UNIX_EPOCH),
        accounts: &accounts,
        env: &env,
        programs: &programs,
    };
    let found = RefCell::new(Vec::new());
    let rules: Value = serde_json::from_str(rules).unwrap();
    let _ = run(&probes, Some(&rules), None, &mut |note| {
        if let ProbeEvent::Rule(finding) = note {
            found.borrow_mut().push(finding.to_string());
        }
    });
    found.into_inner()
}

/// Returns the URL of a server that replies once.
fn a_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx");
    });
    url
}

fn argvs(runner: &ScriptedRunner) -> Vec<String> {
    let calls = runner.calls();
    calls.iter().map(|call| call.argv.join(" ")).collect()
}

#[test]
fn every_attribute_of_every_table_is_implemented() {
    let (accounts, env, programs) = (Accounts::default(), Env::default(), Cache::default());
    let runner = SystemRunner::default();
    let page = a_page();
    let probes = Probes {
        runner: &runner,
        clock: &SystemClock,
        accounts: &accounts,
        env: &env,
        programs: &programs,
    };
    let context = ProbeContext::new(&probes, SystemClock.monotonic() + Duration::from_secs(60));
    for (resource_type, id) in RESOURCE_TYPES.iter().zip([
        "tcp://127.0.0.1:1",
        "true",
        "localhost",
        "/etc/passwd",
        "root",
        &page,
        "lo",
        "kernel.ostype",
        "x",
        "/proc",
        "bash",
        "tcp:1",
        "sh",
        "x",
        "root",
    ]) {
        let attributes: Value = resource_type
            .attributes
            .iter()
            .map(|attribute| (attribute.name, Value::from("x")))
            .collect();
        let things: Value = [(id, attributes)].into_iter().collect();
        let rules = [(resource_type.key, things)].into_iter().collect();
        let entries = document::parse(&rules).unwrap();
        let mut inspect = (resource_type.inspect)(&entries[0], &context).unwrap();
        for attribute in resource_type.attributes {
            if let Err(error) = inspect(attribute.name) {
                assert!(
                    !matches!(error, InspectError::NotImplemented(_)),
                    "{}: {error}",
                    resource_type.key
                );
            }
        }
    }
}

#[test]
fn resource_types_are_sorted_and_names_unique() {
    assert!(RESOURCE_TYPES.is_sorted_by_key(|resource_type| resource_type.key));
    for resource_type in RESOURCE_TYPES {
        for attribute in resource_type.attributes {
            assert_eq!(
                resource_type.setting(attribute.name),
                None,
                "{}",
                attribute.name
            );
        }
    }
}

#[test]
fn text_that_does_not_match_is_not_shown() {
    let runner = ScriptedRunner::new();
    let finding = |stdout| {
        runner.reply(&["sh", "-c", "show"], 0, "password=hunter2");
        let rules =
            format!(r#"{{"command": {{"show": {{"exit-status": 0, "stdout": {stdout}}}}}}}"#);
        findings(&runner, &rules).pop().unwrap()
    };
    assert_eq!(
        finding(r#"["bar"]"#),
        r#"Command: show: stdout: Expected a text of 16 bytes to have patterns ["bar"]"#
    );
    assert_eq!(
        finding(r#"{"gt": 5}"#),
        "Command: show: stdout: Error a text of 16 bytes cannot be compared, expected to be numerically gt 5"
    );
}

#[test]
fn a_service_is_queried_with_systemctl() {
    let runner = ScriptedRunner::new();
    runner.reply(&["systemctl", "-q", "is-enabled", "web"], 1, "");
    runner.reply(&["systemctl", "-q", "is-active", "web"], 0, "");
    let rules = r#"{"service": {"web": {"enabled": false, "running": true}}}"#;
    let found = findings(&runner, rules);
    assert_eq!(
        found,
        [
            "Service: web: enabled: matches expectation: false",
            "Service: web: running: matches expectation: true",
        ]
    );
}

#[test]
fn a_name_like_an_option_is_refused() {
    let runner = ScriptedRunner::new();
    runner.install("dpkg-query");
    for rules in [
        r#"{"service": {"--force": {"running": false}}}"#,
        r#"{"package": {"-r": {"installed": false}}}"#,
    ] {
        let found = findings(&runner, rules);
        assert!(found[0].contains("Error invalid "), "{found:?}");
    }
    assert!(runner.calls().is_empty());
}

#[test]
fn a_debian_package_is_queried_with_dpkg() {
    let runner = ScriptedRunner::new();
    let argv = ["dpkg-query", "-f", "${Status} ${Version}\n", "-W", "zsh"];
    runner.reply(
        &argv,
        0,
        "install ok installed 5.9-4\ndeinstall ok config-files 5.8\n",
    );
    let rules =
        r#"{"package": {"zsh": {"installed": true, "versions": {"consist-of": ["5.9-4"]}}}}"#;
    let found = findings(&runner, rules);
    assert_eq!(found.len(), 2);
    assert!(
        found.iter().all(|text| text.contains("matches")),
        "{found:?}"
    );
}

#[test]
fn a_red_hat_package_is_queried_with_rpm() {
    let runner = ScriptedRunner::new();
    let argv = [
        "rpm",
        "-q",
        "--nosignature",
        "--nohdrchk",
        "--nodigest",
        "--qf",
        "%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\n",
        "zsh",
    ];
    runner.reply(&argv, 0, "2:5.9-4.el9\n5.8-9.el9\n");
    let rules = r#"{"package": {"shell": {"name": "zsh", "installed": true, "versions": ["2:5.9-4.el9"]}}}"#;
    let found = findings(&runner, rules);
    assert_eq!(
        found,
        [
            "Package: shell: zsh: installed: matches expectation: true",
            "Package: shell: zsh: version: matches expectation: [\"2:5.9-4.el9\"]",
        ]
    );
}

#[test]
fn a_missing_package_has_no_versions() {
    let runner = ScriptedRunner::new();
    let argv = ["dpkg-query", "-f", "${Status} ${Version}\n", "-W", "zsh"];
    runner.reply(&argv, 1, "");
    let rules = r#"{"package": {"zsh": {"installed": false, "versions": ["1"]}}}"#;
    assert_eq!(
        findings(&runner, rules),
        [
            "Package: zsh: installed: matches expectation: false",
            "Package: zsh: version: skipped",
        ]
    );
}

#[test]
fn a_command_goes_through_a_shell_and_runs_once() {
    let runner = ScriptedRunner::new();
    let output = Output {
        code: 3,
        stdout: b"one\ntwo\n".to_vec(),
        ..Output::default()
    };
    runner.expect(&["sh", "-c", "a | b"], Ok(output));
    let rules = r#"{"command": {"a | b": {"exit-status": 0, "stdout": ["two"], "stderr": ""}}}"#;
    assert_eq!(
        findings(&runner, rules),
        [
            "Command: a | b: exit-status: Expected 3 to be numerically eq 0",
            "Command: a | b: stdout: matches expectation: [\"two\"]",
            "Command: a | b: stderr: matches expectation: \"\"",
        ]
    );
    assert_eq!(argvs(&runner), ["sh -c a | b"]);
}

#[test]
fn the_default_timeout_of_a_command_is_ten_seconds() {
    let runner = ScriptedRunner::new();
    let late = || {
        Err(RunError::TimedOut {
            program: "sh".into(),
            after: Duration::from_secs(10),
            output: Box::default(),
        })
    };
    runner.expect(&["sh", "-c", "a"], late());
    runner.expect(&["sh", "-c", "b"], late());
    let rules =
        r#"{"command": {"a": {"exit-status": 0}, "b": {"exit-status": 0, "timeout": 1500}}}"#;
    assert_eq!(
        findings(&runner, rules),
        [
            "Command: a: exit-status: Error Command execution timed out (10s)",
            "Command: b: exit-status: Error Command execution timed out (1.5s)",
        ]
    );
    let limits: Vec<_> = runner.calls().iter().map(|call| call.timeout).collect();
    assert_eq!(
        limits,
        [
            Some(Duration::from_secs(10)),
            Some(Duration::from_millis(1500)),
        ]
    );
}

#[test]
fn truncated_output_is_an_error() {
    let runner = ScriptedRunner::new();
    let output = Output {
        stdout: b"x".to_vec(),
        stdout_truncated: true,
        ..Output::default()
    };
    runner.expect(&["sh", "-c", "yes"], Ok(output));
    let rules = r#"{"command": {"yes": {"exit-status": 0, "stdout": ["!z"]}}}"#;
    let found = findings(&runner, rules);
    assert!(
        found[1].contains("Error output is longer than"),
        "{found:?}"
    );
}

#[test]
fn the_time_limit_of_the_check_ends_it() {
    struct Slow(FixedClock);
    impl crate::system::Runner for Slow {
        fn run(&self, command: &crate::system::Command<'_>) -> Result<Output, RunError> {
            assert_eq!(command.timeout, Some(Duration::from_secs(2)));
            self.0.advance(Duration::from_secs(2));
            Ok(Output::default())
        }
        fn locate(&self, _: &str) -> Option<std::path::PathBuf> {
            None
        }
    }
    let (accounts, env, programs) = (Accounts::default(), Env::default(), Cache::default());
    let slow = Slow(FixedClock::new(DateTime::UNIX_EPOCH));
    let probes = Probes {
        runner: &slow,
        clock: &slow.0,
        accounts: &accounts,
        env: &env,
        programs: &programs,
    };
    let rules = r#"{"command": {"a": {"exit-status": 0}, "b": {"exit-status": 0}}}"#;
    let rules: Value = serde_json::from_str(rules).unwrap();
    let limit = Some(Duration::from_secs(2));
    let Err(error) = run(&probes, Some(&rules), limit, &mut |_| {}) else {
        panic!("the check went on");
    };
    assert!(matches!(error, ProbeError::TimedOut(_)));
    assert_eq!(error.to_string(), "goss rules timed out after 2s");
}

#[test]
fn a_blocking_call_is_abandoned() {
    let (hold, held) = mpsc::channel::<()>();
    let result = run_with_timeout(Duration::from_millis(5), move || held.recv());
    assert!(result.is_none());
    drop(hold);
    assert_eq!(run_with_timeout(Duration::from_secs(60), || 7), Some(7));
}

#[test]
fn skipped_entries_are_not_inspected() {
    let rules = r#"{"command": {"a": {"exit-status": 0, "stdout": "x", "skip": true}}}"#;
    let entries = document::parse(&serde_json::from_str(rules).unwrap()).unwrap();
    let (accounts, env, programs) = (Accounts::default(), Env::default(), Cache::default());
    let runner = ScriptedRunner::new();
    let probes = Probes {
        runner: &runner,
        clock: &SystemClock,
        accounts: &accounts,
        env: &env,
        programs: &programs,
    };
    let mut outcomes = Vec::new();
    test_entry(
        &entries[0],
        &ProbeContext::new(&probes, Duration::MAX),
        &mut |finding| {
            outcomes.push(finding.outcome);
        },
    );
    assert_eq!(outcomes, [Outcome::Skipped; 2]);
    assert!(runner.calls().is_empty());
}
