//! Where plugins are: `NAME-plugin.yaml` files below the plugin directories, at any depth.
//!
//! A directory that is missing is fine, and never made. What a plugin says is run, often by root,
//! so neither a file nor a directory on the way to it may be changed by anybody but root and the
//! one who runs us. Links to directories are not followed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::definition::Definition;
use ccm_core::system::FileError;
use ccm_core::system::files::{self, FileKind, Writers};
use ccm_value::document::DocumentError;

/// How the name of a plugin file ends.
const ENDING: &str = "-plugin.yaml";

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// How deep directories are searched, and how many entries they may hold together.
const MAX_DEPTH: usize = 8;
const MAX_ENTRIES: usize = 10_000;

/// Why a plugin, or a directory of them, is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum PluginError {
    #[error("{} holds more than {MAX_ENTRIES} files", .0.display())]
    TooMany(PathBuf),
    #[error("{}: {problem}", path.display())]
    Broken {
        path: PathBuf,
        #[source]
        problem: DocumentError,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A file that is a plugin by its name.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) definition: Result<Definition, PluginError>,
}

/// Finds the plugins of these directories, sorted by name; those of later directories replace those
/// of earlier ones. What keeps a directory from being read is told apart.
pub(super) fn find(places: &[PathBuf]) -> (Vec<Plugin>, Vec<PluginError>) {
    let mut paths = BTreeMap::new();
    let mut problems = Vec::new();
    for place in places {
        let mut left = MAX_ENTRIES;
        if let Err(err) = search(place, 0, &mut left, &mut paths) {
            problems.push(err);
        }
    }
    let read = |(name, path): (String, PathBuf)| Plugin {
        definition: load(&path),
        name,
        path,
    };
    (paths.into_iter().map(read).collect(), problems)
}

/// Returns the name of a plugin, if a file has the name of one.
fn plugin_name(file: &str) -> Option<&str> {
    file.strip_suffix(ENDING).filter(|name| !name.is_empty())
}

fn search(
    directory: &Path,
    depth: usize,
    left: &mut usize,
    found: &mut BTreeMap<String, PathBuf>,
) -> Result<(), PluginError> {
    let Some(about) = files::inspect(directory, true)? else {
        return Ok(());
    };
    if about.kind != FileKind::Directory || depth > MAX_DEPTH {
        return Ok(());
    }
    files::guard(directory, &about, Writers::Nobody)?;
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

/// Reads a plugin.
fn load(path: &Path) -> Result<Definition, PluginError> {
    let text = read(path)?;
    Definition::parse(&text).map_err(|problem| PluginError::Broken {
        path: path.to_owned(),
        problem,
    })
}

/// Returns the text of a file that nobody else could have written.
pub(super) fn read(path: &Path) -> Result<String, FileError> {
    files::read_guarded(path, MAX_FILE, Writers::Nobody)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A system directory and a user's.
    struct Places(tempfile::TempDir);

    impl Places {
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
    fn all_plugins_are_found_and_a_users_replaces_the_systems() {
        let places = Places::new();
        assert_eq!(places.commands(), []);
        places.write("home/deep/er/web-plugin.yaml", "mine");
        assert_eq!(places.commands(), pairs(&[("web", "mine")]));
        places.write("etc/web-plugin.yaml", "theirs");
        places.write("etc/db-plugin.yaml", "database");
        assert_eq!(
            places.commands(),
            pairs(&[("db", "database"), ("web", "mine")])
        );
    }

    #[test]
    fn a_name_ends_where_the_pattern_ends() {
        let places = Places::new();
        for other in [
            "a-plugin.yaml.bak",
            "-plugin.yaml",
            "b-plugin.yml",
            "cplugin.yaml",
        ] {
            places.write(&format!("etc/{other}"), "x");
        }
        assert_eq!(places.commands(), []);
    }

    #[test]
    fn what_others_may_write_is_refused_by_its_name() {
        let places = Places::new();
        places.write("etc/a-plugin.yaml", "x");
        places.mode("etc/a-plugin.yaml", 0o664);
        let (plugins, _) = places.find();
        let error = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(
            error.contains("etc/a-plugin.yaml may be changed"),
            "{error}"
        );
        places.mode("etc", 0o777);
        let (plugins, problems) = places.find();
        assert!(plugins.is_empty());
        assert!(
            matches!(problems[..], [PluginError::File(FileError::Writable(_))]),
            "{problems:?}"
        );
    }

    #[test]
    fn a_file_of_somebody_else_is_refused() {
        let places = Places::new();
        let path = places.write("etc/a-plugin.yaml", "x");
        std::os::unix::fs::chown(path, Some(1234), None).unwrap();
        let (plugins, _) = places.find();
        let error = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(error.contains("belongs to user 1234"), "{error}");
    }

    #[test]
    fn a_broken_file_is_told_with_its_place_and_others_are_not_touched() {
        let places = Places::new();
        places.write("etc/good-plugin.yaml", "x");
        let path = places.write("etc/bad-plugin.yaml", "x");
        std::fs::write(path, "commands: [").unwrap();
        let (plugins, _) = places.find();
        let broken = plugins[0].definition.as_ref().unwrap_err().to_string();
        assert!(broken.contains("bad-plugin.yaml: line 2"), "{broken}");
        assert!(plugins[1].definition.is_ok());
    }
}
