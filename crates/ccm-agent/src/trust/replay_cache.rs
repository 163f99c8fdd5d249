//! Replay cache: accepted request ids, kept until their signatures expire.
//!
//! An id is written to disk before the request is accepted, so that requests can't be replayed to a
//! restarted agent. Writes are not synced: after a reboot the file may lack the last requests, so
//! requests signed before that moment are refused as well. The same applies if the file is invalid.
//! Each signer has its own quota.
//!
//! The clock may be wrong at any of these moments. Therefore the moment since which the file is
//! complete is kept on the monotonic clock, and becomes a date only when a request is compared with
//! it. The requests of earlier boots are kept until they expire. When requests are removed as
//! expired, the latest expiry of the removed requests of a signer is kept, and later requests that
//! expire no later are refused: with the right clock they have expired anyway.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Denied;
use ccm_core::system::files::{self, Durability, RandomAccessFile};
use ccm_core::system::{Clock, Digest, FileError, random};

/// Most stored requests per signer. More within the clock skew are refused.
const MAX_PER_SIGNER: usize = 100_000;

/// Most stored requests of a signer with a policy.
const MAX_WITH_POLICY: usize = 10_000;

/// Number of full quotas up to which a file is considered valid.
const MAX_SIGNERS: usize = 32;

/// Bytes per request on disk: expiry in seconds, id, and signer. The first record of a file has the
/// moment since which it is complete, in nanoseconds on the monotonic clock, the digest of the boot
/// id, and [`FORMAT`].
const RECORD: usize = 8 + 32 + 8;

/// Last bytes of the first record.
const FORMAT: Tag = *b"replays2";

/// Last bytes of the first record in files of earlier versions, which kept the moment as a date.
const DATE_FORMAT: Tag = [0; 8];

/// Number of requests below which no cleanup is done.
const CLEANUP_MIN: usize = 4096;

/// Longest valid file.
const MAX_BYTES: u64 = ((MAX_PER_SIGNER * MAX_SIGNERS + 2) * RECORD) as u64;

/// Short id of a signer.
type Tag = [u8; 8];

/// Request ids with expiry and signer.
type Requests = HashMap<[u8; 32], (i64, Tag)>;

/// Id of the records on disk that hold the latest expiry of removed requests; no digest is zero.
const REMOVED: [u8; 32] = [0; 32];

/// Signer and its quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignerQuota {
    tag: Tag,
    max: usize,
}

impl SignerQuota {
    pub(crate) fn new(key: &str, has_policy: bool) -> Self {
        let digest = Digest::of(key.as_bytes());
        let (tag, _) = digest
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 8], &[]));
        Self {
            tag: *tag,
            max: if has_policy {
                MAX_WITH_POLICY
            } else {
                MAX_PER_SIGNER
            },
        }
    }
}

/// The present time on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    date: DateTime<Utc>,
    monotonic: Duration,
}

impl Now {
    pub(crate) fn of(clock: &dyn Clock) -> Self {
        Self {
            date: clock.now(),
            monotonic: clock.monotonic(),
        }
    }

    /// Returns the date of an earlier moment on the monotonic clock.
    fn date_of(&self, moment: Duration) -> DateTime<Utc> {
        let elapsed = self.monotonic.saturating_sub(moment);
        TimeDelta::from_std(elapsed)
            .ok()
            .and_then(|elapsed| self.date.checked_sub_signed(elapsed))
            .unwrap_or(DateTime::<Utc>::MIN_UTC)
    }
}

/// Accepted requests in memory and on disk.
pub(crate) struct ReplayCache {
    path: PathBuf,
    file: RandomAccessFile,
    /// Number of records in the file, including the first.
    written: usize,
    /// Digest of the boot id.
    boot: [u8; 32],
    expiry: Requests,
    /// Latest expiry of the removed requests of each signer.
    removed: HashMap<Tag, i64>,
    /// Number of requests per signer.
    counts: HashMap<Tag, usize>,
    /// Number of requests at which the next cleanup is due.
    cleanup_at: usize,
    /// Second of the last cleanup.
    last_cleanup: i64,
    /// Requests signed before this moment on the monotonic clock are refused: the cache may lack
    /// some.
    complete_since: Duration,
}

