//! Records that are cut off or missing: counted as dropped, once.

use super::*;

/// Cuts the last bytes off a file.
fn cut(path: &Path, bytes: usize) {
    let content = fs::read(path).unwrap();
    fs::write(path, &content[..content.len() - bytes]).unwrap();
}

/// Checks how many records count as lost, now and, without being counted again, at the next start.
fn assert_lost(directory: &TempDir, lost: u64, left: &[&str]) {
    for lost_now in [lost, 0] {
        let (spool, recovered) = open(directory, Limits::default());
        assert_eq!(recovered.lost, lost_now);
        assert_eq!(ids(&spool), left);
        assert_eq!(spool.status().dropped, lost);
    }
}

#[test]
fn the_record_of_an_unfinished_write_counts_as_dropped() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    append(&spool, 1, Class::Important);
    append(&spool, 2, Class::Important);
    drop(spool);
    cut(&segments(&directory)[0], 7);
    assert_lost(&directory, 1, &["id-1"]);
}

#[test]
fn all_synced_records_that_were_cut_off_count_as_dropped() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    append(&spool, 1, Class::Important);
    let kept = segments(&directory)[0].metadata().unwrap().len();
    for number in 2..=5 {
        append(&spool, number, Class::Important);
    }
    spool.sync().unwrap();
    drop(spool);
    let path = segments(&directory).remove(0);
    let all = path.metadata().unwrap().len();
    cut(&path, (all - kept) as usize);
    assert_lost(&directory, 4, &["id-1"]);
}

#[test]
fn records_cut_off_between_others_count_as_dropped() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    for (number, class) in (1..).zip([Class::Important, Class::Stable, Class::Stable]) {
        append(&spool, number, class);
    }
    append(&spool, 4, Class::Important);
    drop(spool);
    let path = segments(&directory).pop().unwrap();
    assert!(path.to_str().unwrap().contains("stable"));
    cut(&path, 7);
    assert_lost(&directory, 1, &["id-1", "id-2", "id-4"]);
}

#[test]
fn records_of_a_missing_segment_count_as_dropped() {
    let directory = test_dir();
    let (spool, _) = open(&directory, Limits::default());
    for number in 1..=3 {
        append(&spool, number, Class::Important);
    }
    spool.ack(&[2]).unwrap();
    spool.sync().unwrap();
    drop(spool);
    fs::remove_file(segments(&directory).remove(0)).unwrap();
    assert_lost(&directory, 2, &[]);
}

#[test]
fn records_dropped_from_a_full_spool_are_not_counted_again() {
    let directory = test_dir();
    let (spool, _) = open(&directory, SMALL);
    for number in 1..=10 {
        append(&spool, number, Class::Important);
        append(&spool, number + 100, Class::Stable);
    }
    for number in 11..=60 {
        append(&spool, number, Class::Important);
    }
    spool.sync().unwrap();
    let status = spool.status();
    assert!(status.dropped > 0, "{status:?}");
    drop(spool);
    let (spool, recovered) = open(&directory, SMALL);
    assert_eq!((recovered.lost, spool.status()), (0, status));
}
