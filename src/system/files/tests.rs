//! Real files in a directory of their own. Ownership needs root, as the program itself does.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::CWD;

use super::super::Digest;
use super::*;

const EVERYTHING: Attributes = Attributes {
    uid: Some(1234),
    gid: Some(2345),
    mode: Some(0o4750),
};

/// A directory that vanishes, and short ways to fill and read it.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.at(name);
        #[expect(clippy::disallowed_methods, reason = "a test prepares a file")]
        std::fs::write(&path, content).unwrap();
        path
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        #[expect(clippy::disallowed_methods, reason = "a test prepares a directory")]
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn link(&self, name: &str, to: &str) -> PathBuf {
        let path = self.at(name);
        symlink(to, &path).unwrap();
        path
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Returns owner, group and mode, of a link itself if it is one.
fn attributes_of(path: &Path) -> (u32, u32, u32) {
    let found = std::fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn store_text(target: &Path, content: &str, attributes: &Attributes) -> Result<(), FileError> {
    let content = Content::Bytes(content.as_bytes());
    store(target, content, attributes, Durability::Content)
}

mod store_writes {
    use super::*;

    #[test]
    fn a_new_file_with_content_owner_and_mode_and_nothing_beside_it() {
        let room = Room::new();
        let target = room.at("target");
        store_text(&target, "hello", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "hello");
        assert_eq!(attributes_of(&target), (1234, 2345, 0o4750));
        assert_eq!(room.names(), ["target"]);
    }

    #[test]
    fn over_an_old_file_as_a_new_one() {
        let room = Room::new();
        let target = room.file("target", "old");
        let before = std::fs::metadata(&target).unwrap().ino();
        let held = std::fs::File::open(&target).unwrap();
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "new");
        assert_ne!(std::fs::metadata(&target).unwrap().ino(), before);
        assert_eq!(io::read_to_string(held).unwrap(), "old");
    }

    #[test]
    fn the_content_of_another_file_through_a_link() {
        let room = Room::new();
        room.file("source", "from there");
        let link = room.link("link", "source");
        let target = room.at("target");
        store(
            &target,
            Content::File(&link),
            &EVERYTHING,
            Durability::Complete,
        )
        .unwrap();
        assert_eq!(text(&target), "from there");
        assert_eq!(attributes_of(&target), (1234, 2345, 0o4750));
    }

    #[test]
    fn in_place_of_a_link_without_touching_what_it_leads_to() {
        let room = Room::new();
        let victim = room.file("victim", "safe");
        let target = room.link("target", "victim");
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert!(!target.is_symlink());
        assert_eq!(text(&target), "new");
        assert_eq!(text(&victim), "safe");
        assert_eq!(attributes_of(&victim).0, 0);
    }

    #[test]
    fn in_place_of_a_dangling_link_without_making_what_it_leads_to() {
        let room = Room::new();
        let target = room.link("target", "nowhere");
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert_eq!(room.names(), ["target"]);
    }

    #[test]
    fn never_through_a_link_that_someone_keeps_putting_in_place() {
        let room = Room::new();
        let victim = room.file("victim", "safe");
        let target = room.at("target");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let _ = remove(&target);
                    let _ = symlink("victim", &target);
                }
            });
            for _ in 0..200 {
                let content = Content::Bytes(b"new");
                store(&target, content, &EVERYTHING, Durability::Cached).unwrap();
                // Finds the link, the file or nothing; must reach no further in any case.
                let _ = set_attributes(&target, &EVERYTHING);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(text(&victim), "safe");
        assert_eq!(attributes_of(&victim).0, 0);
    }

    #[test]
    fn through_a_link_among_the_directories_above() {
        let room = Room::new();
        let real = room.directory("real");
        room.link("link", "real");
        store_text(&room.at("link/target"), "x", &EVERYTHING).unwrap();
        assert_eq!(text(&real.join("target")), "x");
    }

    #[test]
    fn a_name_as_long_as_names_can_be() {
        let room = Room::new();
        let target = room.at(&"n".repeat(255));
        store_text(&target, "x", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "x");
    }

    #[test]
    fn for_the_owner_only_when_no_mode_is_asked_for() {
        let room = Room::new();
        let target = room.file("target", "old");
        write_private(&target, b"secret", Durability::Cached).unwrap();
        assert_eq!(text(&target), "secret");
        assert_eq!(attributes_of(&target), (0, 0, 0o600));
    }
}

