//! Queue of the spool: assigns records to segments and frees space.
//!
//! Records of the two classes are in separate segments but share one sequence, so they are read in
//! the order they were appended, and space is freed by deleting whole files. A segment is deleted
//! when all its records are finished.
//!
//! Single-threaded; [`super::Spool`] holds the lock.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm_core::model::node::SpoolStatus;
use ccm_core::system::files::{self, FileError, RandomAccessFile};
use ccm_core::system::random;

use super::journal::{Counters, Journal, JournalState, Ranges};
use super::segment::{self, Entry, MAX_RECORD, Name, RecoverError, Segment};
use super::{Class, Limits, Record, Recovered, SpoolError};

const JOURNAL: &str = "journal";

/// Most bytes returned at once, unless a single record is larger.
const MAX_BATCH: usize = 8 << 20;

/// Segments of one class, oldest first; records are appended to the last.
type Lane = VecDeque<Segment>;

/// Segments and journal of a spool.
#[derive(Debug)]
pub(super) struct Queue {
    directory: PathBuf,
    limits: Limits,
    stable: Lane,
    important: Lane,
    /// Highest sequence number used or acknowledged.
    last: u64,
    /// Dropped records, besides those in damaged stretches.
    dropped: u64,
    /// The last sequence number in the journal's counters.
    recorded: u64,
    /// Numbers of lost and dropped records, which the journal lists as finished.
    gone: Ranges,
    journal: Journal,
    /// The journal is incomplete because a write failed.
    is_journal_incomplete: bool,
    /// Files were created since the directory was last synced.
    has_new_files: bool,
}

/// Files to sync; independent of the queue, so that it can be used meanwhile.
pub(super) struct Unsynced {
    files: Vec<Arc<RandomAccessFile>>,
    has_new_files: bool,
}

impl Unsynced {
    /// Syncs the files and, if need be, the directory.
    pub(super) fn sync(&self, directory: &Path) -> Result<(), FileError> {
        self.files.iter().try_for_each(|file| file.sync())?;
        if self.has_new_files {
            files::sync_directory(directory)
        } else {
            Ok(())
        }
    }
}

impl Queue {
    /// Recovers the records in a directory.
    pub(super) fn open(directory: &Path, limits: Limits) -> Result<(Self, Recovered), SpoolError> {
        let (journal, journal_state) = Journal::open(&directory.join(JOURNAL))?;
        let mut queue = Self {
            directory: directory.to_owned(),
            limits: Limits {
                max_bytes: limits.max_bytes,
                // Space is freed by whole segments, so one must not be the whole spool.
                segment_bytes: limits
                    .segment_bytes
                    .min(limits.max_bytes / 4)
                    .min(MAX_RECORD as u64),
            },
            stable: Lane::new(),
            important: Lane::new(),
            last: journal_state.done.last().unwrap_or(0),
            dropped: journal_state.counters.dropped,
            recorded: journal_state.counters.last,
            gone: Ranges::default(),
            journal,
            is_journal_incomplete: false,
            has_new_files: true,
        };
        queue.last = queue.last.max(queue.recorded);
        let mut recovered = Recovered::default();
        let mut torn_segments = 0;
        // Names sort by their first sequence number.
        for file in files::list(directory)? {
            let name = file.to_str().unwrap_or_default();
            if name.starts_with("journal.") {
                // Left by a process that was killed while it rewrote the journal.
                files::remove(&directory.join(name))?;
            }
            let Some(name) = Name::parse(name) else {
                continue;
            };
            let (mut segment, torn) = match Segment::recover(directory, name) {
                Ok(found) => found,
                // Not a segment, whatever its name is.
                Err(RecoverError::File(FileError::NotRegular(_))) => continue,
                Err(RecoverError::File(error)) => return Err(error.into()),
                Err(RecoverError::Version(version)) => {
                    let path = directory.join(&file);
                    return Err(SpoolError::Version { path, version });
                }
            };
            let done: Vec<u64> = segment
                .numbers()
                .filter(|seq| journal_state.done.contains(*seq))
                .collect();
            for seq in done {
                segment.finish(seq);
            }
            recovered.torn_bytes += torn;
            torn_segments += u64::from(torn > 0);
            recovered.damaged += segment.damaged;
            recovered.records += segment.pending as u64;
            queue.last = queue.last.max(segment.last());
            queue.lane(name.class).push_back(segment);
        }
        let missing = queue.missing(&journal_state);
        recovered.lost = missing
            .total()
            .saturating_sub(recovered.damaged)
            .max(torn_segments);
        queue.dropped = queue.dropped.saturating_add(recovered.lost);
        queue.delete_finished()?;
        let written = match recovered.lost {
            0 if queue.journal.is_open() => Ok(()),
            _ => queue.record_gone(missing),
        };
        match written {
            // On a full disk it is written later; until then acknowledgements are not persistent.
            Err(error) if !error.is_storage_full() => Err(error.into()),
            _ => Ok((queue, recovered)),
        }
    }

