//! Rules for archive entries: names, types and limits. Does not access files.
//!
//! A symlink may lead anywhere inside the tree. Its target may contain `..` only at the start,
//! where it is relative to the link itself; in `name/..` it would be relative to the target of
//! `name`. This keeps every link, and every chain of links, inside the tree.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::Kind;

/// The longest entry name or link target.
const MAX_PATH: usize = 4096;

/// The longest path component.
const MAX_COMPONENT: usize = 255;

/// Maximum depth of directories.
const MAX_DEPTH: usize = 128;

/// Maximum memory for names.
const MAX_NAME_BYTES: usize = 64 << 20;

/// The rule set for an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Archive resource: files, directories, and links that stay inside.
    Archive,
    /// Manifest bundle: regular files and directories only, readable by the owner.
    Bundle,
}

impl Rules {
    /// Returns the permissions of an entry; in a bundle, at least `least`.
    pub(super) fn mode(self, mode: u32, least: u32) -> u32 {
        let plain = mode & 0o777;
        match self {
            Self::Archive => plain,
            Self::Bundle => plain | least,
        }
    }
}

/// Size limits of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    /// Total size of the content.
    pub bytes: u64,
    /// Maximum ratio of content to archive size.
    pub ratio: u64,
    /// Content up to this size is not subject to the ratio: small archives may compress very well.
    pub free_bytes: u64,
}

impl Limits {
    /// Limits of archive resources.
    pub const ARCHIVE: Self = Self {
        entries: 500_000,
        bytes: 16 << 30,
        ratio: 200,
        free_bytes: 256 << 20,
    };

    /// Limits of manifest bundles.
    pub const BUNDLE: Self = Self {
        entries: 50_000,
        bytes: 512 << 20,
        ratio: 100,
        free_bytes: 64 << 20,
    };
}

/// The reason why an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its path is absolute")]
    Absolute,
    #[error("its path leaves the directory")]
    Climbs,
    #[error("its name is not a valid path")]
    BadName,
    #[error("its name is too long")]
    LongName,
    #[error("it is nested more than {MAX_DEPTH} directories deep")]
    TooDeep,
    #[error("{0} is not supported")]
    Kind(&'static str),
    #[error("the link leads out of the directory")]
    LinkLeaves,
    #[error("the link target is not an earlier file of the archive")]
    LinkToNothing,
    #[error("a parent directory is a link")]
    BehindLink,
    #[error("a parent directory is a file")]
    BelowFile,
    #[error("it replaces a directory")]
    ReplacesDirectory,
    #[error("it replaces a file by a directory")]
    ReplacesFile,
    #[error("the archive holds more than {0} entries")]
    Entries(usize),
    #[error("the archive holds more than {0} bytes")]
    Bytes(u64),
    #[error("the archive unpacks to more than {0} times its size")]
    Ratio(u64),
    #[error("the total length of names in the archive is too large")]
    Names,
}

impl Refusal {
    /// Returns the upstream error text for a refused manifest bundle.
    pub(super) fn bundle_text(&self) -> &'static str {
        match self {
            Self::Kind(_) => "only regular files and directories are supported",
            _ => "invalid tar file detected",
        }
    }
}

/// An accepted entry with a normalized relative path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// The destination directory itself: nothing to do.
    Root,
    File(PathBuf),
    Directory(PathBuf),
    Symlink(PathBuf, OsString),
    HardLink(PathBuf, PathBuf),
}

/// The type of an earlier entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    File,
    Directory,
    Link,
}

/// Checks the entries of one archive.
pub(super) struct Checker {
    rules: Rules,
    limits: Limits,
    archive_size: u64,
    seen: HashMap<PathBuf, Seen>,
    entries: usize,
    name_bytes: usize,
    bytes: u64,
}

impl Checker {
    pub(super) fn new(rules: Rules, limits: Limits, archive_size: u64) -> Self {
        Self {
            rules,
            limits,
            archive_size,
            seen: HashMap::new(),
            entries: 0,
            name_bytes: 0,
            bytes: 0,
        }
    }

    pub(super) fn rules(&self) -> Rules {
        self.rules
    }

    /// Adds to the size of the content and returns the number of bytes.
    pub(super) fn count(&mut self, added: usize) -> Result<u64, Refusal> {
        let Limits {
            bytes,
            ratio,
            free_bytes,
            ..
        } = self.limits;
        let added = u64::try_from(added).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(added);
        if self.bytes > bytes {
            return Err(Refusal::Bytes(bytes));
        }
        if self.bytes > free_bytes && self.bytes > self.archive_size.saturating_mul(ratio) {
            return Err(Refusal::Ratio(ratio));
        }
        Ok(added)
    }

