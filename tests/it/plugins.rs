//! Commands that people add: found, listed, called, and refused by name where they can't be.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::{Outcome, TestEnv};

const SITE: &str = "
name: site
description: Things of our site
version: 1.0.0
author: ops@example.net
commands:
  - name: say
    description: |
      Says something

      And more about it.
    aliases: [s]
    type: exec
    environment:
      - \"GREETING={{ default .Config.Greeting \\\"hello\\\" }}\"
    command: |
      /bin/sh -c 'echo \"$GREETING\" \"$1\" $2; exit {{ .Flags.code }}' sh {{ .Arguments.name | escape }}
      {{ if .Flags.loud }}LOUD{{ end }}
    arguments:
      - {name: name, description: Whom to greet, required: true}
    flags:
      - {name: loud, bool: true, short: l, description: Shouts}
      - {name: code, type: uint8, default: \"0\", env: SITE_CODE}
  - name: db
    type: parent
    description: The database
    commands:
      - name: dump
        description: Prints itself
        type: exec
        dir: \"{{ AppDir }}\"
        shell: /bin/sh
        script: |
          pwd
          cat
      - name: ask
        description: Asks a service
        type: rest
        url: http://localhost
      - name: shape
        description: Shapes output
        type: exec
        command: echo x
        transform: {jq: {query: .}}
";

fn env() -> TestEnv {
    let env = TestEnv::new();
    env.write(".config/choria/ccm/plugins/deep/site-plugin.yaml", SITE);
    env
}

fn call(env: &TestEnv, args: &[&str]) -> Outcome {
    env.ccm(args)
}

#[test]
fn a_command_of_a_plugin_is_a_command_of_ours_and_its_exit_code_too() {
    let env = env();
    assert_eq!(call(&env, &["say", "you & me"]).ok(), "hello you & me\n");
    assert_eq!(call(&env, &["s", "$(id)", "-l"]).ok(), "hello $(id) LOUD\n");
    let outcome = call(&env, &["--debug", "say", "x", "--code", "7"]);
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
    assert_eq!(call(&env, &["site", "say", "x"]).ok(), "hello x\n");
}

#[test]
fn variables_and_configuration_reach_templates() {
    let mut env = env();
    let config = env.write("cfg.yaml", "Greeting: moin\n");
    env.set("BUILDER_CONFIG", &config);
    env.set("SITE_CODE", "5");
    let outcome = call(&env, &["say", "x"]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(5), "moin x\n")
    );
    env.set("SITE_CODE", "500");
    let error = call(&env, &["say", "x"]).error(2);
    assert!(
        error.contains("flag --code: expected an unsigned integer of 8 bits"),
        "{error}"
    );
}

#[test]
fn standard_input_is_passed_on_and_a_script_starts_where_it_says() {
    let env = env();
    let outcome = env.ccm_with_input(&["db", "dump"], "from outside\n");
    assert_eq!(
        outcome.ok(),
        "$DIR/.config/choria/ccm/plugins/deep\nfrom outside\n"
    );
}

#[test]
fn help_lists_plugins_and_every_level_has_its_own() {
    let env = env();
    let help = call(&env, &["--help"]).ok();
    let (_, listed) = help.split_once("Plugins:\n").unwrap();
    let (listed, _) = listed.split_once("\n\n").unwrap();
    assert_eq!(listed, "  db   The database\n  say  Says something");
    assert!(help.contains("  apply"), "{help}");
    let nothing = call(&env, &[]);
    assert!(nothing.stderr.contains("Plugins:\n"), "{nothing:?}");
    for args in [
        &["say", "--help"][..],
        &["help", "say"],
        &["site", "say", "--help"],
    ] {
        let help = call(&env, args).ok();
        assert!(help.contains("And more about it."), "{args:?}: {help}");
        assert!(help.contains("[default: 0] [env: SITE_CODE]"), "{help}");
    }
    let help = call(&env, &["db", "--help"]).ok();
    assert!(
        help.contains("dump") && help.contains("Prints itself"),
        "{help}"
    );
    let usage = call(&env, &["say"]).error(2);
    assert!(usage.contains("<name>"), "{usage}");
}

#[test]
fn what_is_not_supported_says_so_when_it_is_called_and_not_before() {
    let env = env();
    let plain = call(&env, &["facts", "--help"]);
    assert_eq!(plain.stderr, "");
    let error = call(&env, &["db", "ask", "--anything", "goes"]).error(1);
    assert!(error.contains("type rest is not supported"), "{error}");
    assert!(error.contains("site-plugin.yaml:38:15\n"), "{error}");
    let error = call(&env, &["db", "shape"]).error(1);
    assert!(error.contains("key transform is not supported"), "{error}");
}

