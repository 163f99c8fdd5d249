//! Operating system access. The only module that starts processes, writes managed files or sends
//! HTTP requests.
//!
//! - [`runner`]: commands with a clean environment, bounded output and a timeout that kills the
//!   whole process tree
//! - [`files`]: atomic, symlink-safe reads and writes of files and directories
//! - [`unpack`]: extraction of untrusted archives
//! - [`http`]: HTTP requests bounded in time and size
//! - [`connection_limit`]: a TCP listener with a connection limit and a reply deadline
//! - [`digest`]: SHA-256 digests
//! - [`users`]: names and ids of users and groups
//! - [`locks`]: advisory file locks between processes
//! - [`clock`]: a clock that tests can replace
//!
//! All calls block, except those of `connection_limit`. The module does not know resources,
//! manifests or policy. Its errors name the path, program or URL.

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
pub(crate) use locks::LockFile;
pub use locks::{FileLock, Holder, LockError};
pub use runner::{
    Cancel, Command, Output, RunError, Runner, ScriptedRunner, SystemRunner, supervise,
};
pub use unpack::UnpackError;
pub use users::{AccountError, Accounts};

/// The operating system returned no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("can't get random bits: {0}")]
pub struct RandomError(#[source] Cause);

/// Returns 128 random bits from the operating system.
pub fn random() -> Result<u128, RandomError> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes, |buffer| {
        rustix::rand::getrandom(buffer, rustix::rand::GetRandomFlags::empty())
    })?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Fills a buffer from a source that may return fewer bytes than requested.
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

/// Raises the limit of open files of this process to at least `wanted`, if permitted.
pub fn raise_open_files(wanted: u64) -> Result<(), Cause> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    limit.current = Some(wanted);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        limit.maximum = Some(wanted);
    }
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

/// An operating system error, displayed as upstream prints it: lower case, without the number.
#[derive(Debug)]
pub struct Cause(io::Error);

impl Cause {
    /// Returns the kind of the error.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }

    /// Whether the error has this number.
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
    fn a_missing_random_source_is_an_error() {
        let mut bytes = [7; 16];
        let error = fill_random(&mut bytes, |_| Err(Errno::NOSYS)).unwrap_err();
        let text = "can't get random bits: function not implemented";
        assert_eq!(error.to_string(), text);
        assert!(fill_random(&mut bytes, |_| Ok(0)).is_err());
    }

    #[test]
    fn short_random_reads_are_repeated() {
        let mut bytes = [0; 16];
        let mut call = 0;
        let drawn = fill_random(&mut bytes, |buffer| {
            call += 1;
            if call == 2 {
                return Err(Errno::INTR);
            }
            let count = buffer.len().min(5);
            buffer[..count].fill(call);
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
