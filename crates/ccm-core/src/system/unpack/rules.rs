//! What an archive may hold, entry by entry. Touches no file: it judges names, kinds and amounts
//! against what came before in the same archive.
//!
//! A symlink may lead anywhere inside the tree. `..` may stand only at the start of its text:
//! from there it climbs from where the link really is, while `name/..` would climb from where
//! `name` leads. With that, every link leads to a place inside, and so does every chain of them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::Kind;

/// The longest name of an entry or text of a link.
const LONGEST_PATH: usize = 4096;

/// The longest part of a name.
const LONGEST_PART: usize = 255;

/// How deep directories may nest.
const DEEPEST: usize = 128;

/// How much memory names may take.
const MOST_NAME_BYTES: usize = 64 << 20;

/// For whom an archive is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// For a resource: files, directories, and links that stay inside.
    Archive,
    /// A manifest and its files: regular files and directories only, readable by us.
    Bundle,
}

impl Rules {
    /// Returns the permissions to set, of those an archive names; `least` are ours in a bundle.
    pub(super) fn mode(self, mode: u32, least: u32) -> u32 {
        let plain = mode & 0o777;
        match self {
            Self::Archive => plain,
            Self::Bundle => plain | least,
        }
    }
}

/// How much an archive may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    /// Of all content together.
    pub bytes: u64,
    /// How many times its own size an archive may unpack to.
    pub ratio: u64,
    /// Content that no ratio forbids: little archives of much the same bytes are common.
    pub free_bytes: u64,
}

impl Limits {
    /// What the archive of a resource may hold.
    pub const ARCHIVE: Self = Self {
        entries: 500_000,
        bytes: 16 << 30,
        ratio: 200,
        free_bytes: 256 << 20,
    };

    /// What a manifest with its files may hold.
    pub const BUNDLE: Self = Self {
        entries: 50_000,
        bytes: 512 << 20,
        ratio: 100,
        free_bytes: 64 << 20,
    };
}

/// Why an entry is not acceptable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its path is absolute")]
    Absolute,
    #[error("its path leaves the directory")]
    Climbs,
    #[error("its name is no path")]
    BadName,
    #[error("its name is too long")]
    LongName,
    #[error("it is nested more than {DEEPEST} directories deep")]
    TooDeep,
    #[error("{0} is not supported")]
    Kind(&'static str),
    #[error("the link leads out of the directory")]
    LinkLeaves,
    #[error("the link leads to no file before it")]
    LinkToNothing,
    #[error("it is behind a link")]
    BehindLink,
    #[error("it is below a file")]
    BelowFile,
    #[error("it takes the place of a directory")]
    ReplacesDirectory,
    #[error("it makes a directory of a file")]
    ReplacesFile,
    #[error("the archive holds more than {0} entries")]
    Entries(usize),
    #[error("the archive holds more than {0} bytes")]
    Bytes(u64),
    #[error("the archive unpacks to more than {0} times its size")]
    Ratio(u64),
    #[error("the names in the archive are too long together")]
    Names,
}

impl Refusal {
    /// Returns the words that a manifest bundle is refused with.
    pub(super) fn bundle_text(&self) -> &'static str {
        match self {
            Self::Kind(_) => "only regular files and directories are supported",
            _ => "invalid tar file detected",
        }
    }
}

/// An entry that may be written, its path clean and relative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// The directory itself that everything goes into: nothing to do.
    Root,
    File(PathBuf),
    Directory(PathBuf),
    Symlink(PathBuf, OsString),
    HardLink(PathBuf, PathBuf),
}

/// What a name stands for so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    File,
    Directory,
    Link,
}

/// Lets entries through, one archive long.
pub(super) struct Gate {
    rules: Rules,
    limits: Limits,
    archive_size: u64,
    seen: HashMap<PathBuf, Seen>,
    entries: usize,
    name_bytes: usize,
    bytes: u64,
}

impl Gate {
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

    /// Counts content and returns how much it was.
    pub(super) fn count(&mut self, more: usize) -> Result<u64, Refusal> {
        let Limits {
            bytes,
            ratio,
            free_bytes,
            ..
        } = self.limits;
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > bytes {
            return Err(Refusal::Bytes(bytes));
        }
        if self.bytes > free_bytes && self.bytes > self.archive_size.saturating_mul(ratio) {
            return Err(Refusal::Ratio(ratio));
        }
        Ok(more)
    }

    /// Judges the next entry.
    pub(super) fn admit(&mut self, name: &[u8], kind: Kind<'_>) -> Result<Checked, Refusal> {
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
            Kind::Symlink(text) => Checked::Symlink(path.clone(), inside(&path, text)?),
            Kind::HardLink(target) => Checked::HardLink(path.clone(), self.earlier(target)?),
            Kind::Other(what) => return Err(Refusal::Kind(what)),
        };
        self.remember(path, kind)?;
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

    /// Checks that a path is in a directory. A directory never becomes anything else, so what was
    /// checked once needs no second look, and neither does what is above it.
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
            self.remember(parent, Kind::Directory)?;
        }
        Ok(())
    }

    fn remember(&mut self, path: PathBuf, kind: Kind<'_>) -> Result<(), Refusal> {
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
        if self.name_bytes > MOST_NAME_BYTES {
            return Err(Refusal::Names);
        }
        self.seen.insert(path, now);
        Ok(())
    }

    /// Returns the path a hard link leads to, if that was a file.
    fn earlier(&self, target: &[u8]) -> Result<PathBuf, Refusal> {
        let path = relative(target).map_err(|_| Refusal::LinkLeaves)?;
        match self.seen.get(&path) {
            Some(Seen::File) => Ok(path),
            _ => Err(Refusal::LinkToNothing),
        }
    }
}

