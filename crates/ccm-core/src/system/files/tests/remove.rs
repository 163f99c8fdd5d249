//! Removal of files and trees.

use super::*;

#[test]
fn of_files_links_pipes_and_empty_directories() {
    let dir = TestDir::new();
    let victim = dir.directory("victim");
    for path in [
        dir.file("file", ""),
        dir.link("link", "victim"),
        dir.link("dangling", "nowhere"),
        dir.fifo("pipe"),
        dir.directory("empty"),
    ] {
        remove(&path).unwrap();
    }
    assert_eq!(dir.names(), ["victim"]);
    remove(&victim).unwrap();
}

#[test]
fn of_a_missing_path_is_not_an_error() {
    let dir = TestDir::new();
    remove(&dir.at("missing")).unwrap();
    remove(&dir.at("missing/below")).unwrap();
    remove_recursive(&dir.at("missing")).unwrap();
}

#[test]
fn of_a_full_directory_needs_force() {
    let dir = TestDir::new();
    let full = dir.directory("full");
    dir.file("full/file", "");
    let path = full.display();
    assert_eq!(
        remove(&full).unwrap_err().to_string(),
        format!(
            "cannot remove {path}: directory is not empty, set 'force: true' to remove \
             non-empty directories: remove {path}: directory not empty"
        )
    );
}

#[test]
fn of_a_tree_follows_no_link() {
    let dir = TestDir::new();
    dir.directory("outside");
    dir.file("outside/file", "kept");
    dir.directory("tree/a/b");
    dir.directory("tree/c");
    dir.file("tree/file", "");
    dir.file("tree/a/b/file", "");
    dir.link("tree/a/link", "../../outside");
    dir.link("tree/loop", ".");
    dir.fifo("tree/pipe");
    remove_recursive(&dir.at("tree")).unwrap();
    assert_eq!(dir.names(), ["outside"]);
    assert_eq!(text(&dir.at("outside/file")), "kept");
}

#[test]
fn of_a_link_to_a_tree_takes_the_link_only() {
    let dir = TestDir::new();
    dir.directory("tree/a");
    remove_recursive(&dir.link("link", "tree")).unwrap();
    assert_eq!(dir.names(), ["tree"]);
    assert!(dir.at("tree/a").exists());
}

#[test]
fn of_a_tree_deeper_than_paths_or_open_files_can_go() {
    let dir = TestDir::new();
    dir.directory("tree");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(dir.at("tree"), flags, Mode::empty()).unwrap();
    for _ in 0..1100 {
        rustix::fs::mkdirat(&here, "deep", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "deep", flags, Mode::empty()).unwrap();
    }
    remove_recursive(&dir.at("tree")).unwrap();
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn of_the_root_is_refused_by_the_system() {
    assert!(remove_recursive(Path::new("/")).is_err());
}
