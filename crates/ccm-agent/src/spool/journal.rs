//! Journal of the spool: finished records, the number of dropped ones and the last one appended.
//!
//! ```text
//! slot  kind:u32 a:u64 b:u64 crc:u32
//!       "done", first, last       records first to last are finished
//!       "drop", total, last       records dropped since the spool was created; the last one appended
//! ```
//!
//! A file of fixed slots, allocated in full, so that it can be written when the disk is full. A
//! slot with a wrong checksum counts as empty; at worst a record is sent again. The first two slots
//! hold the counters and are written alternately, so that one of them is always intact. When all
//! slots are used, the file is rewritten with what still matters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm_core::system::files::{self, Durability, FileError, RandomAccessFile};

const DONE: [u8; 4] = *b"done";
const DROP: [u8; 4] = *b"drop";

const SLOT: usize = 24;

/// Slots of the counters.
const COUNTS: usize = 2;

/// Least number of slots; 24 KiB.
const SLOTS: usize = 1024;

/// Longest file that is read as a journal.
const MAX_BYTES: u64 = 64 << 20;

/// Inclusive ranges of sequence numbers, sorted and disjoint.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Returns the union of ranges, which may overlap and come in any order.
    pub(super) fn of(mut pairs: Vec<(u64, u64)>) -> Self {
        pairs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (first, last) in pairs {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= number);
        let nearest = behind.checked_sub(1).and_then(|index| self.0.get(index));
        nearest.is_some_and(|(_, last)| number <= *last)
    }

    /// Returns the ranges in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the highest sequence number.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last().map(|(_, last)| *last)
    }

    /// Returns how many sequence numbers there are.
    pub(super) fn total(&self) -> u64 {
        let lengths = self.0.iter().map(|(first, last)| last - first);
        lengths.fold(0, |total, length| {
            total.saturating_add(length).saturating_add(1)
        })
    }

    /// Returns the numbers from `first` to `last` that are not in these ranges.
    pub(super) fn missing(&self, first: u64, last: u64) -> Self {
        let mut missing = Vec::new();
        let mut next = first;
        for (start, end) in &self.0 {
            if *start > last {
                break;
            }
            if *start > next {
                missing.push((next, start - 1));
            }
            if *end >= last {
                return Self(missing);
            }
            next = next.max(end + 1);
        }
        if next <= last {
            missing.push((next, last));
        }
        Self(missing)
    }
}

/// Content of a journal.
#[derive(Debug, Default)]
pub(super) struct JournalState {
    pub done: Ranges,
    pub counters: Counters,
}

/// Counters of a spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Records dropped since the spool was created.
    pub dropped: u64,
    /// Highest sequence number appended when this was written.
    pub last: u64,
}

/// Journal file, open for writing.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// `None` until the file could be created.
    file: Option<Arc<RandomAccessFile>>,
    slots: usize,
    /// First unused slot.
    free: usize,
    /// Number of the next write of the counters.
    counter_writes: usize,
    is_dirty: bool,
}

impl Journal {
    /// Reads the journal of an earlier process, if there is one. Changes nothing.
    pub(super) fn open(path: &Path) -> Result<(Self, JournalState), FileError> {
        let mut journal = Self {
            path: path.to_owned(),
            file: None,
            slots: 0,
            free: 0,
            counter_writes: 0,
            is_dirty: false,
        };
        let file = match RandomAccessFile::open(path) {
            Err(error) if error.is_not_found() => return Ok((journal, JournalState::default())),
            file => file?,
        };
        let content = file.read(MAX_BYTES)?;
        let (mut pairs, mut counters) = (Vec::new(), Counters::default());
        let (slots, _) = content.as_chunks::<SLOT>();
        for (index, slot) in slots.iter().enumerate() {
            match read_slot(slot) {
                Some((DONE, first, last)) if first <= last => pairs.push((first, last)),
                Some((DROP, dropped, last))
                    if (dropped, last) >= (counters.dropped, counters.last) =>
                {
                    counters = Counters { dropped, last };
                    journal.counter_writes = index + 1;
                }
                _ => {}
            }
            if slot.iter().any(|byte| *byte != 0) {
                journal.free = index + 1;
            }
        }
        journal.slots = slots.len();
        journal.free = journal.free.max(COUNTS);
        // The earlier process may have ended before it synced.
        journal.is_dirty = true;
        journal.file = Some(Arc::new(file));
        let done = Ranges::of(pairs);
        Ok((journal, JournalState { done, counters }))
    }

