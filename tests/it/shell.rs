//! What shells and packagers get: arguments from files, completion, the manual page.

use std::process::Command;

use crate::support::TestEnv;

#[test]
fn arguments_come_from_files_as_upstream_takes_them() {
    let env = TestEnv::new();
    let target = env.at("motd");
    env.write("flags", "# how\n--mode\n0600\n\n--content\ntwo words\n");
    env.write("all", format!("ensure\nfile\n{target}\n@flags\n"));
    let told = env.ccm(&["@all"]).ok();
    assert!(told.contains("changed ensure=present"), "{told}");
    assert_eq!(env.read("motd"), "two words");
    let told = env.ccm(&["ensure", "file", &target, "--content=@daily"]);
    assert!(told.ok().contains("changed"));
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

/// Returns what bash offers for these words when Tab is pressed on the last one.
fn completed(env: &TestEnv, words: &[&str]) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_ccm");
    env.write("complete.bash", env.ccm(&["--completion-script-bash"]).ok());
    let script = "source ./complete.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _ccm_bash_autocomplete; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script, "bash", program])
        .args(words)
        .current_dir(env.root())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let env = TestEnv::new();
    assert_eq!(completed(&env, &["ens"]), ["ensure"]);
    assert_eq!(completed(&env, &["ensure", "f"]), ["file"]);
    assert_eq!(
        completed(&env, &["ensure", "file", "/x", "--content"]),
        ["--content", "--content-file"]
    );
    assert_eq!(
        completed(&env, &["ensure", "scaffold", "--engine", "j"]),
        ["jet", "jinja"]
    );
    assert_eq!(completed(&env, &["fleet", "rollout", "st"]), ["start"]);
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
