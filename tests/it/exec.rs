//! The exec type with real processes: guards, subscriptions, exit codes, output.

use crate::support::TestEnv;

#[test]
fn a_command_runs_every_time_and_is_never_stable() {
    let env = TestEnv::new();
    let entry = "- exec: {name: /bin/true}\n";
    for _ in 0..2 {
        let applied = env.apply(entry, &[]);
        assert_eq!(applied.outcomes(), ["changed"]);
        assert_eq!(applied.event(0)["status"]["stable"], false);
        assert_eq!(applied.event(0)["status"]["exitcode"], 0);
    }
}

#[test]
fn noop_says_that_it_would_run() {
    let env = TestEnv::new();
    let marker = env.at("x");
    let applied = env.apply(
        &format!("- exec: {{name: /usr/bin/touch {marker}}}\n"),
        &["--noop"],
    );
    assert_eq!(applied.event(0)["noop_message"], "Would have executed");
    assert!(!env.exists("x"));
}

#[test]
fn what_it_creates_keeps_it_from_running_again() {
    let env = TestEnv::new();
    let marker = env.at("x");
    let entry =
        format!("- exec: {{name: touch, command: /usr/bin/touch {marker}, creates: {marker}}}\n");
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    let again = env.apply(&entry, &[]);
    assert_eq!(again.outcomes(), ["stable"]);
    assert_eq!(again.event(0)["status"]["creates_satisfied"], true);
    assert_eq!(again.event(0)["status"].get("exitcode"), None);
}

#[test]
fn guards_decide_and_also_run_in_noop() {
    let env = TestEnv::new();
    for (guards, outcome) in [
        ("onlyif: /bin/true", "changed"),
        ("onlyif: /bin/false", "stable"),
        ("unless: /bin/true", "stable"),
        ("unless: /bin/false", "changed"),
        ("onlyif: /bin/true, unless: /bin/true", "stable"),
    ] {
        let entry = format!("- exec: {{name: /bin/true, {guards}}}\n");
        for flags in [&[][..], &["--noop"]] {
            assert_eq!(env.apply(&entry, flags).outcomes(), [outcome], "{guards}");
        }
    }
}

#[test]
fn a_guard_that_cannot_run_fails_the_resource() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: {name: /bin/true, onlyif: no-such-program}\n", &[]);
    assert_eq!(
        applied.failure(0),
        "exec: \"no-such-program\": executable file not found in $PATH"
    );
    let applied = env.apply("- exec: {name: /bin/true, unless: \"'open\"}\n", &[]);
    assert_eq!(
        applied.failure(0),
        "invalid guard command: Unterminated single-quoted string"
    );
}

#[test]
fn a_subscription_runs_it_whatever_the_guards_say() {
    let env = TestEnv::new();
    let (file, marker) = (env.at("f"), env.at("marker"));
    env.write("marker", "");
    let entry = format!(
        "- file: {{name: {file}, ensure: present, content: x, owner: root, group: root, mode: '0644'}}
- exec: {{name: /bin/true, creates: {marker}, onlyif: /bin/false, refreshonly: true, subscribe: ['file#{file}']}}\n"
    );
    let noop = env.apply(&entry, &["--noop"]);
    assert_eq!(noop.outcomes(), ["changed", "refreshed"]);
    assert_eq!(
        noop.event(1)["noop_message"],
        "Would have executed via subscribe"
    );
    let applied = env.apply(&entry, &[]);
    assert_eq!(applied.outcomes(), ["changed", "refreshed"]);
    assert_eq!(applied.event(1)["changed"], true);
    let again = env.apply(&entry, &[]);
    assert_eq!(again.outcomes(), ["stable", "stable"]);
}

#[test]
fn a_subscription_to_nothing_fails_the_resource_and_the_run_goes_on() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: /bin/true, subscribe: ['file#/none']}\n- exec: {name: /bin/echo}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["failed", "changed"]);
    assert_eq!(applied.failure(0), "no events found for file#/none");
}

#[test]
fn what_failed_has_not_changed_and_refreshes_nothing() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: /bin/false}\n- exec: {name: /bin/true, refreshonly: true, subscribe: ['exec#/bin/false']}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["failed", "stable"]);
}

#[test]
fn the_last_event_of_a_resource_decides_who_refreshes() {
    let env = TestEnv::new();
    let file = env.at("f");
    let entry = format!(
        "- file: {{name: {file}, ensure: present, content: x, owner: root, group: root, mode: '0644'}}\n"
    );
    let follower =
        format!("- exec: {{name: /bin/true, refreshonly: true, subscribe: ['file#{file}']}}\n");
    let applied = env.apply(&format!("{entry}{entry}{follower}"), &[]);
    assert_eq!(applied.outcomes(), ["changed", "stable", "stable"]);
}

#[test]
fn a_program_is_searched_where_ccm_was_started_to_search() {
    let mut env = TestEnv::new();
    let program = env.write("bin/greet", "#!/bin/sh\necho \"$PATH\" >\"$1\"\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let entry = format!("- exec: {{name: greet {}}}\n", env.at("seen"));
    let unfound = "exec: \"greet\": executable file not found in $PATH";
    assert_eq!(env.apply(&entry, &[]).failure(0), unfound);
    env.set("PATH", &env.at("bin"));
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    let seen = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin\n";
    assert_eq!(env.read("seen"), seen);
}

#[test]
fn refreshonly_without_a_trigger_is_stable() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: {name: /bin/true, refreshonly: true}\n", &[]);
    assert_eq!(applied.outcomes(), ["stable"]);
}

