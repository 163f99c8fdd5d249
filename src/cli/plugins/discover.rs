//! Discovery of `NAME-plugin.yaml` files in the plugin directories, recursively.
//!
//! A missing directory is ignored. Plugins execute commands, often as root, so files and
//! directories that other users could change are refused. Symbolic links to directories are not
//! followed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::definition::Definition;
use super::problem;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, AllowedWriters, FileKind};
use ccm_value::diagnostic::Diagnostic;
use ccm_value::document::DocumentError;

/// Suffix of plugin file names.
const SUFFIX: &str = "-plugin.yaml";

/// Size limit of a plugin file.
const MAX_FILE: u64 = 1 << 20;

/// Limits on the directory depth and on the total number of entries.
const MAX_DEPTH: usize = 8;
const MAX_ENTRIES: usize = 10_000;

/// Reason why a plugin or a plugin directory can't be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginError {
    #[error("{} contains more than {MAX_ENTRIES} files", .0.display())]
    TooMany(PathBuf),
    #[error("{}: {problem}", path.display())]
    Broken {
        path: PathBuf,
        #[source]
        problem: DocumentError,
        /// The same problem, with its source line.
        diagnostic: Box<Diagnostic>,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

impl PluginError {
    /// Returns the problem with its source line, if it has a position.
    pub(super) fn diagnostic(&self) -> Option<&Diagnostic> {
        match self {
            Self::Broken { diagnostic, .. } => Some(diagnostic),
            Self::TooMany(_) | Self::File(_) => None,
        }
    }
}

/// Plugin file and its parsed definition.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Text of the file, empty if it could not be read.
    pub(super) text: String,
    pub(super) definition: Result<Definition, PluginError>,
}

/// Finds the plugins in these directories, sorted by name; later directories override earlier ones.
/// Also returns the errors about directories.
pub(super) fn find(directories: &[PathBuf]) -> (Vec<Plugin>, Vec<PluginError>) {
    let mut paths = BTreeMap::new();
    let mut problems = Vec::new();
    for directory in directories {
        let mut left = MAX_ENTRIES;
        if let Err(err) = search(directory, 0, &mut left, &mut paths) {
            problems.push(err);
        }
    }
    let plugins = paths.into_iter().map(|(name, path)| load(name, path));
    (plugins.collect(), problems)
}

/// Returns the plugin name if the file name is that of a plugin.
fn plugin_name(file: &str) -> Option<&str> {
    file.strip_suffix(SUFFIX).filter(|name| !name.is_empty())
}

fn search(
    directory: &Path,
    depth: usize,
    left: &mut usize,
    found: &mut BTreeMap<String, PathBuf>,
) -> Result<(), PluginError> {
    let Some(metadata) = files::inspect(directory, true)? else {
        return Ok(());
    };
    if metadata.kind != FileKind::Directory || depth > MAX_DEPTH {
        return Ok(());
    }
    files::check_writers(directory, &metadata, AllowedWriters::None)?;
    for entry in files::list(directory)? {
        *left = left
            .checked_sub(1)
            .ok_or_else(|| PluginError::TooMany(directory.to_owned()))?;
        let path = directory.join(&entry);
        if let Some(name) = entry.to_str().and_then(plugin_name) {
            found.insert(name.to_owned(), path);
        } else if files::inspect(&path, false)?.is_some_and(|it| it.kind == FileKind::Directory) {
            search(&path, depth + 1, left, found)?;
        }
    }
    Ok(())
}

/// Loads a plugin.
fn load(name: String, path: PathBuf) -> Plugin {
    let (text, definition) = match read(&path) {
        Ok(text) => {
            let definition = Definition::parse(&text).map_err(|problem| PluginError::Broken {
                path: path.clone(),
                diagnostic: problem::diagnostic(&path, &text, &problem).into(),
                problem,
            });
            (text, definition)
        }
        Err(err) => (String::new(), Err(err.into())),
    };
    Plugin {
        name,
        path,
        text,
        definition,
    }
}

