//! Symlinks in a path: which are followed, and where to.

use std::os::unix::fs::{chown, lchown};

use super::*;

const OTHER_USER: u32 = 1234;

fn give(path: &Path) {
    lchown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn is_refused(path: &Path) -> bool {
    let stored = store_text(path, "x", &Attributes::default());
    match stored {
        Ok(()) => false,
        Err(FileError::UntrustedLink(_) | FileError::ReplaceableLink(_)) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn of_root_are_followed_anywhere() {
    let dir = TestDir::new();
    dir.directory("real/in");
    dir.link("short", "real");
    dir.link("long", dir.at("short/../short").to_str().unwrap());
    assert!(!is_refused(&dir.at("short/file")));
    assert!(!is_refused(&dir.at("long/in/file")));
    assert!(dir.at("real/in/file").exists() && dir.at("real/file").exists());
}

#[test]
fn of_another_user_lead_only_to_their_own_directories() {
    let dir = TestDir::new();
    dir.directory("target");
    let own = dir.directory("own");
    give(&own);
    give(&dir.link("out", "target"));
    give(&dir.link("home", "own"));
    give(&dir.link("farther", "out"));
    assert!(is_refused(&dir.at("out/file")));
    assert!(is_refused(&dir.at("farther/file")));
    assert!(!is_refused(&dir.at("home/file")));
    assert_eq!(dir.names(), ["farther", "home", "out", "own", "target"]);
    assert!(!dir.at("target/file").exists());
}

#[test]
fn that_another_user_could_have_moved_count_as_theirs() {
    let dir = TestDir::new();
    dir.directory("target");
    let yard = dir.directory("yard");
    dir.link("yard/link", "../target");
    let file = dir.at("yard/link/file");
    for (owner, mode, refused) in [
        (0, 0o755, false),
        (0, 0o1777, false),
        (0, 0o777, true),
        (0, 0o775, true),
        (OTHER_USER, 0o755, true),
        (OTHER_USER, 0o1777, true),
    ] {
        chown(&yard, Some(owner), None).unwrap();
        set_mode(&yard, mode);
        assert_eq!(is_refused(&file), refused, "{owner} {mode:o}");
    }
}

#[test]
fn of_root_could_have_been_renamed_where_others_may_write() {
    let dir = TestDir::new();
    dir.directory("target");
    dir.directory("harmless");
    let yard = dir.directory("yard");
    dir.link("yard/log", "../harmless");
    dir.link("yard/etc", "../target");
    set_mode(&yard, 0o775);
    // A member of the group may rename the link, which root still owns.
    rustix::fs::rename(dir.at("yard/etc"), dir.at("yard/log")).unwrap();
    let error = store_text(&dir.at("yard/log/file"), "x", &EVERYTHING).unwrap_err();
    assert!(matches!(error, FileError::ReplaceableLink(_)), "{error}");
    let remedy = format!("run chmod +t {}", yard.display());
    assert!(error.to_string().ends_with(&remedy), "{error}");
    assert!(!dir.at("target/file").exists());
    set_mode(&yard, 0o1775);
    assert!(!is_refused(&dir.at("yard/log/file")));
}

#[test]
fn that_are_untrusted_are_refused_by_every_write() {
    let dir = TestDir::new();
    let target = dir.directory("target");
    dir.directory("target/tree/below");
    let file = dir.file("target/file", "kept");
    give(&dir.link("out", "target"));
    let before = (attributes_of(&target), attributes_of(&file));
    let at = |name: &str| dir.at("out").join(name);
    let xattr = Xattr {
        name: "user.ccm.test",
        text: "x",
    };
    for done in [
        store_text(&at("file"), "x", &EVERYTHING),
        set_attributes(&at("file"), &EVERYTHING),
        set_xattr(&at("file"), xattr).map(drop),
        create_directory(&at("new"), &EVERYTHING),
        create_directory(&at("new/below"), &EVERYTHING),
        create_private_dir(&at("new")),
        remove(&at("file")),
        remove_recursive(&at("tree")),
        Tree::open(&dir.at("out")).map(drop),
    ] {
        let error = done.unwrap_err();
        assert!(matches!(error, FileError::UntrustedLink(_)), "{error}");
        let link = dir.at("out");
        assert!(error.to_string().contains(link.to_str().unwrap()));
    }
    assert_eq!((attributes_of(&target), attributes_of(&file)), before);
    assert_eq!(text(&file), "kept");
    assert!(dir.at("target/tree/below").exists() && !dir.at("target/new").exists());
}

#[test]
fn that_dangle_create_nothing() {
    let dir = TestDir::new();
    dir.link("link", "missing");
    assert!(create_directory(&dir.at("link/below"), &EVERYTHING).is_err());
    assert!(!dir.at("missing").exists());
}

#[test]
fn that_loop_are_an_error() {
    let dir = TestDir::new();
    dir.link("a", "b");
    dir.link("b", "a");
    let error = store_text(&dir.at("a/file"), "x", &EVERYTHING).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

#[test]
fn of_procfs_are_resolved_by_the_kernel() {
    let dir = TestDir::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let moved = dir.directory("before");
    let handle = rustix::fs::open(&moved, flags, Mode::empty()).unwrap();
    rustix::fs::rename(&moved, dir.at("after")).unwrap();
    dir.directory("before");
    let magic_link = Path::new(&proc_path(&handle)).join("file");
    store_text(&magic_link, "x", &EVERYTHING).unwrap();
    assert!(dir.at("after/file").exists() && !dir.at("before/file").exists());
}

#[test]
fn a_hard_link_to_another_users_file_gets_no_attributes() {
    let dir = TestDir::new();
    let file = dir.file("file", "");
    let yard = dir.directory("yard");
    give(&yard);
    let planted = dir.at("yard/file");
    std::fs::hard_link(&file, &planted).unwrap();
    let before = attributes_of(&file);
    let error = set_attributes(&planted, &EVERYTHING).unwrap_err();
    assert!(matches!(error, FileError::HardLinked(_)), "{error}");
    assert_eq!(attributes_of(&file), before);
    give(&file);
    set_attributes(&planted, &EVERYTHING).unwrap();
}
