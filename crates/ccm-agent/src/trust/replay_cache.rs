//! What was seen: requests that were obeyed, until their signatures are too old anyway.
//!
//! Kept on disk before the request is obeyed, so that nobody can repeat one to an agent that was
//! restarted or killed. Not synced: a power cut may lose the last ones, so after another start of
//! the machine, or when the file is not as we left it, requests from before are refused as well.
//! Every signer has so many places of his own, so that none takes another's. What a request is, or
//! who may make one, is not known here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::Denied;
use ccm_core::system::files::{self, Durability, InPlace};
use ccm_core::system::{Digest, FileError, random};

/// How many requests of one signer are remembered at once. More than these within the skew are
/// refused.
const MOST: usize = 100_000;

/// How many of one with a policy.
const MOST_BOUND: usize = 10_000;

/// How many signers can fill their places before a file looks like none of ours.
const MANY_SIGNERS: usize = 32;

/// The bytes of a request on disk: until when, in seconds, what it is known by, and by whom.
const RECORD: usize = 8 + 32 + 8;

/// Told by a file whose records are of this shape.
const SHAPE: &str = "records of 48 bytes, ";

/// How few requests are not worth forgetting.
const FEW: usize = 4096;

/// The longest file that can be ours.
const MAX_BYTES: u64 = ((MOST * MANY_SIGNERS + 2) * RECORD) as u64;

/// A signer, told from others.
type Tag = [u8; 8];

/// Requests, until when each is remembered and whose it is.
type Known = HashMap<[u8; 32], (i64, Tag)>;

/// Who makes a request, and how many of his are remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    tag: Tag,
    most: usize,
}

impl By {
    pub(super) fn new(key: &str, has_policy: bool) -> Self {
        let digest = Digest::of(key.as_bytes());
        let (tag, _) = digest
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 8], &[]));
        Self {
            tag: *tag,
            most: if has_policy { MOST_BOUND } else { MOST },
        }
    }
}

/// Remembers requests.
pub(super) struct ReplayCache {
    path: PathBuf,
    file: InPlace,
    /// How many records the file holds, the first included.
    written: usize,
    /// Which start of the machine the file belongs to.
    boot: [u8; 32],
    until: Known,
    /// How many of these each signer has.
    places: HashMap<Tag, usize>,
    /// How many there are when it is time to forget some.
    full: usize,
    /// In which second that was last done.
    forgot: i64,
    /// Requests from before, in nanoseconds, are refused: they may have been seen, and forgotten.
    since: i64,
}

impl ReplayCache {
    /// Opens what was remembered.
    pub(super) fn open(path: &Path, boot: &str, now: DateTime<Utc>) -> Result<Self, FileError> {
        let boot = sign_of(boot)?;
        let known = match files::read(path, MAX_BYTES) {
            Ok(bytes) => read(&bytes, &boot),
            Err(err) if err.is_not_found() => None,
            // A file that can't be ours is replaced.
            Err(FileError::TooLarge { .. } | FileError::NotRegular(_)) => None,
            Err(err) => return Err(err),
        };
        let (since, mut until) = known.unwrap_or_else(|| (nanos(now), HashMap::new()));
        until.retain(|_, (until, _)| *until >= now.timestamp());
        let (file, written) = write_anew(path, &record(since, &boot, &Tag::default()), &until)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            written,
            boot,
            full: full(&until),
            places: places(&until),
            forgot: now.timestamp(),
            until,
            since,
        })
    }

    /// Remembers a request that was made at `made`, until it is too old. Fails if it was seen.
    pub(super) fn add(
        &mut self,
        now: DateTime<Utc>,
        made: DateTime<Utc>,
        until: DateTime<Utc>,
        id: [u8; 32],
        by: By,
    ) -> Result<(), Denied> {
        if nanos(made) < self.since {
            return Err(Denied::Forgotten);
        }
        if self.until.contains_key(&id) {
            return Err(Denied::Replayed);
        }
        // Looking through all of them is worth it once a second.
        let is_flooded = self.taken(by) >= by.most && self.forgot != now.timestamp();
        if self.until.len() >= self.full || is_flooded {
            self.forget(now).map_err(Denied::Memory)?;
        }
        if self.taken(by) >= by.most {
            return Err(Denied::Flooded);
        }
        let until = until.timestamp();
        let offset = u64::try_from(self.written * RECORD).unwrap_or(u64::MAX);
        self.file
            .write_at(offset, &record(until, &id, &by.tag))
            .map_err(Denied::Memory)?;
        self.written += 1;
        self.until.insert(id, (until, by.tag));
        *self.places.entry(by.tag).or_default() += 1;
        Ok(())
    }

    fn taken(&self, by: By) -> usize {
        self.places.get(&by.tag).copied().unwrap_or_default()
    }

    /// Forgets what is too old. That happens seldom enough to cost each request next to nothing.
    fn forget(&mut self, now: DateTime<Utc>) -> Result<(), FileError> {
        let before = self.until.len();
        self.until.retain(|_, (until, _)| *until >= now.timestamp());
        if self.until.len() < before {
            let first = record(self.since, &self.boot, &Tag::default());
            (self.file, self.written) = write_anew(&self.path, &first, &self.until)?;
            self.places = places(&self.until);
        }
        self.forgot = now.timestamp();
        self.full = full(&self.until);
        Ok(())
    }
}

