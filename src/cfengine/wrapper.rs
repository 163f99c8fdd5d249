//! The program that a policy names: two lines that start us as a package module.
//!
//! The agent starts a module with the command as its only argument, so there has to be a file that
//! says the rest. It goes where CFEngine keeps its modules, or anywhere a `module_path` points to.

use std::path::{Path, PathBuf};

use ccm_core::system::files::{self, Attributes, Content, Durability, FileError};

/// What every wrapper of ours says, and by which it is known again.
const MARK: &str = " cfengine module ";

/// More than a wrapper ever has.
const MAX_WRAPPER_BYTES: u64 = 64 * 1024;

/// Why a wrapper was not written.
#[derive(Debug, thiserror::Error)]
pub enum WrapperError {
    #[error("{0:?} is no name for a package module")]
    Name(String),
    #[error("{} is something else than a wrapper of ours: remove it first", .0.display())]
    Foreign(PathBuf),
    #[error("the path of this program is not UTF-8: {}", .0.display())]
    Program(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
}

/// A wrapper to be written.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper<'a> {
    /// Where modules are kept; it must exist.
    pub directory: &'a Path,
    /// What the module is called.
    pub name: &'a str,
    /// The program to start: ourselves.
    pub program: &'a Path,
    /// The package manager, if the host's own is not meant.
    pub provider: Option<&'a str>,
}

impl Wrapper<'_> {
    /// Writes the wrapper and returns its path. An older one of ours is replaced, nothing else is.
    pub fn install(&self) -> Result<PathBuf, WrapperError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if self.name.is_empty()
            || self.name.starts_with(['.', '-'])
            || !self.name.chars().all(allowed)
        {
            return Err(WrapperError::Name(self.name.into()));
        }
        let path = self.directory.join(self.name);
        let is_ours = files::read_to_string(&path, MAX_WRAPPER_BYTES)
            .map(|text| text.contains(MARK))
            .or_else(|err| {
                if err.is_not_found() {
                    Ok(true)
                } else {
                    Err(err)
                }
            });
        if !is_ours.unwrap_or(false) {
            return Err(WrapperError::Foreign(path));
        }
        let attributes = Attributes {
            mode: Some(0o755),
            ..Attributes::default()
        };
        let script = self.script()?;
        let content = Content::Bytes(script.as_bytes());
        files::store(&path, content, &attributes, Durability::Content)?;
        Ok(path)
    }

    fn script(&self) -> Result<String, WrapperError> {
        let program = self
            .program
            .to_str()
            .ok_or_else(|| WrapperError::Program(self.program.into()))?;
        let program = shell_word(program);
        let provider = match self.provider {
            Some(provider) => format!("--provider {} ", shell_word(provider)),
            None => String::new(),
        };
        Ok(format!("#!/bin/sh\nexec {program}{MARK}{provider}\"$@\"\n"))
    }
}

/// Returns a text as one word of a shell.
fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapper<'a>(directory: &'a Path, name: &'a str) -> Wrapper<'a> {
        Wrapper {
            directory,
            name,
            program: Path::new("/opt/it's/ccm"),
            provider: None,
        }
    }

    #[test]
    fn a_wrapper_is_two_lines_that_quote_what_they_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = Wrapper {
            provider: Some("dnf"),
            ..wrapper(directory.path(), "ccm")
        }
        .install()
        .unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "#!/bin/sh\nexec '/opt/it'\\''s/ccm' cfengine module --provider 'dnf' \"$@\"\n"
        );
    }

    #[test]
    fn only_a_wrapper_of_ours_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let ours = wrapper(directory.path(), "ccm");
        ours.install().unwrap();
        ours.install().unwrap();
        let foreign = wrapper(directory.path(), "apt_get");
        let path = directory.path().join("apt_get");
        files::write_private(&path, b"#!/usr/bin/python3\n", Durability::Cached).unwrap();
        let error = foreign.install().unwrap_err();
        assert!(matches!(error, WrapperError::Foreign(_)), "{error}");
    }

    #[test]
    fn a_name_stays_in_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "../x", "a/b", "-x", "a b"] {
            let error = wrapper(directory.path(), name).install().unwrap_err();
            assert!(matches!(error, WrapperError::Name(_)), "{error}");
        }
    }
}
