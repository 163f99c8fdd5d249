//! Paths of the files that facts are read from, and bounded reads.
//!
//! The roots can be changed by the same environment variables as in gopsutil (`HOST_PROC`,
//! `HOST_SYS`, `HOST_ETC`, `HOST_DEV`, `HOST_ROOT`), so that a container can describe its host and
//! tests can describe other machines. `HOST_VAR` is ignored: no fact comes from `/var`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::system::files;

/// The largest file that is read, enough for thousands of processors or mounts.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Root directories for facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactPaths {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub etc: PathBuf,
    pub dev: PathBuf,
    pub root: PathBuf,
    /// Directories of custom facts; later ones take precedence.
    pub config: Vec<PathBuf>,
}

impl FactPaths {
    /// Returns the paths for an environment. Empty variables are ignored.
    pub fn from_env(environ: &BTreeMap<String, String>) -> Self {
        let given = |name: &str| environ.get(name).filter(|value| !value.is_empty());
        let root = |name: &str, default: &str| given(name).map_or(default.into(), PathBuf::from);
        let user = given("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            // The XDG specification says to ignore relative paths.
            .filter(|path| path.is_absolute())
            .or_else(|| given("HOME").map(|home| Path::new(home).join(".config")));
        Self {
            proc: root("HOST_PROC", "/proc"),
            sys: root("HOST_SYS", "/sys"),
            etc: root("HOST_ETC", "/etc"),
            dev: root("HOST_DEV", "/dev"),
            root: root("HOST_ROOT", "/"),
            config: [PathBuf::from("/etc/choria/ccm")]
                .into_iter()
                .chain(user.map(|user| user.join("choria/ccm")))
                .collect(),
        }
    }
}

/// Returns the text of a file, with invalid UTF-8 replaced; `None` if it cannot be read.
pub(super) fn text(path: &Path) -> Option<String> {
    let bytes = files::read(path, MAX_BYTES).ok()?;
    Some(into_text(bytes))
}

/// Returns the first bytes of a file as text. Files in `/proc` can be long, and only the part that
/// is read is generated.
pub(super) fn head(path: &Path, bytes: u64) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let mut content = Vec::new();
    let file = File::open(path).ok()?;
    file.take(bytes).read_to_end(&mut content).ok()?;
    Some(into_text(content))
}

/// Returns the first line of a file; `None` if it is blank.
pub(super) fn first_line(path: &Path) -> Option<String> {
    let text = text(path)?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(environ: &[(&str, &str)]) -> FactPaths {
        let environ = environ
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        FactPaths::from_env(&environ)
    }

    #[test]
    fn the_defaults_are_the_system_directories() {
        let paths = paths(&[("HOST_PROC", "")]);
        assert_eq!(paths.proc, Path::new("/proc"));
        assert_eq!(paths.root, Path::new("/"));
        assert_eq!(paths.config, [Path::new("/etc/choria/ccm")]);
    }

    #[test]
    fn roots_can_be_changed() {
        let paths = paths(&[("HOST_PROC", "/host/proc"), ("HOST_ETC", "/host/etc")]);
        assert_eq!(paths.proc, Path::new("/host/proc"));
        assert_eq!(paths.etc, Path::new("/host/etc"));
        assert_eq!(paths.sys, Path::new("/sys"));
    }

    #[test]
    fn the_user_s_facts_come_after_the_system_s() {
        let home = paths(&[("HOME", "/home/u")]);
        assert_eq!(
            home.config,
            [
                Path::new("/etc/choria/ccm"),
                Path::new("/home/u/.config/choria/ccm")
            ]
        );
        let moved = paths(&[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "/cfg")]);
        assert_eq!(moved.config[1], Path::new("/cfg/choria/ccm"));
    }

    #[test]
    fn a_relative_config_home_is_ignored() {
        let paths = paths(&[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "cfg")]);
        assert_eq!(paths.config[1], Path::new("/home/u/.config/choria/ccm"));
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(into_text(b"a\xffb".to_vec()), "a\u{fffd}b");
    }
}
