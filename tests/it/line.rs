//! The line type on a real file system: what is kept of the file, what is refused, every noop text.
//! The edits themselves are a table, `tests/data/line`.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown, symlink};

use crate::support::TestEnv;

/// Returns a manifest entry for a line in `f` with these properties.
fn line(env: &TestEnv, properties: &str) -> String {
    format!("- line:\n    - {}: {{{properties}}}\n", env.at("f"))
}

#[test]
fn every_edit_has_its_noop_text_and_is_stable_afterwards() {
    for (content, properties, text) in [
        ("a\n", "line: b", "Would have added the line"),
        (
            "a\n",
            "line: b, match: '^a'",
            "Would have replaced the line",
        ),
        (
            "a\n",
            "ensure: absent, line: a",
            "Would have removed the line",
        ),
        ("a\n", "block: b", "Would have added the block"),
        (
            "# BEGIN ccm $F\n# END ccm $F\n",
            "block: b",
            "Would have updated the block",
        ),
        (
            "# BEGIN ccm $F\n# END ccm $F\n",
            "ensure: absent, block: ''",
            "Would have removed the block",
        ),
    ] {
        let env = TestEnv::new();
        env.write("f", content.replace("$F", &env.at("f")));
        assert_eq!(env.converge(&line(&env, properties)), text);
    }
}

#[test]
fn owner_mode_bytes_and_line_ends_are_kept() {
    let env = TestEnv::new();
    env.write("f", b"caf\xe9\r\n\xff\x00\r\nlast");
    chown(env.path("f"), Some(12), Some(34)).unwrap();
    std::fs::set_permissions(env.path("f"), PermissionsExt::from_mode(0o4711)).unwrap();
    env.converge(&line(&env, "line: new, after: last"));
    let content = std::fs::read(env.path("f")).unwrap();
    assert_eq!(content, b"caf\xe9\r\n\xff\x00\r\nlast\r\nnew\r\n");
    let found = env.path("f").metadata().unwrap();
    assert_eq!(
        (found.uid(), found.gid(), found.mode() & 0o7777),
        (12, 34, 0o4711)
    );
}

#[test]
fn a_missing_file_is_an_error_of_a_real_run_and_nothing_to_remove() {
    let env = TestEnv::new();
    let entry = line(&env, "line: a");
    let noop = env.apply(&entry, &["--noop"]);
    assert_eq!(
        noop.event(0)["status"]["noop_message"],
        "Would have added the line"
    );
    let applied = env.apply(&entry, &[]);
    assert_eq!(
        applied.failure(0),
        "$DIR/f does not exist; create it first, for example with a file resource"
    );
    env.assert_stable(&line(&env, "ensure: absent, line: a"));
}

#[test]
fn a_link_a_directory_and_a_fifo_are_refused() {
    let env = TestEnv::new();
    env.write("real", "kept\n");
    symlink("real", env.path("f")).unwrap();
    let applied = env.apply(&line(&env, "line: a"), &[]);
    assert_eq!(
        applied.failure(0),
        "$DIR/f is a symlink; refusing to write through it"
    );
    assert_eq!(env.read("real"), "kept\n");
    std::fs::remove_file(env.path("f")).unwrap();
    std::fs::create_dir(env.path("f")).unwrap();
    let applied = env.apply(&line(&env, "line: a"), &[]);
    assert_eq!(applied.failure(0), "$DIR/f is not a regular file");
    std::fs::remove_dir(env.path("f")).unwrap();
    crate::support::tool("mkfifo", &[&env.path("f")]);
    let applied = env.apply(&line(&env, "line: a"), &[]);
    assert_eq!(applied.failure(0), "$DIR/f is not a regular file");
}

#[test]
fn the_event_has_the_old_checksum_and_no_content() {
    let env = TestEnv::new();
    env.write("f", "a\n");
    let applied = env.apply(&line(&env, "line: b"), &[]);
    let event = applied.event(0);
    assert_eq!(
        event["previous"]["checksum"],
        "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"
    );
    assert!(event["status"]["metadata"].get("content").is_none());
}

