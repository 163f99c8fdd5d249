//! Record of temporary files, so that those of a killed process are removed.
//!
//! Before a temporary file is created, its path is appended to a list in the state directory. The
//! list is locked by its process; the kernel releases the lock when that process ends, however it
//! ends. The next run removes the files in lists that are not locked. Nothing else is removed: names
//! contain 64 random bits and are created exclusively, so a listed file is never one of a user.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::random;
use super::safe_open::OpenError;
use super::{FileError, Location, create_private_dir, failed, list, remove};

/// Subdirectory of the state directory.
const DIRECTORY: &str = "temporaries";

/// Size after which a list without current files is emptied.
const MAX_BYTES: u64 = 16 * 1024;

/// Largest list that is read.
const MAX_READ: u64 = 64 << 20;

/// Attempts to create a list.
const MAX_ATTEMPTS: usize = 16;

/// The record of the temporary files of one run.
#[derive(Debug)]
pub struct Temporaries {
    directory: PathBuf,
    /// Created by the first temporary file.
    list: Mutex<Option<List>>,
}

/// A locked list of paths, each followed by a zero byte.
#[derive(Debug)]
struct List {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Number of temporary files that exist.
    current: usize,
}

impl Temporaries {
    /// Returns the record of a run with this state directory.
    pub fn of(state_dir: &Path) -> Self {
        Self {
            directory: state_dir.join(DIRECTORY),
            list: Mutex::new(None),
        }
    }

    /// Removes the temporary files of processes that were killed; returns how many there were.
    pub fn remove_stale(&self) -> Result<usize, FileError> {
        let mut removed = 0;
        for name in list(&self.directory)? {
            removed += remove_listed(&self.directory.join(name))?;
        }
        Ok(removed)
    }

    /// Records a temporary file that is about to be created. A list that can't be written is no reason
    /// not to write the file: at worst it stays after a kill.
    pub(super) fn begin(&self, path: &Path) {
        let mut current = self.list.lock();
        if current.is_none() {
            *current = List::create(&self.directory).ok();
        }
        if let Some(list) = &mut *current {
            let _ = list.append(path);
            list.current += 1;
        }
    }

    /// Records that a temporary file was renamed or removed.
    pub(super) fn end(&self) {
        if let Some(list) = &mut *self.list.lock() {
            list.current = list.current.saturating_sub(1);
            if list.current == 0 && list.bytes > MAX_BYTES && list.file.set_len(0).is_ok() {
                list.bytes = 0;
            }
        }
    }
}

impl List {
    fn create(directory: &Path) -> Result<Self, FileError> {
        create_private_dir(directory)?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..MAX_ATTEMPTS {
            let path = directory.join(format!("{:032x}", random()?));
            let mode = Mode::RUSR | Mode::WUSR;
            let file = rustix::fs::open(&path, flags | OFlags::CLOEXEC, mode);
            let file = File::from(file.map_err(failed::<Errno>("create", &path))?);
            if file.try_lock().is_err() {
                continue;
            }
            // Another process may have taken it for a stale one before it was locked.
            let stat = rustix::fs::fstat(&file).map_err(failed::<Errno>("stat", &path))?;
            if stat.st_nlink > 0 {
                return Ok(Self {
                    path,
                    file,
                    bytes: 0,
                    current: 0,
                });
            }
        }
        Err(failed("create", directory)(Errno::AGAIN))
    }

    fn append(&mut self, path: &Path) -> std::io::Result<()> {
        let mut entry = std::path::absolute(path)?.into_os_string();
        entry.push("\0");
        let entry = entry.as_bytes();
        self.bytes += u64::try_from(entry.len()).unwrap_or_default();
        // One write, so that an entry is complete or at the end of the list.
        self.file.write_all(entry)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // A list that stays is read and removed by the next run.
        if self.current == 0 {
            let _ = remove(&self.path);
        }
    }
}

