//! Segments: files of records with checksums.
//!
//! ```text
//! segment  "ccm-spl" version:u8 crc:u32, then records
//! record   marker:u32 length:u32 seq:u64 crc:u32 | payload of that length | crc:u32
//! payload  id length:u16, subject length:u16, id, subject, body
//! ```
//!
//! Numbers are little-endian. The first checksum of a record covers its head, so that a damaged
//! body does not hide the start of the next record; the second one covers both. All are seeded
//! with the salt in the file name, so bytes of another segment, or of a record inside a body, are
//! never taken for a record.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm_core::system::files::{FileError, RandomAccessFile};

use super::{Class, Record};

const MAGIC: &[u8; 7] = b"ccm-spl";
const VERSION: u8 = 1;
const MARKER: [u8; 4] = [0xc5, b'e', b'v', 0x9e];

/// Bytes before the first record.
pub(super) const HEADER: usize = 12;

/// Bytes before and after a payload.
const HEAD: usize = 20;
const TAIL: usize = 4;

/// Longest record on disk. A NATS server accepts 64 MiB at most.
pub(super) const MAX_RECORD: usize = 64 << 20;

/// Longest file that is read as a segment: a full one, and one record that started in it.
pub(super) const MAX_SEGMENT: u64 = 2 * (MAX_RECORD as u64);

/// File name of a segment: its first possible sequence number, class and salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub first: u64,
    pub class: Class,
    pub salt: u32,
}

impl Name {
    /// Parses a file name; `None` if it is not that of a segment.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(".seg")?.split('-');
        let first = parts.next()?;
        let class = match parts.next()? {
            "stable" => Class::Stable,
            "important" => Class::Important,
            _ => return None,
        };
        let salt = parts.next()?;
        let name = Self {
            first: first.parse().ok()?,
            class,
            salt: u32::from_str_radix(salt, 16).ok()?,
        };
        // Only the canonical form, so that no two files have the same name.
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            Class::Stable => "stable",
            Class::Important => "important",
        };
        write!(out, "{:020}-{class}-{:08x}.seg", self.first, self.salt)
    }
}

/// Position of a record, and whether it is finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub seq: u64,
    pub is_done: bool,
    offset: u64,
    length: usize,
}

/// One segment and the index of its records.
#[derive(Debug)]
pub(super) struct Segment {
    pub name: Name,
    pub path: PathBuf,
    /// Offset of the next record.
    pub bytes: u64,
    /// Pending records.
    pub pending: usize,
    /// Unreadable stretches of the file.
    pub damaged: u64,
    /// Written since the last sync.
    pub is_dirty: bool,
    entries: Vec<Entry>,
    /// All entries before this one are finished.
    head: usize,
    /// Opened by the first read or write.
    file: Option<Arc<RandomAccessFile>>,
}

/// Why a segment could not be recovered.
#[derive(Debug)]
pub(super) enum RecoverError {
    File(FileError),
    Version(u8),
}

impl From<FileError> for RecoverError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl Segment {
    /// Creates the file of a new segment. The header is written with the first record.
    pub(super) fn create(directory: &Path, name: Name) -> Result<Self, FileError> {
        let path = directory.join(name.to_string());
        let file = RandomAccessFile::create(&path)?;
        let mut segment = Self::empty(path, name);
        segment.file = Some(Arc::new(file));
        Ok(segment)
    }

    fn empty(path: PathBuf, name: Name) -> Self {
        Self {
            name,
            path,
            bytes: 0,
            pending: 0,
            damaged: 0,
            is_dirty: false,
            entries: Vec::new(),
            head: 0,
            file: None,
        }
    }

    /// Reads a segment of an earlier process and truncates its torn tail. Returns it with the
    /// number of bytes cut off.
    pub(super) fn recover(directory: &Path, name: Name) -> Result<(Self, u64), RecoverError> {
        let path = directory.join(name.to_string());
        let file = RandomAccessFile::open(&path)?;
        let content = file.read(MAX_SEGMENT)?;
        let mut segment = Self::empty(path, name);
        let found = scan(&content, name).map_err(RecoverError::Version)?;
        let torn = content.len().saturating_sub(found.end);
        if torn > 0 {
            file.truncate(found.end as u64)?;
        }
        // The earlier process may have ended before it synced.
        segment.is_dirty = true;
        segment.bytes = found.end as u64;
        segment.pending = found.entries.len();
        segment.damaged = found.damaged;
        segment.entries = found.entries;
        Ok((segment, torn as u64))
    }

