//! The link type on a real file system: every row of its decision table, every noop text, and what is
//! in the way.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::support::TestEnv;
use crate::support::disk::{Disk, SmallDisk};
use crate::support::tool;

/// Returns a manifest entry for one link with these properties.
fn link(env: &TestEnv, name: &str, properties: &str) -> String {
    format!("- link:\n    - {}: {{{properties}}}\n", env.at(name))
}

fn target(env: &TestEnv, name: &str) -> PathBuf {
    std::fs::read_link(env.path(name)).unwrap()
}

#[test]
fn a_missing_link_is_created_with_its_target_as_written() {
    let env = TestEnv::new();
    let text = env.converge(&link(&env, "current", "target: ./releases//42/.."));
    assert_eq!(text, "Would have created the link");
    assert_eq!(target(&env, "current").as_os_str(), "./releases//42/..");
}

#[test]
fn another_target_is_replaced_and_the_event_has_the_old_one() {
    let env = TestEnv::new();
    env.write("releases/1/file", "old");
    symlink("releases/1", env.path("current")).unwrap();
    let entry = link(&env, "current", "target: releases/2");
    let noop = env.apply(&entry, &["--noop"]);
    assert_eq!(
        noop.event(0)["status"]["noop_message"],
        "Would have changed the target"
    );
    let applied = env.apply(&entry, &[]);
    assert_eq!(applied.event(0)["previous"]["target"], "releases/1");
    assert_eq!(target(&env, "current"), PathBuf::from("releases/2"));
    assert_eq!(env.read("releases/1/file"), "old");
    env.assert_stable(&entry);
}

#[test]
fn a_link_is_removed_and_its_target_is_not() {
    let env = TestEnv::new();
    env.write("data/file", "kept");
    symlink("data", env.path("l")).unwrap();
    let text = env.converge(&link(&env, "l", "ensure: absent"));
    assert_eq!(text, "Would have removed the link");
    assert_eq!(env.read("data/file"), "kept");
}

#[test]
fn a_file_in_the_way_is_an_error_unless_forced() {
    let env = TestEnv::new();
    env.write("f", "kept");
    for properties in ["target: x", "ensure: absent"] {
        let applied = env.apply(&link(&env, "f", properties), &[]);
        assert_eq!(
            applied.failure(0),
            "$DIR/f is in the way: it is not a symbolic link; remove it first, or set 'force: true'"
        );
        assert_eq!(env.read("f"), "kept");
    }
    let text = env.converge(&link(&env, "f", "target: x, force: true"));
    assert_eq!(text, "Would have replaced what is at the path by the link");
    assert_eq!(target(&env, "f"), PathBuf::from("x"));
}

#[test]
fn a_directory_in_the_way_is_an_error_unless_forced() {
    let env = TestEnv::new();
    env.write("d/sub/file", "kept");
    let applied = env.apply(&link(&env, "d", "target: x"), &[]);
    assert!(applied.failure(0).contains("is in the way"));
    assert_eq!(env.read("d/sub/file"), "kept");
    env.converge(&link(&env, "d", "target: x, force: true"));
    assert_eq!(target(&env, "d"), PathBuf::from("x"));
    // The old directory is gone, also under its temporary name.
    let left = std::fs::read_dir(env.root()).unwrap().flatten();
    let left: Vec<_> = left.filter(|it| it.path().is_dir()).collect();
    assert!(
        left.iter()
            .all(|it| !it.file_name().as_bytes().starts_with(b"d."))
    );
}

/// Checks that a forced link over the directory `d` is refused, and that the directory is as it was.
fn refuses_mount(env: &TestEnv, properties: &str) {
    for _ in 0..2 {
        let applied = env.apply(&link(env, "d", properties), &[]);
        let error = applied.failure(0);
        assert!(error.contains("a file system is mounted"), "{error}");
        assert_eq!(env.read("d/file"), "kept");
        assert_eq!(env.read("d/a/b/mounted/file"), "kept");
    }
    let left = std::fs::read_dir(env.root()).unwrap().flatten();
    let mut left = left.map(|it| it.file_name().into_string().unwrap());
    assert!(left.all(|it| !it.starts_with("d.")));
}

