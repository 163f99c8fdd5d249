//! The edge to the machine: the only room that starts processes, writes managed files or speaks
//! HTTP.
//!
//! - [`runner`]: commands, with a clean environment, bounds and a timeout that really ends them
//! - [`files`]: atomic, symlink-safe files and directories, and looking at them
//! - [`unpack`]: archives into directories, whatever is in them
//! - [`http`]: one bounded download
//! - [`connection_limit`]: a port that strangers can't fill
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
pub mod connection_limit;
pub mod digest;
pub mod files;
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

/// The operating system gave no random bits.
#[derive(Debug, thiserror::Error)]
#[error("can't get random bits: {0}")]
pub struct RandomError(#[source] Cause);

/// Returns random bits of the operating system.
pub fn random() -> Result<u128, RandomError> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes, |buffer| {
        rustix::rand::getrandom(buffer, rustix::rand::GetRandomFlags::empty())
    })?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Fills a buffer, however many bytes come at a time.
fn fill_random(
    mut buffer: &mut [u8],
    mut draw: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> Result<(), RandomError> {
    while !buffer.is_empty() {
        let count = match draw(buffer) {
            Ok(0) => return Err(RandomError(Errno::IO.into())),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(RandomError(errno.into())),
        };
        buffer = buffer.get_mut(count..).unwrap_or_default();
    }
    Ok(())
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

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
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
    fn random_bits_that_cannot_be_had_are_an_error() {
        let mut bytes = [7; 16];
        let error = fill_random(&mut bytes, |_| Err(Errno::NOSYS)).unwrap_err();
        let text = "can't get random bits: function not implemented";
        assert_eq!(error.to_string(), text);
        assert!(fill_random(&mut bytes, |_| Ok(0)).is_err());
    }

    #[test]
    fn random_bits_are_drawn_until_there_are_enough() {
        let mut bytes = [0; 16];
        let mut turn = 0;
        let drawn = fill_random(&mut bytes, |buffer| {
            turn += 1;
            if turn == 2 {
                return Err(Errno::INTR);
            }
            let count = buffer.len().min(5);
            buffer[..count].fill(turn);
            Ok(count)
        });
        assert!(drawn.is_ok());
        assert_eq!(bytes, [1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5]);
        assert_ne!(random().unwrap(), random().unwrap());
    }

    #[test]
    fn a_cause_is_lower_case_and_has_no_number() {
        assert_eq!(
            Cause::from(Errno::NOENT).to_string(),
            "no such file or directory"
        );
        assert_eq!(Cause::from(io::Error::other("Odd")).to_string(), "odd");
    }
}
