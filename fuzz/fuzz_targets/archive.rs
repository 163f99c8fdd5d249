//! Any bytes as an archive of each kind: nothing leaves the directory it is unpacked into, and one
//! that is refused leaves nothing there either.

#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ccm_core::model::resource::ArchiveFormat;
use ccm_core::system::UnpackError;
use ccm_core::system::unpack::{Limits, Rules, unpack};
use ccm_fuzz::{put, room};
use libfuzzer_sys::fuzz_target;

/// Small enough for thousands of archives a second.
const LIMITS: Limits = Limits {
    entries: 100,
    bytes: 1 << 20,
    ratio: 100,
    free_bytes: 1 << 18,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let kind = match choice % 3 {
        0 => ArchiveFormat::Tar,
        1 => ArchiveFormat::TarGz,
        _ => ArchiveFormat::Zip,
    };
    let rules = match choice & 0x80 {
        0 => Rules::Archive,
        _ => Rules::Bundle,
    };
    let room = room();
    let [archive, inside, outside] = ["archive", "in", "out"].map(|name| room.path().join(name));
    put(&archive, bytes);
    for directory in [&inside, &outside] {
        fs::create_dir(directory).expect("a directory is made");
    }
    match unpack(&archive, kind, &inside, rules, LIMITS) {
        Ok(files) => {
            for file in files {
                let found = inside.join(&file).symlink_metadata();
                assert!(
                    found.is_ok_and(|found| found.is_file()),
                    "{}",
                    file.display()
                );
            }
            check(&inside, &inside, rules);
        }
        // What can't be written is found out while writing.
        Err(UnpackError::File(_)) => check(&inside, &inside, rules),
        Err(_) => assert_eq!(count(&inside), 0),
    }
    assert_eq!(count(&outside), 0);
    assert_eq!(count(room.path()), 3);
    assert_eq!(
        fs::read(&archive).expect("the archive is still there"),
        bytes
    );
});

fn count(directory: &Path) -> usize {
    fs::read_dir(directory)
        .expect("a directory is read")
        .count()
}

/// Checks that everything below a directory is plain and leads nowhere else.
fn check(root: &Path, directory: &Path, rules: Rules) {
    for entry in fs::read_dir(directory).expect("a directory is read") {
        let path = entry.expect("an entry is read").path();
        let found = path.symlink_metadata().expect("an entry is there");
        assert_eq!(found.uid(), 0, "owners are not taken from an archive");
        if found.is_symlink() {
            assert_eq!(rules, Rules::Archive);
            if let Ok(leads_to) = path.canonicalize() {
                let root = root.canonicalize().expect("the root is there");
                assert!(leads_to.starts_with(root), "{}", leads_to.display());
            }
            continue;
        }
        assert!(found.is_file() || found.is_dir());
        assert_eq!(found.mode() & 0o7000, 0, "no set-id bits");
        if found.is_dir() {
            check(root, &path, rules);
        }
    }
}
