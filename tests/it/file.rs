//! The file type on a real file system: every row of its decision table, every noop text.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

use crate::support::TestEnv;

/// Returns a manifest entry for one file with these properties.
fn file(env: &TestEnv, name: &str, properties: &str) -> String {
    let path = env.at(name);
    format!("- file:\n    - {path}: {{owner: root, group: root, mode: '0644', {properties}}}\n")
}

fn mode(env: &TestEnv, name: &str) -> u32 {
    env.path(name).symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_missing_file_is_created_with_its_content() {
    let env = TestEnv::new();
    let text = env.converge(&file(&env, "f", "ensure: present, content: 'hello'"));
    assert_eq!(text, "Would have created the file");
    assert_eq!(env.read("f"), "hello");
    assert_eq!(mode(&env, "f"), 0o644);
}

#[test]
fn other_content_is_replaced_and_the_message_says_created() {
    let env = TestEnv::new();
    env.write("f", "old");
    let text = env.converge(&file(&env, "f", "ensure: present, content: new"));
    assert_eq!(text, "Would have created the file");
    assert_eq!(env.read("f"), "new");
}

#[test]
fn an_empty_content_is_a_content() {
    let env = TestEnv::new();
    env.write("f", "old");
    let _ = env.converge(&file(&env, "f", "ensure: present, content: ''"));
    assert_eq!(env.read("f"), "");
}

#[test]
fn without_content_only_attributes_are_managed() {
    let env = TestEnv::new();
    env.write("f", "keep me");
    std::fs::set_permissions(env.path("f"), PermissionsExt::from_mode(0o600)).unwrap();
    let text = env.converge(&file(&env, "f", "ensure: present"));
    assert_eq!(text, "Would have updated attributes");
    assert_eq!(env.read("f"), "keep me");
    assert_eq!(mode(&env, "f"), 0o644);
}

#[test]
fn without_content_a_missing_file_is_made_empty() {
    let env = TestEnv::new();
    let text = env.converge(&file(&env, "f", "ensure: present"));
    assert_eq!(
        text,
        "Would have created an empty file with requested attributes"
    );
    assert_eq!(env.read("f"), "");
}

#[test]
fn a_source_is_copied_from_beside_the_manifest() {
    let env = TestEnv::new();
    env.write("files/src.bin", [0_u8, 159, 146, 150]);
    env.converge(&file(&env, "f", "ensure: present, source: files/src.bin"));
    assert_eq!(std::fs::read(env.path("f")).unwrap(), [0, 159, 146, 150]);
}

#[test]
fn a_missing_source_fails_the_resource() {
    let env = TestEnv::new();
    env.write("f", "old");
    let applied = env.apply(&file(&env, "f", "ensure: present, source: gone"), &[]);
    assert!(
        applied.failure(0).contains("no such file or directory"),
        "{:#}",
        applied.document
    );
    assert_eq!(env.read("f"), "old");
}

#[test]
fn a_directory_is_created_with_its_parents_and_may_be_entered() {
    let env = TestEnv::new();
    let text = env.converge(&file(&env, "a/b", "ensure: directory"));
    assert_eq!(text, "Would have created directory");
    assert_eq!(mode(&env, "a/b"), 0o755);
}

#[test]
fn a_file_is_removed() {
    let env = TestEnv::new();
    env.write("f", "");
    let text = env.converge(&file(&env, "f", "ensure: absent"));
    assert_eq!(text, "Would have removed the file");
    assert!(!env.exists("f"));
}

#[test]
fn an_empty_directory_is_removed() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("d")).unwrap();
    let text = env.converge(&file(&env, "d", "ensure: absent"));
    assert_eq!(text, "Would have removed the directory");
}

#[test]
fn a_full_directory_is_only_removed_by_force() {
    let env = TestEnv::new();
    env.write("d/inner/file", "");
    let applied = env.apply(&file(&env, "d", "ensure: absent"), &[]);
    assert!(
        applied
            .failure(0)
            .contains("directory is not empty, set 'force: true' to remove non-empty directories"),
        "{:#}",
        applied.document
    );
    let text = env.converge(&file(&env, "d", "ensure: absent, force: true"));
    assert_eq!(text, "Would have recursively removed the directory");
}

#[test]
fn force_on_a_link_removes_only_the_link() {
    let env = TestEnv::new();
    env.write("real/file", "x");
    symlink(env.path("real"), env.path("link")).unwrap();
    let _ = env.converge(&file(&env, "link", "ensure: absent, force: true"));
    assert!(env.exists("real/file"));
    assert!(!env.exists("link"));
}