/// Returns how many may come together until it is time to forget some.
fn full(until: &Known) -> usize {
    2 * until.len() + FEW
}

/// Returns how many requests each signer has.
fn places(until: &Known) -> HashMap<Tag, usize> {
    let mut places = HashMap::new();
    for (_, tag) in until.values() {
        *places.entry(*tag).or_default() += 1;
    }
    places
}

fn record(until: i64, id: &[u8; 32], tag: &Tag) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let (time, rest) = bytes.split_at_mut(8);
    let (name, signer) = rest.split_at_mut(32);
    time.copy_from_slice(&until.to_be_bytes());
    name.copy_from_slice(id);
    signer.copy_from_slice(tag);
    bytes
}

/// Returns what stands for one start of the machine in its file. A machine that does not say has
/// another one each time, so that no file is believed.
fn sign_of(boot: &str) -> Result<[u8; 32], FileError> {
    let digest = match boot {
        "" => Digest::of(&random()?.to_be_bytes()),
        boot => Digest::of(format!("{SHAPE}{boot}").as_bytes()),
    };
    Ok(*digest.as_bytes())
}

fn nanos(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or(i64::MAX)
}

/// Reads a file of this start of the machine: since when it is complete, and what was seen; nothing
/// if it is another's. A record that was cut off was never obeyed.
fn read(bytes: &[u8], boot: &[u8; 32]) -> Option<(i64, Known)> {
    let (records, _cut_off) = bytes.as_chunks::<RECORD>();
    let mut records = records.iter().filter_map(|record| {
        let (time, rest) = record.split_first_chunk::<8>()?;
        let (id, tag) = rest.split_first_chunk::<32>()?;
        let tag = Tag::try_from(tag).ok()?;
        Some((*id, (i64::from_be_bytes(*time), tag)))
    });
    let (sign, (since, _)) = records.next()?;
    (sign == *boot).then(|| (since, records.collect()))
}