#[test]
fn other_exit_codes_can_be_accepted() {
    let env = TestEnv::new();
    let entry = |returns: &str| format!("- exec: {{name: /bin/false, returns: {returns}}}\n");
    assert_eq!(env.apply(&entry("[0, 1]"), &[]).outcomes(), ["changed"]);
    assert_eq!(
        env.apply(&entry("[0, 2]"), &[]).failure(0),
        "failed to reach desired state: exit code 1 not in allowed returns [0 2]"
    );
}

#[test]
fn only_the_shell_provider_has_a_shell() {
    let env = TestEnv::new();
    let out = env.at("out");
    let posix = format!("- exec: {{name: posix, command: '/bin/echo $HOME > {out}'}}\n");
    assert_eq!(env.apply(&posix, &[]).outcomes(), ["changed"]);
    assert!(!env.exists("out"));
    let shell =
        format!("- exec: {{name: shell, provider: shell, command: 'echo a | tr a b > {out}'}}\n");
    let applied = env.apply(&shell, &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    assert_eq!(applied.event(0)["provider"], "shell");
    assert_eq!(env.read("out"), "b\n");
}

#[test]
fn the_environment_is_exactly_what_is_given() {
    let env = TestEnv::new();
    let out = env.at("out");
    let entry = format!(
        "- exec: {{name: env, provider: shell, command: '/usr/bin/env > {out}', environment: ['A=b=c'], cwd: {}}}\n",
        env.at("")
    );
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    let text = env.read("out");
    // The shell itself adds what it needs; nothing of ours leaks.
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    names.sort_unstable();
    names.retain(|name| !["_", "PWD", "SHLVL", "OLDPWD"].contains(name));
    assert_eq!(names, ["A", "LANG", "LC_ALL", "PATH"]);
    assert!(text.contains("A=b=c\n") && text.contains("LC_ALL=C\n"));
}

#[test]
fn output_is_shown_line_by_line_with_logoutput() {
    let env = TestEnv::new();
    let args = ["ensure", "exec", "/usr/bin/printf 'one\\n\\ntwo\\n'"];
    let text = env.ccm(&[&args[..], &["--logoutput"]].concat()).ok();
    assert!(
        text.starts_with(" INFO  one\n INFO  \n INFO  two\n WARN "),
        "{text}"
    );
    let text = env.ccm(&args).ok();
    assert!(text.starts_with(" WARN "), "{text}");
}

#[test]
fn a_failed_command_shows_its_complaint() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: c, provider: shell, command: 'echo because >&2; exit 3'}\n",
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome
            .stdout
            .contains(" not in allowed returns [0]: because\n"),
        "{outcome:?}"
    );
}

#[test]
fn what_it_creates_outweighs_a_bad_exit_code_with_a_warning() {
    let env = TestEnv::new();
    let marker = env.at("x");
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n    - exec: {{name: c, provider: shell, command: 'touch {marker}; exit 3', creates: {marker}}}\n"),
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains(
            " WARN  exit code 3 not in allowed returns [0], but $DIR/x exists resource=exec#c\n"
        ),
        "{outcome:?}"
    );
}

#[test]
fn a_command_killed_by_a_signal_fails_with_its_name() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: c, provider: shell, command: 'kill -TERM $$'}\n",
        &[],
    );
    assert_eq!(applied.failure(0), "signal: terminated");
}

#[test]
fn from_the_command_line_timeout_and_returns_are_in_the_event() {
    let env = TestEnv::new();
    let event = env.ccm(&["ensure", "exec", "/bin/true", "--json"]).json();
    assert_eq!(event["properties"]["timeout"], "1m");
    assert_eq!(event["properties"]["returns"], serde_json::json!([0]));
}

#[test]
fn returns_may_be_numbers_in_quotes() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: {name: /bin/false, returns: [\"0\", \"1\"]}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
    assert_eq!(
        applied.event(0)["properties"]["returns"],
        serde_json::json!([0, 1])
    );
}

#[test]
fn returns_that_are_no_numbers_are_refused() {
    let env = TestEnv::new();
    for item in ["none", "'1x'", "1.5", "4294967296", "true"] {
        env.write(
            "m.yaml",
            format!("ccm:\n  resources:\n    - exec: {{name: /bin/true, returns: [{item}]}}\n"),
        );
        let error = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(error.contains("m.yaml:3:"), "{item}: {error}");
    }
}

#[test]
fn a_control_expression_without_a_value_counts_as_unset() {
    let env = TestEnv::new();
    for control in ["{if: null}", "{if: , unless: ~}", "{unless: ~}"] {
        let entry = format!("- exec: {{name: /bin/true, control: {control}}}\n");
        assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"], "{control}");
    }
}

#[test]
fn an_unknown_key_without_a_value_is_still_an_error() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/true, control: {iff: ~}}\n",
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(error.contains("\"iff\""), "{error}");
}
