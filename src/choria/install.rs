//! Puts the agent where Choria's server looks for it: the DDL in both forms, and a program of two
//! lines that starts us.
//!
//! Only files of ours are ever replaced. The DDL for servers comes last: it is what they look for,
//! and the rest is there when they find it.

use std::path::{Path, PathBuf};

use super::ddl::{self, Ddl};
use super::ruby::ruby;
use ccm_core::system::files::{self, Attributes, Content, Durability, FileError, FileKind};

/// Where agents are, below a libdir.
const AGENTS: &str = "mcollective/agent";

/// More than any file of ours has.
const MAX_BYTES: u64 = 1024 * 1024;

/// Why the agent was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("libdir {} is not a directory", .0.display())]
    NoLibdir(PathBuf),
    #[error("{} is not ours: remove it first", .0.display())]
    Foreign(PathBuf),
    #[error("the path of this program is not UTF-8: {}", .0.display())]
    Program(PathBuf),
    #[error("the DDL can't be written for Ruby")]
    Ruby(#[from] std::fmt::Error),
    #[error("the DDL can't be read: {0}")]
    Ddl(#[from] serde_json::Error),
    #[error(transparent)]
    File(#[from] FileError),
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Written,
    Unchanged,
}

/// A file of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    pub done: Done,
}

/// A file to be written, and a text by which an older one of ours is known.
struct Wanted {
    name: &'static str,
    content: String,
    mark: &'static str,
    mode: u32,
}

/// Writes the agent below a libdir, which is made if need be, and returns what became of each of
/// its files.
pub fn install(libdir: &Path, program: &Path) -> Result<Vec<Place>, InstallError> {
    let found = files::inspect(libdir, true)?;
    if found.is_some_and(|found| found.kind != FileKind::Directory) {
        return Err(InstallError::NoLibdir(libdir.into()));
    }
    let directory = libdir.join(AGENTS);
    let wanted = wanted(program)?;
    // All or nothing: look before the first is written.
    for file in &wanted {
        file.check(&directory)?;
    }
    let attributes = Attributes {
        mode: Some(0o755),
        ..Attributes::default()
    };
    // What is there keeps its owner and mode.
    if files::inspect(&directory, true)?.is_none() {
        files::create_directory(&directory, &attributes)?;
    }
    wanted.iter().map(|file| file.put(&directory)).collect()
}

fn wanted(program: &Path) -> Result<[Wanted; 3], InstallError> {
    let path = program.to_str();
    let path = path.ok_or_else(|| InstallError::Program(program.into()))?;
    let word = format!("'{}'", path.replace('\'', r"'\''"));
    Ok([
        Wanted {
            name: "ccm",
            content: format!("#!/bin/sh\nexec {word} choria agent \"$@\"\n"),
            mark: " choria agent ",
            mode: 0o755,
        },
        Wanted {
            name: "ccm.ddl",
            content: ruby(&Ddl::ours()?)?,
            mark: "'ccm-fleet'",
            mode: 0o644,
        },
        Wanted {
            name: "ccm.json",
            content: ddl::TEXT.into(),
            mark: "\"ccm-fleet\"",
            mode: 0o644,
        },
    ])
}

impl Wanted {
    /// Returns what is there now, which must be nothing or ours.
    fn check(&self, directory: &Path) -> Result<Option<String>, InstallError> {
        let path = directory.join(self.name);
        match files::read_to_string(&path, MAX_BYTES) {
            Ok(text) if text.contains(self.mark) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Ok(_) | Err(_) => Err(InstallError::Foreign(path)),
        }
    }

    fn put(&self, directory: &Path) -> Result<Place, InstallError> {
        let path = directory.join(self.name);
        let found = files::inspect(&path, false)?;
        let is_as_wanted = found
            .is_some_and(|found| found.kind == FileKind::Regular && found.mode == self.mode)
            && self.check(directory)?.as_ref() == Some(&self.content);
        if is_as_wanted {
            let done = Done::Unchanged;
            return Ok(Place { path, done });
        }
        let attributes = Attributes {
            mode: Some(self.mode),
            ..Attributes::default()
        };
        let content = Content::Bytes(self.content.as_bytes());
        files::store(&path, content, &attributes, Durability::Content)?;
        let done = Done::Written;
        Ok(Place { path, done })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn done(places: &[Place]) -> Vec<Done> {
        places.iter().map(|place| place.done).collect()
    }

    #[test]
    fn the_agent_is_written_once_and_then_left_alone() {
        let libdir = tempfile::tempdir().unwrap();
        let program = Path::new("/opt/it's/ccm");
        let places = install(libdir.path(), program).unwrap();
        assert_eq!(done(&places), [Done::Written; 3]);
        let agents = libdir.path().join(AGENTS);
        let read = |name: &str| std::fs::read_to_string(agents.join(name)).unwrap();
        assert_eq!(
            read("ccm"),
            "#!/bin/sh\nexec '/opt/it'\\''s/ccm' choria agent \"$@\"\n"
        );
        assert_eq!(read("ccm.json"), ddl::TEXT);
        let mode = |name: &str| agents.join(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode("ccm"), mode("ccm.json")), (0o755, 0o644));
        let places = install(libdir.path(), program).unwrap();
        assert_eq!(done(&places), [Done::Unchanged; 3]);
        let places = install(libdir.path(), Path::new("/usr/bin/ccm")).unwrap();
        assert_eq!(
            done(&places),
            [Done::Written, Done::Unchanged, Done::Unchanged]
        );
    }

    #[test]
    fn an_agent_of_somebody_else_is_left_alone_and_nothing_is_written() {
        let libdir = tempfile::tempdir().unwrap();
        let agents = libdir.path().join(AGENTS);
        std::fs::DirBuilder::new()
            .recursive(true)
            .create(&agents)
            .unwrap();
        let path = agents.join("ccm.json");
        files::write_private(&path, b"{}", Durability::Cached).unwrap();
        let error = install(libdir.path(), Path::new("/usr/bin/ccm")).unwrap_err();
        assert!(matches!(error, InstallError::Foreign(_)), "{error}");
        assert_eq!(agents.read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_libdir_that_is_not_there_is_made_and_a_file_in_its_place_is_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("plugins");
        let program = Path::new("/usr/bin/ccm");
        assert_eq!(
            done(&install(&missing, program).unwrap()),
            [Done::Written; 3]
        );
        let file = missing.join(AGENTS).join("ccm.json");
        let error = install(&file, program).unwrap_err();
        assert!(matches!(error, InstallError::NoLibdir(_)), "{error}");
    }
}
