//! Files from trees and templates, and validation of new files, on a real file system.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

use crate::support::TestEnv;

fn file(env: &TestEnv, name: &str, properties: &str) -> String {
    let path = env.at(name);
    format!("- file:\n    - {path}: {{owner: root, group: root, mode: '0644', {properties}}}\n")
}

fn mode(env: &TestEnv, name: &str) -> u32 {
    env.path(name).symlink_metadata().unwrap().mode() & 0o7777
}

/// Writes a source tree with a script and a nested file.
fn with_tree() -> TestEnv {
    let env = TestEnv::new();
    env.write("src/a.txt", "one\n");
    env.write("src/bin/run", "#!/bin/sh\n");
    env.write("src/bin/deep/b.bin", [0_u8, 255]);
    std::fs::set_permissions(env.path("src/bin/run"), PermissionsExt::from_mode(0o755)).unwrap();
    env
}

#[test]
fn a_tree_is_copied_with_its_execute_bits() {
    let env = with_tree();
    let entry = file(&env, "out", "ensure: directory, source: src");
    let text = env.converge(&entry);
    assert_eq!(
        text,
        "Would have changed 5 files and directories of the tree"
    );
    assert_eq!(env.read("out/a.txt"), "one\n");
    assert_eq!(
        std::fs::read(env.path("out/bin/deep/b.bin")).unwrap(),
        [0, 255]
    );
    let modes = [
        "out",
        "out/a.txt",
        "out/bin",
        "out/bin/run",
        "out/bin/deep/b.bin",
    ];
    assert_eq!(
        modes.map(|name| mode(&env, name)),
        [0o755, 0o644, 0o755, 0o755, 0o644]
    );
}

#[test]
fn only_what_differs_is_written() {
    let env = with_tree();
    let entry = file(&env, "out", "ensure: directory, source: src");
    let _ = env.apply(&entry, &[]);
    let inode = |name: &str| env.path(name).metadata().unwrap().ino();
    let kept = inode("out/bin/run");
    env.write("out/a.txt", "two\n");
    std::fs::set_permissions(env.path("out/bin/deep"), PermissionsExt::from_mode(0o700)).unwrap();
    let text = env.converge(&entry);
    assert_eq!(
        text,
        "Would have changed 2 files and directories of the tree"
    );
    assert_eq!(env.read("out/a.txt"), "one\n");
    assert_eq!(
        (inode("out/bin/run"), mode(&env, "out/bin/deep")),
        (kept, 0o755)
    );
}

#[test]
fn other_files_are_kept_unless_purged() {
    let env = with_tree();
    env.write("out/other/deep/file", "x");
    env.write("out/z", "x");
    env.converge(&file(&env, "out", "ensure: directory, source: src"));
    assert!(env.exists("out/other/deep/file"));
    env.converge(&file(
        &env,
        "out",
        "ensure: directory, source: src, purge: true",
    ));
    assert!(!env.path("out/other").exists() && !env.path("out/z").exists());
    assert!(env.exists("out/bin/run"));
}

#[test]
fn without_recursion_only_the_files_of_the_directory_count() {
    let env = with_tree();
    env.write("out/other/file", "x");
    env.write("out/z", "x");
    let properties = "ensure: directory, source: src, recurse: false, purge: true";
    env.converge(&file(&env, "out", properties));
    assert!(env.exists("out/a.txt") && !env.path("out/bin").exists());
    assert!(env.exists("out/other/file") && !env.path("out/z").exists());
}

#[test]
fn links_in_the_target_are_replaced_and_not_followed() {
    let env = with_tree();
    env.write("outside/run", "kept");
    env.write("victim", "kept");
    env.write("out/x", "");
    symlink("../outside", env.path("out/bin")).unwrap();
    symlink("../victim", env.path("out/a.txt")).unwrap();
    env.converge(&file(
        &env,
        "out",
        "ensure: directory, source: src, purge: true",
    ));
    assert_eq!(
        (env.read("victim"), env.read("outside/run")),
        ("kept".into(), "kept".into())
    );
    assert!(!env.path("out/bin").is_symlink() && !env.path("out/a.txt").is_symlink());
}

