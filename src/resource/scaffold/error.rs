//! What can be wrong with a scaffold. The words that users know from upstream are kept.

use std::io;
use std::path::PathBuf;

use crate::model::text::{SplitError, quote};
use crate::system::files::BadPattern;
use crate::system::{FileError, HttpError, UnpackError};
use crate::template::engines::RenderError;

/// Why a scaffold can't be rendered, compared or put in place.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error("scaffold source {0} is no http or https URL of a .zip, .tar.gz, .tgz or .tar")]
    UnsupportedSource(String),
    /// Whoever asks may not read the source; the text says what is missing.
    #[error("source: {0}")]
    MayNotRead(String),
    #[error("cannot get source: {0}")]
    Http(#[from] HttpError),
    #[error("cannot unpack source: {0}")]
    Unpack(#[from] UnpackError),
    #[error("cannot unpack source: {0}")]
    Temporary(#[from] FileError),
    #[error("cannot read source directory: stat {}: no such file or directory", .0.display())]
    NoSource(PathBuf),
    #[error("cannot read source directory: {0}")]
    Source(FileError),
    #[error("invalid file in source: {0}")]
    InvalidFile(String),
    #[error("both left_delimiter and right_delimiter must be set")]
    OneDelimiter,
    #[error("{} holds more than {limit} files and directories", directory.display())]
    TooManyFiles { directory: PathBuf, limit: usize },
    #[error("the files of {} make more than {limit} bytes", directory.display())]
    TooLarge { directory: PathBuf, limit: u64 },
    #[error(transparent)]
    Template(#[from] RenderError),
    #[error("could not start rendering: {0}")]
    Thread(io::Error),
    #[error("rendering stopped before its end")]
    Stopped,
    #[error("refusing to purge {}", .0.display())]
    PurgeRoot(PathBuf),
    #[error("post pattern {}: {cause}", quote(.pattern))]
    Pattern { pattern: String, cause: BadPattern },
    #[error("post command for {}: {cause}", quote(.pattern))]
    Command { pattern: String, cause: SplitError },
    #[error("post command for {} is empty", quote(.0))]
    NoCommand(String),
    #[error("failed to post process {file}\nerror: {reason}\noutput: {}", quote(.output))]
    Post {
        file: String,
        reason: String,
        output: String,
    },
    #[error("failed to remove {}: {cause}", path.display())]
    Remove { path: PathBuf, cause: FileError },
}