    /// Appends a record in one write. After an error the segment is as before: the next record
    /// overwrites the partial one.
    pub(super) fn append(&mut self, seq: u64, record: &Record) -> Result<(), FileError> {
        let mut encoded = Vec::with_capacity(HEADER + encoded_length(record));
        if self.bytes == 0 {
            encoded.extend_from_slice(&header(self.name.salt));
        }
        let offset = self.bytes + encoded.len() as u64;
        encode(&mut encoded, self.name.salt, seq, record);
        let file = self.file()?;
        if let Err(error) = file.write_at(self.bytes, &encoded) {
            // If this fails, the tail is truncated when the spool is opened again.
            let _ = file.truncate(self.bytes);
            return Err(error);
        }
        self.bytes += encoded.len() as u64;
        self.is_dirty = true;
        self.pending += 1;
        self.entries.push(Entry {
            seq,
            is_done: false,
            offset,
            length: encoded_length(record),
        });
        Ok(())
    }

    /// Returns the record of an entry, or `None` if it is damaged.
    pub(super) fn read(&mut self, entry: Entry) -> Result<Option<Record>, FileError> {
        let (name, file) = (self.name, self.file()?);
        let bytes = file.read_at(entry.offset, entry.length)?;
        Ok(match decode(&bytes, name.salt) {
            Decoded::Intact { seq, payload, .. } if seq == entry.seq => {
                record_of(payload, name.class)
            }
            _ => None,
        })
    }

    /// Returns the first pending entry after a sequence number.
    pub(super) fn pending_after(&self, after: u64) -> Option<Entry> {
        let start = self.entries.partition_point(|entry| entry.seq <= after);
        let rest = self.entries.get(start.max(self.head)..)?;
        rest.iter().find(|entry| !entry.is_done).copied()
    }

    /// Marks a record as finished. Returns whether it was pending.
    pub(super) fn finish(&mut self, seq: u64) -> bool {
        let Ok(index) = self.entries.binary_search_by_key(&seq, |entry| entry.seq) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(index).filter(|entry| !entry.is_done) else {
            return false;
        };
        entry.is_done = true;
        self.pending -= 1;
        let rest = self.entries.get(self.head..).unwrap_or_default();
        self.head += rest.iter().take_while(|entry| entry.is_done).count();
        true
    }

    /// Marks a record as damaged: it is not read again.
    pub(super) fn mark_damaged(&mut self, entry: Entry) {
        if self.finish(entry.seq) {
            self.damaged += 1;
        }
    }

    /// Returns the finished sequence numbers, in order.
    pub(super) fn finished(&self) -> impl Iterator<Item = u64> {
        let done = self.entries.iter().filter(|entry| entry.is_done);
        done.map(|entry| entry.seq)
    }

    /// Returns the highest sequence number of the segment.
    pub(super) fn last(&self) -> u64 {
        self.entries
            .last()
            .map_or(self.name.first, |entry| entry.seq)
    }

    /// Returns all sequence numbers, in order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|entry| entry.seq)
    }

    /// Returns the open file.
    pub(super) fn file(&mut self) -> Result<Arc<RandomAccessFile>, FileError> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(RandomAccessFile::open(&self.path)?);
        self.file = Some(Arc::clone(&file));
        Ok(file)
    }
}

/// Returns the length of a record on disk.
pub(super) fn encoded_length(record: &Record) -> usize {
    HEAD + 4 + record.id.len() + record.subject.len() + record.body.len() + TAIL
}

fn checksum(start: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(start);
    hasher.update(bytes);
    hasher.finalize()
}

fn header(salt: u32) -> [u8; HEADER] {
    let [m0, m1, m2, m3, m4, m5, m6] = *MAGIC;
    let start = [m0, m1, m2, m3, m4, m5, m6, VERSION];
    let [c0, c1, c2, c3] = checksum(salt, &start).to_le_bytes();
    let [s0, s1, s2, s3, s4, s5, s6, s7] = start;
    [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3]
}