#[test]
fn a_directory_where_a_file_is_wanted_is_an_error_in_noop_too() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("d")).unwrap();
    let entry = file(&env, "d", "ensure: present, content: x");
    for flags in [&["--noop"][..], &[]] {
        let applied = env.apply(&entry, flags);
        assert_eq!(
            applied.failure(0),
            format!(
                "{} exists as a directory; cannot manage it as a file",
                "$DIR/d"
            )
        );
        assert_eq!(applied.event(0)["noop"], false);
    }
}

#[test]
fn a_link_to_a_file_is_replaced_and_its_target_untouched() {
    let env = TestEnv::new();
    env.write("target", "old");
    symlink(env.path("target"), env.path("f")).unwrap();
    let _ = env.converge(&file(&env, "f", "ensure: present, content: new"));
    assert_eq!(env.read("target"), "old");
    assert!(!env.path("f").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn attributes_are_never_set_through_a_link() {
    let env = TestEnv::new();
    env.write("target", "old");
    std::fs::set_permissions(env.path("target"), PermissionsExt::from_mode(0o600)).unwrap();
    symlink(env.path("target"), env.path("f")).unwrap();
    let applied = env.apply(&file(&env, "f", "ensure: present"), &[]);
    assert_eq!(
        applied.failure(0),
        "$DIR/f is a symlink; refusing to set attributes through it"
    );
    assert_eq!(mode(&env, "target"), 0o600);
}

#[test]
fn a_link_to_a_directory_with_drift_is_replaced() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("real")).unwrap();
    std::fs::set_permissions(env.path("real"), PermissionsExt::from_mode(0o700)).unwrap();
    symlink(env.path("real"), env.path("d")).unwrap();
    let _ = env.converge(&file(&env, "d", "ensure: directory"));
    assert_eq!(mode(&env, "real"), 0o700);
    assert!(!env.path("d").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn owner_and_group_are_set_and_ids_need_no_name() {
    let env = TestEnv::new();
    let path = env.at("f");
    let entry = format!(
        "- file:\n    - {path}: {{ensure: present, content: x, owner: 54321, group: nogroup, mode: '0600'}}\n"
    );
    let _ = env.converge(&entry);
    let applied = env.apply(&entry, &[]);
    let metadata = &applied.event(0)["status"]["metadata"];
    assert_eq!(metadata["owner"], "54321");
    assert_eq!(metadata["group"], "nogroup");
}

#[test]
fn an_unknown_owner_fails_before_anything_is_written() {
    let env = TestEnv::new();
    let path = env.at("f");
    let entry = format!(
        "- file: {{name: {path}, ensure: present, content: x, owner: no-such-user, group: root, mode: '0600'}}\n"
    );
    let applied = env.apply(&entry, &[]);
    assert!(
        applied
            .failure(0)
            .starts_with("could not lookup user \"no-such-user\": "),
        "{:#}",
        applied.document
    );
    assert!(!env.exists("f"));
}

#[test]
fn a_missing_parent_is_named() {
    let env = TestEnv::new();
    let applied = env.apply(&file(&env, "no/f", "ensure: present, content: x"), &[]);
    assert_eq!(applied.failure(0), "\"$DIR/no\" is not a directory");
}

#[test]
fn no_temporary_file_stays_behind() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("d")).unwrap();
    let _ = env.converge(&file(&env, "d/f", "ensure: present, content: x"));
    let names: Vec<_> = std::fs::read_dir(env.path("d")).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn the_sticky_bit_of_a_directory_is_shown_and_kept() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("d")).unwrap();
    std::fs::set_permissions(env.path("d"), PermissionsExt::from_mode(0o1700)).unwrap();
    let _ = env.converge(&file(&env, "d", "ensure: directory"));
    assert_eq!(mode(&env, "d"), 0o1755);
    let applied = env.apply(&file(&env, "d", "ensure: directory"), &[]);
    assert_eq!(applied.event(0)["status"]["metadata"]["mode"], "1755");
}

#[test]
fn a_set_uid_bit_that_is_not_in_the_mode_is_removed() {
    let env = TestEnv::new();
    env.write("f", "x");
    std::fs::set_permissions(env.path("f"), PermissionsExt::from_mode(0o4644)).unwrap();
    let _ = env.converge(&file(&env, "f", "ensure: present"));
    assert_eq!(mode(&env, "f"), 0o644);
}

