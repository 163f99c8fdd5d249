//! Each upstream defect of files, commands, sessions and the command line that we fixed. Names
//! carry the number of the defect in docs/compatibility.md.

use std::os::unix::fs::symlink;

use crate::support::TestEnv;

fn file(env: &TestEnv, name: &str, properties: &str) -> String {
    let path = env.at(name);
    format!("- file: {{name: {path}, owner: root, group: root, {properties}}}\n")
}

#[test]
fn r01_a_timeout_ends_the_command() {
    let env = TestEnv::new();
    let marker = env.at("x");
    let applied = env.apply(
        &format!("- exec: {{name: c, provider: shell, timeout: 200ms, command: 'sleep 30; touch {marker}'}}\n"),
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "command \"/bin/sh\" timed out after 200ms"
    );
    assert!(!env.exists("x"));
}

#[test]
fn r02_path_is_a_search_path() {
    let env = TestEnv::new();
    let out = env.at("out");
    let tool = env.write("bin/tool", format!("#!/bin/sh\necho $PATH > {out}\n"));
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/bin", env.at("bin"));
    let applied = env.apply(&format!("- exec: {{name: tool, path: '{path}'}}\n"), &[]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.document);
    assert_eq!(env.read("out").trim(), path);
}

#[test]
fn r06_every_spelling_of_a_mode_is_stable() {
    let env = TestEnv::new();
    for mode in ["644", "'0644'", "0644", "0o644"] {
        let entry = file(
            &env,
            "f",
            &format!("ensure: present, content: x, mode: {mode}"),
        );
        let _ = env.apply(&entry, &[]);
        let again = env.apply(&entry, &[]);
        assert_eq!(again.outcomes(), ["stable"], "{mode}: {:#}", again.document);
    }
}

#[test]
fn r10_tries_of_a_health_check_are_a_second_apart_unless_said_otherwise() {
    let check = ccm_core::model::health::HealthCheck::default();
    assert_eq!(
        check.try_sleep().unwrap(),
        std::time::Duration::from_secs(1)
    );
}

#[test]
fn r11_a_check_that_cannot_start_is_unknown_and_the_summary_counts_it() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: /bin/true, health_checks: [{command: no-such-check}]}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["failed"]);
    assert_eq!(applied.event(0)["health_check"][0]["status"], 3);
    assert_eq!(applied.document["summary"]["health_check_unknown_count"], 1);
}

#[test]
fn r12_a_path_through_a_file_is_an_error_and_not_present() {
    let env = TestEnv::new();
    env.write("file", "");
    let applied = env.apply(&file(&env, "file/x", "ensure: present, mode: '0644'"), &[]);
    assert!(
        applied.failure(0).contains("not a directory"),
        "{:#}",
        applied.document
    );
}

#[test]
fn r13_a_dangling_link_is_removed() {
    let env = TestEnv::new();
    symlink("/nowhere/at/all", env.path("link")).unwrap();
    let entry = file(&env, "link", "ensure: absent");
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    assert!(!env.exists("link"));
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["stable"]);
}

#[test]
fn r13_a_dangling_link_where_a_file_is_wanted_is_replaced() {
    let env = TestEnv::new();
    symlink("/nowhere/at/all", env.path("f")).unwrap();
    let entry = file(&env, "f", "ensure: present, content: x, mode: '0644'");
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    assert_eq!(env.read("f"), "x");
}

