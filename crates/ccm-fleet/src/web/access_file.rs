//! The file with the tokens of a server, which is read again when it changes.
//!
//! A server whose file has become invalid, unsafe or unreadable refuses every request until the file is
//! valid again: it can't know which tokens were withdrawn.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::access::{Access, AccessError, AccessRole};
use ccm_core::engine::{Level, Line};
use ccm_core::run::log::Log;
use ccm_core::system::files::{self, FileError};
use ccm_value::secret::Secret;

/// Size limit of the file.
const MAX_SIZE: u64 = 1024 * 1024;

/// Interval at which the file is read again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a file with tokens is refused.
#[derive(Debug, thiserror::Error)]
pub enum AccessFileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {cause}", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        cause: AccessError,
    },
}

/// A file with tokens.
#[derive(Clone, Debug)]
pub struct AccessFile {
    path: PathBuf,
    /// Role of the only token, if the file contains nothing but a token.
    single: Option<AccessRole>,
}

impl AccessFile {
    /// Returns a YAML file with named tokens and their roles.
    pub fn with_roles(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            single: None,
        }
    }

    /// Returns a file with a single token in plain text.
    pub fn with_token(path: &Path, role: AccessRole) -> Self {
        Self {
            path: path.to_owned(),
            single: Some(role),
        }
    }

    /// Reads the file. Refuses one that others may read or write.
    pub fn load(&self) -> Result<Access, AccessFileError> {
        self.parse(&self.read()?)
    }

    fn read(&self) -> Result<Secret, FileError> {
        files::read_secret(&self.path, MAX_SIZE).map(Secret::new)
    }

    fn parse(&self, text: &Secret) -> Result<Access, AccessFileError> {
        let parsed = match self.single {
            None => Access::parse(text.reveal()),
            Some(role) => Access::single(&Secret::new(text.reveal().trim()), role),
        };
        parsed.map_err(|cause| AccessFileError::Invalid {
            path: self.path.clone(),
            cause,
        })
    }
}

/// The access that is valid now.
#[derive(Clone, Debug)]
pub(super) struct CurrentAccess(Arc<watch::Sender<Arc<Access>>>);

impl CurrentAccess {
    pub(super) fn new(access: Access) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(access))))
    }

    pub(super) fn get(&self) -> Arc<Access> {
        self.0.borrow().clone()
    }

    /// Returns a receiver that is notified when the access changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Access>> {
        self.0.subscribe()
    }

    fn set(&self, access: Access) {
        self.0.send_replace(Arc::new(access));
    }
}

/// Reads a file again and again, and sets the access when its content has changed. Never returns.
pub(super) async fn follow(file: AccessFile, current: CurrentAccess, log: Log) {
    // What was found last: the content, or why there is none.
    let mut last: Option<Result<Secret, String>> = None;
    loop {
        let found = file.read();
        let seen = match &found {
            Ok(text) => Ok(text.clone()),
            Err(err) => Err(err.to_string()),
        };
        if last.as_ref() != Some(&seen) {
            let loaded = match found {
                Ok(text) => file.parse(&text),
                Err(err) => Err(err.into()),
            };
            let path = file.path.display().to_string();
            match loaded {
                // The first reading repeats that of the start.
                Ok(access) if last.is_none() => current.set(access),
                Ok(access) => {
                    current.set(access);
                    let line = Line::new(Level::Info, "Read the changed file with tokens");
                    log.line(&line.with("file", path));
                }
                Err(err) => {
                    current.set(Access::closed());
                    let text = "Every request is refused until the file with tokens is valid again";
                    log.line(&Line::new(Level::Error, text).with("error", err));
                }
            }
            last = Some(seen);
        }
        sleep(INTERVAL).await;
    }
}
