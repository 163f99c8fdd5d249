//! Making directories.

use super::*;

#[test]
fn are_made_with_those_above_them_and_only_the_last_is_given_away() {
    let room = Room::new();
    create_directory(&room.at("a/b/c"), &EVERYTHING).unwrap();
    assert_eq!(attributes_of(&room.at("a/b/c")), (1234, 2345, 0o4750));
    let (uid, gid, _) = attributes_of(&room.at("a/b"));
    assert_eq!((uid, gid), (0, 0));
}

#[test]
fn that_exist_are_only_given_their_attributes() {
    let room = Room::new();
    let directory = room.directory("a");
    room.file("a/file", "kept");
    create_directory(&directory, &EVERYTHING).unwrap();
    assert_eq!(text(&room.at("a/file")), "kept");
    assert_eq!(attributes_of(&directory), (1234, 2345, 0o4750));
}

#[test]
fn take_the_place_of_a_link_and_leave_what_it_led_to() {
    let room = Room::new();
    let real = room.directory("real");
    let before = attributes_of(&real);
    let link = room.link("link", "real");
    create_directory(&link, &EVERYTHING).unwrap();
    assert!(link.is_dir() && !link.is_symlink());
    assert_eq!(attributes_of(&real), before);
}

#[test]
fn are_not_made_in_place_of_a_file() {
    let room = Room::new();
    let file = room.file("file", "kept");
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
    let room = Room::new();
    create_private_dir(&room.at("a/b")).unwrap();
    assert_eq!(attributes_of(&room.at("a")).2, 0o700);
    assert_eq!(attributes_of(&room.at("a/b")).2, 0o700);
    create_private_dir(&room.at("a/b")).unwrap();
}

#[test]
fn that_others_may_write_to_are_not_private() {
    let room = Room::new();
    let open = room.directory("open");
    for mode in [0o1777, 0o702, 0o770] {
        #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        for checked in [create_private_dir(&open), check_private_dir(&open)] {
            let error = checked.unwrap_err().to_string();
            assert!(error.contains("run chmod go-w"), "{mode:o}: {error}");
        }
    }
    check_private_dir(&room.at("missing")).unwrap();
}

#[test]
fn of_somebody_else_are_not_private() {
    let room = Room::new();
    let theirs = room.directory("theirs");
    std::os::unix::fs::chown(&theirs, Some(1234), None).unwrap();
    let error = create_private_dir(&theirs).unwrap_err();
    assert!(
        matches!(error, FileError::Foreign { owner: 1234, .. }),
        "{error}"
    );
}
