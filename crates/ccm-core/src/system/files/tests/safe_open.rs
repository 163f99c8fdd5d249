//! Links on the way: whose may be followed, and where to.

use std::os::unix::fs::{chown, lchown};

use super::*;

const STRANGER: u32 = 1234;

fn give(path: &Path) {
    lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn is_refused(path: &Path) -> bool {
    let stored = store_text(path, "x", &Attributes::default());
    match stored {
        Ok(()) => false,
        Err(FileError::Astray(_) | FileError::Movable(_)) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn of_roots_own_are_followed_wherever_they_lead() {
    let room = Room::new();
    room.directory("real/in");
    room.link("short", "real");
    room.link("long", room.at("short/../short").to_str().unwrap());
    assert!(!is_refused(&room.at("short/file")));
    assert!(!is_refused(&room.at("long/in/file")));
    assert!(room.at("real/in/file").exists() && room.at("real/file").exists());
}

#[test]
fn of_a_stranger_lead_only_to_what_is_his() {
    let room = Room::new();
    room.directory("guard");
    let own = room.directory("own");
    give(&own);
    give(&room.link("out", "guard"));
    give(&room.link("home", "own"));
    give(&room.link("farther", "out"));
    assert!(is_refused(&room.at("out/file")));
    assert!(is_refused(&room.at("farther/file")));
    assert!(!is_refused(&room.at("home/file")));
    assert_eq!(room.names(), ["farther", "guard", "home", "out", "own"]);
    assert!(!room.at("guard/file").exists());
}

#[test]
fn that_a_stranger_could_have_moved_are_as_good_as_his() {
    let room = Room::new();
    room.directory("guard");
    let yard = room.directory("yard");
    room.link("yard/link", "../guard");
    let file = room.at("yard/link/file");
    for (owner, mode, refused) in [
        (0, 0o755, false),
        (0, 0o1777, false),
        (0, 0o777, true),
        (0, 0o775, true),
        (STRANGER, 0o755, true),
        (STRANGER, 0o1777, true),
    ] {
        chown(&yard, Some(owner), None).unwrap();
        set_mode(&yard, mode);
        assert_eq!(is_refused(&file), refused, "{owner} {mode:o}");
    }
}

#[test]
fn of_root_may_have_been_given_another_name_where_others_may_write() {
    let room = Room::new();
    room.directory("guard");
    room.directory("harmless");
    let yard = room.directory("yard");
    room.link("yard/log", "../harmless");
    room.link("yard/etc", "../guard");
    set_mode(&yard, 0o775);
    // What a member of the group can do: the link is still root's own.
    rustix::fs::rename(room.at("yard/etc"), room.at("yard/log")).unwrap();
    let error = store_text(&room.at("yard/log/file"), "x", &EVERYTHING).unwrap_err();
    assert!(matches!(error, FileError::Movable(_)), "{error}");
    let remedy = format!("run chmod +t {}", yard.display());
    assert!(error.to_string().ends_with(&remedy), "{error}");
    assert!(!room.at("guard/file").exists());
    set_mode(&yard, 0o1775);
    assert!(!is_refused(&room.at("yard/log/file")));
}

#[test]
fn are_refused_by_everything_that_changes_something() {
    let room = Room::new();
    let guard = room.directory("guard");
    room.directory("guard/tree/below");
    let file = room.file("guard/file", "kept");
    give(&room.link("out", "guard"));
    let before = (attributes_of(&guard), attributes_of(&file));
    let at = |name: &str| room.at("out").join(name);
    let note = Note {
        name: "user.ccm.test",
        text: "x",
    };
    for done in [
        store_text(&at("file"), "x", &EVERYTHING),
        set_attributes(&at("file"), &EVERYTHING),
        set_note(&at("file"), note).map(drop),
        create_directory(&at("new"), &EVERYTHING),
        create_directory(&at("new/below"), &EVERYTHING),
        create_private_dir(&at("new")),
        remove(&at("file")),
        remove_recursive(&at("tree")),
        Tree::open(&room.at("out")).map(drop),
    ] {
        let error = done.unwrap_err();
        assert!(matches!(error, FileError::Astray(_)), "{error}");
        let link = room.at("out");
        assert!(error.to_string().contains(link.to_str().unwrap()));
    }
    assert_eq!((attributes_of(&guard), attributes_of(&file)), before);
    assert_eq!(text(&file), "kept");
    assert!(room.at("guard/tree/below").exists() && !room.at("guard/new").exists());
}

#[test]
fn that_lead_nowhere_make_nothing() {
    let room = Room::new();
    room.link("link", "missing");
    assert!(create_directory(&room.at("link/below"), &EVERYTHING).is_err());
    assert!(!room.at("missing").exists());
}

#[test]
fn that_lead_to_themselves_come_to_an_end() {
    let room = Room::new();
    room.link("a", "b");
    room.link("b", "a");
    let error = store_text(&room.at("a/file"), "x", &EVERYTHING).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

#[test]
fn of_the_kernel_are_doors_and_not_texts() {
    let room = Room::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let moved = room.directory("before");
    let handle = rustix::fs::open(&moved, flags, Mode::empty()).unwrap();
    rustix::fs::rename(&moved, room.at("after")).unwrap();
    room.directory("before");
    let door = Path::new(&entry_of(&handle)).join("file");
    store_text(&door, "x", &EVERYTHING).unwrap();
    assert!(room.at("after/file").exists() && !room.at("before/file").exists());
}

#[test]
fn a_second_name_of_anothers_file_gets_no_attributes() {
    let room = Room::new();
    let file = room.file("file", "");
    let yard = room.directory("yard");
    give(&yard);
    let planted = room.at("yard/file");
    std::fs::hard_link(&file, &planted).unwrap();
    let before = attributes_of(&file);
    let error = set_attributes(&planted, &EVERYTHING).unwrap_err();
    assert!(matches!(error, FileError::Shared(_)), "{error}");
    assert_eq!(attributes_of(&file), before);
    give(&file);
    set_attributes(&planted, &EVERYTHING).unwrap();
}