    /// Checks the next entry.
    pub(super) fn check(&mut self, name: &[u8], kind: Kind<'_>) -> Result<Checked, Refusal> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(Refusal::Entries(self.limits.entries));
        }
        let path = relative(name)?;
        self.check_kind(kind)?;
        if path.as_os_str().is_empty() {
            return match kind {
                Kind::Directory => Ok(Checked::Root),
                _ => Err(Refusal::BadName),
            };
        }
        self.check_parent(&path)?;
        let checked = match kind {
            Kind::File => Checked::File(path.clone()),
            Kind::Directory => Checked::Directory(path.clone()),
            Kind::Symlink(text) => Checked::Symlink(path.clone(), symlink_target(&path, text)?),
            Kind::HardLink(target) => {
                Checked::HardLink(path.clone(), self.hard_link_target(target)?)
            }
            Kind::Other(what) => return Err(Refusal::Kind(what)),
        };
        self.record(path, kind)?;
        Ok(checked)
    }

    fn check_kind(&self, kind: Kind<'_>) -> Result<(), Refusal> {
        match (self.rules, kind) {
            (_, Kind::Other(what)) => Err(Refusal::Kind(what)),
            (Rules::Bundle, Kind::Symlink(_)) => Err(Refusal::Kind("a symbolic link")),
            (Rules::Bundle, Kind::HardLink(_)) => Err(Refusal::Kind("a hard link")),
            _ => Ok(()),
        }
    }

    /// Checks that all parents of a path are directories. A directory is never replaced, so the
    /// check stops at the first known one.
    fn check_parent(&mut self, path: &Path) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        for parent in path.ancestors().skip(1) {
            match self.seen.get(parent) {
                Some(Seen::Directory) => break,
                Some(Seen::Link) => return Err(Refusal::BehindLink),
                Some(Seen::File) => return Err(Refusal::BelowFile),
                None if parent.as_os_str().is_empty() => break,
                None => missing.push(parent.to_owned()),
            }
        }
        for parent in missing {
            self.record(parent, Kind::Directory)?;
        }
        Ok(())
    }

    fn record(&mut self, path: PathBuf, kind: Kind<'_>) -> Result<(), Refusal> {
        let now = match kind {
            Kind::Directory => Seen::Directory,
            Kind::Symlink(_) => Seen::Link,
            _ => Seen::File,
        };
        match (self.seen.get(&path), now) {
            (Some(Seen::Directory), Seen::File | Seen::Link) => {
                return Err(Refusal::ReplacesDirectory);
            }
            (Some(Seen::File | Seen::Link), Seen::Directory) => {
                return Err(Refusal::ReplacesFile);
            }
            _ => {}
        }
        self.name_bytes = self.name_bytes.saturating_add(path.as_os_str().len());
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(Refusal::Names);
        }
        self.seen.insert(path, now);
        Ok(())
    }

    /// Returns the target of a hard link, which must be an earlier file.
    fn hard_link_target(&self, target: &[u8]) -> Result<PathBuf, Refusal> {
        let path = relative(target).map_err(|_| Refusal::LinkLeaves)?;
        match self.seen.get(&path) {
            Some(Seen::File) => Ok(path),
            _ => Err(Refusal::LinkToNothing),
        }
    }
}

/// Returns a normalized relative path; empty for the directory itself.
fn relative(name: &[u8]) -> Result<PathBuf, Refusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(Refusal::BadName);
    }
    if name.starts_with(b"/") {
        return Err(Refusal::Absolute);
    }
    if name.len() > MAX_PATH {
        return Err(Refusal::LongName);
    }
    let mut path = PathBuf::with_capacity(name.len());
    let mut depth = 0;
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(Refusal::Climbs),
            part if part.len() > MAX_COMPONENT => return Err(Refusal::LongName),
            part => path.push(OsStr::from_bytes(part)),
        }
        depth += 1;
        if depth > MAX_DEPTH {
            return Err(Refusal::TooDeep);
        }
    }
    Ok(path)
}

