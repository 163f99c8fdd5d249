//! `--info` and `--debug`: how a run came to its result, in the system log on standard error.

use crate::support::TestEnv;

/// Applies a manifest of these resources with flags and returns standard error.
fn details(env: &TestEnv, text: &str, flags: &[&str]) -> String {
    env.write("m.yaml", text);
    let mut args = vec!["apply", "m.yaml"];
    args.extend(flags);
    env.ccm(&args).stderr
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    let found = text
        .lines()
        .any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line with {parts:?} in:\n{text}");
}

fn exec(properties: &str) -> String {
    format!("ccm:\n  resources:\n    - exec: [{{run: {{{properties}}}}}]\n")
}

#[test]
fn info_names_the_provider_and_each_command_with_its_exit_code_and_time() {
    let env = TestEnv::new();
    let text = details(
        &env,
        &exec("provider: shell, command: exit 3, returns: [3]"),
        &["--info"],
    );
    assert_has(
        &text,
        &["level=INFO msg=\"Selected provider\" resource=exec#run provider=shell"],
    );
    assert_has(
        &text,
        &[
            "level=INFO msg=\"Ran command\" resource=exec#run command=\"/bin/sh -c 'exit 3'\" exitcode=3 runtime=",
        ],
    );
}

#[test]
fn nothing_of_it_is_shown_without_the_flags() {
    let env = TestEnv::new();
    assert_eq!(details(&env, &exec("command: /bin/true"), &[]), "");
}

#[test]
fn ensure_shows_the_same_lines() {
    let env = TestEnv::new();
    let outcome = env.ccm(&["--info", "ensure", "exec", "/bin/true", "--json"]);
    assert_has(
        &outcome.stderr,
        &["msg=\"Ran command\" resource=exec#/bin/true command=/bin/true exitcode=0"],
    );
    serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap();
}

#[test]
fn info_says_why_a_command_was_not_needed() {
    let env = TestEnv::new();
    for (properties, reason) in [
        ("command: /bin/true, creates: /", "creates exists"),
        ("command: /bin/true, onlyif: /bin/false", "onlyif failed"),
        ("command: /bin/true, unless: /bin/true", "unless succeeded"),
        (
            "command: /bin/true, refreshonly: true",
            "refreshonly, and nothing it subscribes to changed",
        ),
    ] {
        let text = details(&env, &exec(properties), &["--info"]);
        let reason = format!("reason=\"{reason}\"");
        assert_has(
            &text,
            &["msg=\"Command is not needed\" resource=exec#run", &reason],
        );
    }
}

#[test]
fn info_says_which_control_expression_skipped_a_resource() {
    let env = TestEnv::new();
    for (control, reason) in [
        (
            "{if: '1 == 2'}",
            "reason=\"if is false\" expression=\"1 == 2\"",
        ),
        (
            "{unless: '1 == 1'}",
            "reason=\"unless is true\" expression=\"1 == 1\"",
        ),
    ] {
        let text = details(
            &env,
            &exec(&format!("command: /bin/true, control: {control}")),
            &["--info"],
        );
        assert_has(
            &text,
            &["msg=\"Resource is not managed\" resource=exec#run", reason],
        );
        assert!(!text.contains("Ran command"), "{text}");
    }
}

#[test]
fn info_says_what_caused_a_refresh() {
    let env = TestEnv::new();
    let text = details(
        &env,
        "ccm:\n  resources:\n    - exec: [{a: {command: /bin/true}}, {b: {command: /bin/true, subscribe: ['exec#a']}}]\n",
        &["--info"],
    );
    assert_has(
        &text,
        &[
            "msg=\"Refreshing resource\" resource=exec#b",
            "changed=exec#a",
        ],
    );
}

#[test]
fn info_names_the_levels_that_data_was_taken_from() {
    let env = TestEnv::new();
    env.write("d.yaml", "data: {a: 1}\noverrides: {default: {a: 2}}\n");
    let text = details(
        &env,
        "hierarchy: {order: ['role:{{ Facts.role }}', none, base], merge: deep}\ndata: {b: 1}\noverrides: {'role:web': {b: 2}, base: {b: 3}}\nccm:\n  resources:\n    - exec: [{run: {command: /bin/true}}]\n",
        &["--info", "--fact", "role=web", "--hiera", "d.yaml"],
    );
    assert_has(
        &text,
        &["msg=\"Resolved data\" source=m.yaml levels=\"data, role:web, base\""],
    );
    assert_has(
        &text,
        &["msg=\"Resolved data\" source=d.yaml levels=\"data, default\""],
    );
}

#[test]
fn debug_shows_state_and_plan_besides() {
    let env = TestEnv::new();
    let path = env.at("f");
    let text = details(
        &env,
        &format!(
            "ccm:\n  resources:\n    - file: [{{{path}: {{ensure: present, content: x, owner: root, group: root, mode: '0600'}}}}]\n"
        ),
        &["--debug"],
    );
    assert_has(
        &text,
        &["level=DEBUG msg=\"Inspected resource\"", "ensure=absent"],
    );
    assert_has(
        &text,
        &[
            "level=DEBUG msg=\"Planned change\"",
            "Would have created the file",
        ],
    );
}

#[test]
fn a_sensitive_resource_shows_no_command() {
    let env = TestEnv::new();
    for flag in ["--info", "--debug"] {
        let text = details(
            &env,
            &exec(
                "sensitive: true, command: /bin/echo hunter2, onlyif: /bin/echo hunter2, health_checks: [{command: /bin/echo hunter2}]",
            ),
            &[flag],
        );
        assert_has(
            &text,
            &["msg=\"Ran command\" resource=exec#run command=REDACTED exitcode=0"],
        );
        assert!(!text.contains("hunter2"), "{text}");
        let text = details(
            &env,
            &exec("sensitive: true, command: /nonexistent/hunter2"),
            &[flag],
        );
        assert_has(
            &text,
            &["msg=\"Could not run command\" resource=exec#run command=REDACTED"],
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a_sensitive_resource_shows_no_control_expression() {
    let env = TestEnv::new();
    for control in [
        "{if: '\"hunter2\" == \"x\"'}",
        "{unless: '\"hunter2\" != \"x\"'}",
    ] {
        env.write(
            "m.yaml",
            exec(&format!(
                "sensitive: true, command: /bin/true, control: {control}"
            )),
        );
        let outcome = env.ccm(&["apply", "m.yaml", "--debug", "--json"]);
        assert_has(
            &outcome.stderr,
            &[
                "msg=\"Resource is not managed\" resource=exec#run",
                "expression=REDACTED",
            ],
        );
        let events: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let control = &events["events"][0]["properties"]["control"];
        let texts: Vec<_> = control.as_object().unwrap().values().collect();
        assert_eq!(texts, ["REDACTED"], "{control}");
        let shown = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn lines_of_a_nested_manifest_carry_its_name() {
    let env = TestEnv::new();
    env.write("child.yaml", exec("command: /bin/true"));
    let text = details(
        &env,
        "ccm:\n  resources:\n    - apply: [{child.yaml: {}}]\n",
        &["--info"],
    );
    assert_has(
        &text,
        &["msg=\"Ran command\" manifest=child.yaml resource=exec#run"],
    );
    assert_has(&text, &["msg=\"Resolved data\"", "source=child.yaml"]);
}