    /// Reports whether the file exists.
    pub(super) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Reports whether so many ranges fit; otherwise the file must be rewritten first.
    pub(super) fn has_room(&self, ranges: usize) -> bool {
        self.file.is_some() && self.slots.saturating_sub(self.free) >= ranges
    }

    /// Writes that records are finished.
    pub(super) fn write_done(&mut self, ranges: &Ranges) -> Result<(), FileError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let bytes: Vec<u8> = ranges.0.iter().flat_map(done_slot).collect();
        file.write_at(position(self.free), &bytes)?;
        self.free += ranges.0.len();
        self.is_dirty = true;
        Ok(())
    }

    /// Writes the counters.
    pub(super) fn write_counters(&mut self, counters: Counters) -> Result<(), FileError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let slot = position(self.counter_writes % COUNTS);
        file.write_at(slot, &counter_slot(counters))?;
        self.counter_writes += 1;
        self.is_dirty = true;
        Ok(())
    }

    /// Rewrites the file with this content only.
    pub(super) fn rewrite(&mut self, done: &Ranges, counters: Counters) -> Result<(), FileError> {
        let used = COUNTS + done.0.len();
        let slots = SLOTS.max(used * 2);
        let mut content = Vec::with_capacity(slots * SLOT);
        content.extend([counter_slot(counters); COUNTS].as_flattened());
        content.extend(done.0.iter().flat_map(done_slot));
        content.resize(slots * SLOT, 0);
        files::write_private(&self.path, &content, Durability::Content)?;
        // The old file is gone: writes to it would be lost.
        self.file = None;
        self.file = Some(Arc::new(RandomAccessFile::open(&self.path)?));
        (self.slots, self.free) = (slots, used);
        Ok(())
    }

    /// Returns the file if it must be synced. It counts as synced from now on.
    pub(super) fn begin_sync(&mut self) -> Option<Arc<RandomAccessFile>> {
        let is_dirty = std::mem::take(&mut self.is_dirty);
        self.file.as_ref().filter(|_| is_dirty).map(Arc::clone)
    }
}

fn position(slot: usize) -> u64 {
    (slot as u64) * (SLOT as u64)
}

fn done_slot(range: &(u64, u64)) -> [u8; SLOT] {
    write_slot(DONE, range.0, range.1)
}

fn counter_slot(counters: Counters) -> [u8; SLOT] {
    write_slot(DROP, counters.dropped, counters.last)
}

fn write_slot(kind: [u8; 4], a: u64, b: u64) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    let parts = [&kind[..], &a.to_le_bytes(), &b.to_le_bytes()];
    let sum = crc32fast::hash(&parts.concat()).to_le_bytes();
    for (target, byte) in slot.iter_mut().zip(parts.into_iter().flatten().chain(&sum)) {
        *target = *byte;
    }
    slot
}

fn read_slot(slot: &[u8; SLOT]) -> Option<([u8; 4], u64, u64)> {
    let (content, sum) = slot.split_last_chunk::<4>()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (kind, numbers) = content.split_first_chunk::<4>()?;
    let (a, b) = numbers.split_first_chunk::<8>()?;
    let b = b.first_chunk::<8>()?;
    Some((*kind, u64::from_le_bytes(*a), u64::from_le_bytes(*b)))
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests damage files by hand, as a crash would"
)]
mod tests {
    use super::*;

