//! Trusted files: who may have changed them.

use std::os::unix::fs::chown;

use super::*;

const LIMIT: u64 = 16;
const OTHER_USER: u32 = 1234;

fn prepare(dir: &TestDir, mode: u32, uid: u32, gid: u32) -> PathBuf {
    let path = dir.file("file", "text");
    chown(&path, Some(uid), Some(gid)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test opens a file to others")]
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn are_read_if_no_other_user_could_have_changed_them() {
    use AllowedWriters::RootGroup;
    let dir = TestDir::new();
    for (mode, uid, gid, writers, is_read) in [
        (0o644, 0, 0, AllowedWriters::None, true),
        (0o644, 0, OTHER_USER, AllowedWriters::None, true),
        (0o664, 0, 0, AllowedWriters::None, false),
        (0o664, 0, 0, RootGroup, true),
        (0o664, 0, OTHER_USER, RootGroup, false),
        (0o602, 0, 0, RootGroup, false),
        (0o600, OTHER_USER, 0, RootGroup, false),
        (0o600, OTHER_USER, OTHER_USER, AllowedWriters::None, false),
    ] {
        let path = prepare(&dir, mode, uid, gid);
        let read = read_trusted(&path, LIMIT, writers);
        assert_eq!(read.is_ok(), is_read, "{mode:o} {uid}:{gid} {writers:?}");
    }
}

#[test]
fn that_are_refused_are_named_with_a_remedy() {
    let dir = TestDir::new();
    let path = prepare(&dir, 0o666, 0, 0);
    let name = path.display();
    let error = || read_trusted(&path, LIMIT, AllowedWriters::None).unwrap_err();
    assert_eq!(
        error().to_string(),
        format!("{name} may be changed by others: run chmod go-w {name}")
    );
    prepare(&dir, 0o600, OTHER_USER, 0);
    assert_eq!(
        error().to_string(),
        format!("{name} belongs to user {OTHER_USER}, who could change it: run chown root {name}")
    );
}

#[test]
fn have_a_limit_and_are_text() {
    let dir = TestDir::new();
    let path = dir.file("long", &"x".repeat(17));
    let error = read_trusted(&path, LIMIT, AllowedWriters::None).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
    #[expect(clippy::disallowed_methods, reason = "a test prepares a file")]
    std::fs::write(&path, b"\xff").unwrap();
    let error = read_trusted(&path, LIMIT, AllowedWriters::None).unwrap_err();
    assert!(matches!(error, FileError::NotText(_)), "{error}");
}