#[test]
fn r20_events_are_private_and_hold_no_secret() {
    let mut env = TestEnv::new();
    let _ = env.ccm(&["session", "new", "--directory", "s"]).ok();
    env.set("CCM_SESSION_STORE", &env.at("s"));
    let _ = env.ccm(&["ensure", "exec", "/bin/true"]).ok();
    for entry in std::fs::read_dir(env.path("s")).unwrap().flatten() {
        let mode = std::os::unix::fs::MetadataExt::mode(&entry.metadata().unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn r22_owner_and_group_of_the_command_line_are_used() {
    let env = TestEnv::new();
    let _ = env
        .ccm(&["ensure", "file", "f", "--owner", "nobody:nogroup"])
        .ok();
    let shown = env.ccm(&["status", "file", "f", "--json"]).json();
    assert_eq!(shown["owner"], "nobody");
    assert_eq!(shown["group"], "nogroup");
}

#[test]
fn r27_a_name_with_a_quote_is_fine_when_the_command_is_another() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: {name: \"don't\", command: /bin/true}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"]);
}

#[test]
fn r27_names_with_a_hash_can_be_subscribed_to() {
    let env = TestEnv::new();
    let path = env.at("a#b");
    let entry = format!(
        "- file: {{name: '{path}', ensure: present, owner: root, group: root, mode: '0644'}}
- exec: {{name: /bin/true, refreshonly: true, subscribe: ['file#{path}']}}\n"
    );
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed", "refreshed"]);
}

#[test]
fn r29_a_check_is_named_after_its_program() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/true, health_checks: [{command: /bin/false -x /y}]}\n",
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert!(
        outcome.stdout.contains(
            "Health check failed type=exec name=/bin/true format=nagios check=false try=1 sleep=1s status=WARNING"
        ),
        "{outcome:?}"
    );
}

#[test]
fn r31_an_unknown_property_is_an_error() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: x, refresh_only: true}\n",
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(error.contains("did you mean \"refreshonly\"?"), "{error}");
}

#[test]
fn r41_texts_with_line_breaks_are_fine() {
    let env = TestEnv::new();
    let entry = file(
        &env,
        "f",
        "ensure: present, mode: '0644', content: \"a\\nb\\n\"",
    );
    assert_eq!(env.apply(&entry, &[]).outcomes(), ["changed"]);
    assert_eq!(env.read("f"), "a\nb\n");
}

#[test]
fn p05_the_run_time_includes_the_last_resource() {
    let env = TestEnv::new();
    let applied = env.apply("- exec: {name: /bin/sleep 0.05}\n", &[]);
    let duration = applied.document["summary"]["total_duration"].as_u64();
    assert!(duration.unwrap() >= 50_000_000, "{duration:?}");
}

#[test]
fn p07_subscribe_takes_a_session_from_the_environment() {
    let mut env = TestEnv::new();
    let _ = env.ccm(&["session", "new", "--directory", "s"]).ok();
    env.set("CCM_SESSION_STORE", &env.at("s"));
    let _ = env.ccm(&["ensure", "file", "f"]).ok();
    let reference = format!("file#{}", env.at("f"));
    let text = env
        .ccm(&["ensure", "exec", "/bin/true", "-S", &reference])
        .ok();
    assert!(text.contains("exec#/bin/true refreshed"), "{text}");
}

#[test]
fn p29_a_quoted_value_of_the_env_file_loses_both_quotes() {
    let env = TestEnv::new();
    env.write(".env", "WORD=\"two words\"\nEMPTY=\n");
    let _ = env
        .ccm(&["ensure", "file", "f", "--content", "[{{ Environ.WORD }}]"])
        .ok();
    assert_eq!(env.read("f"), "[two words]");
}

#[test]
fn p28_every_plugin_is_mounted_also_without_a_system_directory() {
    let env = TestEnv::new();
    for name in ["a", "b"] {
        let text = format!(
            "name: {name}\ncommands: [{{name: say-{name}, description: S, type: exec, \
             command: echo {name}}}]"
        );
        env.write(
            &format!(".config/choria/ccm/plugins/{name}-plugin.yaml"),
            text,
        );
    }
    env.write(
        ".config/choria/ccm/plugins/c-plugin.yaml.bak",
        "commands: [",
    );
    assert_eq!(env.ccm(&["say-a"]).ok(), "a\n");
    assert_eq!(env.ccm(&["say-b"]).ok(), "b\n");
    assert_eq!(env.ccm(&["--help"]).stderr, "");
}
