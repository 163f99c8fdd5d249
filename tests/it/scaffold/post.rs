//! Commands that run on written files: when, with what, and what the next run makes of it.

use super::{PRESENT, assert_stable, converge, entry, mode, set_mode, world};
use crate::support::TestEnv;

/// Returns a post command that appends the name of each file to a log.
fn logging(env: &TestEnv) -> String {
    let log = env.at("log");
    let script = env.write("log.sh", format!("echo \"$1\" >> {log}\n"));
    format!("post: [{{'*.txt': '/bin/sh {script}'}}]")
}

#[test]
fn post_commands_run_once_for_each_written_file_with_its_real_path() {
    let env = world();
    env.write("src/no.conf", "x");
    let entry = entry(&env, &format!("{PRESENT}, {}", logging(&env)));
    let _ = env.apply(&entry, &["--noop"]);
    assert!(!env.exists("log"), "a post command ran in noop");
    let _ = converge(&env, &entry);
    let names = ["out/a.txt", "out/sub/c.txt", "out/sub/deep/b.txt"];
    let lines: String = names.iter().map(|name| env.at(name) + "\n").collect();
    assert_eq!(env.read("log"), lines);
    env.write("out/a.txt", "edited");
    let _ = converge(&env, &entry);
    assert_eq!(env.read("log"), format!("{lines}{}\n", env.at("out/a.txt")));
}

#[test]
fn post_commands_do_not_run_for_files_that_were_right_before() {
    let env = TestEnv::new();
    env.write("src/a.txt", "x");
    env.write("out/a.txt", "x");
    let entry = entry(&env, &format!("{PRESENT}, {}", logging(&env)));
    assert_stable(&env, &entry);
    assert!(!env.exists("log"));
}

#[test]
fn a_formatter_does_not_make_the_next_run_see_a_change() {
    let env = world();
    let formatter = |command: &str| {
        entry(
            &env,
            &format!("{PRESENT}, post: [{{'a.txt': '{command}'}}]"),
        )
    };
    let sed = formatter("sed -i s/port/PORT/ {}");
    assert_eq!(converge(&env, &sed), "Would have changed 3 scaffold files");
    assert_eq!(env.read("out/a.txt"), "PORT 80\n");
    // An edit, another template and another command are changes still.
    env.write("out/a.txt", "PORT 81\n");
    assert_eq!(converge(&env, &sed), "Would have changed 1 scaffold files");
    assert_eq!(env.read("out/a.txt"), "PORT 80\n");
    env.write("src/a.txt", "the port [[ data.port ]]\n");
    assert_eq!(converge(&env, &sed), "Would have changed 1 scaffold files");
    assert_eq!(env.read("out/a.txt"), "the PORT 80\n");
    let other = formatter("sed -i s/port/Port/ {}");
    assert_eq!(
        converge(&env, &other),
        "Would have changed 1 scaffold files"
    );
    assert_eq!(env.read("out/a.txt"), "the Port 80\n");
    let none = entry(&env, PRESENT);
    assert_eq!(converge(&env, &none), "Would have changed 1 scaffold files");
    assert_eq!(env.read("out/a.txt"), "the port 80\n");
}

#[test]
fn a_post_command_may_set_permissions() {
    let env = world();
    let entry = entry(
        &env,
        &format!("{PRESENT}, post: [{{'a.*': 'chmod 600 {{}}'}}]"),
    );
    let _ = converge(&env, &entry);
    assert_eq!(mode(&env, "out/a.txt"), 0o600);
    set_mode(&env, "out/a.txt", 0o644);
    let _ = converge(&env, &entry);
    assert_eq!(mode(&env, "out/a.txt"), 0o600);
}

#[test]
fn a_post_command_that_failed_is_made_up_for_by_the_next_run() {
    let env = TestEnv::new();
    env.write("src/a.txt", "x");
    let script = env.write("post.sh", "echo to-out; echo to-err >&2; exit 3\n");
    let entry = entry(
        &env,
        &format!("{PRESENT}, post: [{{'*': '/bin/sh {script}'}}]"),
    );
    for _ in 0..2 {
        let applied = env.apply(&entry, &[]);
        assert_eq!(
            applied.failure(0),
            "failed to post process $DIR/out/a.txt\nerror: exit status 3\noutput: \"to-out\\nto-err\\n\""
        );
    }
    env.write("post.sh", "exit 0\n");
    let _ = converge(&env, &entry);
}

#[test]
fn mistakes_in_post_commands_are_found_before_anything_is_written() {
    let env = world();
    for (post, text) in [
        ("{'[': 'x'}", "post pattern \"[\": syntax error in pattern"),
        (
            "{'*': \"x 'y\"}",
            "post command for \"*\": Unterminated single-quoted string",
        ),
    ] {
        let applied = env.apply(&entry(&env, &format!("{PRESENT}, post: [{post}]")), &[]);
        assert_eq!(applied.failure(0), text);
        assert!(!env.exists("out"));
    }
}

#[test]
fn what_a_post_command_of_a_sensitive_scaffold_says_is_not_shown() {
    let env = TestEnv::new();
    env.write("src/a.txt", "secret-value");
    let script = env.write("post.sh", "cat \"$1\"; exit 1\n");
    let entry = entry(
        &env,
        &format!("{PRESENT}, sensitive: true, post: [{{'*': '/bin/sh {script}'}}]"),
    );
    let applied = env.apply(&entry, &["--diff"]);
    let all = applied.document.to_string();
    assert!(!all.contains("secret-value"), "{all}");
    assert!(applied.failure(0).contains("output: \"REDACTED\""));
}