/// Encodes a record into a buffer. The caller has checked the lengths of its parts.
fn encode(out: &mut Vec<u8>, salt: u32, seq: u64, record: &Record) {
    let start = out.len();
    let length = encoded_length(record) - HEAD - TAIL;
    let short = |text: &str| u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&MARKER);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    let head = checksum(salt, out.get(start..).unwrap_or_default());
    out.extend_from_slice(&head.to_le_bytes());
    let start = out.len();
    out.extend_from_slice(&short(&record.id).to_le_bytes());
    out.extend_from_slice(&short(&record.subject).to_le_bytes());
    out.extend_from_slice(record.id.as_bytes());
    out.extend_from_slice(record.subject.as_bytes());
    out.extend_from_slice(&record.body);
    let all = checksum(head, out.get(start..).unwrap_or_default());
    out.extend_from_slice(&all.to_le_bytes());
}

/// Result of decoding the bytes at an offset.
enum Decoded<'a> {
    Intact {
        seq: u64,
        length: usize,
        payload: &'a [u8],
    },
    /// A valid head with a damaged body; the next record starts after `length` bytes.
    Damaged { length: usize },
    /// No valid head, or a body beyond the end of the file.
    Nothing,
}

fn decode(bytes: &[u8], salt: u32) -> Decoded<'_> {
    let whole = || {
        let (head, rest) = bytes.split_first_chunk::<{ HEAD - 4 }>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let crc = u32::from_le_bytes(*crc);
        let (marker, numbers) = head.split_first_chunk::<4>()?;
        if *marker != MARKER || checksum(salt, head) != crc {
            return None;
        }
        let (length, seq) = numbers.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let seq = u64::from_le_bytes(*seq.first_chunk::<8>()?);
        let (payload, rest) = rest.split_at_checked(length)?;
        let end = u32::from_le_bytes(*rest.first_chunk::<4>()?);
        let length = HEAD + length + TAIL;
        Some(if checksum(crc, payload) == end {
            Decoded::Intact {
                seq,
                length,
                payload,
            }
        } else {
            Decoded::Damaged { length }
        })
    };
    whole().unwrap_or(Decoded::Nothing)
}

fn record_of(payload: &[u8], class: Class) -> Option<Record> {
    let (id, rest) = payload.split_first_chunk::<2>()?;
    let (subject, rest) = rest.split_first_chunk::<2>()?;
    let (id, rest) = rest.split_at_checked(u16::from_le_bytes(*id).into())?;
    let (subject, body) = rest.split_at_checked(u16::from_le_bytes(*subject).into())?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(Record {
        id: text(id)?,
        subject: text(subject)?,
        class,
        body: body.to_vec(),
    })
}

/// Result of scanning a file.
struct Scan {
    entries: Vec<Entry>,
    /// End of the last intact record.
    end: usize,
    damaged: u64,
}

/// Finds all intact records, in one pass. Fails only for a valid header of another version.
fn scan(content: &[u8], name: Name) -> Result<Scan, u8> {
    let mut found = Scan {
        entries: Vec::new(),
        end: 0,
        damaged: 0,
    };
    let Some((start, rest)) = content.split_first_chunk::<8>() else {
        return Ok(found);
    };
    let is_whole = rest
        .first_chunk::<4>()
        .is_some_and(|crc| u32::from_le_bytes(*crc) == checksum(name.salt, start));
    match start {
        [magic @ .., version] if is_whole && magic == MAGIC && *version != VERSION => {
            return Err(*version);
        }
        _ => {}
    }
    // Damage counts only if an intact record follows; otherwise it is a torn tail. Records are
    // valid without the header.
    let mut damage = 0;
    if is_whole {
        found.end = HEADER;
    }
    let mut at = HEADER;
    let mut last = None;
    let mut is_lost = false;
    while let Some(rest) = content.get(at..).filter(|rest| !rest.is_empty()) {
        match decode(rest, name.salt) {
            Decoded::Intact { seq, length, .. } if seq >= name.first && Some(seq) > last => {
                found.entries.push(Entry {
                    seq,
                    is_done: false,
                    offset: at as u64,
                    length,
                });
                found.damaged += std::mem::take(&mut damage);
                last = Some(seq);
                at += length;
                found.end = at;
                is_lost = false;
            }
            Decoded::Intact { length, .. } | Decoded::Damaged { length } => {
                damage += u64::from(!is_lost);
                is_lost = false;
                at += length;
            }
            Decoded::Nothing => {
                damage += u64::from(!is_lost);
                is_lost = true;
                at += next_marker(rest);
            }
        }
    }
    Ok(found)
}

