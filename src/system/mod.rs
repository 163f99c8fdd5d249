//! The edge to the machine: the only room that starts processes, writes managed files or speaks
//! HTTP.
//!
//! - [`runner`]: commands, with a clean environment, bounds and a timeout that really ends them
//! - [`files`]: atomic, symlink-safe files and directories, and looking at them
//! - [`unpack`]: archives into directories, whatever is in them
//! - [`http`]: one bounded download
//! - [`gate`]: a port that strangers can't fill
//! - [`digest`]: the SHA-256 of bytes
//! - [`users`]: names and ids of users and groups
//! - [`locks`]: one of us at a time, across processes
//! - [`clock`]: time that tests can hold
//!
//! Everything but the gate blocks. It knows nothing of resources, manifests or policy: it is told what
//! to do, does that one thing, and says by name what went wrong.

use std::{fmt, io};

use rustix::io::Errno;
use rustix::process::Resource;

pub mod clock;
pub mod digest;
pub mod files;
pub mod gate;
pub mod http;
pub mod locks;
pub mod runner;
pub mod unpack;
pub mod users;

pub use clock::{Clock, FixedClock, SystemClock};
pub use digest::{Digest, Digester};
pub use files::FileError;
pub use http::HttpError;
pub use locks::{FileLock, Holder, LockError};
pub use runner::{Cancel, Command, Output, RunError, Runner, ScriptedRunner, SystemRunner};
pub use unpack::UnpackError;
pub use users::{AccountError, Accounts};

/// Returns random bits. Without any to be had they are zero: nothing here guards a secret.
pub fn random() -> u128 {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => u128::from_ne_bytes(bytes),
        _ => 0,
    }
}

/// Lets this process open at least so many files, as far as the machine allows.
pub fn raise_open_files(wanted: u64) -> Result<(), Cause> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    limit.current = Some(wanted);
    if limit.maximum.is_some_and(|most| most < wanted) {
        limit.maximum = Some(wanted);
    }
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

/// What the operating system answered, in the words upstream prints: lower case, no number.
#[derive(Debug)]
pub struct Cause(io::Error);

impl Cause {
    /// Returns which sort of failure it was.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }

    /// Whether it was this very failure.
    pub fn is(&self, errno: Errno) -> bool {
        self.0.raw_os_error() == Some(errno.raw_os_error())
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        Self(errno.into())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let mut chars = text.chars();
        match chars.next() {
            Some(first) => write!(out, "{}{}", first.to_lowercase(), chars.as_str()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_lower_case_and_has_no_number() {
        assert_eq!(
            Cause::from(Errno::NOENT).to_string(),
            "no such file or directory"
        );
        assert_eq!(Cause::from(io::Error::other("Odd")).to_string(), "odd");
    }
}
