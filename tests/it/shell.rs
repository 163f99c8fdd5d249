//! Argument files, exit codes, shell completion and manual pages.

use crate::support::TestEnv;
use crate::support::nats::NatsServer;

#[test]
fn arguments_come_from_files_as_upstream_takes_them() {
    let env = TestEnv::new();
    let target = env.at("motd");
    env.write("flags", "# how\n--mode\n0600\n\n--content\ntwo words\n");
    env.write("all", format!("ensure\nfile\n{target}\n@flags\n"));
    let output = env.ccm(&["@all"]).ok();
    assert!(output.contains("changed ensure=present"), "{output}");
    assert_eq!(env.read("motd"), "two words");
    let output = env.ccm(&["ensure", "file", &target, "--content=@daily"]);
    assert!(output.ok().contains("changed"));
    assert_eq!(env.read("motd"), "@daily");
    let error = env.ccm(&["ensure", "file", &target, "--content", "@daily"]);
    let error = error.error(2);
    assert!(
        error.starts_with("ccm: error: failed to open arguments file \"daily\": "),
        "{error}"
    );
}

#[test]
fn what_was_typed_wrong_has_another_exit_code_than_what_went_wrong() {
    let env = TestEnv::new();
    let file = env.at("f");
    for (flags, code) in [
        (&["--if", "1 +"][..], 2),
        (&["--content", "{{ nope( }}"], 2),
        (&["--provider", "nope"], 2),
        (&["--mode", "0999"], 2),
        (&["--content", "x", "--owner", "nobody-there:root"], 1),
    ] {
        let args = [&["ensure", "file", &file], flags].concat();
        let error = env.ccm(&args);
        assert_eq!(error.code, Some(code), "{flags:?}: {error:?}");
        assert!(!env.exists("f"), "{flags:?}");
    }
}