/// Returns the target of a symlink, which must be inside the tree.
fn symlink_target(link: &Path, text: &[u8]) -> Result<OsString, Refusal> {
    if text.is_empty() || text.contains(&0) {
        return Err(Refusal::BadName);
    }
    if text.len() >= MAX_PATH {
        return Err(Refusal::LongName);
    }
    if text.starts_with(b"/") {
        return Err(Refusal::LinkLeaves);
    }
    let mut depth = link.components().count().saturating_sub(1);
    let mut has_name = false;
    for part in text.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if has_name || depth == 0 => return Err(Refusal::LinkLeaves),
            b".." => depth -= 1,
            _ => has_name = true,
        }
    }
    Ok(OsStr::from_bytes(text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Limits = Limits {
        entries: 4,
        bytes: 100,
        ratio: 2,
        free_bytes: 10,
    };

    fn checker() -> Checker {
        Checker::new(Rules::Archive, Limits::ARCHIVE, 1000)
    }

    #[test]
    fn names_are_normalized_and_stay_inside() {
        for (name, path) in [
            ("./a//b/./c/", Ok("a/b/c")),
            (".", Ok("")),
            ("..a/b..", Ok("..a/b..")),
            ("a\\..\\b", Ok("a\\..\\b")),
            ("/a", Err(Refusal::Absolute)),
            ("a/../b", Err(Refusal::Climbs)),
            ("..", Err(Refusal::Climbs)),
            ("", Err(Refusal::BadName)),
            ("a\0b", Err(Refusal::BadName)),
        ] {
            assert_eq!(relative(name.as_bytes()), path.map(PathBuf::from), "{name}");
        }
        let long = "n".repeat(MAX_COMPONENT + 1);
        assert_eq!(relative(long.as_bytes()), Err(Refusal::LongName));
        let deep = "d/".repeat(MAX_DEPTH + 1);
        assert_eq!(relative(deep.as_bytes()), Err(Refusal::TooDeep));
        let endless = "a/".repeat(MAX_PATH);
        assert_eq!(relative(endless.as_bytes()), Err(Refusal::LongName));
    }

    #[test]
    fn a_symlink_may_lead_anywhere_inside_the_tree() {
        for (link, text, stays) in [
            ("a", "b", true),
            ("a", "b/c", true),
            ("d/a", "../b", true),
            ("d/e/a", "./../../b/c", true),
            ("a", ".", true),
            ("a", "/etc/passwd", false),
            ("a", "../b", false),
            ("d/a", "../../b", false),
            ("d/a", "b/../c", false),
            ("d/a", "../b/../../c", false),
        ] {
            let found = symlink_target(Path::new(link), text.as_bytes());
            assert_eq!(found.is_ok(), stays, "{link} -> {text}");
        }
    }

    #[test]
    fn parents_must_be_directories() {
        let mut checker = checker();
        checker.check(b"link", Kind::Symlink(b"dir")).unwrap();
        checker.check(b"file", Kind::File).unwrap();
        for (name, refusal) in [
            ("link/x", Refusal::BehindLink),
            ("link/deep/x", Refusal::BehindLink),
            ("file/x", Refusal::BelowFile),
        ] {
            assert_eq!(checker.check(name.as_bytes(), Kind::File), Err(refusal));
        }
    }

    #[test]
    fn a_directory_stays_a_directory() {
        let mut checker = checker();
        checker.check(b"d/file", Kind::File).unwrap();
        for kind in [Kind::File, Kind::Symlink(b"x")] {
            assert_eq!(checker.check(b"d", kind), Err(Refusal::ReplacesDirectory));
        }
        let refused = checker.check(b"d/file", Kind::Directory);
        assert_eq!(refused, Err(Refusal::ReplacesFile));
        checker.check(b"d", Kind::Directory).unwrap();
        checker.check(b"d/file", Kind::File).unwrap();
    }

    #[test]
    fn a_hard_link_needs_an_earlier_file() {
        let mut checker = checker();
        checker.check(b"file", Kind::File).unwrap();
        checker.check(b"soft", Kind::Symlink(b"file")).unwrap();
        let mut link = |target: &'static [u8]| checker.check(b"hard", Kind::HardLink(target));
        assert_eq!(
            link(b"./file"),
            Ok(Checked::HardLink("hard".into(), "file".into()))
        );
        assert_eq!(link(b"soft"), Err(Refusal::LinkToNothing));
        assert_eq!(link(b"later"), Err(Refusal::LinkToNothing));
        assert_eq!(link(b"/etc/passwd"), Err(Refusal::LinkLeaves));
        assert_eq!(link(b"../file"), Err(Refusal::LinkLeaves));
    }

    #[test]
    fn a_bundle_holds_files_and_directories_only() {
        let mut checker = Checker::new(Rules::Bundle, Limits::BUNDLE, 1000);
        checker.check(b"file", Kind::File).unwrap();
        for kind in [
            Kind::Symlink(b"file"),
            Kind::HardLink(b"file"),
            Kind::Other("a device"),
        ] {
            let refusal = checker.check(b"x", kind).unwrap_err();
            assert_eq!(
                refusal.bundle_text(),
                "only regular files and directories are supported"
            );
        }
        let refusal = checker.check(b"../x", Kind::File).unwrap_err();
        assert_eq!(refusal.bundle_text(), "invalid tar file detected");
    }

    #[test]
    fn entries_bytes_and_ratio_are_limited() {
        let mut checker = Checker::new(Rules::Archive, SMALL, 40);
        for _ in 0..4 {
            checker.check(b"again", Kind::File).unwrap();
        }
        let refused = checker.check(b"again", Kind::File);
        assert_eq!(refused, Err(Refusal::Entries(4)));
        assert_eq!(checker.count(80), Ok(80));
        assert_eq!(checker.count(1), Err(Refusal::Ratio(2)));
        assert_eq!(checker.count(20), Err(Refusal::Bytes(100)));
        let mut tiny = Checker::new(Rules::Archive, SMALL, 1);
        assert_eq!(tiny.count(10), Ok(10));
    }

    #[test]
    fn the_memory_for_names_is_limited() {
        let mut checker = checker();
        let name = |number: usize| format!("{}/{number}", "n".repeat(200)).repeat(15);
        let refused = (0..100_000)
            .map(|number| checker.check(name(number).as_bytes(), Kind::File))
            .find_map(Result::err);
        assert_eq!(refused, Some(Refusal::Names));
    }
}
