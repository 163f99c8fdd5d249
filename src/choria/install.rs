//! Installation of the agent for the Choria server: the DDL in JSON and Ruby, and a wrapper script.
//!
//! Only files installed by ccm are replaced. The JSON DDL is written last, because servers discover
//! the agent by it.

use std::path::{Path, PathBuf};

use super::ruby::ruby;
use ccm_agent::choria_rpc::ddl::{self, Ddl};
use ccm_core::system::files::{self, Attributes, Content, Durability, FileError, FileKind};

/// Agent directory in a libdir.
const AGENTS: &str = "mcollective/agent";

/// Size limit of an installed file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reason why the agent was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("libdir {} is not a directory", .0.display())]
    NoLibdir(PathBuf),
    #[error("{} was not installed by ccm: remove it first", .0.display())]
    Foreign(PathBuf),
    #[error("the path of this program is not UTF-8: {}", .0.display())]
    Program(PathBuf),
    #[error("could not write the Ruby DDL")]
    Ruby(#[from] std::fmt::Error),
    #[error("could not parse the DDL: {0}")]
    Ddl(#[from] serde_json::Error),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Change to an installed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    Written,
    Unchanged,
}

/// Installed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledFile {
    pub path: PathBuf,
    pub change: FileChange,
}

/// File to install, with a text that identifies older versions of it.
struct AgentFile {
    name: &'static str,
    content: String,
    mark: &'static str,
    mode: u32,
}

/// Installs the agent in a libdir, which is created if necessary, and returns the change of each
/// file.
pub fn install(libdir: &Path, program: &Path) -> Result<Vec<InstalledFile>, InstallError> {
    let found = files::inspect(libdir, true)?;
    if found.is_some_and(|found| found.kind != FileKind::Directory) {
        return Err(InstallError::NoLibdir(libdir.into()));
    }
    let directory = libdir.join(AGENTS);
    let agent_files = agent_files(program)?;
    // Check all files before the first one is written.
    for file in &agent_files {
        file.check(&directory)?;
    }
    let attributes = Attributes {
        mode: Some(0o755),
        ..Attributes::default()
    };
    // An existing directory keeps its owner and mode.
    if files::inspect(&directory, true)?.is_none() {
        files::create_directory(&directory, &attributes)?;
    }
    agent_files
        .iter()
        .map(|file| file.install(&directory))
        .collect()
}

fn agent_files(program: &Path) -> Result<[AgentFile; 3], InstallError> {
    let path = program.to_str();
    let path = path.ok_or_else(|| InstallError::Program(program.into()))?;
    let word = format!("'{}'", path.replace('\'', r"'\''"));
    Ok([
        AgentFile {
            name: "ccm",
            content: format!("#!/bin/sh\nexec {word} choria agent \"$@\"\n"),
            mark: " choria agent ",
            mode: 0o755,
        },
        AgentFile {
            name: "ccm.ddl",
            content: ruby(&Ddl::embedded()?)?,
            mark: "'ccm-fleet'",
            mode: 0o644,
        },
        AgentFile {
            name: "ccm.json",
            content: ddl::TEXT.into(),
            mark: "\"ccm-fleet\"",
            mode: 0o644,
        },
    ])
}

impl AgentFile {
    /// Returns the current content, which must be missing or installed by ccm.
    fn check(&self, directory: &Path) -> Result<Option<String>, InstallError> {
        let path = directory.join(self.name);
        match files::read_to_string(&path, MAX_BYTES) {
            Ok(text) if text.contains(self.mark) => Ok(Some(text)),
            Err(error) if error.is_not_found() => Ok(None),
            Ok(_) | Err(_) => Err(InstallError::Foreign(path)),
        }
    }

    fn install(&self, directory: &Path) -> Result<InstalledFile, InstallError> {
        let path = directory.join(self.name);
        let found = files::inspect(&path, false)?;
        let is_unchanged = found
            .is_some_and(|found| found.kind == FileKind::Regular && found.mode == self.mode)
            && self.check(directory)?.as_ref() == Some(&self.content);
        if is_unchanged {
            let change = FileChange::Unchanged;
            return Ok(InstalledFile { path, change });
        }
        let attributes = Attributes {
            mode: Some(self.mode),
            ..Attributes::default()
        };
        let content = Content::Bytes(self.content.as_bytes());
        files::store(&path, content, &attributes, Durability::Content)?;
        let change = FileChange::Written;
        Ok(InstalledFile { path, change })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn changes(files: &[InstalledFile]) -> Vec<FileChange> {
        files.iter().map(|file| file.change).collect()
    }

    #[test]
    fn a_second_installation_changes_nothing() {
        let libdir = tempfile::tempdir().unwrap();
        let program = Path::new("/opt/it's/ccm");
        let installed = install(libdir.path(), program).unwrap();
        assert_eq!(changes(&installed), [FileChange::Written; 3]);
        let agents = libdir.path().join(AGENTS);
        let read = |name: &str| std::fs::read_to_string(agents.join(name)).unwrap();
        assert_eq!(
            read("ccm"),
            "#!/bin/sh\nexec '/opt/it'\\''s/ccm' choria agent \"$@\"\n"
        );
        assert_eq!(read("ccm.json"), ddl::TEXT);
        let mode = |name: &str| agents.join(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode("ccm"), mode("ccm.json")), (0o755, 0o644));
        let installed = install(libdir.path(), program).unwrap();
        assert_eq!(changes(&installed), [FileChange::Unchanged; 3]);
        let installed = install(libdir.path(), Path::new("/usr/bin/ccm")).unwrap();
        assert_eq!(
            changes(&installed),
            [
                FileChange::Written,
                FileChange::Unchanged,
                FileChange::Unchanged
            ]
        );
    }

    #[test]
    fn foreign_files_are_not_replaced() {
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
    fn a_missing_libdir_is_created_and_a_file_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let missing = parent.path().join("plugins");
        let program = Path::new("/usr/bin/ccm");
        assert_eq!(
            changes(&install(&missing, program).unwrap()),
            [FileChange::Written; 3]
        );
        let file = missing.join(AGENTS).join("ccm.json");
        let error = install(&file, program).unwrap_err();
        assert!(matches!(error, InstallError::NoLibdir(_)), "{error}");
    }
}