/// Returns the distance to the next marker, or to the end.
fn next_marker(bytes: &[u8]) -> usize {
    let rest = bytes.get(1..).unwrap_or_default();
    let found = rest
        .windows(MARKER.len())
        .position(|window| window == MARKER);
    1 + found.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name {
        first: 7,
        class: Class::Important,
        salt: 0x0bad_cafe,
    };

    fn record(body: &[u8]) -> Record {
        Record {
            id: "id".into(),
            subject: "a.b".into(),
            class: Class::Important,
            body: body.to_vec(),
        }
    }

    fn file_of(bodies: &[&[u8]]) -> Vec<u8> {
        let mut content = header(NAME.salt).to_vec();
        for (seq, body) in (NAME.first..).zip(bodies) {
            encode(&mut content, NAME.salt, seq, &record(body));
        }
        content
    }

    fn numbers(found: &Scan) -> Vec<u64> {
        found.entries.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn only_canonical_names_are_parsed() {
        let text = NAME.to_string();
        assert_eq!(text, "00000000000000000007-important-0badcafe.seg");
        assert_eq!(Name::parse(&text), Some(NAME));
        for other in [
            "7-important-0badcafe.seg",
            "00000000000000000007-important-0badcafe",
            "00000000000000000007-other-0badcafe.seg",
            "00000000000000000007-important-0BADCAFE.seg",
            "00000000000000000007-important-0badcafe-x.seg",
            "99999999999999999999-important-0badcafe.seg",
            "journal",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_damaged_body_costs_one_record() {
        let mut content = file_of(&[b"one", b"two", b"three"]);
        let at = content.windows(3).position(|bytes| bytes == b"two");
        content[at.unwrap()] ^= 1;
        let found = scan(&content, NAME).ok().unwrap();
        assert_eq!(numbers(&found), [7, 9]);
        assert_eq!((found.end, found.damaged), (content.len(), 1));
    }

    #[test]
    fn a_damaged_head_costs_one_record_whatever_its_body_holds() {
        // The body of the second record is itself a record, of another segment.
        let mut inner = Vec::new();
        encode(&mut inner, 1, 8, &record(b"planted"));
        let mut content = file_of(&[b"one", &inner, b"three"]);
        content[HEADER + encoded_length(&record(b"one")) + 5] ^= 0x40;
        let found = scan(&content, NAME).ok().unwrap();
        assert_eq!(numbers(&found), [7, 9]);
        assert_eq!(found.damaged, 1);
    }

    #[test]
    fn a_damaged_header_costs_nothing() {
        let mut content = file_of(&[b"one", b"two"]);
        content[7] = 9;
        let found = scan(&content, NAME).ok().unwrap();
        assert_eq!(numbers(&found), [7, 8]);
        assert_eq!(found.damaged, 0);
    }

    #[test]
    fn a_later_version_is_an_error() {
        let mut content = file_of(&[]);
        content[7] = 2;
        let crc = checksum(NAME.salt, &content[..8]);
        content[8..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(scan(&content, NAME).err(), Some(2));
    }

    #[test]
    fn a_torn_tail_ends_the_file_at_its_last_whole_record() {
        let whole = file_of(&[b"one"]);
        let longer = file_of(&[b"one", b"two"]);
        for length in whole.len()..longer.len() {
            let found = scan(&longer[..length], NAME).ok().unwrap();
            assert_eq!(numbers(&found), [7], "{length}");
            assert_eq!((found.end, found.damaged), (whole.len(), 0), "{length}");
        }
        for length in 0..HEADER {
            assert_eq!(scan(&longer[..length], NAME).ok().unwrap().end, 0);
        }
    }

    #[test]
    fn records_out_of_sequence_are_damaged() {
        let mut content = file_of(&[b"one"]);
        for seq in [7, 6, 9] {
            encode(&mut content, NAME.salt, seq, &record(b"x"));
        }
        let found = scan(&content, NAME).ok().unwrap();
        assert_eq!(numbers(&found), [7, 9]);
        assert_eq!(found.damaged, 2);
    }
}
