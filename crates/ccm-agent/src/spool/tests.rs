//! Spool tests: what is kept, what is dropped, and what survives a crash.

#![expect(
    clippy::disallowed_methods,
    reason = "tests damage files by hand, as a crash would"
)]

mod any_order;
mod lost;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use tempfile::TempDir;

use super::*;

const SMALL: Limits = Limits {
    max_bytes: 4096,
    segment_bytes: 512,
};

const LARGE: Limits = Limits {
    max_bytes: 1 << 20,
    segment_bytes: 300,
};

fn record(number: u64, class: Class) -> Record {
    Record {
        id: format!("id-{number}"),
        subject: "ccm.v1.default.event.web1.file.stable".into(),
        class,
        body: format!("body of {number}").into_bytes(),
    }
}

fn open(directory: &TempDir, limits: Limits) -> (Spool, Recovered) {
    Spool::open(&directory.path().join("spool"), limits).unwrap()
}

fn test_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn append(spool: &Spool, number: u64, class: Class) -> u64 {
    spool.append(&record(number, class)).unwrap()
}

fn ids(spool: &Spool) -> Vec<String> {
    let waiting = spool.next(0, usize::MAX).unwrap();
    waiting.into_iter().map(|(_, record)| record.id).collect()
}

/// Returns the paths of all segments.
fn segments(directory: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.path().join("spool")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "seg"));
    paths.sort();
    paths
}

#[test]
fn records_come_back_in_the_order_they_came_whatever_their_class() {
    let directory = test_dir();
    let (spool, recovered) = open(&directory, LARGE);
    assert_eq!(recovered, Recovered::default());
    let classes = [Class::Stable, Class::Important, Class::Important];
    let all: Vec<Record> = (1..=30)
        .zip(classes.into_iter().cycle())
        .map(|(number, class)| record(number, class))
        .collect();
    for (number, record) in (1..).zip(&all) {
        assert_eq!(spool.append(record).unwrap(), number);
    }
    let waiting = spool.next(0, usize::MAX).unwrap();
    assert!(waiting.iter().map(|(seq, _)| *seq).eq(1..=30));
    assert!(waiting.iter().map(|(_, record)| record).eq(&all));
    let some = spool.next(4, 3).unwrap();
    assert!(some.iter().map(|(seq, _)| *seq).eq(5..=7));
    assert_eq!(spool.next(30, 9).unwrap(), []);
}

#[test]
fn acknowledged_records_are_gone_also_after_a_restart() {
    let directory = test_dir();
    let (spool, _) = open(&directory, LARGE);
    for number in 1..=9 {
        append(&spool, number, Class::Important);
    }
    spool.ack(&[2, 3, 8]).unwrap();
    spool.ack(&[1, 3, 99]).unwrap();
    let left = ["id-4", "id-5", "id-6", "id-7", "id-9"];
    assert_eq!(ids(&spool), left);
    assert_eq!(spool.status().pending, 5);
    drop(spool);
    let (spool, recovered) = open(&directory, LARGE);
    assert_eq!(recovered.records, 5);
    assert_eq!(ids(&spool), left);
    assert_eq!(append(&spool, 10, Class::Stable), 10);
}

#[test]
fn segments_are_deleted_when_all_their_records_are_acknowledged() {
    let directory = test_dir();
    let (spool, _) = open(&directory, LARGE);
    for number in 1..=60 {
        append(&spool, number, Class::Important);
    }
    assert!(segments(&directory).len() > 10);
    let all: Vec<u64> = (1..=60).rev().collect();
    spool.ack(&all).unwrap();
    assert_eq!(segments(&directory).len(), 1);
    assert_eq!(spool.status(), SpoolStatus::default());
}

#[test]
fn more_acknowledgements_than_the_journal_has_slots_are_all_remembered() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    for number in 1..=5000 {
        append(&spool, number, Class::Stable);
    }
    for seq in (2..=5000).step_by(2) {
        spool.ack(&[seq]).unwrap();
    }
    drop(spool);
    let (spool, recovered) = open(&directory, Limits::default());
    assert_eq!(recovered.records, 2500);
    let waiting = spool.next(0, usize::MAX).unwrap();
    assert!(waiting.iter().all(|(seq, _)| seq % 2 == 1));
}