impl ReplayCache {
    /// Opens the cache.
    pub(crate) fn open(path: &Path, boot: &str, now: Now) -> Result<Self, FileError> {
        let boot = boot_digest(boot)?;
        let stored = match files::read(path, MAX_BYTES) {
            Ok(bytes) => read(&bytes, &boot),
            Err(err) if err.is_not_found() => Stored::default(),
            // An invalid file is replaced.
            Err(FileError::TooLarge { .. } | FileError::NotRegular(_)) => Stored::default(),
            Err(err) => return Err(err),
        };
        let Stored {
            complete_since,
            requests: mut expiry,
            mut removed,
        } = stored;
        let complete_since = complete_since.unwrap_or(now.monotonic).min(now.monotonic);
        remove_expired(&mut expiry, &mut removed, now.date);
        let first = first_record(complete_since, &boot);
        let (file, written) = rewrite(path, &first, &expiry, &removed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            written,
            boot,
            cleanup_at: cleanup_at(&expiry),
            counts: counts(&expiry),
            last_cleanup: now.date.timestamp(),
            expiry,
            removed,
            complete_since,
        })
    }

    /// Stores a request signed at `made` until it expires. Fails if it is known.
    pub(crate) fn add(
        &mut self,
        now: Now,
        made: DateTime<Utc>,
        expiry: DateTime<Utc>,
        id: [u8; 32],
        quota: SignerQuota,
    ) -> Result<(), Denied> {
        if self.expiry.contains_key(&id) {
            return Err(Denied::Replayed);
        }
        if made < now.date_of(self.complete_since) {
            return Err(Denied::BeforeRecording);
        }
        let removed = self.removed.get(&quota.tag);
        if removed.is_some_and(|removed| expiry.timestamp() <= *removed) {
            return Err(Denied::BeforeRecording);
        }
        // A cleanup takes time, so at most one per second.
        let is_flooded =
            self.count(quota) >= quota.max && self.last_cleanup != now.date.timestamp();
        if self.expiry.len() >= self.cleanup_at || is_flooded {
            self.cleanup(now.date).map_err(Denied::Storage)?;
        }
        if self.count(quota) >= quota.max {
            return Err(Denied::QuotaExceeded);
        }
        let expiry = expiry.timestamp();
        let offset = u64::try_from(self.written * RECORD).unwrap_or(u64::MAX);
        self.file
            .write_at(offset, &record(expiry, &id, &quota.tag))
            .map_err(Denied::Storage)?;
        self.written += 1;
        self.expiry.insert(id, (expiry, quota.tag));
        *self.counts.entry(quota.tag).or_default() += 1;
        Ok(())
    }

    fn count(&self, quota: SignerQuota) -> usize {
        self.counts.get(&quota.tag).copied().unwrap_or_default()
    }

    /// Removes expired requests. Rare enough to cost next to nothing per request.
    fn cleanup(&mut self, now: DateTime<Utc>) -> Result<(), FileError> {
        let before = self.expiry.len();
        remove_expired(&mut self.expiry, &mut self.removed, now);
        if self.expiry.len() < before {
            let first = first_record(self.complete_since, &self.boot);
            (self.file, self.written) = rewrite(&self.path, &first, &self.expiry, &self.removed)?;
            self.counts = counts(&self.expiry);
        }
        self.last_cleanup = now.timestamp();
        self.cleanup_at = cleanup_at(&self.expiry);
        Ok(())
    }
}