#[test]
fn a_directory_with_a_mount_below_is_not_replaced() {
    let env = TestEnv::new();
    env.write("d/file", "kept");
    let _disk = SmallDisk::mount(&env.path("d/a/b/mounted"), "64k");
    env.write("d/a/b/mounted/file", "kept");
    refuses_mount(&env, "target: x, force: true");
}

#[test]
fn a_directory_with_a_mount_below_is_not_removed() {
    let env = TestEnv::new();
    env.write("d/file", "kept");
    let _disk = SmallDisk::mount(&env.path("d/a/b/mounted"), "64k");
    env.write("d/a/b/mounted/file", "kept");
    refuses_mount(&env, "ensure: absent, force: true");
}

#[test]
fn a_directory_that_can_not_be_removed_keeps_its_name() {
    let env = TestEnv::new();
    let _disk = Disk::mount(&env.path("image"), &env.path("disk"));
    env.write("disk/d/sub/file", "kept");
    let file = env.path("disk/d/sub/file");
    tool("chattr", &["+i".as_ref(), &file]);
    let entry = link(&env, "disk/d", "target: x, force: true");
    let errors = [(); 2].map(|()| env.apply(&entry, &[]).failure(0).to_owned());
    assert!(
        errors.iter().all(|it| it.contains("not permitted")),
        "{errors:?}"
    );
    assert_eq!(env.read("disk/d/sub/file"), "kept");
    tool("chattr", &["-i".as_ref(), &file]);
    env.converge(&entry);
    let left = std::fs::read_dir(env.path("disk")).unwrap().flatten();
    let mut left: Vec<_> = left.map(|it| it.file_name()).collect();
    left.sort();
    assert_eq!(left, ["d", "lost+found"]);
}

#[test]
fn a_forced_removal_takes_what_is_at_the_path() {
    let env = TestEnv::new();
    env.write("d/file", "");
    let text = env.converge(&link(&env, "d", "ensure: absent, force: true"));
    assert_eq!(text, "Would have removed what is at the path");
    assert!(!env.path("d").exists());
}

#[test]
fn a_target_that_is_not_utf8_is_replaced() {
    let env = TestEnv::new();
    let odd = std::ffi::OsStr::from_bytes(b"a\xff");
    symlink(odd, env.path("l")).unwrap();
    env.converge(&link(&env, "l", "target: \"a\\uFFFD\""));
    assert_eq!(target(&env, "l").as_os_str(), "a\u{FFFD}");
}

#[test]
fn a_directory_that_does_not_exist_is_an_error() {
    let env = TestEnv::new();
    let applied = env.apply(&link(&env, "none/l", "target: x"), &[]);
    assert_eq!(applied.failure(0), "\"$DIR/none\" is not a directory");
}

#[test]
fn a_diff_shows_the_targets() {
    let env = TestEnv::new();
    symlink("old", env.path("l")).unwrap();
    let path = env.at("l");
    let outcome = env.ccm(&[
        "ensure", "link", &path, "--target", "new", "--noop", "--diff",
    ]);
    assert!(
        outcome.stdout.contains("/l: target old -> new")
            || outcome.stderr.contains("/l: target old -> new"),
        "{outcome:?}"
    );
}

#[test]
fn status_shows_the_target() {
    let env = TestEnv::new();
    symlink("../a", env.path("l")).unwrap();
    let shown = env.ccm(&["status", "link", "l", "--json"]).json();
    assert_eq!(shown["target"], "../a");
}

#[test]
fn a_name_with_a_line_break_is_one_link() {
    let env = TestEnv::new();
    let path = env.at("a\\nb");
    env.converge(&format!(
        "- link:\n    name: \"{path}\"\n    target: \"x\\ny\"\n"
    ));
    assert_eq!(target(&env, "a\nb").as_os_str(), "x\ny");
}