mod store_refuses {
    use super::*;

    #[test]
    fn a_parent_that_is_missing_or_no_directory() {
        let room = Room::new();
        let file = room.file("file", "");
        for parent in [file, room.at("missing")] {
            let error = store_text(&parent.join("target"), "x", &EVERYTHING).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("\"{}\" is not a directory", parent.display())
            );
        }
    }

    #[test]
    fn a_directory_as_target_and_leaves_nothing_behind() {
        let room = Room::new();
        let target = room.directory("target");
        let error = store_text(&target, "x", &EVERYTHING).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "could not rename temporary file: rename {}: is a directory",
                target.display()
            )
        );
        assert_eq!(room.names(), ["target"]);
    }

    #[test]
    fn a_missing_source_and_leaves_the_old_target() {
        let room = Room::new();
        let target = room.file("target", "old");
        let source = room.at("source");
        let error = store(
            &target,
            Content::File(&source),
            &EVERYTHING,
            Durability::Content,
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("open {}: no such file or directory", source.display())
        );
        assert!(error.is_not_found());
        assert_eq!(text(&target), "old");
        assert_eq!(room.names(), ["target"]);
    }

    #[test]
    fn a_source_that_is_a_pipe_without_waiting_for_it() {
        let room = Room::new();
        let pipe = room.fifo("pipe");
        let error = store(
            &room.at("target"),
            Content::File(&pipe),
            &EVERYTHING,
            Durability::Content,
        )
        .unwrap_err();
        assert!(matches!(error, FileError::NotRegular(_)), "{error}");
        assert_eq!(room.names(), ["pipe"]);
    }

    #[test]
    fn an_owner_that_the_system_would_read_as_leave_it() {
        let room = Room::new();
        let attributes = Attributes {
            uid: Some(u32::MAX),
            ..EVERYTHING
        };
        let target = room.at("target");
        assert!(store_text(&target, "x", &attributes).is_err());
        assert_eq!(room.names(), [""; 0]);
        room.file("target", "");
        assert!(set_attributes(&target, &attributes).is_err());
    }

    #[test]
    fn a_path_that_ends_in_no_name() {
        for path in ["/", "..", ""] {
            let error = store_text(Path::new(path), "x", &EVERYTHING).unwrap_err();
            assert!(matches!(error, FileError::NoName(_)), "{error}");
        }
    }
}

mod attributes_are_set {
    use super::*;

    #[test]
    fn owner_first_and_mode_after_so_that_set_id_bits_stay() {
        let room = Room::new();
        let file = room.file("file", "");
        set_attributes(&file, &EVERYTHING).unwrap();
        assert_eq!(attributes_of(&file), (1234, 2345, 0o4750));
    }

    #[test]
    fn only_as_far_as_asked_for() {
        let room = Room::new();
        let file = room.file("file", "");
        set_attributes(&file, &EVERYTHING).unwrap();
        let group = Attributes {
            gid: Some(7),
            ..Attributes::default()
        };
        set_attributes(&file, &group).unwrap();
        // The kernel drops the set-id bit when the group changes and no mode is asked for.
        assert_eq!(attributes_of(&file), (1234, 7, 0o750));
    }

    #[test]
    fn on_a_pipe_without_waiting_for_its_other_end() {
        let room = Room::new();
        let pipe = room.fifo("pipe");
        set_attributes(&pipe, &EVERYTHING).unwrap();
        assert_eq!(attributes_of(&pipe), (1234, 2345, 0o4750));
        assert!(
            std::fs::symlink_metadata(&pipe)
                .unwrap()
                .file_type()
                .is_fifo()
        );
    }

    #[test]
    fn never_through_a_link() {
        let room = Room::new();
        let victim = room.file("victim", "");
        let before = attributes_of(&victim);
        let link = room.link("link", "victim");
        let error = set_attributes(&link, &EVERYTHING).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} is a symlink; refusing to set attributes through it",
                link.display()
            )
        );
        assert_eq!(attributes_of(&victim), before);
    }

    #[test]
    fn never_on_what_is_missing() {
        let room = Room::new();
        let error = set_attributes(&room.at("missing"), &EVERYTHING).unwrap_err();
        assert!(error.is_not_found());
    }
}