#[test]
fn a_sensitive_line_is_not_shown() {
    let env = TestEnv::new();
    env.write("f", "password old-secret\n");
    let entry = line(
        &env,
        "match: '^password old', line: password hunter2, sensitive: true",
    );
    let applied = env.apply(&entry, &["--diff"]);
    let shown = applied.document.to_string();
    assert!(
        !shown.contains("hunter2") && !shown.contains("old-secret"),
        "{shown}"
    );
    assert_eq!(env.read("f"), "password hunter2\n");
}

#[test]
fn lines_are_rendered_just_before_use() {
    let env = TestEnv::new();
    env.write("f", "a\n");
    let entry = line(&env, "line: \"{{ readFile('made') }}\"");
    let file = format!(
        "- file:\n    - {}: {{ensure: present, content: late, owner: root, group: root, mode: '0644'}}\n",
        env.at("made")
    );
    let applied = env.apply(&format!("{file}{entry}"), &[]);
    assert_eq!(applied.outcomes(), ["changed", "changed"]);
    assert_eq!(env.read("f"), "a\nlate\n");
}

#[test]
fn several_resources_edit_one_file() {
    let env = TestEnv::new();
    env.write("f", "[a]\n[b]\n");
    let path = env.at("f");
    let entries = format!(
        "- line:\n    - one: {{path: {path}, line: x=1, after: '^.a.$'}}\n    - two: {{path: {path}, block: \"y=2\\nz=3\"}}\n"
    );
    let applied = env.apply(&entries, &[]);
    assert_eq!(applied.outcomes(), ["changed", "changed"]);
    let wanted = "[a]\nx=1\n[b]\n# BEGIN ccm two\ny=2\nz=3\n# END ccm two\n";
    assert_eq!(env.read("f"), wanted);
    assert_eq!(env.apply(&entries, &[]).outcomes(), ["stable", "stable"]);
}

#[test]
fn properties_that_contradict_each_other_are_refused() {
    let env = TestEnv::new();
    for (properties, error) in [
        (
            "line: a, block: b",
            "'line' and 'block' are mutually exclusive",
        ),
        ("block: b, match: c", "'match' is only valid with 'line'"),
        ("match: c", "one of 'line' or 'block' is required"),
        (
            "ensure: absent",
            "one of 'line', 'match' or 'block' is required",
        ),
        (
            "line: a, after: b, before: c",
            "'after' and 'before' are mutually exclusive",
        ),
        ("line: ''", "line cannot be empty"),
        ("line: a, match: '('", "match: unclosed group"),
        (
            "line: a, path: etc/hosts",
            "path of the file must be absolute",
        ),
        ("line: a, ensure: latest", "invalid ensure value"),
    ] {
        env.write("m.yaml", crate::support::manifest(&line(&env, properties)));
        let shown = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(shown.contains(error), "{properties}: {shown}");
    }
}

#[test]
fn a_name_with_a_line_break_is_refused() {
    let env = TestEnv::new();
    env.write("a\nb", "one\n");
    let path = env.at("a\\nb");
    for property in ["line", "block"] {
        let entry = format!("- line:\n    name: \"{path}\"\n    {property}: two\n");
        env.write("m.yaml", crate::support::manifest(&entry));
        let shown = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(shown.contains("must not contain line breaks"), "{shown}");
        assert_eq!(env.read("a\nb"), "one\n");
    }
}

#[test]
fn a_path_with_a_line_break_is_one_file() {
    let env = TestEnv::new();
    env.write("a\nb", "one\n");
    let path = env.at("a\\nb");
    for (property, content) in [
        ("line", "one\ntwo\n"),
        ("block", "one\ntwo\n# BEGIN ccm x\ntwo\n# END ccm x\n"),
    ] {
        let path = format!("path: \"{path}\"");
        env.converge(&format!(
            "- line:\n    name: x\n    {path}\n    {property}: two\n"
        ));
        assert_eq!(env.read("a\nb"), content);
    }
}