    /// Returns the sequence numbers of records that are neither in a segment nor finished: their part
    /// of a file was cut off, or the file is missing. Numbers before the first segment of a class are
    /// left out, because finished segments are deleted before the journal is synced.
    fn missing(&self, state: &JournalState) -> Ranges {
        let fronts = [&self.stable, &self.important].map(|lane| lane.front());
        let first = fronts.into_iter().flatten().map(|front| front.name.first);
        let present = self.segments().flat_map(Segment::numbers);
        let present = present.map(|number| (number, number));
        let known = Ranges::of(state.done.iter().chain(present).collect());
        known.missing(first.max().unwrap_or(1).max(1), self.last)
    }

    /// Starts again in an empty directory, with the pending records that can still be read from open
    /// files. They get new sequence numbers, so that acknowledgements of the old ones have no effect.
    pub(super) fn restore(&mut self) -> Result<(), SpoolError> {
        let (mut new, _) = Self::open(&self.directory, self.limits)?;
        (new.last, new.dropped) = (self.last, self.dropped);
        let pending = self.status().pending;
        let mut after = 0;
        let mut kept = 0;
        loop {
            let records = self.next(after, usize::MAX)?;
            let Some((last, _)) = records.last() else {
                break;
            };
            after = *last;
            for (_, record) in &records {
                new.append(record)?;
                kept += 1;
            }
        }
        new.dropped = new.dropped.saturating_add(pending.saturating_sub(kept));
        let _ = new.record_counters();
        *self = new;
        Ok(())
    }

    /// Appends a record and returns its sequence number, or drops and counts it.
    pub(super) fn append(&mut self, record: &Record) -> Result<u64, SpoolError> {
        let stored = self.try_append(record);
        if stored.is_err() {
            self.dropped = self.dropped.saturating_add(1);
            // A counter that could not be written is written with the next one.
            let _ = self.record_counters();
        }
        stored
    }

    fn try_append(&mut self, record: &Record) -> Result<u64, SpoolError> {
        let id = || record.id.clone();
        let length = segment::encoded_length(record);
        let is_long = |text: &str| text.len() > usize::from(u16::MAX);
        if length > MAX_RECORD
            || length as u64 > self.limits.max_bytes / 2
            || is_long(&record.id)
            || is_long(&record.subject)
        {
            return Err(SpoolError::TooLarge { id: id() });
        }
        let failed = |cause| SpoolError::NotWritten { id: id(), cause };
        // The record may need a new segment.
        let most = (length + segment::HEADER) as u64;
        while self.bytes().saturating_add(most) > self.limits.max_bytes {
            if !self.free_space(record.class).map_err(failed)? {
                return Err(SpoolError::Full { id: id() });
            }
        }
        match self.write(record, length) {
            // The disk is full, perhaps by other files: drop stable records for this one, but no
            // others.
            Err(error) if error.is_storage_full() => {
                if !self.free_space(Class::Stable).map_err(failed)? {
                    return Err(failed(error));
                }
                self.write(record, length).map_err(failed)
            }
            written => written.map_err(failed),
        }
    }

    fn write(&mut self, record: &Record, length: usize) -> Result<u64, FileError> {
        let seq = self.last.saturating_add(1);
        let most = self.limits.segment_bytes;
        let fits = |last: &Segment| last.bytes == 0 || last.bytes + length as u64 <= most;
        if !self.lane(record.class).back().is_some_and(fits) {
            let name = Name {
                first: seq,
                class: record.class,
                salt: random()? as u32,
            };
            let segment = Segment::create(&self.directory, name)?;
            self.has_new_files = true;
            self.lane(record.class).push_back(segment);
            // A file that could not be deleted is no reason to lose a record.
            let _ = self.delete_finished();
        }
        if let Some(last) = self.lane(record.class).back_mut() {
            last.append(seq, record)?;
        }
        self.last = seq;
        Ok(seq)
    }