#[test]
fn what_can_not_be_copied_is_an_error_and_nothing_is_written() {
    let env = with_tree();
    symlink("/etc/passwd", env.path("src/link")).unwrap();
    let applied = env.apply(&file(&env, "out", "ensure: directory, source: src"), &[]);
    assert_eq!(
        applied.failure(0),
        "$DIR/src/link is a link or special file; a source tree has files and directories only"
    );
    assert!(!env.path("out").exists());
    std::fs::remove_file(env.path("src/link")).unwrap();
    env.write("out/a.txt/x", "");
    let applied = env.apply(&file(&env, "out", "ensure: directory, source: src"), &[]);
    assert_eq!(
        applied.failure(0),
        "$DIR/out/a.txt is a directory, and a file in the source"
    );
    let applied = env.apply(
        &file(&env, "new", "ensure: directory, source: src/a.txt"),
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "source $DIR/src/a.txt is not a directory"
    );
}

#[test]
fn the_noop_of_a_tree_whose_owner_an_earlier_resource_creates_is_a_change() {
    let env = with_tree();
    env.write("out/a.txt", "one\n");
    for account in ["owner: ccm-no-such", "group: ccm-no-such"] {
        let entry = file(&env, "out", "ensure: directory, source: src");
        let (property, _) = account.split_once(':').unwrap();
        let entry = entry.replace(&format!("{property}: root"), account);
        let noop = env.apply(&entry, &["--noop"]);
        assert_eq!(noop.outcomes(), ["changed"], "{:#}", noop.document);
        assert_eq!(
            noop.event(0)["noop_message"],
            "Would have changed 5 files and directories of the tree"
        );
        let applied = env.apply(&entry, &[]);
        assert!(applied.failure(0).contains("ccm-no-such"));
        assert!(!env.exists("out/bin"));
    }
}

#[test]
fn a_template_is_rendered_by_its_engine() {
    for (engine, text) in [
        ("jet", "port [[ 40 + 2 ]]\n"),
        ("go", "port {{ add 40 2 }}\n"),
        ("jinja", "port {{ 40 + 2 }}\n"),
    ] {
        let env = TestEnv::new();
        env.write("t/app.conf", text);
        let properties = format!("ensure: present, template: t/app.conf, engine: {engine}");
        let shown = env.converge(&file(&env, "f", &properties));
        assert_eq!(shown, "Would have created the file");
        assert_eq!(env.read("f"), "port 42\n", "{engine}");
    }
}

#[test]
fn the_template_function_renders_a_file_with_an_engine() {
    for (call, template) in [
        ("template('x.j2', 'jinja')", "port {{ 40 + 2 }}\n"),
        ("template('x.j2')", "port {{ 40 + 2 }}\n"),
        ("template('x.j2', 'jet')", "port [[ 40 + 2 ]]\n"),
        ("template('x.j2', 'go')", "port {{ add 40 2 }}\n"),
    ] {
        let env = TestEnv::new();
        env.write("x.j2", template);
        env.converge(&file(
            &env,
            "f",
            &format!("ensure: present, content: \"{{{{ {call} }}}}\""),
        ));
        assert_eq!(env.read("f"), "port 42\n", "{call}");
    }
}

#[test]
fn a_template_that_fails_leaves_the_old_file() {
    let env = TestEnv::new();
    env.write("t", "{{ nothing | frobnicate }}");
    env.write("f", "old");
    let entry = file(&env, "f", "ensure: present, template: t, engine: jinja");
    let failure = env.apply(&entry, &[]).failure(0);
    assert!(failure.contains("frobnicate"), "{failure}");
    assert_eq!(env.read("f"), "old");
    let hidden = file(
        &env,
        "f",
        "ensure: present, template: t, engine: jinja, sensitive: true",
    );
    let failure = env.apply(&hidden, &[]).failure(0);
    assert_eq!(
        failure,
        "template failed; details are hidden because the resource is sensitive"
    );
}

