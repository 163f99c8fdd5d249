//! Files that are believed: whose hand may have been in them.

use std::os::unix::fs::chown;

use super::*;

const LIMIT: u64 = 16;
const STRANGER: u32 = 1234;

fn prepare(room: &Room, mode: u32, uid: u32, gid: u32) -> PathBuf {
    let path = room.file("file", "text");
    chown(&path, Some(uid), Some(gid)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test opens a file to others")]
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn are_read_if_nobody_else_could_have_written_them() {
    use Writers::{Nobody, RootsGroup};
    let room = Room::new();
    for (mode, uid, gid, writers, is_read) in [
        (0o644, 0, 0, Nobody, true),
        (0o644, 0, STRANGER, Nobody, true),
        (0o664, 0, 0, Nobody, false),
        (0o664, 0, 0, RootsGroup, true),
        (0o664, 0, STRANGER, RootsGroup, false),
        (0o602, 0, 0, RootsGroup, false),
        (0o600, STRANGER, 0, RootsGroup, false),
        (0o600, STRANGER, STRANGER, Nobody, false),
    ] {
        let path = prepare(&room, mode, uid, gid);
        let read = read_guarded(&path, LIMIT, writers);
        assert_eq!(read.is_ok(), is_read, "{mode:o} {uid}:{gid} {writers:?}");
    }
}

#[test]
fn that_are_refused_are_named_with_what_to_do() {
    let room = Room::new();
    let path = prepare(&room, 0o666, 0, 0);
    let name = path.display();
    let error = || read_guarded(&path, LIMIT, Writers::Nobody).unwrap_err();
    assert_eq!(
        error().to_string(),
        format!("{name} may be changed by others: run chmod go-w {name}")
    );
    prepare(&room, 0o600, STRANGER, 0);
    assert_eq!(
        error().to_string(),
        format!("{name} belongs to user {STRANGER}, who could change it: run chown root {name}")
    );
}

#[test]
fn have_a_limit_and_are_text() {
    let room = Room::new();
    let path = room.file("long", &"x".repeat(17));
    let error = read_guarded(&path, LIMIT, Writers::Nobody).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
    #[expect(clippy::disallowed_methods, reason = "a test prepares a file")]
    std::fs::write(&path, b"\xff").unwrap();
    let error = read_guarded(&path, LIMIT, Writers::Nobody).unwrap_err();
    assert!(matches!(error, FileError::NotText(_)), "{error}");
}