fn write_anew(
    path: &Path,
    first: &[u8; RECORD],
    known: &Known,
) -> Result<(InPlace, usize), FileError> {
    let mut bytes = first.to_vec();
    for (id, (until, tag)) in known {
        bytes.extend_from_slice(&record(*until, id, tag));
    }
    files::write_private(path, &bytes, Durability::Cached)?;
    Ok((InPlace::open(path)?, known.len() + 1))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn id(number: usize) -> [u8; 32] {
        *Digest::of(&number.to_be_bytes()).as_bytes()
    }

    fn add(seen: &mut ReplayCache, now: i64, number: usize) -> Result<(), String> {
        add_by(seen, now, number, By::new("ops", false))
    }

    fn add_by(seen: &mut ReplayCache, now: i64, number: usize, by: By) -> Result<(), String> {
        let added = seen.add(at(now), at(now), at(now + 60), id(number), by);
        added.map_err(|err| err.to_string())
    }

    const REPLAYED: &str = "request was seen before";

    #[test]
    fn a_request_is_obeyed_once_also_after_a_restart() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("seen");
        let mut seen = ReplayCache::open(&path, "boot", at(0)).unwrap();
        assert_eq!(add(&mut seen, 1, 1), Ok(()));
        assert_eq!(add(&mut seen, 2, 1), Err(REPLAYED.into()));
        drop(seen);
        let mut seen = ReplayCache::open(&path, "boot", at(3)).unwrap();
        assert_eq!(add(&mut seen, 3, 1), Err(REPLAYED.into()));
        assert_eq!(add(&mut seen, 2, 2), Ok(()), "made before the restart");
    }

    #[test]
    fn after_another_start_of_the_machine_older_requests_are_refused() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("seen");
        let open = |boot, now| ReplayCache::open(&path, boot, at(now)).unwrap();
        drop(open("one", 0));
        let forgotten = Denied::Forgotten.to_string();
        let mut seen = open("two", 10);
        assert_eq!(add(&mut seen, 9, 1), Err(forgotten.clone()));
        assert_eq!(add(&mut seen, 10, 1), Ok(()));
        let mut restarted = open("two", 12);
        assert_eq!(add(&mut restarted, 9, 3), Err(forgotten.clone()));
        drop(open("", 20));
        assert_eq!(add(&mut open("", 30), 29, 2), Err(forgotten.clone()));
        std::fs::write(&path, "garbage").unwrap();
        assert_eq!(add(&mut open("two", 40), 39, 2), Err(forgotten));
    }

    #[test]
    fn a_record_that_was_cut_off_costs_nothing_else() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("seen");
        let mut seen = ReplayCache::open(&path, "boot", at(0)).unwrap();
        add(&mut seen, 1, 1).unwrap();
        add(&mut seen, 1, 2).unwrap();
        drop(seen);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let mut seen = ReplayCache::open(&path, "boot", at(1)).unwrap();
        assert_eq!(add(&mut seen, 1, 1), Err(REPLAYED.into()));
        assert_eq!(add(&mut seen, 1, 2), Ok(()));
    }

    #[test]
    fn what_is_too_old_is_forgotten_and_the_file_stays_small() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("seen");
        let mut seen = ReplayCache::open(&path, "boot", at(0)).unwrap();
        for number in 0..20_000_usize {
            let now = i64::try_from(number).unwrap();
            add(&mut seen, now, number).unwrap();
        }
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size < 1 << 20, "{size}");
        assert!(seen.until.len() < 20_000);
    }

    #[test]
    fn more_requests_than_can_be_remembered_are_refused_to_whoever_made_them() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("seen");
        let mut seen = ReplayCache::open(&path, "boot", at(0)).unwrap();
        let weak = By::new("weak", true);
        for number in 0..MOST_BOUND {
            add_by(&mut seen, 1, number, weak).unwrap();
        }
        let flooded = Err(Denied::Flooded.to_string());
        assert_eq!(add_by(&mut seen, 1, MOST_BOUND, weak), flooded);
        assert_eq!(add(&mut seen, 1, MOST_BOUND + 1), Ok(()));
        assert_eq!(
            add_by(&mut seen, 1, MOST_BOUND + 2, By::new("other", true)),
            Ok(())
        );
        drop(seen);
        let mut seen = ReplayCache::open(&path, "boot", at(2)).unwrap();
        assert_eq!(add_by(&mut seen, 2, MOST_BOUND + 3, weak), flooded);
        assert_eq!(add(&mut seen, 2, MOST_BOUND + 4), Ok(()));
        assert_eq!(add_by(&mut seen, 62, MOST_BOUND + 5, weak), Ok(()));
    }
}
