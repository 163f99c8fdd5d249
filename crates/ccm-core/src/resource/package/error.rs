//! Package errors, with upstream's texts followed by the package manager's error output.

use super::cfengine::ModuleError;
use super::versions::VersionError;
use crate::model::output::last_lines;
use crate::model::resource::InvalidProperty;
use crate::model::text::quote;
use crate::resource::ErrorOutput;
use crate::system::{FileError, LockError, Output, RunError};

/// The number of error output lines in an error.
const LINES: usize = 6;

/// Prefixes of dnf 4 and 5 output lines that do not explain a failure, such as progress.
const DNF_IGNORED: [&str; 4] = [
    "Unable to detect release version",
    "Updating and loading repositories",
    "Repositories loaded",
    "[",
];

/// A failure to query or change packages.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Invalid(#[from] InvalidProperty),
    #[error(transparent)]
    Version(#[from] VersionError),
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error(
        "failed to install package {}, apt-get exited {code}{error_output}",
        quote(package)
    )]
    AptInstall {
        package: String,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("failed to uninstall {package}{error_output}")]
    AptUninstall {
        package: String,
        error_output: ErrorOutput,
    },
    #[error("failed to uninstall {package}: {cause}")]
    AptNotStarted {
        package: String,
        #[source]
        cause: Box<PackageError>,
    },
    #[error(
        "could not find Candidate: line in apt-cache policy output for {package}{error_output}"
    )]
    NoCandidateLine {
        package: String,
        error_output: ErrorOutput,
    },
    #[error("package {} has no installable version", quote(.0))]
    NoCandidate(String),
    #[error(
        "failed to Install package {}, dnf exited {code}{error_output}",
        quote(package)
    )]
    DnfInstall {
        package: String,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("failed to {verb} {package}, dnf exited {code}{error_output}")]
    Dnf {
        verb: &'static str,
        package: String,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("failed to update the package index, {program} exited {code}{error_output}")]
    Index {
        program: &'static str,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("failed to query packages, {program} exited {code}{error_output}")]
    Query {
        program: &'static str,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("failed to parse {command} output for {package}")]
    Parse {
        command: &'static str,
        package: String,
    },
    #[error("unsupported dnf option {}", quote(.0))]
    Option(String),
    #[error("package file {path} does not contain {what} {}", quote(wanted))]
    NotInFile {
        path: String,
        /// Version or architecture.
        what: &'static str,
        wanted: String,
    },
    #[error("{program} printed more than {limit} bytes")]
    OutputTooLong { program: String, limit: usize },
    #[error("could not read package file {path}{error_output}")]
    NotAPackage {
        path: String,
        error_output: ErrorOutput,
    },
    #[error("package file {path} contains version {held}, requested {wanted}")]
    VersionMismatch {
        path: String,
        held: String,
        wanted: String,
    },
}

impl PackageError {
    /// Returns the last lines of the package manager's output, for the event.
    pub(in crate::resource) fn output(&self) -> String {
        let error_output = match self {
            Self::AptInstall { error_output, .. }
            | Self::AptUninstall { error_output, .. }
            | Self::NoCandidateLine { error_output, .. }
            | Self::DnfInstall { error_output, .. }
            | Self::Dnf { error_output, .. }
            | Self::Index { error_output, .. }
            | Self::Query { error_output, .. }
            | Self::NotAPackage { error_output, .. }
            | Self::Module(
                ModuleError::Api { error_output, .. } | ModuleError::Failed { error_output, .. },
            ) => error_output,
            Self::AptNotStarted { cause, .. } => return cause.output(),
            _ => return String::new(),
        };
        error_output.output.clone()
    }
}

impl ErrorOutput {
    /// Returns the last lines of standard error, or of standard output if that is empty.
    pub(super) fn of(output: &Output) -> Self {
        let printed = output.printed();
        Self::with_lines(printed.last_lines(LINES), output)
    }

    fn with_lines(lines: Vec<String>, output: &Output) -> Self {
        let output = output.printed().tail();
        Self { lines, output }
    }

    /// Returns the last lines of apt-get's output. If dpkg failed, the reason is on standard output, and
    /// standard error only mentions the failure.
    pub(super) fn of_apt(output: &Output) -> Self {
        let mut errors = last_lines(&output.stderr_text(), LINES);
        errors.retain(|line| !line.starts_with("debconf: "));
        if errors.iter().any(|line| line.contains("Sub-process")) || errors.is_empty() {
            let mut lines = last_lines(&output.stdout_text(), LINES);
            lines.append(&mut errors);
            return Self::with_lines(lines, output);
        }
        Self::with_lines(errors, output)
    }

    /// Returns the last lines of dnf's output. If a scriptlet failed, its output is on standard output,
    /// between the `Running scriptlet` line and the `Verifying` line.
    pub(super) fn of_dnf(output: &Output) -> Self {
        let Self {
            lines: mut errors, ..
        } = Self::of(output);
        errors.retain(|line| !DNF_IGNORED.iter().any(|prefix| line.starts_with(prefix)));
        if errors.iter().any(|line| line.contains("scriptlet")) {
            let text = output.stdout_text();
            let scriptlet = text
                .rsplit_once("Running scriptlet: ")
                .unwrap_or_default()
                .1;
            let scriptlet = scriptlet.split("Verifying").next().unwrap_or_default();
            let scriptlet = scriptlet.split_once('\n').unwrap_or_default().1;
            errors.splice(0..0, last_lines(scriptlet, LINES));
        }
        Self::with_lines(errors, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_dnf(stdout: &str, stderr: &str) -> String {
        ErrorOutput::of_dnf(&Output {
            code: 1,
            stdout: stdout.into(),
            stderr: stderr.into(),
            ..Output::default()
        })
        .to_string()
    }

    #[test]
    fn the_output_of_a_failed_scriptlet_is_included() {
        let stdout = "Running transaction\n  Preparing : 1/1\n  Running scriptlet: a-1.noarch 1/1\n\
                      no repair yet\nwarning: %pre(a-1) failed\n\n  Verifying : a-1 1/1\nFailed:\n  a-1\n";
        let stderr = "Unable to detect release version (use it)\nError in PREIN scriptlet in a\n";
        assert_eq!(
            of_dnf(stdout, stderr),
            ": no repair yet; warning: %pre(a-1) failed; Error in PREIN scriptlet in a"
        );
        assert_eq!(
            of_dnf("", "Error in PREIN scriptlet"),
            ": Error in PREIN scriptlet"
        );
    }

    #[test]
    fn other_failures_include_only_error_lines() {
        let stdout = "Running scriptlet: a-1.noarch 1/1\nfine\n";
        assert_eq!(of_dnf(stdout, "Error: no\n"), ": Error: no");
        let dnf5 = "Updating and loading repositories:\nRepositories loaded.\n\
                     [1/2] Total 100%\nNo match for argument: a\n";
        assert_eq!(of_dnf("", dnf5), ": No match for argument: a");
    }
}
