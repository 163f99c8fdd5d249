//! Health checks: every document of `tests/data/goss` on this very machine, and checks in manifests
//! from file to event.

mod web;

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use ccm_core::health::{Outcome, ProbeEvent, Probes};
use ccm_core::model::health::{HealthCheck, HealthStatus};
use ccm_core::system::{Accounts, SystemClock, SystemRunner};
use ccm_template::Env;
use ccm_template::expr::Cache;
use ccm_value::document;
use ccm_value::value::Value;

use crate::support::TestEnv;

/// What the documents find on this machine, and what they call it.
struct Stage {
    env: TestEnv,
    names: Vec<(&'static str, String)>,
    _listeners: (TcpListener, TcpListener, UdpSocket, UnixListener),
}

impl Stage {
    fn new() -> Self {
        let env = TestEnv::new();
        std::fs::set_permissions(env.root(), PermissionsExt::from_mode(0o755)).unwrap();
        let text = env.write("text", "alpha\ngamma 7\n");
        std::fs::set_permissions(text, PermissionsExt::from_mode(0o640)).unwrap();
        symlink("text", env.path("link")).unwrap();
        symlink("nowhere", env.path("dangling")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(env.path("pipe"))
            .status();
        assert!(made.unwrap().success());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp6 = TcpListener::bind("[::1]:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let unix = UnixListener::bind(env.path("socket")).unwrap();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        let accounts = Accounts::default();
        let (uid, gid) = accounts.current();
        // A longer name comes before one that it starts with.
        let names = vec![
            ("$DIR", env.root().to_str().unwrap().to_owned()),
            ("$PORT6", tcp6.local_addr().unwrap().port().to_string()),
            ("$PORT", tcp.local_addr().unwrap().port().to_string()),
            ("$UDP", udp.local_addr().unwrap().port().to_string()),
            ("$COMM", comm.trim().to_owned()),
            ("$OWNER", accounts.user_name(uid).to_string()),
            ("$GROUP", accounts.group_name(gid).to_string()),
            ("$UID", uid.to_string()),
            ("$GID", gid.to_string()),
        ];
        Self {
            env,
            names,
            _listeners: (tcp, tcp6, udp, unix),
        }
    }

    fn read(&self, file: &Path) -> Value {
        let mut text = std::fs::read_to_string(file).unwrap();
        for (name, value) in &self.names {
            text = text.replace(name, value);
        }
        document::parse(&text).unwrap().to_value()
    }
}

/// Tests rules on this machine; returns the status, and how many came out which way.
fn examine(rules: &Value) -> (HealthStatus, BTreeMap<&'static str, i64>, String) {
    let data = [("odd", Value::from("{{ 1 + 1 }}"))].into_iter().collect();
    let env = Env {
        data,
        ..Env::default()
    };
    let probes = Probes {
        runner: &SystemRunner::default(),
        clock: &SystemClock,
        accounts: &Accounts::default(),
        env: &env,
        programs: &Cache::default(),
    };
    let check = HealthCheck {
        goss_rules: Some(rules.clone()),
        ..HealthCheck::default()
    };
    let mut counts = BTreeMap::from([("pass", 0), ("fail", 0), ("skip", 0)]);
    let mut lines = String::new();
    let report = probes.probe(&check, &mut |event| {
        let ProbeEvent::Rule(finding) = event else { return };
        let outcome = match finding.outcome {
            Outcome::Passed => "pass",
            Outcome::Failed => "fail",
            Outcome::Skipped => "skip",
        };
        *counts.get_mut(outcome).unwrap() += 1;
        lines.push_str(&format!("{outcome} {finding}\n"));
    });
    lines.push_str(&report.result.output);
    (report.result.status, counts, lines)
}

#[test]
fn goss_documents_come_out_as_they_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goss");
    let stage = Stage::new();
    let mut seen = 0;
    let mut wrong = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().path();
        let document = stage.read(&file);
        let (status, counts, lines) = examine(document.get("rules").unwrap());
        let expected = document.get("expected").unwrap();
        let is_expected = counts
            .iter()
            .all(|(outcome, count)| expected.get(outcome) == Some(&Value::Int(*count)));
        let is_critical = status == HealthStatus::Critical;
        if !is_expected || is_critical != (counts["fail"] > 0) {
            wrong.push_str(&format!("{file:?}: {status} {counts:?}\n{lines}\n"));
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 11, "only {seen} documents were found");
    assert!(stage.env.exists("text"), "nothing was changed");
}

fn manifest(env: &TestEnv, check: &str) -> String {
    let file = env.at("managed");
    format!(
        "\
- file:
    - {file}:
        ensure: present
        content: secret stuff
        owner: root
        group: root
        mode: '0644'
        health_checks:
          - {check}
"
    )
}

#[test]
fn goss_rules_of_a_manifest_see_what_was_applied() {
    let env = TestEnv::new();
    let file = env.at("managed");
    let rules = format!("goss_rules: {{file: {{{file}: {{exists: true, contents: [stuff]}}}}}}");
    let applied = env.apply(&manifest(&env, &rules), &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    let result = &applied.event(0)["health_check"][0];
    assert_eq!(result["status"], 0);
    assert_eq!(result["tries"], 1);
    let output = result["Output"].as_str().unwrap();
    assert!(
        output.starts_with("Count: 2, Failed: 0, Duration: 0."),
        "{output}"
    );
    assert!(output.ends_with('s'), "{output}");
}

#[test]
fn a_failed_rule_is_critical_after_all_tries() {
    let env = TestEnv::new();
    let check = "{goss_rules: {file: {/no/such: {exists: true, mode: '0644'}}}, \
                 tries: 3, try_sleep: 1ms}";
    let applied = env.apply(&manifest(&env, check), &[]);
    assert_eq!(applied.failure(0), "health check status \"CRITICAL\"");
    let result = &applied.event(0)["health_check"][0];
    assert_eq!(result["status"], 2);
    assert_eq!(result["tries"], 3);
    let output = result["Output"].as_str().unwrap();
    assert!(output.starts_with("Count: 2, Failed: 1, "), "{output}");
}

#[test]
fn every_rule_that_did_not_pass_is_a_line() {
    let env = TestEnv::new();
    let check = "goss_rules: {file: {/no/such: {exists: true, mode: '0644'}, /: {exists: true}}}";
    let applied = env.apply(&manifest(&env, check), &[]);
    assert_eq!(applied.outcomes(), ["failed"]);
    let outcome = env.ccm(&["apply", "manifest.yaml"]);
    let lines = outcome.stdout + &outcome.stderr;
    let has = |text: &str| {
        let level = |line: &&str| line.contains("ERROR") && line.contains(text);
        lines.lines().filter(level).count() == 1
    };
    assert!(
        has("File: /no/such: exists: Expected false to equal true"),
        "{lines}"
    );
    assert!(has("File: /no/such: mode: skipped"), "{lines}");
    assert!(!lines.contains("File: /: exists"), "{lines}");
}

#[test]
fn a_failed_try_is_a_warning_with_upstream_s_fields() {
    let env = TestEnv::new();
    let check = "{command: '/bin/sh -c \"exit 2\"', name: odd, tries: 2, try_sleep: 5ms}";
    assert_eq!(
        env.apply(&manifest(&env, check), &[]).outcomes(),
        ["failed"]
    );
    let lines = env.ccm(&["apply", "manifest.yaml"]).stdout;
    for number in [1, 2] {
        let line = format!(
            "WARN  Health check failed type=file name=$DIR/managed format=nagios check=odd \
             try={number} sleep=5ms status=CRITICAL"
        );
        assert!(lines.contains(&line), "{lines}");
    }
}

#[test]
fn what_a_sensitive_resource_hides_is_not_in_a_rule_s_line() {
    let env = TestEnv::new();
    let file = env.at("managed");
    let check = format!("goss_rules: {{file: {{{file}: {{exists: true, contents: nope}}}}}}");
    let open = manifest(&env, &check);
    let lines = |resources: &str| {
        assert_eq!(env.apply(resources, &[]).outcomes(), ["failed"]);
        let outcome = env.ccm(&["apply", "manifest.yaml"]);
        outcome.stdout + &outcome.stderr
    };
    let said = lines(&open);
    assert!(said.contains("Expected a text of"), "{said}");
    assert!(!said.contains("secret stuff"), "{said}");
    let hidden = open.replace("        mode:", "        sensitive: true\n        mode:");
    let said = lines(&hidden);
    assert!(said.contains("Health check failed"), "{said}");
    assert!(!said.contains("Expected"), "{said}");
}

#[test]
fn rules_are_templates_keys_included_and_resolved_once() {
    let env = TestEnv::new();
    env.write(
        "manifest.yaml",
        "\
data:
  path: /etc/passwd
  owner: root
ccm:
  resources:
    - exec:
        - /bin/true:
            health_checks:
              - goss_rules:
                  file:
                    '{{ Data.path }}': {exists: true, owner: '${ Data.owner }'}
                  matching:
                    odd: {content: '{{ \"{\" + \"{ Data.path }\" + \"}\" }}', matches: {have-prefix: '{{'}}
",
    );
    let outcome = env.ccm(&["apply", "manifest.yaml", "--json"]).json();
    let result = &outcome["events"][0]["health_check"][0];
    assert_eq!(result["status"], 0, "{result}");
    assert!(result["Output"].as_str().unwrap().starts_with("Count: 3, "));
}

#[test]
fn what_a_plugin_measured_is_a_line_for_who_looks_closely() {
    let env = TestEnv::new();
    let plugin = "#!/bin/sh\necho \"fine | 'load 1'=0.5;2;4;0 free=12%;20:;10:\"\n";
    let script = env.write("plugin", plugin);
    let check = format!("command: /bin/sh {script}");
    let applied = env.apply(&manifest(&env, &check), &[]);
    let result = &applied.event(0)["health_check"][0];
    assert_eq!(
        result["Output"],
        "fine | 'load 1'=0.5;2;4;0 free=12%;20:;10:"
    );
    let quiet = env.ccm(&["apply", "manifest.yaml"]);
    assert!(!quiet.stdout.contains("perfdata="), "{quiet:?}");
    let close = env.ccm(&["apply", "manifest.yaml", "--debug"]);
    let line = close.stdout.lines().find(|line| line.contains("perfdata="));
    let line = line.unwrap_or_else(|| panic!("{close:?}"));
    assert!(
        line.contains("DEBUG Health check performance data type=file"),
        "{line}"
    );
    assert!(line.ends_with("perfdata=load 1=0.5 free=12%"), "{line}");
}

#[test]
fn rules_include_files_beside_the_manifest() {
    let env = TestEnv::new();
    env.write("rules/a.yaml", "file: {/etc/passwd: {exists: true}}");
    env.write(
        "rules/b.yaml",
        "gossfile: {../c.json: {}}\nuser: {'{{ Data.user }}': {exists: true}}",
    );
    env.write("c.json", r#"{"file": {"/no/such": {"exists": false}}}"#);
    env.write(
        "manifest.yaml",
        "\
data: {user: root}
ccm:
  resources:
    - exec:
        - /bin/true:
            health_checks: [{goss_rules: {gossfile: {rules/*.yaml: {}}}}]
",
    );
    let outcome = env.ccm(&["apply", "manifest.yaml", "--json"]).json();
    let result = &outcome["events"][0]["health_check"][0];
    assert_eq!(result["status"], 0, "{result}");
    assert!(result["Output"].as_str().unwrap().starts_with("Count: 3, "));
}

#[test]
fn a_check_that_cannot_be_carried_out_is_unknown_and_the_run_goes_on() {
    let env = TestEnv::new();
    for (check, reason) in [
        (
            "goss_rules: {file: {/x: {exist: true}}}",
            "invalid Attribute for File:/x: exist",
        ),
        (
            "goss_rules: {fille: {}}",
            "unknown goss type \"fille\", did you mean \"file\"?",
        ),
        ("goss_rules: {}", "found 0 tests, source: goss_rules"),
        (
            "goss_rules: {gossfile: {/no/such.yaml: {}}}",
            "no matched files were found: \"/no/such.yaml\"",
        ),
        (
            "command: /no/such/plugin",
            "fork/exec /no/such/plugin: no such file or directory",
        ),
        (
            "{command: sleep 60, timeout: 100ms, tries: 5}",
            "command \"sleep\" timed out after 100ms",
        ),
        (
            "{goss_rules: {command: {sleep 60: {exit-status: 0}}}, timeout: 100ms, tries: 5}",
            "goss rules timed out after 100ms",
        ),
    ] {
        let next = "- exec: {name: /bin/true}\n";
        let applied = env.apply(&(manifest(&env, check) + next), &[]);
        assert_eq!(applied.outcomes()[1], "changed", "{check}");
        let event = applied.event(0);
        let result = &event["health_check"][0];
        assert_eq!(result["status"], 3, "{event:#}");
        assert_eq!(result["tries"], 1, "{event:#}");
        assert_eq!(result["Output"], reason);
        let errors = serde_json::json!(["health check status \"UNKNOWN\"", reason]);
        assert_eq!(event["error"], errors);
    }
}

#[test]
fn goss_rules_are_not_tested_in_noop() {
    let env = TestEnv::new();
    let marker = env.at("marker");
    let check = format!("goss_rules: {{command: {{touch {marker}: {{exit-status: 1}}}}}}");
    let noop = env.apply(&manifest(&env, &check), &["--noop"]);
    assert_eq!(noop.outcomes(), ["changed"]);
    assert!(!env.exists("marker"));
    let applied = env.apply(&manifest(&env, &check), &[]);
    assert_eq!(applied.outcomes(), ["failed"]);
    assert!(env.exists("marker"));
}

#[test]
fn commands_of_rules_see_the_environment_of_the_run() {
    let mut env = TestEnv::new();
    env.set("GREETING", "hello");
    let here = env.root().to_str().unwrap().to_owned();
    let check = format!(
        "goss_rules: {{command: {{'echo $GREETING; pwd': {{exit-status: 0, stdout: \"hello\\n{here}\\n\"}}}}}}"
    );
    let applied = env.apply(&manifest(&env, &check), &[]);
    assert_eq!(applied.event(0)["health_check"][0]["status"], 0);
}