    /// Deletes the least important segment to free space for a record of `class`. Returns whether
    /// there was one.
    fn free_space(&mut self, class: Class) -> Result<bool, FileError> {
        // Deleting an empty file frees nothing.
        let is_done = |lane: &Lane| {
            let first = lane.front();
            first.is_some_and(|first| first.pending == 0 && first.bytes > 0)
        };
        let target = if is_done(&self.stable) {
            Class::Stable
        } else if is_done(&self.important) {
            Class::Important
        } else if !self.stable.is_empty() {
            Class::Stable
        } else {
            // Same class: a stable record never replaces important ones.
            class
        };
        self.remove_first(target)
    }

    /// Deletes the oldest segment of a class. Returns whether there was one.
    fn remove_first(&mut self, class: Class) -> Result<bool, FileError> {
        let Some(first) = self.lane(class).front() else {
            return Ok(false);
        };
        let lost = first.damaged.saturating_add(first.pending as u64);
        let numbers = first.numbers().map(|number| (number, number));
        let numbers = Ranges::of(numbers.collect());
        files::remove(&first.path)?;
        self.lane(class).pop_front();
        if lost > 0 {
            self.dropped = self.dropped.saturating_add(lost);
            // As above: what could not be written is written later.
            let _ = self.record_gone(numbers);
        }
        Ok(true)
    }

    /// Deletes finished segments. The last of a class stays for appending.
    fn delete_finished(&mut self) -> Result<(), FileError> {
        for class in [Class::Stable, Class::Important] {
            loop {
                let lane = self.lane(class);
                let is_done = lane.front().is_some_and(|first| first.pending == 0);
                if !is_done || lane.len() < 2 {
                    break;
                }
                self.remove_first(class)?;
            }
        }
        Ok(())
    }

    /// Returns pending records in order.
    pub(super) fn next(&mut self, after: u64, max: usize) -> Result<Vec<(u64, Record)>, FileError> {
        let mut records = Vec::new();
        let mut size = 0;
        let mut after = after;
        while records.len() < max {
            let Some((segment, entry)) = self.first_after(after) else {
                break;
            };
            match segment.read(entry) {
                Ok(Some(record)) => {
                    size += record.body.len();
                    if size > MAX_BATCH && !records.is_empty() {
                        break;
                    }
                    records.push((entry.seq, record));
                }
                // A record that can never be read must not block later ones.
                Ok(None) => segment.mark_damaged(entry),
                Err(error) if error.is_permanent() => segment.mark_damaged(entry),
                Err(error) if records.is_empty() => return Err(error),
                Err(_) => break,
            }
            after = entry.seq;
        }
        Ok(records)
    }

    /// Returns the first pending record after a sequence number, and its segment.
    fn first_after(&mut self, after: u64) -> Option<(&mut Segment, Entry)> {
        let first = |lane: &Lane| {
            let mut segments = lane.iter().enumerate();
            segments.find_map(|(index, segment)| Some((index, segment.pending_after(after)?)))
        };
        let (lane, (index, entry)) = match (first(&self.stable), first(&self.important)) {
            (Some(stable), Some(important)) if stable.1.seq < important.1.seq => {
                (&mut self.stable, stable)
            }
            (_, Some(important)) => (&mut self.important, important),
            (Some(stable), None) => (&mut self.stable, stable),
            (None, None) => return None,
        };
        Some((lane.get_mut(index)?, entry))
    }

    /// Finishes records and counts them as dropped.
    pub(super) fn give_up(&mut self, seqs: &[u64]) -> Result<(), FileError> {
        let before = self.status().pending;
        let acked = self.ack(seqs);
        let lost = before.saturating_sub(self.status().pending);
        self.dropped = self.dropped.saturating_add(lost);
        acked.and(self.record_counters())
    }

    /// Finishes records.
    pub(super) fn ack(&mut self, seqs: &[u64]) -> Result<(), FileError> {
        let mut done = Vec::with_capacity(seqs.len());
        for &seq in seqs {
            let mut lanes = [&mut self.stable, &mut self.important].into_iter();
            if lanes.any(|lane| finish(lane, seq)) {
                done.push((seq, seq));
            }
        }
        let written = self.record_done(Ranges::of(done));
        self.delete_finished()?;
        written
    }