/// Removes expired requests, and records their latest expiry.
fn remove_expired(requests: &mut Requests, removed: &mut HashMap<Tag, i64>, now: DateTime<Utc>) {
    requests.retain(|_, (expiry, tag)| {
        let is_valid = *expiry >= now.timestamp();
        if !is_valid {
            let latest = removed.entry(*tag).or_insert(*expiry);
            *latest = (*latest).max(*expiry);
        }
        is_valid
    });
}

/// Returns the number of requests at which the next cleanup is due.
fn cleanup_at(expiry: &Requests) -> usize {
    2 * expiry.len() + CLEANUP_MIN
}

/// Returns the number of requests per signer.
fn counts(expiry: &Requests) -> HashMap<Tag, usize> {
    let mut counts = HashMap::new();
    for (_, tag) in expiry.values() {
        *counts.entry(*tag).or_default() += 1;
    }
    counts
}

fn record(expiry: i64, id: &[u8; 32], tag: &Tag) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let (time, rest) = bytes.split_at_mut(8);
    let (name, signer) = rest.split_at_mut(32);
    time.copy_from_slice(&expiry.to_be_bytes());
    name.copy_from_slice(id);
    signer.copy_from_slice(tag);
    bytes
}

/// Returns the digest of a boot id. Without one it is random, so that no earlier file counts as
/// complete.
fn boot_digest(boot: &str) -> Result<[u8; 32], FileError> {
    let digest = match boot {
        "" => Digest::of(&random()?.to_be_bytes()),
        boot => Digest::of(boot.as_bytes()),
    };
    Ok(*digest.as_bytes())
}

/// Content of a file.
#[derive(Default)]
struct Stored {
    /// Moment since which the file is complete, on the monotonic clock; none if it was written before
    /// another boot, or by an earlier version.
    complete_since: Option<Duration>,
    requests: Requests,
    /// Latest expiry of the removed requests of each signer.
    removed: HashMap<Tag, i64>,
}

/// Parses a file; nothing if it is invalid. A truncated record was never accepted.
fn read(bytes: &[u8], boot: &[u8; 32]) -> Stored {
    let (records, _truncated) = bytes.as_chunks::<RECORD>();
    let mut records = records.iter().filter_map(|record| {
        let (time, rest) = record.split_first_chunk::<8>()?;
        let (id, tag) = rest.split_first_chunk::<32>()?;
        let tag = Tag::try_from(tag).ok()?;
        Some((*id, (i64::from_be_bytes(*time), tag)))
    });
    let complete_since = match records.next() {
        Some((digest, (moment, FORMAT))) if digest == *boot => {
            u64::try_from(moment).ok().map(Duration::from_nanos)
        }
        Some((_, (_, FORMAT | DATE_FORMAT))) => None,
        _ => return Stored::default(),
    };
    let (removed, requests): (Vec<_>, Vec<_>) = records.partition(|(id, _)| *id == REMOVED);
    let removed = removed.into_iter().map(|(_, (expiry, tag))| (tag, expiry));
    Stored {
        complete_since,
        requests: requests.into_iter().collect(),
        removed: removed.collect(),
    }
}

fn first_record(complete_since: Duration, boot: &[u8; 32]) -> [u8; RECORD] {
    let moment = i64::try_from(complete_since.as_nanos()).unwrap_or(i64::MAX);
    record(moment, boot, &FORMAT)
}

