//! Archives of each format. Properties: no file is written outside the target directory, and a rejected
//! archive leaves no files.

#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ccm_core::model::resource::ArchiveFormat;
use ccm_core::system::UnpackError;
use ccm_core::system::unpack::{Limits, Rules, unpack};
use ccm_fuzz::{temp_dir, write_file};
use libfuzzer_sys::fuzz_target;

/// Small limits, for thousands of archives per second.
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
    let format = match choice % 3 {
        0 => ArchiveFormat::Tar,
        1 => ArchiveFormat::TarGz,
        _ => ArchiveFormat::Zip,
    };
    let rules = match choice & 0x80 {
        0 => Rules::Archive,
        _ => Rules::Bundle,
    };
    let dir = temp_dir();
    let [archive, inside, outside] = ["archive", "in", "out"].map(|name| dir.path().join(name));
    write_file(&archive, bytes);
    for directory in [&inside, &outside] {
        fs::create_dir(directory).expect("create a directory");
    }
    match unpack(&archive, format, &inside, rules, LIMITS) {
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
        // A write error can leave files that were written before it.
        Err(UnpackError::File(_)) => check(&inside, &inside, rules),
        Err(_) => assert_eq!(count(&inside), 0),
    }
    assert_eq!(count(&outside), 0);
    assert_eq!(count(dir.path()), 3);
    assert_eq!(fs::read(&archive).expect("read the archive"), bytes);
});

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).expect("read a directory").count()
}

/// Checks that a directory contains only files, directories and symlinks that stay inside the root.
fn check(root: &Path, directory: &Path, rules: Rules) {
    for entry in fs::read_dir(directory).expect("read a directory") {
        let path = entry.expect("read an entry").path();
        let found = path.symlink_metadata().expect("read metadata");
        assert_eq!(found.uid(), 0, "owners are not taken from an archive");
        if found.is_symlink() {
            assert_eq!(rules, Rules::Archive);
            if let Ok(target) = path.canonicalize() {
                let root = root.canonicalize().expect("resolve the root");
                assert!(target.starts_with(root), "{}", target.display());
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
