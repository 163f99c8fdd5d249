//! The queue behind a spool: which segment takes a record, which one goes when there is no room.
//!
//! Records of the two classes lie in segments of their own but share one row of numbers, so they
//! are read in the order they came, and room is made by removing whole files, never by rewriting
//! one. A record belongs to the queue until it is done with; a segment, until all its records are.
//!
//! One thread at a time, which [`super::Spool`] sees to.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm_core::model::node::SpoolStatus;
use ccm_core::system::files::{self, FileError, InPlace};
use ccm_core::system::random;

use super::journal::{Journal, Ranges};
use super::segment::{self, Entry, MAX_RECORD, Name, RecoverError, Segment};
use super::{Class, Limits, Record, Recovered, SpoolError};

const JOURNAL: &str = "journal";

/// The most bytes of records that are handed out at once, unless one alone is larger.
const MAX_BATCH: usize = 8 << 20;

/// Segments of one class, the oldest first; records are appended to the last.
type Lane = VecDeque<Segment>;

/// All records and what became of them.
#[derive(Debug)]
pub(super) struct Queue {
    directory: PathBuf,
    limits: Limits,
    stable: Lane,
    important: Lane,
    /// The highest number in use, or ever acknowledged.
    last: u64,
    /// How many records were given up, beside those in damaged stretches.
    dropped: u64,
    journal: Journal,
    /// Whether the journal misses something that is known here.
    is_behind: bool,
    /// Whether files were made since the directory was last synced.
    has_new_names: bool,
}

/// What a sync still has to write, free of the queue so that others can go on with it.
pub(super) struct Unsynced {
    files: Vec<Arc<InPlace>>,
    has_new_names: bool,
}

impl Unsynced {
    /// Returns when all of it is on the disk.
    pub(super) fn sync(&self, directory: &Path) -> Result<(), FileError> {
        self.files.iter().try_for_each(|file| file.sync())?;
        if self.has_new_names {
            files::sync_directory(directory)
        } else {
            Ok(())
        }
    }
}

impl Queue {
    /// Takes over what is in a directory.
    pub(super) fn open(directory: &Path, limits: Limits) -> Result<(Self, Recovered), SpoolError> {
        let (journal, memory) = Journal::open(&directory.join(JOURNAL))?;
        let mut queue = Self {
            directory: directory.to_owned(),
            limits: Limits {
                max_bytes: limits.max_bytes,
                // Room is made by whole segments, and must not cost all there is.
                segment_bytes: limits
                    .segment_bytes
                    .min(limits.max_bytes / 4)
                    .min(MAX_RECORD as u64),
            },
            stable: Lane::new(),
            important: Lane::new(),
            last: memory.done.last().unwrap_or(0),
            dropped: memory.dropped,
            journal,
            is_behind: false,
            has_new_names: true,
        };
        let mut recovered = Recovered::default();
        // Names sort by their first number.
        for file in files::list(directory)? {
            let name = file.to_str().unwrap_or_default();
            if name.starts_with("journal.") {
                // What a process left that was killed while it wrote its journal anew.
                files::remove(&directory.join(name))?;
            }
            let Some(name) = Name::parse(name) else {
                continue;
            };
            let (mut segment, torn) = match Segment::recover(directory, name) {
                Ok(found) => found,
                Err(RecoverError::File(error)) => return Err(error.into()),
                Err(RecoverError::Version(version)) => {
                    let path = directory.join(&file);
                    return Err(SpoolError::Version { path, version });
                }
            };
            let done: Vec<u64> = segment
                .numbers()
                .filter(|seq| memory.done.contains(*seq))
                .collect();
            for seq in done {
                segment.finish(seq);
            }
            recovered.torn_bytes += torn;
            recovered.damaged += segment.damaged;
            recovered.records += segment.pending as u64;
            queue.last = queue.last.max(segment.last());
            queue.lane(name.class).push_back(segment);
        }
        queue.sweep()?;
        if !queue.journal.is_open() {
            match queue.note_dropped() {
                // Then it is made when there is room, and until then nothing is remembered.
                Err(error) if !error.is_storage_full() => return Err(error.into()),
                _ => {}
            }
        }
        Ok((queue, recovered))
    }