/// Removes the files of a list, and the list; nothing if its process is alive.
fn remove_listed(path: &Path) -> Result<usize, FileError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(0),
        file => File::from(file.map_err(failed::<Errno>("open", path))?),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(0),
        Err(TryLockError::Error(error)) => return Err(failed("lock", path)(error)),
    }
    let mut content = Vec::new();
    let read = (&file).take(MAX_READ).read_to_end(&mut content);
    read.map_err(failed("read", path))?;
    let mut removed = 0;
    for entry in content.split_inclusive(|byte| *byte == 0) {
        // An entry without its end was not written completely, so its file was not created.
        if let Some(entry) = entry.strip_suffix(&[0]) {
            removed += usize::from(remove_temporary(Path::new(OsStr::from_bytes(entry)))?);
        }
    }
    remove(path)?;
    Ok(removed)
}

/// Removes a file; returns whether there was one. A directory that is gone, is not reached safely or
/// can't be written to is no error: its next user has the same problem.
fn remove_temporary(path: &Path) -> Result<bool, FileError> {
    let location = match Location::resolve(path) {
        Ok(location) => location,
        Err(OpenError::Os(Errno::MFILE | Errno::NFILE)) => {
            return Err(failed("open", path)(Errno::MFILE));
        }
        Err(_) => return Ok(false),
    };
    let removed = rustix::fs::unlinkat(&location.directory, location.name, AtFlags::empty());
    Ok(removed.is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::{Attributes, Content, Durability, Writer};
    use super::*;

    fn names(path: &Path) -> Vec<std::ffi::OsString> {
        list(path).unwrap()
    }

    /// Leaves a temporary file as a killed process does.
    fn killed(state_dir: &Path, path: &Path) {
        let temporaries = Temporaries::of(state_dir);
        temporaries.begin(path);
        #[expect(clippy::disallowed_methods, reason = "a test leaves a file")]
        std::fs::write(path, "partial").unwrap();
        // The list stays, because the file is not renamed; its lock is released.
        drop(temporaries);
    }

    #[test]
    fn files_of_killed_processes_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        killed(&at("state"), &at("a.0123456789abcdef"));
        #[expect(clippy::disallowed_methods, reason = "a test prepares a file")]
        std::fs::write(at("b.0123456789abcdef"), "of a user").unwrap();
        let next = Temporaries::of(&at("state"));
        assert_eq!(next.remove_stale().unwrap(), 1);
        assert_eq!(names(dir.path()), ["b.0123456789abcdef", "state"]);
        assert_eq!(names(&at("state/temporaries")), [""; 0]);
        assert_eq!(next.remove_stale().unwrap(), 0);
    }

    #[test]
    fn files_of_a_living_process_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let living = Temporaries::of(dir.path());
        living.begin(&dir.path().join("a"));
        let other = Temporaries::of(dir.path());
        assert_eq!(other.remove_stale().unwrap(), 0);
        assert_eq!(names(&dir.path().join("temporaries")).len(), 1);
    }

    #[test]
    fn a_directory_that_is_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let temporaries = Temporaries::of(dir.path());
        temporaries.begin(&dir.path().join("gone/a"));
        drop(temporaries);
        assert_eq!(Temporaries::of(dir.path()).remove_stale().unwrap(), 0);
        assert_eq!(names(&dir.path().join("temporaries")), [""; 0]);
    }

    #[test]
    fn an_incomplete_entry_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        killed(&at("state"), &at("a"));
        let lists = names(&at("state/temporaries"));
        let list = at("state/temporaries").join(&lists[0]);
        let mut content = std::fs::read(&list).unwrap();
        content.extend(at("state").as_os_str().as_bytes());
        #[expect(clippy::disallowed_methods, reason = "a test damages a file")]
        std::fs::write(&list, content).unwrap();
        assert_eq!(Temporaries::of(&at("state")).remove_stale().unwrap(), 1);
    }

    #[test]
    fn a_run_without_a_kill_leaves_no_list_and_its_list_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let temporaries = Temporaries::of(&state);
        let writer = Writer::recording(Some(&temporaries));
        let content = Content::Bytes(b"x");
        for _ in 0..1000 {
            let target = dir.path().join("target");
            let (attributes, durability) = (Attributes::default(), Durability::Cached);
            writer
                .store(&target, content, &attributes, durability)
                .unwrap();
        }
        let lists = names(&state.join("temporaries"));
        let size = state
            .join("temporaries")
            .join(&lists[0])
            .metadata()
            .unwrap()
            .len();
        assert!(size <= MAX_BYTES + 4096, "{size}");
        drop(temporaries);
        assert_eq!(names(&state.join("temporaries")), [""; 0]);
    }
}