mod directories {
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
    fn that_everyone_may_write_to_are_not_private() {
        let room = Room::new();
        let open = room.directory("open");
        #[expect(clippy::disallowed_methods, reason = "a test opens a directory")]
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let error = create_private_dir(&open).unwrap_err();
        assert!(matches!(error, FileError::NotPrivate(_)), "{error}");
    }
}

mod removal {
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
}

mod looking {
    use super::*;

    #[test]
    fn where_it_is_forbidden_is_told_apart_from_what_is_missing() {
        let failed = |errno: Errno| failed("stat", Path::new("/a"))(errno);
        assert!(failed(Errno::ACCESS).is_permission_denied());
        assert!(failed(Errno::PERM).is_permission_denied());
        assert!(!failed(Errno::ACCESS).is_not_found());
        assert!(!FileError::NotText("/a".into()).is_permission_denied());
    }

    #[test]
    fn shows_kind_owner_mode_with_all_bits_size_and_time() {
        let room = Room::new();
        let file = room.file("file", "12345");
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
    fn follows_links_if_asked_and_shows_those_that_lead_nowhere() {
        let room = Room::new();
        room.directory("directory");
        let link = room.link("link", "directory");
        let dangling = room.link("dangling", "nowhere");
        let kind = |path: &Path, follow| inspect(path, follow).unwrap().unwrap().kind;
        assert_eq!(kind(&link, true), FileKind::Directory);
        assert_eq!(kind(&link, false), FileKind::Symlink);
        assert_eq!(kind(&dangling, true), FileKind::Symlink);
        assert_eq!(kind(&room.fifo("pipe"), true), FileKind::Special);
        assert_eq!(inspect(&room.at("missing"), true).unwrap(), None);
        assert_eq!(inspect(&room.at("missing"), false).unwrap(), None);
    }

    #[test]
    fn at_a_path_through_a_file_or_a_circle_of_links_is_an_error() {
        let room = Room::new();
        let below = room.file("file", "").join("below");
        assert_eq!(
            inspect(&below, true).unwrap_err().to_string(),
            format!("stat {}: not a directory", below.display())
        );
        let circle = room.link("circle", "circle");
        assert!(inspect(&circle, true).is_err());
        assert_eq!(
            inspect(&circle, false).unwrap().unwrap().kind,
            FileKind::Symlink
        );
    }

    #[test]
    fn hashes_regular_files_through_links() {
        let room = Room::new();
        let content = "x".repeat(200_000);
        room.file("file", &content);
        let link = room.link("link", "file");
        let wanted = Digest::of(content.as_bytes());
        assert_eq!(sha256(&link).unwrap(), wanted);
        let (found, digest) = inspect_and_hash(&link).unwrap().unwrap();
        assert_eq!(digest, Some(wanted));
        assert_eq!(found.size, 200_000);
    }

    #[test]
    fn hashes_an_empty_file_and_one_the_kernel_makes_up() {
        let room = Room::new();
        let empty = room.file("empty", "");
        assert_eq!(sha256(&empty).unwrap(), Digest::of(b""));
        let version = Path::new("/proc/version");
        let content = std::fs::read(version).unwrap();
        assert_eq!(sha256(version).unwrap(), Digest::of(&content));
    }

    #[test]
    fn hashes_nothing_else_and_never_waits() {
        let room = Room::new();
        for path in [
            room.fifo("pipe"),
            room.directory("directory"),
            room.link("dangling", "nowhere"),
            "/dev/zero".into(),
        ] {
            let (_, digest) = inspect_and_hash(&path).unwrap().unwrap();
            assert_eq!(digest, None);
            assert!(sha256(&path).is_err());
        }
        assert_eq!(inspect_and_hash(&room.at("missing")).unwrap(), None);
    }

    #[test]
    fn reads_up_to_a_limit() {
        let room = Room::new();
        let file = room.file("file", "12345");
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
        let room = Room::new();
        let path = room.at("file");
        write_private(&path, b"a\xff", Durability::Cached).unwrap();
        assert_eq!(
            read_to_string(&path, 10).unwrap_err().to_string(),
            format!("{} is not UTF-8 text", path.display())
        );
    }
}