    pub(super) fn status(&self) -> SpoolStatus {
        let mut status = SpoolStatus {
            pending: 0,
            dropped: self.dropped,
        };
        for segment in self.segments() {
            status.pending += segment.pending as u64;
            status.dropped = status.dropped.saturating_add(segment.damaged);
        }
        status
    }

    /// Returns the files to sync. They count as synced from now on.
    pub(super) fn begin_sync(&mut self) -> Result<Unsynced, FileError> {
        if self.is_journal_incomplete || self.recorded != self.last {
            self.record_counters()?;
        }
        let mut files = Vec::new();
        for lane in [&mut self.stable, &mut self.important] {
            for segment in lane.iter_mut().filter(|segment| segment.is_dirty) {
                files.push(segment.file()?);
            }
        }
        files.extend(self.journal.begin_sync());
        for lane in [&mut self.stable, &mut self.important] {
            for segment in lane {
                segment.is_dirty = false;
            }
        }
        Ok(Unsynced {
            files,
            has_new_files: std::mem::take(&mut self.has_new_files),
        })
    }

    /// Marks everything as not synced.
    pub(super) fn sync_failed(&mut self) {
        for lane in [&mut self.stable, &mut self.important] {
            for segment in lane {
                segment.is_dirty = true;
            }
        }
        self.is_journal_incomplete = true;
        self.has_new_files = true;
    }

    fn record_done(&mut self, done: Ranges) -> Result<(), FileError> {
        let written = if !self.is_journal_incomplete && self.journal.has_room(done.len()) {
            self.journal.write_done(&done)
        } else {
            self.rewrite_journal()
        };
        self.is_journal_incomplete = written.is_err();
        written
    }

    /// Records that lost or dropped records are counted, so that they don't count as missing again.
    fn record_gone(&mut self, numbers: Ranges) -> Result<(), FileError> {
        self.gone = Ranges::of(self.gone.iter().chain(numbers.iter()).collect());
        self.record_counters()?;
        self.record_done(numbers)
    }

    fn record_counters(&mut self) -> Result<(), FileError> {
        let mut written = self.journal.write_counters(self.counters());
        if self.is_journal_incomplete || !self.journal.is_open() {
            written = self.rewrite_journal();
        } else if written.is_ok() {
            self.recorded = self.last;
        }
        self.is_journal_incomplete = written.is_err();
        written
    }

    fn counters(&self) -> Counters {
        Counters {
            dropped: self.dropped,
            last: self.last,
        }
    }

    /// Rewrites the journal with what still matters: all records before the first pending one, and
    /// those acknowledged after it.
    fn rewrite_journal(&mut self) -> Result<(), FileError> {
        let pending = [&self.stable, &self.important].map(|lane| {
            let mut segments = lane.iter();
            segments.find_map(|segment| segment.pending_after(0))
        });
        let first = pending.into_iter().flatten().map(|entry| entry.seq).min();
        let floor = first.map_or(self.last, |first| first.saturating_sub(1));
        let done = self.segments().flat_map(Segment::finished);
        let done = done.filter(|seq| *seq > floor).map(|seq| (seq, seq));
        let gone = self.gone.iter().filter(|(_, last)| *last > floor);
        let gone: Vec<_> = gone.collect();
        let done = std::iter::once((0, floor))
            .chain(done)
            .chain(gone.iter().copied());
        let done = Ranges::of(done.collect());
        self.gone = Ranges::of(gone);
        self.has_new_files = true;
        self.journal.rewrite(&done, self.counters())?;
        self.recorded = self.last;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.segments().map(|segment| segment.bytes).sum()
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.stable.iter().chain(&self.important)
    }

    fn lane(&mut self, class: Class) -> &mut Lane {
        match class {
            Class::Stable => &mut self.stable,
            Class::Important => &mut self.important,
        }
    }
}

/// Marks a record as finished. Returns whether it was pending.
fn finish(lane: &mut Lane, seq: u64) -> bool {
    let behind = lane.partition_point(|segment| segment.name.first <= seq);
    let segment = behind.checked_sub(1).and_then(|index| lane.get_mut(index));
    segment.is_some_and(|segment| segment.finish(seq))
}
