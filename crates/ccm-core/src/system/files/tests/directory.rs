//! Creation of directories.

use super::*;

#[test]
fn are_created_with_parents_and_only_the_last_gets_the_owner() {
    let dir = TestDir::new();
    create_directory(&dir.at("a/b/c"), &EVERYTHING).unwrap();
    assert_eq!(attributes_of(&dir.at("a/b/c")), (1234, 2345, 0o4750));
    let (uid, gid, _) = attributes_of(&dir.at("a/b"));
    assert_eq!((uid, gid), (0, 0));
}

#[test]
fn that_exist_get_only_their_attributes() {
    let dir = TestDir::new();
    let directory = dir.directory("a");
    dir.file("a/file", "kept");
    create_directory(&directory, &EVERYTHING).unwrap();
    assert_eq!(text(&dir.at("a/file")), "kept");
    assert_eq!(attributes_of(&directory), (1234, 2345, 0o4750));
}

#[test]
fn replace_a_symlink_and_keep_its_target() {
    let dir = TestDir::new();
    let real = dir.directory("real");
    let before = attributes_of(&real);
    let link = dir.link("link", "real");
    create_directory(&link, &EVERYTHING).unwrap();
    assert!(link.is_dir() && !link.is_symlink());
    assert_eq!(attributes_of(&real), before);
}

#[test]
fn do_not_replace_a_file() {
    let dir = TestDir::new();
    let file = dir.file("file", "kept");
    let error = create_directory(&file, &EVERYTHING).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("mkdir {}: not a directory", file.display())
    );
    assert_eq!(text(&file), "kept");
    assert!(create_directory(&file.join("below"), &EVERYTHING).is_err());
}

#[test]
fn that_are_private_are_closed_to_others() {
    let dir = TestDir::new();
    create_private_dir(&dir.at("a/b")).unwrap();
    assert_eq!(attributes_of(&dir.at("a")).2, 0o700);
    assert_eq!(attributes_of(&dir.at("a/b")).2, 0o700);
    create_private_dir(&dir.at("a/b")).unwrap();
}

#[test]
fn that_others_may_write_to_are_not_private() {
    let dir = TestDir::new();
    let open = dir.directory("open");
    for mode in [0o1777, 0o702, 0o770] {
        #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        for checked in [create_private_dir(&open), check_private_dir(&open)] {
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("run chmod go-w"), "{mode:o}: {error}");
        }
    }
    check_private_dir(&dir.at("missing")).unwrap();
}

#[test]
fn of_another_user_are_not_private() {
    let dir = TestDir::new();
    let theirs = dir.directory("theirs");
    std::os::unix::fs::chown(&theirs, Some(1234), None).unwrap();
    let error = create_private_dir(&theirs).unwrap_err();
    assert!(
        matches!(error, FileError::NotOwned { owner: 1234, .. }),
        "{error}"
    );
}
