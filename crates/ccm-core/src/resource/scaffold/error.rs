//! What can be wrong with a scaffold. The words that users know from upstream are kept.

use std::io;
use std::path::PathBuf;

use crate::model::text::{SplitError, quote};
use crate::system::files::BadPattern;
use crate::system::{FileError, HttpError, RunError, UnpackError};
use ccm_template::CallError;
use ccm_template::engines::RenderError;

/// Why a scaffold can't be rendered, compared or put in place.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error("scaffold source {0} is no http or https URL of a .zip, .tar.gz, .tgz or .tar")]
    UnsupportedSource(String),
    /// Whoever asks may not read the source; the text says what is missing.
    #[error("source: {0}")]
    MayNotRead(#[source] CallError),
    #[error("cannot get source: {0}")]
    Http(#[from] HttpError),
    #[error("cannot unpack source: {0}")]
    Unpack(#[from] UnpackError),
    #[error("cannot unpack source: {0}")]
    Temporary(#[from] FileError),
    #[error("cannot read source directory: stat {}: no such file or directory", .0.display())]
    NoSource(PathBuf),
    #[error("cannot read source directory: {0}")]
    Source(#[source] FileError),
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
    Thread(#[source] io::Error),
    #[error("rendering stopped before its end")]
    Stopped,
    #[error("refusing to purge {}", .0.display())]
    PurgeRoot(PathBuf),
    #[error("post pattern {}: {cause}", quote(.pattern))]
    Pattern {
        pattern: String,
        #[source]
        cause: BadPattern,
    },
    #[error("post command for {}: {cause}", quote(.pattern))]
    Command {
        pattern: String,
        #[source]
        cause: SplitError,
    },
    #[error("post command for {} is empty", quote(.0))]
    NoCommand(String),
    #[error("failed to post process {file}\nerror: {cause}\noutput: {}", quote(.output))]
    Post {
        file: String,
        #[source]
        cause: PostError,
        output: String,
    },
    #[error("failed to remove {}: {cause}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        cause: FileError,
    },
}

/// Why a file that was written could not be processed.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("exit status {0}")]
    Exit(i32),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a template may not read or make a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FunctionError {
    #[error("requires a file name and a context")]
    RenderArguments,
    #[error("requires a file name and a text")]
    WriteArguments,
    #[error("{name} is not in source directory {}", source_dir.display())]
    OutsideSource { name: String, source_dir: PathBuf },
    #[error("{path} is not in target directory {}", target.display())]
    OutsideTarget { path: String, target: PathBuf },
    #[error("{action} {path}: is a directory")]
    Directory { action: &'static str, path: String },
    #[error("open {0}: no such file or directory")]
    NotFound(String),
    #[error("invalid file in source: {0}")]
    InvalidFile(String),
    #[error("{0} is not UTF-8 text")]
    NotText(String),
    #[error("partials nest deeper than {0} levels")]
    TooDeep(usize),
    #[error("more than {0} partials are rendered")]
    TooMany(usize),
    #[error(transparent)]
    Read(#[from] FileError),
    #[error(transparent)]
    Template(#[from] RenderError),
    #[error(transparent)]
    Scaffold(#[from] ScaffoldError),
}
