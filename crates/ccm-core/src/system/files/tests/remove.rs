//! Removing files and trees.

use super::*;

#[test]
fn of_files_links_pipes_and_empty_directories() {
    let room = Room::new();
    let victim = room.directory("victim");
    for path in [
        room.file("file", ""),
        room.link("link", "victim"),
        room.link("dangling", "nowhere"),
        room.fifo("pipe"),
        room.directory("empty"),
    ] {
        remove(&path).unwrap();
    }
    assert_eq!(room.names(), ["victim"]);
    remove(&victim).unwrap();
}

#[test]
fn of_what_is_missing_is_fine() {
    let room = Room::new();
    remove(&room.at("missing")).unwrap();
    remove(&room.at("missing/below")).unwrap();
    remove_recursive(&room.at("missing")).unwrap();
}

#[test]
fn of_a_full_directory_tells_how_to_ask_for_it() {
    let room = Room::new();
    let full = room.directory("full");
    room.file("full/file", "");
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
    let room = Room::new();
    room.directory("outside");
    room.file("outside/file", "kept");
    room.directory("tree/a/b");
    room.directory("tree/c");
    room.file("tree/file", "");
    room.file("tree/a/b/file", "");
    room.link("tree/a/link", "../../outside");
    room.link("tree/loop", ".");
    room.fifo("tree/pipe");
    remove_recursive(&room.at("tree")).unwrap();
    assert_eq!(room.names(), ["outside"]);
    assert_eq!(text(&room.at("outside/file")), "kept");
}

#[test]
fn of_a_link_to_a_tree_takes_the_link_only() {
    let room = Room::new();
    room.directory("tree/a");
    remove_recursive(&room.link("link", "tree")).unwrap();
    assert_eq!(room.names(), ["tree"]);
    assert!(room.at("tree/a").exists());
}

#[test]
fn of_a_tree_deeper_than_paths_or_open_files_can_go() {
    let room = Room::new();
    room.directory("tree");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(room.at("tree"), flags, Mode::empty()).unwrap();
    for _ in 0..1100 {
        rustix::fs::mkdirat(&here, "deep", Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, "deep", flags, Mode::empty()).unwrap();
    }
    remove_recursive(&room.at("tree")).unwrap();
    assert_eq!(room.names(), [""; 0]);
}

#[test]
fn of_the_root_is_refused_by_the_system() {
    assert!(remove_recursive(Path::new("/")).is_err());
}
