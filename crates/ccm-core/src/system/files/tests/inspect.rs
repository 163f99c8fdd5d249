//! Metadata and content of files.

use super::*;

#[test]
fn forbidden_paths_differ_from_missing_ones() {
    let failed = |errno: Errno| failed("stat", Path::new("/a"))(errno);
    assert!(failed(Errno::NOENT).is_not_found());
    assert!(!failed(Errno::ACCESS).is_not_found());
    assert!(!FileError::NotText("/a".into()).is_not_found());
}

#[test]
fn shows_kind_owner_mode_with_all_bits_size_and_time() {
    let dir = TestDir::new();
    let file = dir.file("file", "12345");
    set_attributes(&file, &EVERYTHING).unwrap();
    let modified = std::fs::metadata(&file).unwrap();
    let found = inspect(&file, true).unwrap().unwrap();
    assert_eq!(found.kind, FileKind::Regular);
    assert_eq!((found.uid, found.gid, found.mode), (1234, 2345, 0o4750));
    assert_eq!(found.size, 5);
    assert_eq!(found.mtime.timestamp(), modified.mtime());
    assert_eq!(
        i64::from(found.mtime.timestamp_subsec_nanos()),
        modified.mtime_nsec()
    );
}

#[test]
fn follows_symlinks_on_request_and_describes_dangling_ones() {
    let dir = TestDir::new();
    dir.directory("directory");
    let link = dir.link("link", "directory");
    let dangling = dir.link("dangling", "nowhere");
    let kind = |path: &Path, follow| inspect(path, follow).unwrap().unwrap().kind;
    assert_eq!(kind(&link, true), FileKind::Directory);
    assert_eq!(kind(&link, false), FileKind::Symlink);
    assert_eq!(kind(&dangling, true), FileKind::Symlink);
    assert_eq!(kind(&dir.fifo("pipe"), true), FileKind::Special);
    assert_eq!(inspect(&dir.at("missing"), true).unwrap(), None);
    assert_eq!(inspect(&dir.at("missing"), false).unwrap(), None);
}

#[test]
fn of_a_path_through_a_file_or_a_symlink_loop_is_an_error() {
    let dir = TestDir::new();
    let below = dir.file("file", "").join("below");
    assert_eq!(
        inspect(&below, true).unwrap_err().to_string(),
        format!("stat {}: not a directory", below.display())
    );
    let circle = dir.link("circle", "circle");
    assert!(inspect(&circle, true).is_err());
    assert_eq!(
        inspect(&circle, false).unwrap().unwrap().kind,
        FileKind::Symlink
    );
}

#[test]
fn hashes_regular_files_through_links() {
    let dir = TestDir::new();
    let content = "x".repeat(200_000);
    dir.file("file", &content);
    let link = dir.link("link", "file");
    let wanted = Digest::of(content.as_bytes());
    assert_eq!(sha256(&link).unwrap(), wanted);
    let (found, digest) = inspect_and_hash(&link).unwrap().unwrap();
    assert_eq!(digest, Some(wanted));
    assert_eq!(found.size, 200_000);
}

#[test]
fn hashes_an_empty_file_and_a_file_of_procfs() {
    let dir = TestDir::new();
    let empty = dir.file("empty", "");
    assert_eq!(sha256(&empty).unwrap(), Digest::of(b""));
    let version = Path::new("/proc/version");
    let content = std::fs::read(version).unwrap();
    assert_eq!(sha256(version).unwrap(), Digest::of(&content));
}

#[test]
fn hashes_regular_files_only_without_blocking() {
    let dir = TestDir::new();
    for path in [
        dir.fifo("pipe"),
        dir.directory("directory"),
        dir.link("dangling", "nowhere"),
        "/dev/zero".into(),
    ] {
        let (_, digest) = inspect_and_hash(&path).unwrap().unwrap();
        assert_eq!(digest, None);
        assert!(sha256(&path).is_err());
    }
    assert_eq!(inspect_and_hash(&dir.at("missing")).unwrap(), None);
}

#[test]
fn reads_up_to_a_limit() {
    let dir = TestDir::new();
    let file = dir.file("file", "12345");
    assert_eq!(read_to_string(&file, 5).unwrap(), "12345");
    assert_eq!(
        read_to_string(&file, 4).unwrap_err().to_string(),
        format!("{} is larger than 4 bytes", file.display())
    );
    assert!(matches!(
        read(Path::new("/dev/zero"), 10),
        Err(FileError::NotRegular(_))
    ));
    assert!(read(Path::new("/proc/version"), u64::MAX).is_ok());
}

#[test]
fn reads_text_as_text_only() {
    let dir = TestDir::new();
    let path = dir.at("file");
    write_private(&path, b"a\xff", Durability::Cached).unwrap();
    assert_eq!(
        read_to_string(&path, 10).unwrap_err().to_string(),
        format!("{} is not UTF-8 text", path.display())
    );
}

#[test]
fn a_secret_that_others_may_read_is_refused() {
    let dir = TestDir::new();
    let file = dir.file("seed", "secret");
    for (owner, mode, is_read) in [
        (0, 0o600, true),
        (0, 0o400, true),
        (0, 0o640, false),
        (0, 0o620, false),
        (0, 0o604, false),
        (1234, 0o600, false),
    ] {
        std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test opens a file")]
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read_secret(&file, 100).is_ok(), is_read, "{owner} {mode:o}");
    }
}
