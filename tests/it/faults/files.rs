//! Files that are not what their name suggests: devices and sockets are kept, mounts not emptied.

use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;

use crate::support::disk::SmallDisk;
use crate::support::{TestEnv, tool};

fn file(env: &TestEnv, name: &str, properties: &str) -> String {
    let path = env.at(name);
    format!("- file:\n    - {path}: {{owner: root, group: root, mode: '0644', {properties}}}\n")
}

#[test]
fn a_socket_is_not_replaced_by_a_file() {
    let env = TestEnv::new();
    let _listener = UnixListener::bind(env.path("s")).unwrap();
    let kept = env.apply(&file(&env, "s", "ensure: present, content: x"), &[]);
    let failure = kept.failure(0);
    assert!(
        failure.contains("/s is a device, socket or FIFO; remove it first"),
        "{failure}"
    );
    let kind = env.path("s").symlink_metadata().unwrap().file_type();
    assert!(kind.is_socket());
}

#[test]
fn forced_removal_does_not_empty_a_mounted_file_system() {
    let env = TestEnv::new();
    let _disk = SmallDisk::mount(&env.path("tree/sub/mounted"), "1m");
    env.write("tree/sub/mounted/precious", "x");
    let removal = file(&env, "tree", "ensure: absent, force: true");
    let failure = env.apply(&removal, &[]).failure(0).to_owned();
    assert!(
        failure.contains("a file system is mounted on it or below it"),
        "{failure}"
    );
    assert_eq!(env.read("tree/sub/mounted/precious"), "x");
}

#[test]
fn forced_removal_removes_nothing_if_a_file_system_is_mounted_below() {
    let env = TestEnv::new();
    // The name of the directory is escaped in the list of mounts.
    let _disk = SmallDisk::mount(&env.path("tree/sub/a \\ b"), "1m");
    for name in ["tree/file", "tree/0/file", "tree/sub/file", "tree/z/file"] {
        env.write(name, "x");
    }
    let removal = file(&env, "tree", "ensure: absent, force: true");
    env.apply(&removal, &[]).failure(0);
    for name in ["tree/file", "tree/0/file", "tree/sub/file", "tree/z/file"] {
        assert_eq!(env.read(name), "x", "{name}");
    }
}

#[test]
fn forced_removal_does_not_empty_a_bind_mount() {
    let env = TestEnv::new();
    env.write("data/precious", "x");
    std::fs::create_dir_all(env.path("tree/bound")).unwrap();
    let (data, bound) = (env.path("data"), env.path("tree/bound"));
    tool("mount", &["--bind".as_ref(), &data, &bound]);
    let applied = env.apply(&file(&env, "tree", "ensure: absent, force: true"), &[]);
    tool("umount", &[&bound]);
    let failure = applied.failure(0);
    assert!(
        failure.contains("a file system is mounted on it or below it"),
        "{failure}"
    );
    assert_eq!(env.read("data/precious"), "x");
}