#[test]
fn a_number_is_never_used_twice_even_if_its_record_is_lost() {
    let directory = test_dir();
    let (spool, _) = open(&directory, LARGE);
    append(&spool, 1, Class::Important);
    append(&spool, 2, Class::Important);
    spool.ack(&[1, 2]).unwrap();
    drop(spool);
    // A power cut loses the unsynced file and leaves the journal.
    for path in segments(&directory) {
        fs::remove_file(path).unwrap();
    }
    let (spool, _) = open(&directory, LARGE);
    assert_eq!(append(&spool, 3, Class::Important), 3);
    assert_eq!(ids(&spool), ["id-3"]);
}

#[test]
fn a_full_spool_drops_its_oldest_stable_records_first() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    for number in 1..=10 {
        append(&spool, number, Class::Important);
        append(&spool, number + 100, Class::Stable);
    }
    for number in 11..=42 {
        append(&spool, number, Class::Important);
    }
    let left = ids(&spool);
    let important: Vec<_> = (1..=42).map(|number| format!("id-{number}")).collect();
    assert!(important.iter().all(|id| left.contains(id)), "{left:?}");
    let kept = left.len() - important.len();
    let newest: Vec<_> = (111 - kept..=110)
        .map(|number| format!("id-{number}"))
        .collect();
    assert!(newest.iter().all(|id| left.contains(id)), "{left:?}");
    let status = spool.status();
    assert_eq!(status.pending + status.dropped, 52);
    assert!((1..10).contains(&status.dropped), "{status:?}");
}

#[test]
fn the_oldest_important_record_is_dropped_only_for_another_important_one() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    for number in 1..=100 {
        append(&spool, number, Class::Important);
    }
    let before = ids(&spool);
    assert_eq!(before.last().unwrap(), "id-100");
    assert!(!before.contains(&"id-1".into()));
    let dropped = spool.status().dropped;
    assert_eq!(dropped + before.len() as u64, 100);
    // Small stable records replace others of that class; a large one does not replace important
    // ones.
    for number in 101..=129 {
        append(&spool, number, Class::Stable);
    }
    let mut large = record(130, Class::Stable);
    large.body = vec![b'x'; 1500];
    let error = spool.append(&large).unwrap_err();
    assert!(matches!(error, SpoolError::Full { .. }), "{error}");
    let after = ids(&spool);
    assert!(before.iter().all(|id| after.contains(id)));
    let status = spool.status();
    assert_eq!(status.pending + status.dropped, 130);
    drop(spool);
    assert_eq!(open(&directory, SMALL).0.status(), status);
}

#[test]
fn the_spool_never_grows_beyond_its_limit() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    for number in 0..300 {
        let class = match number % 3 {
            0 => Class::Important,
            _ => Class::Stable,
        };
        let _ = spool.append(&record(number, class));
        let sizes = segments(&directory).into_iter();
        let size: u64 = sizes.map(|path| path.metadata().unwrap().len()).sum();
        assert!(size <= SMALL.max_bytes, "{size}");
    }
}

#[test]
fn a_record_that_can_never_fit_is_refused_and_counted() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    let mut large = record(1, Class::Important);
    large.body = vec![b'x'; 4000];
    let error = spool.append(&large).unwrap_err();
    let text = "event id-1 was dropped: it is too large for the spool";
    assert_eq!(error.to_string(), text);
    let mut long = record(2, Class::Important);
    long.subject = "s".repeat(70_000);
    let (roomy, _) = Spool::open(&directory.path().join("other"), LARGE).unwrap();
    assert!(matches!(
        roomy.append(&long),
        Err(SpoolError::TooLarge { .. })
    ));
    assert_eq!(spool.status().dropped, 1);
    drop(spool);
    assert_eq!(open(&directory, SMALL).0.status().dropped, 1);
}

#[test]
fn a_record_that_is_given_up_is_counted_once_and_gone() {
    let directory = test_dir();
    let (spool, _) = open(&directory, LARGE);
    append(&spool, 1, Class::Important);
    append(&spool, 2, Class::Important);
    spool.give_up(&[1]).unwrap();
    spool.give_up(&[1, 7]).unwrap();
    let status = SpoolStatus {
        pending: 1,
        dropped: 1,
    };
    assert_eq!(spool.status(), status);
    drop(spool);
    let (spool, _) = open(&directory, LARGE);
    assert_eq!(spool.status(), status);
    assert_eq!(ids(&spool), ["id-2"]);
}