#[test]
fn a_broken_plugin_does_not_affect_other_commands() {
    let env = env();
    env.write(".config/choria/ccm/plugins/bad-plugin.yaml", "commands: [");
    assert_eq!(call(&env, &["say", "x"]).stderr, "");
    assert_eq!(call(&env, &["facts", "--help"]).stderr, "");
    let error = call(&env, &["bad"]).error(1);
    assert!(error.contains("error: [ is not closed\n"), "{error}");
    assert!(error.contains("bad-plugin.yaml:1:11\n"), "{error}");
    for args in [&["--help"][..], &["frobnicate"]] {
        let stderr = call(&env, args).stderr;
        let warnings = stderr.matches("ccm: warning: ").count();
        assert_eq!(warnings, 1, "{stderr}");
        assert!(stderr.contains("bad-plugin.yaml"), "{stderr}");
    }
    assert_eq!(call(&env, &["frobnicate"]).code, Some(2));
}

#[test]
fn a_plugin_does_not_hide_a_command_of_ours() {
    let env = TestEnv::new();
    env.write(
        ".config/choria/ccm/plugins/x-plugin.yaml",
        "name: x\ncommands: [{name: facts, description: Ours, type: exec, command: echo plugin}]",
    );
    assert!(
        call(&env, &["facts", "--help"])
            .ok()
            .contains("Usage: ccm facts")
    );
    let help = call(&env, &["--help"]);
    assert!(
        help.stderr
            .contains("command facts is already defined by ccm itself: use ccm x facts"),
        "{help:?}"
    );
    assert_eq!(call(&env, &["x", "facts"]).ok(), "plugin\n");
}

#[test]
fn a_plugin_that_others_may_write_is_not_run() {
    let env = env();
    let path = env.path(".config/choria/ccm/plugins/deep/site-plugin.yaml");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let error = call(&env, &["say", "x"]).error(2);
    assert!(error.contains("may be changed by others"), "{error}");
    let error = call(&env, &["site"]).error(1);
    assert!(error.contains("may be changed by others"), "{error}");
}

#[test]
fn no_directory_is_made_for_plugins() {
    let env = TestEnv::new();
    call(&env, &["--help"]).ok();
    assert!(!env.exists(".config"));
}

#[test]
fn a_dry_run_prints_what_would_be_run() {
    let mut env = env();
    env.set("BUILDER_DRY_RUN", "1");
    let outcome = call(&env, &["say", "a b"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert!(outcome.stderr.contains("sh 'a b'\n"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("environment: GREETING=hello\n"),
        "{outcome:?}"
    );
}

#[test]
fn a_failing_command_is_tried_again_and_its_last_code_counts() {
    let env = TestEnv::new();
    env.write(
        ".config/choria/ccm/plugins/x-plugin.yaml",
        "name: x\ncommands:\n  - name: flaky\n    description: Fails twice\n    type: exec\n    \
         script: 'echo try $BUILDER_TRY; test $BUILDER_TRY = {{ .Arguments.good }}'\n    shell: /bin/sh\n    \
         arguments: [{name: good}]\n    \
         backoff: {max_attempts: 3, min_sleep: 1ms, max_sleep: 2ms}\n",
    );
    assert_eq!(call(&env, &["flaky", "3"]).ok(), "try 1\ntry 2\ntry 3\n");
    let outcome = call(&env, &["flaky", "4"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn a_question_is_not_answered_by_a_pipe() {
    let env = TestEnv::new();
    env.write(
        ".config/choria/ccm/plugins/x-plugin.yaml",
        "name: x\ncommands: [{name: wipe, description: W, type: exec, command: echo gone, \
         banner: Careful, confirm_prompt: Really?}]",
    );
    let error = env.ccm_with_input(&["wipe"], "y\n").error(2);
    assert!(error.contains("\nccm: hint: use --no-prompt"), "{error}");
    assert_eq!(call(&env, &["wipe", "--no-prompt"]).ok(), "Careful\ngone\n");
}

#[test]
fn the_example_of_the_documents_works() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plugins.md");
    let text = std::fs::read_to_string(path).unwrap();
    let example = text.split("```yaml\n").nth(1).unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let mut env = TestEnv::new();
    env.write(".config/choria/ccm/plugins/deploy-plugin.yaml", example);
    env.set("BUILDER_DRY_RUN", "1");
    for args in [
        &["web", "1.2", "--noop"][..],
        &["deploy", "web", "1.2", "--noop"],
    ] {
        let stderr = call(&env, args).stderr;
        assert_eq!(
            stderr,
            "command: ccm apply /etc/ccm/web.yaml --fact version=1.2 --noop\n\
             environment: DEPLOY_ENV=production\n"
        );
    }
    call(&env, &["web", "$(id)"]).error(2);
}