/// Returns a name as a path without any detours; empty for the directory itself.
fn relative(name: &[u8]) -> Result<PathBuf, Refusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(Refusal::BadName);
    }
    if name.starts_with(b"/") {
        return Err(Refusal::Absolute);
    }
    if name.len() > LONGEST_PATH {
        return Err(Refusal::LongName);
    }
    let mut path = PathBuf::with_capacity(name.len());
    let mut depth = 0;
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(Refusal::Climbs),
            part if part.len() > LONGEST_PART => return Err(Refusal::LongName),
            part => path.push(OsStr::from_bytes(part)),
        }
        depth += 1;
        if depth > DEEPEST {
            return Err(Refusal::TooDeep);
        }
    }
    Ok(path)
}

/// Returns the text of a symlink that stays inside.
fn inside(link: &Path, text: &[u8]) -> Result<OsString, Refusal> {
    if text.is_empty() || text.contains(&0) {
        return Err(Refusal::BadName);
    }
    if text.len() >= LONGEST_PATH {
        return Err(Refusal::LongName);
    }
    if text.starts_with(b"/") {
        return Err(Refusal::LinkLeaves);
    }
    let mut room = link.components().count().saturating_sub(1);
    let mut has_name = false;
    for part in text.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if has_name || room == 0 => return Err(Refusal::LinkLeaves),
            b".." => room -= 1,
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

    fn gate() -> Gate {
        Gate::new(Rules::Archive, Limits::ARCHIVE, 1000)
    }

    #[test]
    fn a_name_loses_its_detours_and_never_leaves() {
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
        let long = "n".repeat(LONGEST_PART + 1);
        assert_eq!(relative(long.as_bytes()), Err(Refusal::LongName));
        let deep = "d/".repeat(DEEPEST + 1);
        assert_eq!(relative(deep.as_bytes()), Err(Refusal::TooDeep));
        let endless = "a/".repeat(LONGEST_PATH);
        assert_eq!(relative(endless.as_bytes()), Err(Refusal::LongName));
    }

    #[test]
    fn a_symlink_may_lead_anywhere_inside() {
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
            let found = inside(Path::new(link), text.as_bytes());
            assert_eq!(found.is_ok(), stays, "{link} -> {text}");
        }
    }

    #[test]
    fn nothing_may_be_behind_a_link_or_below_a_file() {
        let mut gate = gate();
        gate.admit(b"link", Kind::Symlink(b"dir")).unwrap();
        gate.admit(b"file", Kind::File).unwrap();
        for (name, refusal) in [
            ("link/x", Refusal::BehindLink),
            ("link/deep/x", Refusal::BehindLink),
            ("file/x", Refusal::BelowFile),
        ] {
            assert_eq!(gate.admit(name.as_bytes(), Kind::File), Err(refusal));
        }
    }

    #[test]
    fn a_directory_stays_a_directory() {
        let mut gate = gate();
        gate.admit(b"d/file", Kind::File).unwrap();
        for kind in [Kind::File, Kind::Symlink(b"x")] {
            assert_eq!(gate.admit(b"d", kind), Err(Refusal::ReplacesDirectory));
        }
        let refused = gate.admit(b"d/file", Kind::Directory);
        assert_eq!(refused, Err(Refusal::ReplacesFile));
        gate.admit(b"d", Kind::Directory).unwrap();
        gate.admit(b"d/file", Kind::File).unwrap();
    }

    #[test]
    fn a_hard_link_leads_to_a_file_that_came_before() {
        let mut gate = gate();
        gate.admit(b"file", Kind::File).unwrap();
        gate.admit(b"soft", Kind::Symlink(b"file")).unwrap();
        let mut link = |target: &'static [u8]| gate.admit(b"hard", Kind::HardLink(target));
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
        let mut gate = Gate::new(Rules::Bundle, Limits::BUNDLE, 1000);
        gate.admit(b"file", Kind::File).unwrap();
        for kind in [
            Kind::Symlink(b"file"),
            Kind::HardLink(b"file"),
            Kind::Other("a device"),
        ] {
            let refusal = gate.admit(b"x", kind).unwrap_err();
            assert_eq!(
                refusal.bundle_text(),
                "only regular files and directories are supported"
            );
        }
        let refusal = gate.admit(b"../x", Kind::File).unwrap_err();
        assert_eq!(refusal.bundle_text(), "invalid tar file detected");
    }

    #[test]
    fn entries_bytes_and_ratio_are_limited() {
        let mut gate = Gate::new(Rules::Archive, SMALL, 40);
        for _ in 0..4 {
            gate.admit(b"again", Kind::File).unwrap();
        }
        let refused = gate.admit(b"again", Kind::File);
        assert_eq!(refused, Err(Refusal::Entries(4)));
        assert_eq!(gate.count(80), Ok(80));
        assert_eq!(gate.count(1), Err(Refusal::Ratio(2)));
        assert_eq!(gate.count(20), Err(Refusal::Bytes(100)));
        let mut tiny = Gate::new(Rules::Archive, SMALL, 1);
        assert_eq!(tiny.count(10), Ok(10));
    }

    #[test]
    fn names_may_not_fill_the_memory() {
        let mut gate = gate();
        let name = |number: usize| format!("{}/{number}", "n".repeat(200)).repeat(15);
        let refused = (0..100_000)
            .map(|number| gate.admit(name(number).as_bytes(), Kind::File))
            .find_map(Result::err);
        assert_eq!(refused, Some(Refusal::Names));
    }
}