    /// Appends a record and returns its number, or gives it up and counts it.
    pub(super) fn append(&mut self, record: &Record) -> Result<u64, SpoolError> {
        let stored = self.try_append(record);
        if stored.is_err() {
            self.dropped = self.dropped.saturating_add(1);
            // A count that cannot be noted now is noted with the next one.
            let _ = self.note_dropped();
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
            if !self.make_room(record.class).map_err(failed)? {
                return Err(SpoolError::Full { id: id() });
            }
        }
        match self.write(record, length) {
            // The disk is full, maybe not by us: stable records may go for this one, others stay.
            Err(error) if error.is_storage_full() => {
                if !self.make_room(Class::Stable).map_err(failed)? {
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
            self.has_new_names = true;
            self.lane(record.class).push_back(segment);
            // A file that stays a little longer is no reason to lose a record.
            let _ = self.sweep();
        }
        if let Some(last) = self.lane(record.class).back_mut() {
            last.append(seq, record)?;
        }
        self.last = seq;
        Ok(seq)
    }

    /// Removes the one segment that is missed least for the sake of a record. Returns whether
    /// there was one that may go.
    fn make_room(&mut self, class: Class) -> Result<bool, FileError> {
        // An empty file is no room.
        let is_done = |lane: &Lane| {
            let first = lane.front();
            first.is_some_and(|first| first.pending == 0 && first.bytes > 0)
        };
        let victim = if is_done(&self.stable) {
            Class::Stable
        } else if is_done(&self.important) {
            Class::Important
        } else if !self.stable.is_empty() {
            Class::Stable
        } else {
            // Its like; so a stable record is worth none of the others.
            class
        };
        self.remove_first(victim)
    }

    /// Removes the oldest segment of a class with all that is in it. Returns whether there was one.
    fn remove_first(&mut self, class: Class) -> Result<bool, FileError> {
        let Some(first) = self.lane(class).front() else {
            return Ok(false);
        };
        let lost = first.damaged.saturating_add(first.pending as u64);
        files::remove(&first.path)?;
        self.lane(class).pop_front();
        if lost > 0 {
            self.dropped = self.dropped.saturating_add(lost);
            // As above: the count is right here, and noted when that can be done.
            let _ = self.note_dropped();
        }
        Ok(true)
    }

    /// Removes the segments that are done with. The last of a class stays to be filled.
    fn sweep(&mut self) -> Result<(), FileError> {
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

    /// Returns records that wait, in order.
    pub(super) fn next(&mut self, after: u64, max: usize) -> Result<Vec<(u64, Record)>, FileError> {
        let mut taken = Vec::new();
        let mut size = 0;
        let mut after = after;
        while taken.len() < max {
            let Some((segment, entry)) = self.first_after(after) else {
                break;
            };
            match segment.read(entry) {
                Ok(Some(record)) => {
                    size += record.body.len();
                    if size > MAX_BATCH && !taken.is_empty() {
                        break;
                    }
                    taken.push((entry.seq, record));
                }
                // What can never be read must not stop what comes behind it.
                Ok(None) => segment.lose(entry),
                Err(error) if error.is_lost_for_good() => segment.lose(entry),
                Err(error) if taken.is_empty() => return Err(error),
                Err(_) => break,
            }
            after = entry.seq;
        }
        Ok(taken)
    }

    /// Returns the first pending record after a number, and the segment that holds it.
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

    /// Takes records off the queue and counts them as dropped.
    pub(super) fn give_up(&mut self, seqs: &[u64]) -> Result<(), FileError> {
        let before = self.status().pending;
        let acked = self.ack(seqs);
        let lost = before.saturating_sub(self.status().pending);
        self.dropped = self.dropped.saturating_add(lost);
        acked.and(self.note_dropped())
    }

    /// Takes records off the queue.
    pub(super) fn ack(&mut self, seqs: &[u64]) -> Result<(), FileError> {
        let mut done = Vec::with_capacity(seqs.len());
        for &seq in seqs {
            let mut lanes = [&mut self.stable, &mut self.important].into_iter();
            if lanes.any(|lane| finish(lane, seq)) {
                done.push((seq, seq));
            }
        }
        let noted = self.note_done(Ranges::of(done));
        self.sweep()?;
        noted
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

    /// Returns what is to be synced. It counts as synced from now on.
    pub(super) fn begin_sync(&mut self) -> Result<Unsynced, FileError> {
        if self.is_behind {
            self.note_dropped()?;
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
            has_new_names: std::mem::take(&mut self.has_new_names),
        })
    }

    /// Takes back that anything is synced.
    pub(super) fn sync_failed(&mut self) {
        for lane in [&mut self.stable, &mut self.important] {
            for segment in lane {
                segment.is_dirty = true;
            }
        }
        self.is_behind = true;
        self.has_new_names = true;
    }

    fn note_done(&mut self, done: Ranges) -> Result<(), FileError> {
        let noted = if !self.is_behind && self.journal.has_room(done.len()) {
            self.journal.note_done(&done)
        } else {
            self.rewrite_journal()
        };
        self.is_behind = noted.is_err();
        noted
    }

    fn note_dropped(&mut self) -> Result<(), FileError> {
        let mut noted = self.journal.note_dropped(self.dropped);
        if self.is_behind || !self.journal.is_open() {
            noted = self.rewrite_journal();
        }
        self.is_behind = noted.is_err();
        noted
    }

    /// Writes a journal of what still matters: everything before the first pending record is done
    /// with, and so is what was acknowledged out of turn behind it.
    fn rewrite_journal(&mut self) -> Result<(), FileError> {
        let pending = [&self.stable, &self.important].map(|lane| {
            let mut segments = lane.iter();
            segments.find_map(|segment| segment.pending_after(0))
        });
        let first = pending.into_iter().flatten().map(|entry| entry.seq).min();
        let floor = first.map_or(self.last, |first| first.saturating_sub(1));
        let done = self.segments().flat_map(Segment::finished);
        let done = done.filter(|seq| *seq > floor).map(|seq| (seq, seq));
        let done = Ranges::of(std::iter::once((0, floor)).chain(done).collect());
        self.has_new_names = true;
        self.journal.rewrite(&done, self.dropped)
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

/// Marks a record of a lane as done with. Returns whether it was pending there.
fn finish(lane: &mut Lane, seq: u64) -> bool {
    let behind = lane.partition_point(|segment| segment.name.first <= seq);
    let segment = behind.checked_sub(1).and_then(|index| lane.get_mut(index));
    segment.is_some_and(|segment| segment.finish(seq))
}
