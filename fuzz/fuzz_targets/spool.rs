//! Damaged spools. Properties: a truncated file loses only the records after the cut, a wrong byte loses
//! at most its record, and no record is invented.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_fuzz::{temp_dir, write_file};
use libfuzzer_sys::fuzz_target;

/// One segment holds all records, so that its length tells which records are complete.
const LIMITS: Limits = Limits {
    max_bytes: 64 << 20,
    segment_bytes: 16 << 20,
};

/// Body of a record, and whether the record is acknowledged.
type Input = Vec<(Vec<u8>, bool)>;

fuzz_target!(|input: (Input, bool, u16, Option<u8>)| {
    let (records, damage_journal, position, flip) = input;
    let dir = temp_dir();
    let spool = dir.path().join("spool");
    let mut written = Vec::new();
    let (open, _) = Spool::open(&spool, LIMITS).expect("open a spool");
    for (number, (body, is_acked)) in records.into_iter().take(40).enumerate() {
        let record = Record {
            id: format!("id{number}"),
            subject: "a.b".into(),
            class: Class::Important,
            body,
        };
        let seq = open.append(&record).expect("append a record");
        let end = segment(&spool).map_or(0, |path| length(&path));
        written.push((seq, record, is_acked, end));
    }
    let acked: Vec<u64> = written.iter().filter(|it| it.2).map(|it| it.0).collect();
    open.ack(&acked).expect("acknowledge records");
    drop(open);
    let target = match damage_journal {
        true => Some(spool.join("journal")).filter(|path| path.exists()),
        false => segment(&spool),
    };
    let Some(target) = target else {
        return;
    };
    let mut content = fs::read(&target).expect("read a file");
    let position = usize::from(position) % (content.len() + 1);
    match flip {
        None => content.truncate(position),
        Some(bits) => content
            .iter_mut()
            .skip(position)
            .take(1)
            .for_each(|byte| *byte ^= bits),
    }
    write_file(&target, &content);

    let found = match Spool::open(&spool, LIMITS) {
        Ok((open, _)) => pending(&open),
        Err(error) => panic!("{error}"),
    };
    for (seq, record) in &found {
        let original = written.iter().find(|it| it.0 == *seq);
        assert_eq!(original.map(|it| &it.1), Some(record));
    }
    let held = |seq: u64| found.iter().any(|(number, _)| *number == seq);
    let mut lost = 0;
    for (seq, _, is_acked, end) in &written {
        match (damage_journal, flip) {
            // A lost acknowledgement sends a record again; no record is lost.
            (true, _) => assert!(*is_acked || held(*seq)),
            (false, None) => assert_eq!(held(*seq), !is_acked && *end <= position as u64),
            (false, Some(_)) => lost += usize::from(!is_acked && !held(*seq)),
        }
    }
    assert!(lost <= 1, "{lost} records for one byte");
});

fn pending(spool: &Spool) -> Vec<(u64, Record)> {
    let mut all: Vec<(u64, Record)> = Vec::new();
    loop {
        let after = all.last().map_or(0, |(seq, _)| *seq);
        let more = spool.next(after, 100).expect("read records");
        if more.is_empty() {
            return all;
        }
        assert!(more.iter().all(|(seq, _)| *seq > after));
        all.extend(more);
    }
}

fn segment(spool: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(spool).expect("read the spool");
    let mut paths = entries.map(|entry| entry.expect("read an entry").path());
    paths.find(|path| path.extension().is_some_and(|it| it == "seg"))
}

fn length(path: &Path) -> u64 {
    path.metadata().expect("read metadata").len()
}
