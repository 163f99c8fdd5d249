//! Scaffold errors. Texts known from upstream CCM are kept.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::diagnostic::Diagnostic;
use crate::model::text::{SplitError, quote};
use crate::system::files::BadPattern;
use crate::system::{FileError, HttpError, RunError, UnpackError};
use ccm_template::CallError;
use ccm_template::engines::RenderError;

/// A failure to render, compare or write a scaffold.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    #[error(
        "unsupported scaffold source {0}: expected an http or https URL of a .zip, .tar.gz, .tgz or .tar"
    )]
    UnsupportedSource(String),
    /// The requester may not read the source; the text names the missing permission.
    #[error("source: {0}")]
    SourceDenied(#[source] CallError),
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
    #[error("{} contains more than {limit} files and directories", directory.display())]
    TooManyFiles { directory: PathBuf, limit: usize },
    #[error("the rendered files of {} exceed {limit} bytes", directory.display())]
    TooLarge { directory: PathBuf, limit: u64 },
    #[error("{cause}")]
    Template {
        #[source]
        cause: Box<RenderError>,
        /// The same error, with its source line.
        diagnostic: Box<Diagnostic>,
    },
    #[error("the names of its files depend on a secret, and events show them")]
    SecretName,
    #[error("could not start the render thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the render thread panicked")]
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

impl ScaffoldError {
    /// Returns the error of a directory with more entries than the limit.
    pub(super) fn too_many(directory: &Path, limit: usize) -> Self {
        Self::TooManyFiles {
            directory: directory.to_owned(),
            limit,
        }
    }
}

/// A failed post command.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("exit status {0}")]
    Exit(i32),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// An error of the template functions `render` and `write`.
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
    #[error("more than {0} partials rendered")]
    TooMany(usize),
    #[error(transparent)]
    Read(#[from] FileError),
    #[error(transparent)]
    Template(#[from] RenderError),
    #[error(transparent)]
    Scaffold(#[from] ScaffoldError),
}