/// Reads a file that only root and the current user can write.
pub(super) fn read(path: &Path) -> Result<String, FileError> {
    files::read_trusted(path, MAX_FILE, AllowedWriters::None)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write fixture files")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// System and user plugin directories.
    struct TestDirs(tempfile::TempDir);

    impl TestDirs {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, command: &str) -> PathBuf {
            let path = self.0.path().join(path);
            let parent = path.parent().unwrap();
            std::fs::create_dir_all(parent).unwrap();
            let text = format!("name: x\ncommands: [{{name: {command}, type: exec, command: x}}]");
            std::fs::write(&path, text).unwrap();
            self.mode(
                path.strip_prefix(self.0.path()).unwrap().to_str().unwrap(),
                0o644,
            );
            path
        }

        fn mode(&self, path: &str, mode: u32) {
            let path = self.0.path().join(path);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }

        fn find(&self) -> (Vec<Plugin>, Vec<PluginError>) {
            find(&["etc", "home"].map(|name| self.0.path().join(name)))
        }

        /// Returns the names of plugins and of their first commands.
        fn commands(&self) -> Vec<(String, String)> {
            let (plugins, problems) = self.find();
            assert!(problems.is_empty(), "{problems:?}");
            let command = |plugin: Plugin| {
                (
                    plugin.name,
                    plugin.definition.unwrap().commands.remove(0).name,
                )
            };
            plugins.into_iter().map(command).collect()
        }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(a, b): &(&str, &str)| (a.to_string(), b.to_string());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn user_plugins_override_system_plugins() {
        let dirs = TestDirs::new();
        assert_eq!(dirs.commands(), []);
        dirs.write("home/deep/er/web-plugin.yaml", "mine");
        assert_eq!(dirs.commands(), pairs(&[("web", "mine")]));
        dirs.write("etc/web-plugin.yaml", "theirs");
        dirs.write("etc/db-plugin.yaml", "database");
        assert_eq!(
            dirs.commands(),
            pairs(&[("db", "database"), ("web", "mine")])
        );
    }

    #[test]
    fn other_file_names_are_ignored() {
        let dirs = TestDirs::new();
        for other in [
            "a-plugin.yaml.bak",
            "-plugin.yaml",
            "b-plugin.yml",
            "cplugin.yaml",
        ] {
            dirs.write(&format!("etc/{other}"), "x");
        }
        assert_eq!(dirs.commands(), []);
    }

    #[test]
    fn files_writable_by_others_are_refused() {
        let dirs = TestDirs::new();
        dirs.write("etc/a-plugin.yaml", "x");
        dirs.mode("etc/a-plugin.yaml", 0o664);
        let (plugins, _) = dirs.find();
        let error = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(
            error.contains("etc/a-plugin.yaml may be changed"),
            "{error}"
        );
        dirs.mode("etc", 0o777);
        let (plugins, problems) = dirs.find();
        assert!(plugins.is_empty());
        assert!(
            matches!(problems[..], [PluginError::File(FileError::Writable(_))]),
            "{problems:?}"
        );
    }

    #[test]
    fn files_owned_by_another_user_are_refused() {
        let dirs = TestDirs::new();
        let path = dirs.write("etc/a-plugin.yaml", "x");
        std::os::unix::fs::chown(path, Some(1234), None).unwrap();
        let (plugins, _) = dirs.find();
        let error = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(error.contains("belongs to user 1234"), "{error}");
    }

    #[test]
    fn a_broken_file_is_reported_with_its_position() {
        let dirs = TestDirs::new();
        dirs.write("etc/good-plugin.yaml", "x");
        let path = dirs.write("etc/bad-plugin.yaml", "x");
        std::fs::write(path, "commands: [").unwrap();
        let (plugins, _) = dirs.find();
        let broken = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(
            broken.contains("bad-plugin.yaml: line 1 column 11"),
            "{broken}"
        );
        assert!(plugins[1].definition.is_ok());
    }
}
