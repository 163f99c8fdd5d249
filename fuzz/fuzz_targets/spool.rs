//! Any records in a spool that is then damaged: a tear costs what is behind it and nothing before,
//! one wrong byte at most the record it is in, and no record is ever made up.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use ccm_agent::spool::{Class, Limits, Record, Spool};
use ccm_fuzz::{put, room};
use libfuzzer_sys::fuzz_target;

/// One segment holds all, so that where a file ends says which records are whole.
const LIMITS: Limits = Limits {
    max_bytes: 64 << 20,
    segment_bytes: 16 << 20,
};

/// A body, and whether the record is done with.
type Input = Vec<(Vec<u8>, bool)>;

fuzz_target!(|input: (Input, bool, u16, Option<u8>)| {
    let (records, hit_journal, place, flip) = input;
    let room = room();
    let spool = room.path().join("spool");
    let mut written = Vec::new();
    let (open, _) = Spool::open(&spool, LIMITS).expect("a spool is made");
    for (number, (body, is_done)) in records.into_iter().take(40).enumerate() {
        let record = Record {
            id: format!("id{number}"),
            subject: "a.b".into(),
            class: Class::Important,
            body,
        };
        let seq = open.append(&record).expect("there is room");
        let end = segment(&spool).map_or(0, |path| length(&path));
        written.push((seq, record, is_done, end));
    }
    let done: Vec<u64> = written.iter().filter(|it| it.2).map(|it| it.0).collect();
    open.ack(&done).expect("records can be taken off");
    drop(open);
    let target = match hit_journal {
        true => Some(spool.join("journal")).filter(|path| path.exists()),
        false => segment(&spool),
    };
    let Some(target) = target else {
        return;
    };
    let mut content = fs::read(&target).expect("a file is read");
    let place = usize::from(place) % (content.len() + 1);
    match flip {
        None => content.truncate(place),
        Some(bits) => content
            .iter_mut()
            .skip(place)
            .take(1)
            .for_each(|byte| *byte ^= bits),
    }
    put(&target, &content);

    let found = match Spool::open(&spool, LIMITS) {
        Ok((open, _)) => waiting(&open),
        Err(error) => panic!("{error}"),
    };
    for (seq, record) in &found {
        let original = written.iter().find(|it| it.0 == *seq);
        assert_eq!(original.map(|it| &it.1), Some(record));
    }
    let held = |seq: u64| found.iter().any(|(number, _)| *number == seq);
    let mut lost = 0;
    for (seq, _, is_done, end) in &written {
        match (hit_journal, flip) {
            // What was forgotten to be done is sent again; nothing is lost.
            (true, _) => assert!(*is_done || held(*seq)),
            (false, None) => assert_eq!(held(*seq), !is_done && *end <= place as u64),
            (false, Some(_)) => lost += usize::from(!is_done && !held(*seq)),
        }
    }
    assert!(lost <= 1, "{lost} records for one byte");
});

fn waiting(spool: &Spool) -> Vec<(u64, Record)> {
    let mut all: Vec<(u64, Record)> = Vec::new();
    loop {
        let after = all.last().map_or(0, |(seq, _)| *seq);
        let more = spool.next(after, 100).expect("records can be read");
        if more.is_empty() {
            return all;
        }
        assert!(more.iter().all(|(seq, _)| *seq > after));
        all.extend(more);
    }
}

fn segment(spool: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(spool).expect("the spool is read");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.extension().is_some_and(|it| it == "seg"))
}

fn length(path: &Path) -> u64 {
    path.metadata().expect("a file is there").len()
}
