//! Atomic writes and refused writes.

use super::*;

mod writes {
    use super::*;

    #[test]
    fn a_new_file_with_content_owner_and_mode_and_no_leftovers() {
        let dir = TestDir::new();
        let target = dir.at("target");
        store_text(&target, "hello", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "hello");
        assert_eq!(attributes_of(&target), (1234, 2345, 0o4750));
        assert_eq!(dir.names(), ["target"]);
    }

    #[test]
    fn over_an_old_file_as_a_new_one() {
        let dir = TestDir::new();
        let target = dir.file("target", "old");
        let before = std::fs::metadata(&target).unwrap().ino();
        let held = std::fs::File::open(&target).unwrap();
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "new");
        assert_ne!(std::fs::metadata(&target).unwrap().ino(), before);
        assert_eq!(io::read_to_string(held).unwrap(), "old");
    }

    #[test]
    fn the_content_of_another_file_through_a_link() {
        let dir = TestDir::new();
        dir.file("source", "from there");
        let link = dir.link("link", "source");
        let target = dir.at("target");
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
    fn the_content_of_a_sparse_file_with_its_holes() {
        let dir = TestDir::new();
        for (start, size) in [
            (0, 64 << 20),
            (32 << 20, 64 << 20),
            (64 << 20, (64 << 20) + 4),
        ] {
            let source = dir.file("source", "");
            let file = std::fs::File::options().write(true).open(&source).unwrap();
            file.write_all_at(b"data", start).unwrap();
            file.set_len(size).unwrap();
            let target = dir.at("target");
            let content = Content::File(&source);
            store(&target, content, &EVERYTHING, Durability::Content).unwrap();
            let found = std::fs::metadata(&target).unwrap();
            assert_eq!(found.len(), size);
            assert!(found.blocks() < 2048, "{} blocks", found.blocks());
            assert_eq!(sha256(&target).unwrap(), sha256(&source).unwrap());
        }
    }

    #[test]
    fn the_content_of_a_file_that_reports_no_size_or_a_wrong_one() {
        let dir = TestDir::new();
        for source in ["/proc/sys/kernel/ostype", "/sys/kernel/fscaps"] {
            let target = dir.at("target");
            let content = Content::File(Path::new(source));
            store(&target, content, &EVERYTHING, Durability::Cached).unwrap();
            assert_eq!(text(&target), text(Path::new(source)), "{source}");
        }
    }

    #[test]
    fn over_a_symlink_without_changing_its_target() {
        let dir = TestDir::new();
        let victim = dir.file("victim", "safe");
        let target = dir.link("target", "victim");
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert!(!target.is_symlink());
        assert_eq!(text(&target), "new");
        assert_eq!(text(&victim), "safe");
        assert_eq!(attributes_of(&victim).0, 0);
    }

    #[test]
    fn over_a_dangling_symlink_without_creating_its_target() {
        let dir = TestDir::new();
        let target = dir.link("target", "nowhere");
        store_text(&target, "new", &EVERYTHING).unwrap();
        assert_eq!(dir.names(), ["target"]);
    }

    #[test]
    fn never_through_a_link_that_someone_keeps_putting_in_place() {
        let dir = TestDir::new();
        let victim = dir.file("victim", "safe");
        let target = dir.at("target");
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
                // Finds the symlink, the file or nothing, and must never follow the symlink.
                let _ = set_attributes(&target, &EVERYTHING);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(text(&victim), "safe");
        assert_eq!(attributes_of(&victim).0, 0);
    }

    #[test]
    fn through_a_link_among_the_directories_above() {
        let dir = TestDir::new();
        let real = dir.directory("real");
        dir.link("link", "real");
        store_text(&dir.at("link/target"), "x", &EVERYTHING).unwrap();
        assert_eq!(text(&real.join("target")), "x");
    }

    #[test]
    fn a_name_as_long_as_names_can_be() {
        let dir = TestDir::new();
        let target = dir.at(&"n".repeat(255));
        store_text(&target, "x", &EVERYTHING).unwrap();
        assert_eq!(text(&target), "x");
    }

    #[test]
    fn with_mode_0600_by_default() {
        let dir = TestDir::new();
        let target = dir.file("target", "old");
        write_private(&target, b"secret", Durability::Cached).unwrap();
        assert_eq!(text(&target), "secret");
        assert_eq!(attributes_of(&target), (0, 0, 0o600));
    }
}

mod refuses {
    use super::*;

    #[test]
    fn a_parent_that_is_missing_or_no_directory() {
        let dir = TestDir::new();
        let file = dir.file("file", "");
        for parent in [file, dir.at("missing")] {
            let error = store_text(&parent.join("target"), "x", &EVERYTHING).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("\"{}\" is not a directory", parent.display())
            );
        }
    }

    #[test]
    fn a_directory_as_target_and_leaves_no_leftovers() {
        let dir = TestDir::new();
        let target = dir.directory("target");
        let error = store_text(&target, "x", &EVERYTHING).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "could not rename temporary file: rename {}: is a directory",
                target.display()
            )
        );
        assert_eq!(dir.names(), ["target"]);
    }

    #[test]
    fn a_missing_source_and_leaves_the_old_target() {
        let dir = TestDir::new();
        let target = dir.file("target", "old");
        let source = dir.at("source");
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
        assert_eq!(dir.names(), ["target"]);
    }

    #[test]
    fn a_source_that_is_a_pipe_without_waiting_for_it() {
        let dir = TestDir::new();
        let pipe = dir.fifo("pipe");
        let error = store(
            &dir.at("target"),
            Content::File(&pipe),
            &EVERYTHING,
            Durability::Content,
        )
        .unwrap_err();
        assert!(matches!(error, FileError::NotRegular(_)), "{error}");
        assert_eq!(dir.names(), ["pipe"]);
    }

    #[test]
    fn an_owner_that_the_system_would_read_as_leave_it() {
        let dir = TestDir::new();
        let attributes = Attributes {
            uid: Some(u32::MAX),
            ..EVERYTHING
        };
        let target = dir.at("target");
        assert!(store_text(&target, "x", &attributes).is_err());
        assert_eq!(dir.names(), [""; 0]);
        dir.file("target", "");
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