#[test]
fn a_diff_shows_content_and_attributes() {
    let env = TestEnv::new();
    env.write("f", "one\ntwo\n");
    std::fs::set_permissions(env.path("f"), PermissionsExt::from_mode(0o600)).unwrap();
    let entry = file(&env, "f", "ensure: present, content: \"one\\n2\\n\"");
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n  {}", entry.replace('\n', "\n  ")),
    );
    for flags in [&["--noop"][..], &[]] {
        let args = [&["apply", "m.yaml", "--diff"], flags].concat();
        let text = env.ccm(&args).ok();
        assert!(
            text.contains(
                "--- $DIR/f\n+++ $DIR/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n$DIR/f: mode 0600 -> 0644\n"
            ),
            "{text}"
        );
    }
    let text = env.ccm(&["apply", "m.yaml", "--diff"]).ok();
    assert!(!text.contains("@@"), "{text}");
}

#[test]
fn sensitive_content_is_in_no_diff_event_or_log() {
    let env = TestEnv::new();
    env.write("f", "old-secret\n");
    let entry = file(
        &env,
        "f",
        "ensure: present, content: new-secret, sensitive: true",
    );
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n  {}", entry.replace('\n', "\n  ")),
    );
    for flags in [
        &["--diff", "--noop"][..],
        &["--diff", "--debug"],
        &["--json"],
        &["--render"],
    ] {
        let outcome = env.ccm(&[&["apply", "m.yaml"], flags].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let all = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(!all.contains("secret"), "{all}");
    }
    assert_eq!(env.read("f"), "new-secret");
}

#[test]
fn a_checksum_of_sensitive_content_is_never_shown() {
    let env = TestEnv::new();
    let digest = ccm_core::system::Digest::of(b"1234").to_string();
    let request = |sensitive: bool| {
        serde_json::json!({
            "protocol": "io.choria.ccm.v1.resource.ensure.request",
            "type": "file",
            "properties": {"name": env.at("pin"), "ensure": "present", "content": "1234",
                "owner": "root", "group": "root", "mode": "0600", "sensitive": sensitive},
        })
        .to_string()
    };
    let pipe = ["ensure", "api", "pipe"];
    let answer = env.ccm_with_input(&pipe, &request(true)).ok();
    assert!(!answer.contains(&digest), "{answer}");
    let properties = "ensure: present, content: '1234', sensitive: true";
    let applied = env.apply(&file(&env, "pin", properties), &[]);
    assert!(!applied.document.to_string().contains(&digest));
    // Without sensitive it is shown, as upstream does.
    let answer = env.ccm_with_input(&pipe, &request(false)).ok();
    assert!(answer.contains(&digest), "{answer}");
}

#[test]
fn a_binary_file_has_no_diff_but_is_named() {
    let env = TestEnv::new();
    env.write("f", [0_u8, 255, 254]);
    let entry = file(&env, "f", "ensure: present, content: text");
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n  {}", entry.replace('\n', "\n  ")),
    );
    let text = env.ccm(&["apply", "m.yaml", "--diff"]).ok();
    assert!(
        text.contains("Content of $DIR/f differs (not text)"),
        "{text}"
    );
}

#[test]
fn the_command_line_takes_both_forms_of_owner_and_group() {
    let env = TestEnv::new();
    for args in [
        &["--owner", "nobody:nogroup"][..],
        &["--owner", "nobody", "--group", "nogroup"],
    ] {
        let _ = std::fs::remove_file(env.path("f"));
        let all = [&["ensure", "file", "f", "--content", "x"], args].concat();
        let _ = env.ccm(&all).ok();
        let found = env.path("f").metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (65534, 65534));
    }
    let error = env
        .ccm(&["ensure", "file", "f", "--owner", "a:b", "--group", "c"])
        .error(2);
    assert!(error.contains("--owner sets group \"b\""), "{error}");
}

#[test]
fn the_command_line_makes_directories_enterable_by_default() {
    let env = TestEnv::new();
    let _ = env.ccm(&["ensure", "file", "d", "directory"]).ok();
    assert_eq!(mode(&env, "d"), 0o755);
}

#[test]
fn status_shows_what_is() {
    let env = TestEnv::new();
    env.write("f", "hello");
    let shown = env.ccm(&["status", "file", "f", "--json"]).json();
    assert_eq!(shown["size"], 5);
    assert_eq!(shown["owner"], "root");
    let text = env.ccm(&["info", "file", "gone"]).ok();
    assert_eq!(
        text,
        "name: $DIR/gone\nowner: \"\"\ngroup: \"\"\nmode: \"\"\nprovider: posix\n\n"
    );
}