#[test]
fn a_new_file_is_validated_beside_its_target_with_its_final_mode() {
    let env = TestEnv::new();
    let log = env.at("log");
    env.write("check", format!("#!/bin/sh\nstat -c '%a %U' \"$1\" >{log}\ndirname \"$1\" >>{log}\ngrep -q good \"$1\" && exit 0\necho first\necho \"bad line: $(cat \"$1\")\" >&2\nexit 3\n"));
    std::fs::set_permissions(env.path("check"), PermissionsExt::from_mode(0o755)).unwrap();
    env.write("etc/f", "good old\n");
    let check = env.at("check");
    let entry = |content: &str, more: &str| {
        file(
            &env,
            "etc/f",
            &format!(
                "ensure: present, content: '{content}', mode: '0600', validate: '{check} %'{more}"
            ),
        )
        .replace("mode: '0644', ", "")
    };
    let applied = env.apply(&entry("evil", ""), &[]);
    let failure = applied.failure(0);
    assert!(
        failure.starts_with("the new file was refused: validation failed with exit code 3")
            && failure.contains("bad line: evil"),
        "{failure}"
    );
    assert_eq!(env.read("etc/f"), "good old\n");
    let left = std::fs::read_dir(env.path("etc")).unwrap().count();
    assert_eq!(left, 1, "the temporary file is removed");
    let text = env.converge(&entry("good new", ""));
    assert_eq!(text, "Would have created the file");
    assert_eq!(env.read("etc/f"), "good new");
    assert_eq!(env.read("log"), format!("600 root\n{}\n", env.at("etc")));
    let applied = env.apply(&entry("evil secret", ", sensitive: true"), &[]);
    assert_eq!(
        applied.failure(0),
        "the new file was refused: validation failed with exit code 3"
    );
    assert!(!applied.document.to_string().contains("evil secret"));
}

#[test]
fn a_file_in_a_directory_of_another_user_is_validated_where_that_user_can_not_replace_it() {
    let env = TestEnv::new();
    env.write("guarded", "secret of root\n");
    env.write("theirs/f", "old\n");
    std::os::unix::fs::chown(env.path("theirs"), Some(65534), Some(65534)).unwrap();
    // Does what the owner of the directory could do meanwhile: replaces all new files there.
    let (theirs, guarded) = (env.at("theirs"), env.at("guarded"));
    let script = format!(
        "#!/bin/sh\nfor new in {theirs}/f.*; do [ -e \"$new\" ] && ln -sf {guarded} \"$new\"; done\ncp \"$1\" {}; stat -c %a \"$1\" >{}\n",
        env.at("validated"),
        env.at("mode")
    );
    let script = env.write("check", script);
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let properties = format!("ensure: present, content: \"new\\n\", validate: '{script} %'");
    let applied = env.apply(&file(&env, "theirs/f", &properties), &[]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.document);
    assert_eq!(env.read("validated"), "new\n");
    assert_eq!(env.read("mode"), "644\n");
    assert!(!env.path("theirs/f").is_symlink());
    assert_eq!(env.read("theirs/f"), "new\n");
    let files = crate::support::files_below(&env.path("theirs"));
    assert_eq!(files, ["f"]);
}

#[test]
fn a_validator_does_not_run_in_noop() {
    let env = TestEnv::new();
    let entry = file(
        &env,
        "f",
        &format!(
            "ensure: present, content: x, validate: 'touch {} %'",
            env.at("ran")
        ),
    );
    let applied = env.apply(&entry, &["--noop"]);
    assert_eq!(applied.event(0)["failed"], false);
    assert!(!env.path("ran").exists() && !env.path("f").exists());
}

#[test]
fn properties_that_contradict_each_other_are_refused() {
    let env = TestEnv::new();
    for (properties, error) in [
        (
            "ensure: present, template: a, content: b",
            "'template' cannot be used with",
        ),
        (
            "ensure: present, template: a, source: b",
            "'template' cannot be used with",
        ),
        (
            "ensure: directory, template: a",
            "'template' renders one file",
        ),
        (
            "ensure: present, content: a, engine: jet",
            "'engine' is only valid with 'template'",
        ),
        (
            "ensure: present, template: a, engine: erb",
            "engine must be one of",
        ),
        (
            "ensure: present, source: a, purge: true",
            "'purge' is only valid with",
        ),
        (
            "ensure: directory, recurse: true",
            "'recurse' is only valid with",
        ),
        (
            "ensure: present, validate: 'a %'",
            "'validate' is only valid with content",
        ),
        (
            "ensure: present, content: x, validate: a",
            "validate must contain %",
        ),
    ] {
        env.write(
            "m.yaml",
            crate::support::manifest(&file(&env, "f", properties)),
        );
        let shown = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(shown.contains(error), "{properties}: {shown}");
    }
}
