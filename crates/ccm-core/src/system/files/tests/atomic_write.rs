//! Writing files, and what is refused without a trace.

use super::*;

mod writes {
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

mod refuses {
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