#[test]
fn a_record_damaged_while_it_waits_is_skipped_and_counted_once() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    for number in 1..=3 {
        append(&spool, number, Class::Important);
    }
    let path = segments(&directory).remove(0);
    let mut content = fs::read(&path).unwrap();
    let at = content.windows(9).position(|bytes| bytes == b"body of 2");
    content[at.unwrap()] ^= 1;
    fs::write(&path, content).unwrap();
    assert_eq!(ids(&spool), ["id-1", "id-3"]);
    let status = SpoolStatus {
        pending: 2,
        dropped: 1,
    };
    assert_eq!(spool.status(), status);
    drop(spool);
    let (spool, recovered) = open(&directory, Limits::default());
    assert_eq!((recovered.records, recovered.damaged), (2, 1));
    assert_eq!(spool.status(), status);
}

#[test]
fn a_torn_tail_is_cut_off_and_written_over() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    append(&spool, 1, Class::Important);
    append(&spool, 2, Class::Important);
    drop(spool);
    let path = segments(&directory).remove(0);
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..content.len() - 7]).unwrap();
    let (spool, recovered) = open(&directory, Limits::default());
    assert_eq!(recovered.records, 1);
    assert!(recovered.torn_bytes > 0);
    append(&spool, 3, Class::Important);
    drop(spool);
    let (spool, recovered) = open(&directory, Limits::default());
    assert_eq!((recovered.torn_bytes, recovered.damaged), (0, 0));
    assert_eq!(ids(&spool), ["id-1", "id-3"]);
}

#[test]
fn the_directory_and_its_files_are_private() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    append(&spool, 1, Class::Stable);
    let directory = directory.path().join("spool");
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700);
    let entries: Vec<_> = fs::read_dir(&directory).unwrap().collect();
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    for mode in [0o770, 0o720, 0o702] {
        let directory = test_dir();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        let error = Spool::open(directory.path(), SMALL).unwrap_err();
        assert!(error.to_string().contains("is not private"), "{error}");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn a_directory_named_like_a_segment_is_ignored() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    append(&spool, 1, Class::Stable);
    drop(spool);
    for segment in segments(&directory) {
        fs::remove_file(&segment).unwrap();
        fs::create_dir(&segment).unwrap();
    }
    let (spool, _) = open(&directory, SMALL);
    append(&spool, 2, Class::Stable);
}

#[test]
fn a_deleted_directory_is_created_again_with_the_records_that_are_open() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    let first = append(&spool, 1, Class::Stable);
    fs::remove_dir_all(directory.path().join("spool")).unwrap();
    assert!(spool.restore().unwrap());
    assert!(!spool.restore().unwrap());
    // The number of the old record does not acknowledge the new one.
    spool.ack(&[first]).unwrap();
    append(&spool, 2, Class::Stable);
    drop(spool);
    let (spool, recovered) = open(&directory, SMALL);
    assert_eq!(recovered.records, 2);
    assert_eq!(spool.status().dropped, 0);
}

#[test]
fn a_second_holder_is_refused() {
    let directory = test_dir();
    let (_spool, _) = open(&directory, SMALL);
    let error = Spool::open(&directory.path().join("spool"), SMALL).unwrap_err();
    assert!(matches!(error, SpoolError::InUse(_)), "{error}");
}

#[test]
fn files_that_are_not_ours_are_left_alone_and_unfinished_journals_removed() {
    let directory = test_dir();
    drop(open(&directory, SMALL));
    let at = |name: &str| directory.path().join("spool").join(name);
    fs::write(at("notes.txt"), "hello").unwrap();
    fs::write(at("journal.0123456789abcdef"), "half").unwrap();
    drop(open(&directory, SMALL));
    assert!(at("notes.txt").exists());
    assert!(!at("journal.0123456789abcdef").exists());
}

#[test]
fn many_threads_append_and_none_loses_a_record() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let spool = &spool;
            threads.spawn(move || {
                for number in 0..100 {
                    append(spool, thread * 100 + number, Class::Important);
                    if number % 20 == 0 {
                        spool.sync().unwrap();
                    }
                }
            });
        }
    });
    let waiting = spool.next(0, usize::MAX).unwrap();
    assert!(waiting.iter().map(|(seq, _)| *seq).eq(1..=400));
}

#[tokio::test]
async fn an_append_before_waiting_wakes_the_reader() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    append(&spool, 1, Class::Stable);
    spool.appended().await;
    assert_eq!(ids(&spool), ["id-1"]);
}
