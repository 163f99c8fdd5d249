//! Wrapper script that starts `ccm cfengine module`.
//!
//! `cf-agent` starts a module with the command as its only argument, so the other arguments need a
//! script. It is installed in CFEngine's module directory or anywhere else that `module_path` names.

use std::path::{Path, PathBuf};

use ccm_core::system::files::{self, Attributes, Content, Durability, FileError};

/// Text that identifies our wrapper scripts.
const MARK: &str = " cfengine module ";

/// Size limit of a wrapper.
const MAX_WRAPPER_BYTES: u64 = 64 * 1024;

/// Reason why a wrapper was not installed.
#[derive(Debug, thiserror::Error)]
pub enum WrapperError {
    #[error("invalid package module name {0:?}")]
    Name(String),
    #[error("{} exists and is not a ccm wrapper: remove it first", .0.display())]
    Foreign(PathBuf),
    #[error("the path of this program is not UTF-8: {}", .0.display())]
    Program(PathBuf),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Wrapper script to install.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper<'a> {
    /// Module directory; must exist.
    pub directory: &'a Path,
    /// Module name.
    pub name: &'a str,
    /// Path of the ccm program.
    pub program: &'a Path,
    /// Package manager, if not the system's own.
    pub provider: Option<&'a str>,
}

impl Wrapper<'_> {
    /// Writes the wrapper and returns its path. Replaces an older wrapper but no other file.
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

/// Quotes a string as one shell word.
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
    fn a_wrapper_quotes_its_arguments() {
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
    fn only_a_ccm_wrapper_is_replaced() {
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
    fn a_name_can_not_leave_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "../x", "a/b", "-x", "a b"] {
            let error = wrapper(directory.path(), name).install().unwrap_err();
            assert!(matches!(error, WrapperError::Name(_)), "{error}");
        }
    }
}