    fn counters(dropped: u64) -> Counters {
        Counters {
            dropped,
            last: dropped * 10,
        }
    }

    #[test]
    fn missing_numbers_are_those_between_the_ranges() {
        let ranges = Ranges::of(vec![(0, 2), (5, 5), (8, 9)]);
        assert_eq!(ranges.missing(1, 12).0, [(3, 4), (6, 7), (10, 12)]);
        assert_eq!(ranges.missing(4, 7).0, [(4, 4), (6, 7)]);
        assert_eq!(ranges.missing(8, 9).0, []);
        assert_eq!(ranges.missing(1, 0).0, []);
        assert_eq!(ranges.missing(1, 12).total(), 7);
        let all = Ranges::of(vec![(0, u64::MAX)]);
        assert_eq!(
            (all.missing(3, u64::MAX).0, all.total()),
            (vec![], u64::MAX)
        );
    }

    #[test]
    fn ranges_merge_where_they_touch() {
        let ranges = Ranges::of(vec![(5, 6), (1, 2), (3, 3), (9, 9), (5, 5)]);
        assert_eq!(ranges.0, [(1, 3), (5, 6), (9, 9)]);
        let held: Vec<u64> = (0..11).filter(|number| ranges.contains(*number)).collect();
        assert_eq!(held, [1, 2, 3, 5, 6, 9]);
        assert_eq!(ranges.last(), Some(9));
        let all = Ranges::of(vec![(0, u64::MAX), (4, 5)]);
        assert!(all.contains(u64::MAX));
    }

    #[test]
    fn a_journal_survives_rewrites_and_full_slots() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let (mut journal, state) = Journal::open(&path).unwrap();
        assert_eq!(
            (state.counters, state.done.last()),
            (Counters::default(), None)
        );
        assert!(!journal.has_room(1));
        journal
            .rewrite(&Ranges::of(vec![(0, 4)]), counters(3))
            .unwrap();
        assert!(journal.has_room(SLOTS - 3) && !journal.has_room(SLOTS - 2));
        journal.write_done(&Ranges::of(vec![(6, 7)])).unwrap();
        journal.write_counters(counters(4)).unwrap();
        journal.write_counters(counters(5)).unwrap();
        assert!(journal.begin_sync().is_some() && journal.begin_sync().is_none());
        drop(journal);
        let (mut journal, state) = Journal::open(&path).unwrap();
        assert_eq!(state.done.0, [(0, 4), (6, 7)]);
        assert_eq!(state.counters, counters(5));
        journal.write_done(&Ranges::of(vec![(9, 9)])).unwrap();
        journal.write_counters(counters(6)).unwrap();
        let (_, state) = Journal::open(&path).unwrap();
        assert_eq!(state.done.0, [(0, 4), (6, 7), (9, 9)]);
        assert_eq!(state.counters, counters(6));
    }

    #[test]
    fn a_torn_counter_leaves_the_previous_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.rewrite(&Ranges::default(), counters(0)).unwrap();
        for total in 1..5 {
            journal.write_counters(counters(total)).unwrap();
            let whole = std::fs::read(&path).unwrap();
            let mut torn = whole.clone();
            let last = (journal.counter_writes - 1) % COUNTS;
            torn[last * SLOT + 6] ^= 1;
            std::fs::write(&path, torn).unwrap();
            assert_eq!(
                Journal::open(&path).unwrap().1.counters,
                counters(total - 1)
            );
            std::fs::write(&path, whole).unwrap();
        }
    }

    #[test]
    fn any_bytes_can_be_opened_as_a_journal() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        for content in [&b""[..], &[0; 23], &[0xff; 4096]] {
            std::fs::write(&path, content).unwrap();
            let (journal, state) = Journal::open(&path).unwrap();
            assert_eq!(
                (state.counters, state.done.last()),
                (Counters::default(), None)
            );
            assert!(!journal.has_room(1));
        }
    }
}