/// Returns the candidates that a completion script yields for the last word.
fn completed(env: &TestEnv, shell: &str, driver: &str, words: &[&str]) -> Vec<String> {
    let script = env.ccm(&[&format!("--completion-script-{shell}")]).ok();
    env.write("complete", script);
    let mut command = env.program(shell);
    if shell != "fish" {
        command
            .arg("-c")
            .arg(driver)
            .arg(shell)
            .arg("ccm")
            .args(words);
    } else {
        command.arg("--no-config").arg("-c").arg(driver);
        command.env("LINE", format!("ccm {}", words.join(" ")));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "", "{shell} {words:?}");
    // zsh and fish append a description.
    let value = |line: &str| {
        line.split([':', '\t'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    text.lines().map(value).collect()
}

const BASH: &str = "source ./complete; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                    _clap_complete_ccm ccm \"${@: -1}\"; \
                    for value in \"${COMPREPLY[@]}\"; do echo \"$value\"; done";

/// Runs the completion function with a `_describe` that prints the candidates.
const ZSH: &str = "compdef() { :; }; _describe() { print -rl -- \"${(@P)3}\"; }; \
                   source ./complete; words=(\"$@\"); CURRENT=$#; _clap_dynamic_completer_ccm";

const FISH: &str = "source ./complete; complete --do-complete \"$LINE\"";

#[test]
fn bash_completes_commands_flags_and_values() {
    let env = without_server();
    completes(&env, |words| completed(&env, "bash", BASH, words));
    // Bash splits words at equals signs.
    let split = ["ensure", "scaffold", "--engine", "=", "j"];
    assert_eq!(completed(&env, "bash", BASH, &split), ["jet", "jinja"]);
}

#[test]
fn zsh_completes_commands_flags_and_values() {
    let env = without_server();
    completes(&env, |words| completed(&env, "zsh", ZSH, words));
}

#[test]
fn fish_completes_commands_flags_and_values() {
    let env = without_server();
    completes(&env, |words| completed(&env, "fish", FISH, words));
}

/// Returns an environment in which no NATS server is reachable.
fn without_server() -> TestEnv {
    let mut env = TestEnv::new();
    env.set("NATS_URL", "nats://127.0.0.1:1");
    env
}

fn completes(env: &TestEnv, completed: impl Fn(&[&str]) -> Vec<String>) {
    env.write("site.yaml", "");
    assert_eq!(completed(&["ens"]), ["ensure"]);
    assert_eq!(completed(&["ensure", "fi"]), ["file"]);
    assert_eq!(
        completed(&["ensure", "file", "/x", "--content"]),
        ["--content", "--content-file"]
    );
    assert_eq!(
        completed(&["ensure", "scaffold", "--engine", "j"]),
        ["jet", "jinja"]
    );
    assert_eq!(completed(&["apply", "si"]), ["site.yaml"]);
    assert_eq!(completed(&["fleet", "rollout", "st"]), ["start"]);
    // Without a NATS server there are no candidates and no errors.
    assert_eq!(completed(&["fleet", "label", "we"]), [""; 0]);
}

#[test]
fn bash_completes_names_of_nodes_bundles_and_rollouts_from_nats() {
    completes_names("bash", BASH);
}

#[test]
fn zsh_completes_names_of_nodes_bundles_and_rollouts_from_nats() {
    completes_names("zsh", ZSH);
}

#[test]
fn fish_completes_names_of_nodes_bundles_and_rollouts_from_nats() {
    completes_names("fish", FISH);
}

fn completes_names(shell: &str, driver: &str) {
    let server = NatsServer::start();
    let mut env = TestEnv::new();
    env.set("NATS_URL", &server.url());
    env.ccm(&["fleet", "init"]).ok();
    let label = ["fleet", "label", "web1.lab", "role=web", "--create"];
    env.ccm(&label).ok();
    env.write(
        "site/manifest.yaml",
        "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n",
    );
    env.ccm(&["fleet", "bundle", "push", &env.at("site"), "--name", "app"])
        .ok();
    let complete = |words: &[&str]| completed(&env, shell, driver, words);
    assert_eq!(complete(&["fleet", "pause", "we"]), ["web1.lab"]);
    assert_eq!(complete(&["fleet", "drift", "we"]), ["web1.lab"]);
    assert_eq!(complete(&["fleet", "ping", "--node", "we"]), ["web1.lab"]);
    let bundles = complete(&["fleet", "rollout", "start", "a"]);
    let [name, version] = bundles.as_slice() else {
        panic!("{bundles:?}");
    };
    assert_eq!(name, "app");
    assert!(version.starts_with("app@"), "{version}");
    let start = ["fleet", "rollout", "start", "app", "--node", "web1.lab"];
    let started = env
        .ccm(&[&start[..], &["--detach", "--json"]].concat())
        .ok();
    let started: serde_json::Value = serde_json::from_str(&started).unwrap();
    let id = started["id"].as_str().unwrap();
    assert_eq!(complete(&["fleet", "rollout", "show", ""])[0], id);
}

#[test]
fn candidates_are_printed_as_upstream_does() {
    let env = TestEnv::new();
    let lines = env.ccm(&["--completion-bash", "ensure", "scaffold", "--engine", "j"]);
    assert_eq!(lines.ok(), "jet\njinja\n");
}

#[test]
fn every_command_is_in_the_long_help_and_has_a_manual_page() {
    let env = TestEnv::new();
    let help = env.ccm(&["--help-long"]).ok();
    assert!(help.contains("Usage: ccm registration query"), "{help}");
    let pages = env.ccm(&["--help-man"]).ok();
    assert!(pages.contains("\n.TH CCM 1 "), "{pages}");
    assert!(pages.contains("\n.TH CCM-REGISTRATION-QUERY 1 "), "{pages}");
    let page = env.ccm(&["--help-man", "registration", "query"]).ok();
    assert_eq!(page.matches("\n.TH ").count(), 1, "{page}");
    let zsh = env.ccm(&["--completion-script-zsh"]).ok();
    assert!(zsh.starts_with("#compdef ccm\n"), "{zsh}");
}