fn rewrite(
    path: &Path,
    first: &[u8; RECORD],
    requests: &Requests,
    removed: &HashMap<Tag, i64>,
) -> Result<(RandomAccessFile, usize), FileError> {
    let mut bytes = first.to_vec();
    for (tag, expiry) in removed {
        bytes.extend_from_slice(&record(*expiry, &REMOVED, tag));
    }
    for (id, (expiry, tag)) in requests {
        bytes.extend_from_slice(&record(*expiry, id, tag));
    }
    files::write_private(path, &bytes, Durability::Cached)?;
    let written = requests.len() + removed.len() + 1;
    Ok((RandomAccessFile::open(path)?, written))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    /// Returns a time at which both clocks agree: the monotonic one began an hour before 1970.
    fn moment(seconds: i64) -> Now {
        wrong(seconds, 0)
    }

    /// Returns a time at which the date is wrong by `by` seconds.
    fn wrong(seconds: i64, by: i64) -> Now {
        Now {
            date: at(seconds + by),
            monotonic: Duration::from_secs(u64::try_from(seconds + 3600).unwrap()),
        }
    }

    fn id(number: usize) -> [u8; 32] {
        *Digest::of(&number.to_be_bytes()).as_bytes()
    }

    fn add(cache: &mut ReplayCache, now: i64, number: usize) -> Result<(), String> {
        add_for(cache, now, number, SignerQuota::new("ops", false))
    }

    fn add_for(
        cache: &mut ReplayCache,
        now: i64,
        number: usize,
        quota: SignerQuota,
    ) -> Result<(), String> {
        add_signed(cache, moment(now), now, number, quota)
    }

    /// Adds a request that was signed at `made`.
    fn add_signed(
        cache: &mut ReplayCache,
        now: Now,
        made: i64,
        number: usize,
        quota: SignerQuota,
    ) -> Result<(), String> {
        let added = cache.add(now, at(made), at(made + 60), id(number), quota);
        added.map_err(|err| err.to_string())
    }

    const REPLAYED: &str = "request was seen before";

    #[test]
    fn a_request_is_accepted_once_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let mut cache = ReplayCache::open(&path, "boot", moment(0)).unwrap();
        assert_eq!(add(&mut cache, 1, 1), Ok(()));
        assert_eq!(add(&mut cache, 2, 1), Err(REPLAYED.into()));
        drop(cache);
        let mut cache = ReplayCache::open(&path, "boot", moment(3)).unwrap();
        assert_eq!(add(&mut cache, 3, 1), Err(REPLAYED.into()));
        assert_eq!(add(&mut cache, 2, 2), Ok(()), "made before the restart");
    }

    #[test]
    fn a_request_is_accepted_once_also_if_the_clock_was_wrong_at_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let open = |now| ReplayCache::open(&path, "boot", moment(now)).unwrap();
        assert_eq!(add(&mut open(0), 1, 1), Ok(()));
        // A day ahead.
        drop(open(86_400));
        let mut cache = open(3);
        assert!(add(&mut cache, 1, 1).is_err(), "accepted twice");
        assert_eq!(add(&mut cache, 4, 2), Ok(()), "signed later");
        let other = SignerQuota::new("other", false);
        assert_eq!(add_for(&mut cache, 1, 3, other), Ok(()), "another signer");
    }

    #[test]
    fn a_request_is_accepted_once_also_if_the_clock_was_wrong_at_a_reboot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let open = |boot, now| ReplayCache::open(&path, boot, now).unwrap();
        assert_eq!(add(&mut open("one", moment(0)), 1, 1), Ok(()));
        for (boot, by) in [("two", -600), ("three", 86_400)] {
            drop(open(boot, wrong(2, by)));
            let mut cache = open(boot, moment(3));
            assert!(add(&mut cache, 1, 1).is_err(), "accepted twice: {by}");
        }
    }

    #[test]
    fn a_request_that_was_lost_at_a_reboot_is_refused_also_if_the_clock_was_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        drop(ReplayCache::open(&path, "one", moment(0)).unwrap());
        let mut cache = ReplayCache::open(&path, "two", wrong(10, -600)).unwrap();
        let quota = SignerQuota::new("ops", false);
        let added = add_signed(&mut cache, moment(12), 9, 1, quota);
        assert_eq!(added, Err(Denied::BeforeRecording.to_string()));
    }

    #[test]
    fn requests_are_accepted_after_a_reboot_with_a_clock_that_was_ahead() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let open = |boot, now| ReplayCache::open(&path, boot, now).unwrap();
        drop(open("one", moment(0)));
        let mut cache = open("two", wrong(10, 86_400));
        assert_eq!(add(&mut cache, 12, 1), Ok(()));
        drop(cache);
        assert_eq!(add(&mut open("two", moment(13)), 14, 2), Ok(()));
    }

    #[test]
    fn requests_in_a_file_of_an_earlier_version_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let tag = SignerQuota::new("ops", false).tag;
        let first = record(5_000_000_000, &id(0), &DATE_FORMAT);
        let bytes = [first, record(70, &id(1), &tag)].concat();
        std::fs::write(&path, bytes).unwrap();
        let mut cache = ReplayCache::open(&path, "boot", moment(8)).unwrap();
        assert_eq!(add(&mut cache, 9, 1), Err(REPLAYED.into()));
    }

    #[test]
    fn after_a_reboot_older_requests_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let open = |boot, now| ReplayCache::open(&path, boot, moment(now)).unwrap();
        let add_older = |cache: &mut ReplayCache, now, made| {
            let quota = SignerQuota::new("ops", false);
            add_signed(cache, moment(now), made, 5, quota)
        };
        drop(open("one", 0));
        let before_recording = Denied::BeforeRecording.to_string();
        let mut cache = open("two", 10);
        assert_eq!(add_older(&mut cache, 11, 9), Err(before_recording.clone()));
        assert_eq!(add(&mut cache, 10, 1), Ok(()));
        let mut restarted = open("two", 12);
        let added = add_older(&mut restarted, 13, 9);
        assert_eq!(added, Err(before_recording.clone()));
        drop(open("", 20));
        let added = add_older(&mut open("", 30), 31, 29);
        assert_eq!(added, Err(before_recording.clone()));
        std::fs::write(&path, "garbage").unwrap();
        let added = add_older(&mut open("two", 40), 41, 39);
        assert_eq!(added, Err(before_recording));
    }

    #[test]
    fn a_truncated_record_costs_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let mut cache = ReplayCache::open(&path, "boot", moment(0)).unwrap();
        add(&mut cache, 1, 1).unwrap();
        add(&mut cache, 1, 2).unwrap();
        drop(cache);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let mut cache = ReplayCache::open(&path, "boot", moment(1)).unwrap();
        assert_eq!(add(&mut cache, 1, 1), Err(REPLAYED.into()));
        assert_eq!(add(&mut cache, 1, 2), Ok(()));
    }

    #[test]
    fn expired_requests_are_removed_and_the_file_stays_small() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let mut cache = ReplayCache::open(&path, "boot", moment(0)).unwrap();
        for number in 0..20_000_usize {
            let now = i64::try_from(number).unwrap();
            add(&mut cache, now, number).unwrap();
        }
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(size < 1 << 20, "{size}");
        assert!(cache.expiry.len() < 20_000);
    }

    #[test]
    fn requests_beyond_the_quota_of_their_signer_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seen");
        let mut cache = ReplayCache::open(&path, "boot", moment(0)).unwrap();
        let weak = SignerQuota::new("weak", true);
        for number in 0..MAX_WITH_POLICY {
            add_for(&mut cache, 1, number, weak).unwrap();
        }
        let flooded = Err(Denied::QuotaExceeded.to_string());
        assert_eq!(add_for(&mut cache, 1, MAX_WITH_POLICY, weak), flooded);
        assert_eq!(add(&mut cache, 1, MAX_WITH_POLICY + 1), Ok(()));
        assert_eq!(
            add_for(
                &mut cache,
                1,
                MAX_WITH_POLICY + 2,
                SignerQuota::new("other", true)
            ),
            Ok(())
        );
        drop(cache);
        let mut cache = ReplayCache::open(&path, "boot", moment(2)).unwrap();
        assert_eq!(add_for(&mut cache, 2, MAX_WITH_POLICY + 3, weak), flooded);
        assert_eq!(add(&mut cache, 2, MAX_WITH_POLICY + 4), Ok(()));
        assert_eq!(add_for(&mut cache, 62, MAX_WITH_POLICY + 5, weak), Ok(()));
    }
}
