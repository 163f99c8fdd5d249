//! Notes: a few bytes that a file carries with it, as an extended attribute.
//!
//! A note belongs to the file and not to its name or its content: who writes the file anew loses
//! it, who edits it in place keeps it. Not every file system keeps notes, and whoever may write a
//! file may write its notes, so they can help and never prove.

use std::fs::File;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{FileError, Place, entry_of, failed};

/// The longest note that is read.
const LONGEST: usize = 256;

/// A note to be kept with a file.
#[derive(Clone, Copy, Debug)]
pub struct Note<'a> {
    /// The name of the attribute, with its namespace: `user.…`.
    pub name: &'a str,
    pub text: &'a str,
}

impl Note<'_> {
    /// Attaches the note to an open file, if its file system keeps notes.
    pub(super) fn attach(&self, file: &File) -> Result<(), Errno> {
        let set = rustix::fs::fsetxattr(file, self.name, self.text.as_bytes(), XattrFlags::empty());
        match set {
            Err(Errno::NOTSUP) => Ok(()),
            set => set,
        }
    }
}

/// Returns a note of a file, if it has one. Links are not followed. A note that is too long or no
/// text is not ours: it reads as an empty one.
pub fn note(path: &Path, name: &str) -> Result<Option<String>, FileError> {
    let mut buffer = [0; LONGEST];
    match rustix::fs::lgetxattr(path, name, &mut buffer) {
        Ok(length) => {
            let bytes = buffer.get(..length).unwrap_or_default();
            let text = std::str::from_utf8(bytes).unwrap_or_default();
            Ok(Some(text.to_owned()))
        }
        Err(Errno::RANGE) => Ok(Some(String::new())),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed("getxattr", path)(errno)),
    }
}

/// Attaches a note to a file and returns whether it is kept: some file systems keep none, and
/// some files may not be written to. Links are not followed, and a file that may have another name by
/// the hand of someone else is left alone.
pub fn set_note(path: &Path, note: Note<'_>) -> Result<bool, FileError> {
    let place = Place::of(path)?;
    let handle = place.open().map_err(place.failed("open"))?;
    let stat = rustix::fs::fstat(&handle).map_err(place.failed("stat"))?;
    if place.may_be_shared(&stat)? {
        return Ok(false);
    }
    // A link itself takes no note, so there is nothing to follow.
    let (entry, text) = (entry_of(&handle), note.text.as_bytes());
    match rustix::fs::setxattr(entry, note.name, text, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(failed("setxattr", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Attributes, Content, Durability, store, store_with_note};
    use super::*;

    const NAME: &str = "user.ccm.test";

    fn written(text: &str) -> Note<'_> {
        Note { name: NAME, text }
    }

    #[test]
    fn a_note_is_kept_with_the_file_and_lost_when_it_is_written_anew() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("f");
        let wanted = Attributes::default();
        let content = Content::Bytes(b"x");
        assert_eq!(note(&file, NAME).unwrap(), None);
        let durability = Durability::Cached;
        store_with_note(&file, content, &wanted, durability, written("a")).unwrap();
        if !set_note(&file, written("b")).unwrap() {
            // Nothing can be kept here, and that is an answer too.
            assert_eq!(note(&file, NAME).unwrap(), None);
            return;
        }
        assert_eq!(note(&file, NAME).unwrap().as_deref(), Some("b"));
        store_with_note(&file, content, &wanted, durability, written("c")).unwrap();
        assert_eq!(note(&file, NAME).unwrap().as_deref(), Some("c"));
        store(&file, content, &wanted, durability).unwrap();
        assert_eq!(note(&file, NAME).unwrap(), None);
    }

    #[test]
    fn a_link_has_no_notes() {
        let room = tempfile::tempdir().unwrap();
        let link = room.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(!set_note(&link, written("a")).unwrap());
        assert_eq!(note(&link, NAME).unwrap(), None);
    }

    #[test]
    fn a_note_that_is_too_long_reads_as_an_empty_one() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("f");
        store(
            &file,
            Content::Bytes(b""),
            &Attributes::default(),
            Durability::Cached,
        )
        .unwrap();
        let kept = set_note(&file, written(&"x".repeat(LONGEST + 1))).unwrap();
        assert_eq!(note(&file, NAME).unwrap(), kept.then(String::new));
    }
}
