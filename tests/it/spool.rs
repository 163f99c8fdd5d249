//! Events on a disk that is full: a file system of half a megabyte, really mounted.

use std::path::Path;
use std::process::Command;

use ccm_agent::spool::{Class, Limits, Record, Spool, SpoolError};

/// Names the directory of a spool for the process inside the mount.
const INSIDE: &str = "CCM_TEST_SPOOL_ON_FULL_DISK";

/// Mounts a small disk that only this process and its children see, then becomes the command.
const ENTER: &str = r#"mount -t tmpfs -o size=512k,mode=0700 tmpfs "$0" && exec "$@""#;

fn record(number: usize, class: Class) -> Record {
    Record {
        id: format!("event-{number}"),
        subject: "ccm.v1.default.event.web1.file.changed".into(),
        class,
        body: vec![b'x'; 1000],
    }
}

/// Runs one test of this binary again, with a directory of its own that is a small disk.
fn on_a_small_disk(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", ENTER])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && text.contains("1 passed");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(is_passed, "{text}{why}");
}

/// Writes a file until nothing more fits.
fn fill(disk: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(disk.join("ballast")).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

#[test]
fn a_full_disk_costs_records_but_neither_the_count_nor_what_is_there() {
    let Some(disk) = std::env::var_os(INSIDE) else {
        let test = "spool::a_full_disk_costs_records_but_neither_the_count_nor_what_is_there";
        return on_a_small_disk(test);
    };
    let disk = Path::new(&disk);
    let open = || Spool::open(&disk.join("spool"), Limits::default()).unwrap();
    let (spool, _) = open();
    for number in 0..20 {
        spool.append(&record(number, Class::Important)).unwrap();
    }
    fill(disk);
    let mut refused = 0;
    for number in 20..60 {
        match spool.append(&record(number, Class::Important)) {
            Ok(_) => assert_eq!(refused, 0, "a write fits after one that did not"),
            Err(SpoolError::NotWritten { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 30, "{refused}");
    // Acknowledgements and counts still find their place.
    spool.ack(&[1, 2, 3]).unwrap();
    spool.sync().unwrap();
    let status = spool.status();
    assert_eq!((status.dropped, status.pending), (refused, 57 - refused));
    drop(spool);
    let (spool, recovered) = open();
    assert_eq!((recovered.torn_bytes, recovered.damaged), (0, 0));
    assert_eq!(spool.status(), status);
    // When there is free space again it continues.
    std::fs::remove_file(disk.join("ballast")).unwrap();
    let seq = spool.append(&record(60, Class::Important)).unwrap();
    let last = spool.next(seq - 1, 1).unwrap();
    assert_eq!(
        last.first().map(|(_, record)| &*record.id),
        Some("event-60")
    );
}

#[test]
fn stable_records_are_dropped_on_a_full_disk_before_important_ones() {
    let Some(disk) = std::env::var_os(INSIDE) else {
        let test = "spool::stable_records_are_dropped_on_a_full_disk_before_important_ones";
        return on_a_small_disk(test);
    };
    let disk = Path::new(&disk);
    let limits = Limits {
        max_bytes: 64 << 20,
        segment_bytes: 32 << 10,
    };
    let (spool, _) = Spool::open(&disk.join("spool"), limits).unwrap();
    for number in 0..200 {
        spool.append(&record(number, Class::Stable)).unwrap();
    }
    fill(disk);
    for number in 200..300 {
        spool.append(&record(number, Class::Important)).unwrap();
    }
    let status = spool.status();
    assert_eq!(status.pending + status.dropped, 300);
    let left = spool.next(0, 1000).unwrap();
    let (important, stable): (Vec<_>, Vec<_>) = left
        .iter()
        .partition(|(_, record)| record.class == Class::Important);
    assert_eq!(important.len(), 100);
    // What is left of the stable ones are the newest.
    let newest = 201 - stable.len() as u64;
    assert!(!stable.is_empty());
    assert!(stable.iter().map(|(seq, _)| *seq).eq(newest..=200));
}
