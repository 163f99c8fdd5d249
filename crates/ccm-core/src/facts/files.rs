//! Where facts are read, and how: small text files, never more of them than a bound.
//!
//! The roots can be moved with the variables other tools of this kind know (`HOST_PROC`,
//! `HOST_SYS`, `HOST_ETC`, `HOST_DEV`, `HOST_ROOT`), so a container can describe its host and a
//! test a machine that is not there. `HOST_VAR` moves nothing: no fact is kept below `/var`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::system::files;

/// The longest file read: that of a machine with thousands of processors or mounts.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Where facts are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub etc: PathBuf,
    pub dev: PathBuf,
    pub root: PathBuf,
    /// The directories that hold the administrator's facts; the later ones win.
    pub config: Vec<PathBuf>,
}

impl Places {
    /// Returns the places that an environment names. A variable that is empty counts as absent.
    pub fn from_env(environ: &BTreeMap<String, String>) -> Self {
        let given = |name: &str| environ.get(name).filter(|value| !value.is_empty());
        let root = |name: &str, default: &str| given(name).map_or(default.into(), PathBuf::from);
        let user = given("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            // The standard for these directories says to ignore a relative one.
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

/// Returns the text of a file; bytes that are no text are replaced. Returns nothing if it cannot
/// be read.
pub(super) fn text(path: &Path) -> Option<String> {
    let bytes = files::read(path, MAX_BYTES).ok()?;
    Some(into_text(bytes))
}

/// Returns the first bytes of a file as text. The kernel makes up no more of its files than is
/// read, and some are long.
pub(super) fn head(path: &Path, bytes: u64) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let mut content = Vec::new();
    let file = File::open(path).ok()?;
    file.take(bytes).read_to_end(&mut content).ok()?;
    Some(into_text(content))
}

/// Returns the first line of a file, unless it is blank.
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

    fn places(environ: &[(&str, &str)]) -> Places {
        let environ = environ
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Places::from_env(&environ)
    }

    #[test]
    fn an_empty_environment_means_this_machine_and_no_user() {
        let places = places(&[("HOST_PROC", "")]);
        assert_eq!(places.proc, Path::new("/proc"));
        assert_eq!(places.root, Path::new("/"));
        assert_eq!(places.config, [Path::new("/etc/choria/ccm")]);
    }

    #[test]
    fn roots_can_be_moved() {
        let places = places(&[("HOST_PROC", "/host/proc"), ("HOST_ETC", "/host/etc")]);
        assert_eq!(places.proc, Path::new("/host/proc"));
        assert_eq!(places.etc, Path::new("/host/etc"));
        assert_eq!(places.sys, Path::new("/sys"));
    }

    #[test]
    fn the_user_s_facts_come_after_the_system_s() {
        let home = places(&[("HOME", "/home/u")]);
        assert_eq!(
            home.config,
            [
                Path::new("/etc/choria/ccm"),
                Path::new("/home/u/.config/choria/ccm")
            ]
        );
        let moved = places(&[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "/cfg")]);
        assert_eq!(moved.config[1], Path::new("/cfg/choria/ccm"));
    }

    #[test]
    fn a_relative_config_home_is_ignored() {
        let places = places(&[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "cfg")]);
        assert_eq!(places.config[1], Path::new("/home/u/.config/choria/ccm"));
    }

    #[test]
    fn a_file_that_is_no_text_still_reads() {
        assert_eq!(into_text(b"a\xffb".to_vec()), "a\u{fffd}b");
    }
}
