//! Errors of resource types, and the output of commands that they show.

use std::fmt;

use super::{account, archive, file, line, package, scaffold, service};
use crate::model::TypeName;
use crate::model::diagnostic::Diagnostic;
use crate::model::output::{self, CommandOutput};
use crate::model::resource::{InvalidProperty, Resource};
use crate::model::state::State;
use crate::model::text::SplitError;
use crate::system::files::FileError;
use crate::system::{AccountError, LockError, RunError, UnpackError};
use ccm_template::CallError;
use ccm_template::engines::RenderError;

/// A resource without a usable provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    #[error("no suitable provider found")]
    NoneSuitable,
    #[error("invalid resource: provider not found")]
    NotFound,
    #[error("invalid resource: provider is not manageable: not applicable to instance")]
    NotManageable,
}

/// A failure to inspect or change a resource.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error("{0}{output}", output = ErrorOutput::of_killed(.0))]
    Run(#[from] RunError),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Service(#[from] service::ServiceError),
    #[error("invalid guard command: {0}")]
    Guard(#[source] SplitError),
    #[error("empty guard command")]
    EmptyGuard,
    #[error("no command specified")]
    NoCommand,
    #[error(transparent)]
    Package(#[from] package::PackageError),
    #[error(transparent)]
    Line(#[from] line::LineError),
    #[error(transparent)]
    AccountChange(#[from] account::AccountChangeError),
    #[error(transparent)]
    Tree(file::TreeError),
    #[error("{cause}")]
    Template {
        #[source]
        cause: Box<RenderError>,
        /// The same error, with its source line.
        diagnostic: Box<Diagnostic>,
    },
    #[error("the new file was refused: validation failed with exit code {code}{error_output}")]
    Invalidated {
        code: i32,
        error_output: ErrorOutput,
    },
    /// The requester may not read the source; the text names the missing permission.
    #[error("source: {0}")]
    SourceDenied(#[source] CallError),
    #[error("{0} exists as a directory; cannot manage it as a file")]
    IsDirectory(String),
    #[error("{0} is a device, socket or FIFO; remove it first to replace it by a file")]
    SpecialFile(String),
    #[error("download failed: {0}")]
    Download(#[source] archive::DownloadError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("archive type not supported")]
    ArchiveType,
    #[error("failed to reach desired state: {ensure}: {reason}")]
    NotReached {
        ensure: String,
        reason: String,
        /// What the service or package manager printed.
        output: String,
    },
    /// Upstream repeats the exit code in this text.
    #[error("failed to reach desired state: exit code {code} {reason}{error_output}")]
    ExitCode {
        code: i32,
        reason: String,
        error_output: ErrorOutput,
    },
    #[error(transparent)]
    Scaffold(#[from] scaffold::ScaffoldError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error("expected the state of a resource of type {wanted}, got {found}")]
    OtherState { wanted: TypeName, found: TypeName },
}

impl ResourceError {
    /// Returns the error of a resource that is not in its wanted state after a change.
    pub(super) fn not_reached(resource: &Resource, reason: impl Into<String>) -> Self {
        Self::NotReached {
            ensure: resource.common.ensure.clone(),
            reason: reason.into(),
            output: String::new(),
        }
    }

    /// Returns the last lines of the failed command's output, for the event.
    pub fn output(&self) -> String {
        let of_killed = |err: &RunError| err.output().map(CommandOutput::tail);
        match self {
            Self::Run(err)
            | Self::Service(service::ServiceError::Run(err))
            | Self::Package(package::PackageError::Run(err)) => of_killed(err).unwrap_or_default(),
            Self::Service(err) => err.output(),
            Self::Package(err) => err.output(),
            Self::Scaffold(scaffold::ScaffoldError::Post { output, .. }) => output.clone(),
            Self::NotReached { output, .. } => output.clone(),
            Self::ExitCode { error_output, .. } | Self::Invalidated { error_output, .. } => {
                error_output.output.clone()
            }
            Self::AccountChange(err) => err.output(),
            _ => String::new(),
        }
    }

    /// Returns the error for a state of another type.
    pub(super) fn other_state(wanted: TypeName, state: &State) -> Self {
        let found = state.detail.type_name();
        Self::OtherState { wanted, found }
    }
}

/// The number of output lines in the error of a command that was started for a user.
pub(super) const MAX_ERROR_LINES: usize = 3;

/// The last lines of a command's output, as the end of an error. Displayed on one line; empty if there
/// are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorOutput {
    pub(super) lines: Vec<String>,
    /// More of the output, for the event.
    pub(super) output: String,
}

impl ErrorOutput {
    /// Returns error output of these lines.
    pub fn new(lines: Vec<String>) -> Self {
        let output = output::tail(&lines.join("\n"));
        Self { lines, output }
    }

    /// Returns the last lines of a command that was killed.
    fn of_killed(error: &RunError) -> Self {
        let lines = error.output().map(|it| it.last_lines(MAX_ERROR_LINES));
        Self::new(lines.unwrap_or_default())
    }
}

impl fmt::Display for ErrorOutput {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return Ok(());
        }
        write!(out, ": {}", self.lines.join("; "))
    }
}
