//! Command line errors: a kind that fixes the exit code, the cause, and hints for the user.
//!
//! Library errors are wrapped and kept as the source. Hints are written here and in the commands
//! only.

use std::error::Error;
use std::fmt;

use super::diagnostic;
use super::output::print_error;
use ccm_agent::AgentError;
use ccm_agent::MonitorError;
use ccm_agent::config::ConfigError;
use ccm_core::hiera::HieraError;
use ccm_core::run::RunError;
use ccm_core::run::manifest_source::SourceError;
use ccm_fleet::bundle::BundleError;
use ccm_fleet::bundle_store::BundleStoreError;
use ccm_fleet::controls::ControlError;
use ccm_fleet::rollout_store::RolloutError;
use ccm_fleet::start::StartError;
use ccm_nats::NatsError;
use ccm_value::diagnostic::Diagnostic;

/// Hint for requests that must be signed.
pub(super) const SIGN: &str = "use --sign-with or CCM_SIGN_WITH";

/// Hint for a user whose permissions are not those of this version.
const PERMISSIONS: &str = "use the context of a controller; after an upgrade, run `ccm fleet trust push` first, \
    or replace the permissions with those of `ccm fleet permissions controller`";

/// Hint for a digest prefix that matches several bundles.
const DIGEST: &str = "use more characters of the digest";

/// Hint for a source that is not a bundle.
const BUNDLE: &str = "download a single YAML file and apply it as a local file, or pack the \
                      directory of manifest.yaml with `tar -czf site.tar.gz -C DIRECTORY .`";

/// Kind of error, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Invalid arguments or input; nothing was changed.
    Usage,
    /// The command failed.
    Failed,
}

impl Kind {
    fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
        }
    }
}

/// Error that ends a command.
#[derive(Debug)]
pub(super) struct CliError {
    kind: Kind,
    /// Prefix that names what the cause is about.
    context: Option<String>,
    cause: Box<dyn Error + Send + Sync>,
    hints: Vec<String>,
    /// Problems of a document; printed instead of the cause.
    diagnostics: Vec<Diagnostic>,
}

impl CliError {
    /// Returns an error for invalid arguments or input; nothing was changed.
    pub(super) fn usage(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Usage, cause.into())
    }

    /// Returns an error for a command that failed.
    pub(super) fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Failed, cause.into())
    }

    fn new(kind: Kind, cause: Box<dyn Error + Send + Sync>) -> Self {
        Self {
            kind,
            context: None,
            cause,
            hints: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    /// Adds problems of a document, which are printed instead of the cause.
    #[must_use]
    pub(super) fn with_diagnostics(self, diagnostics: Vec<Diagnostic>) -> Self {
        Self {
            diagnostics,
            ..self
        }
    }

    /// Returns the problems of a document.
    pub(super) fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Converts an error of hierarchical data.
    pub(super) fn of_data(err: HieraError) -> Self {
        let diagnostics = err.diagnostics();
        Self::failed(err).with_diagnostics(diagnostics)
    }

    /// Adds a prefix that names what the error is about.
    #[must_use]
    pub(super) fn at(self, context: impl fmt::Display) -> Self {
        Self {
            context: Some(context.to_string()),
            ..self
        }
    }

    /// Adds a hint for the user.
    #[must_use]
    pub(super) fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }

    /// Converts an error about the fleet's buckets and streams.
    pub(super) fn of_fleet(err: NatsError) -> Self {
        let is_missing = matches!(err, NatsError::NoBucket(_) | NatsError::NotStored(_));
        let error = Self::failed(err);
        if is_missing {
            return error.hint("run `ccm fleet init`");
        }
        error
    }

    /// Converts an error of `ccm fleet init`, which may need more permissions than a previous version did.
    pub(super) fn of_init(err: NatsError) -> Self {
        let is_denied = matches!(err, NatsError::Denied(_));
        let error = Self::failed(err);
        if is_denied {
            return error.hint(PERMISSIONS);
        }
        error
    }

    /// Converts an error about the registration stream.
    pub(super) fn of_registrations(err: NatsError) -> Self {
        let is_missing = matches!(err, NatsError::NoStream(_) | NatsError::NotStored(_));
        let error = Self::failed(err);
        if is_missing {
            return error.hint("run `ccm registration init`");
        }
        error
    }

    /// Returns the exit code of the program.
    pub(super) fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }

    /// Returns the hints for the user.
    pub(super) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Prints the error and its hints on standard error.
    pub(super) fn print(&self) {
        if self.diagnostics.is_empty() {
            print_error(&format!("ccm: error: {self}"));
        } else {
            print_error(diagnostic::render_all(&self.diagnostics).trim_end());
        }
        for hint in self.hints() {
            print_error(&format!("ccm: hint: {hint}"));
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(context) = &self.context {
            write!(out, "{context}: ")?;
        }
        self.cause.fmt(out)
    }
}

impl Error for CliError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

impl From<RunError> for CliError {
    fn from(err: RunError) -> Self {
        let diagnostics = err.diagnostics();
        let is_no_bundle = matches!(err, RunError::Source(SourceError::NotABundle(_)));
        let error = if err.is_invalid() {
            Self::usage(err)
        } else {
            Self::failed(err)
        };
        let error = error.with_diagnostics(diagnostics);
        if is_no_bundle {
            return error.hint(BUNDLE);
        }
        error
    }
}

impl From<ConfigError> for CliError {
    fn from(err: ConfigError) -> Self {
        let diagnostics = err.diagnostics().to_vec();
        Self::usage(err).with_diagnostics(diagnostics)
    }
}

impl From<AgentError> for CliError {
    fn from(err: AgentError) -> Self {
        let is_bind_error = matches!(err, AgentError::Monitor(MonitorError::Bind { .. }));
        let error = Self::failed(err);
        if is_bind_error {
            return error
                .hint("see monitor_port and monitor_address in the agent's configuration file");
        }
        error
    }
}

impl From<BundleError> for CliError {
    fn from(err: BundleError) -> Self {
        let diagnostics = match &err {
            BundleError::Manifest(err) => err.diagnostics(),
            _ => Vec::new(),
        };
        Self::usage(err).with_diagnostics(diagnostics)
    }
}

impl From<BundleStoreError> for CliError {
    fn from(err: BundleStoreError) -> Self {
        match err {
            BundleStoreError::Nats(err) => Self::of_fleet(err),
            err @ BundleStoreError::Ambiguous(_) => Self::failed(err).hint(DIGEST),
            err => Self::failed(err),
        }
    }
}

impl From<RolloutError> for CliError {
    fn from(err: RolloutError) -> Self {
        match err {
            RolloutError::Control(ControlError::Unsigned(_)) => Self::usage(err).hint(SIGN),
            RolloutError::NotFound(_) | RolloutError::Control(_) => Self::usage(err),
            RolloutError::TooLarge { .. } => Self::failed(err).hint("select fewer nodes"),
            RolloutError::Nats(err) => Self::of_fleet(err),
            RolloutError::Unconfirmed { ref id, .. } => {
                let hint = format!(
                    "if `ccm fleet rollout list` shows it, continue with `ccm fleet rollout drive {id}`; \
                     else start it again"
                );
                Self::failed(err).hint(hint)
            }
            err => Self::failed(err),
        }
    }
}

impl From<StartError> for CliError {
    fn from(err: StartError) -> Self {
        match err {
            StartError::GovernorTimeout => {
                Self::usage(err).hint("--governor-timeout must be shorter than --node-timeout")
            }
            StartError::SignatureRequired { .. } => Self::usage(err).hint(SIGN),
            StartError::UnknownNodes(_) | StartError::Selection(_) | StartError::Plan(_) => {
                Self::usage(err)
            }
            StartError::BundleStore(err @ BundleStoreError::NotFound(_)) => Self::usage(err),
            StartError::BundleStore(err @ BundleStoreError::Ambiguous(_)) => {
                Self::usage(err).hint(DIGEST)
            }
            StartError::BundleStore(BundleStoreError::Nats(err)) | StartError::Nats(err) => {
                Self::of_fleet(err)
            }
            StartError::Rollout(err) => err.into(),
            err @ (StartError::BundleStore(_) | StartError::Signing(_) | StartError::Random(_)) => {
                Self::failed(err)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_nats::connection::{Denial, Operation};

    #[test]
    fn the_kind_sets_the_exit_code_and_the_cause_is_kept() {
        let failed = CliError::of_fleet(NatsError::NoBucket("NODES".into()));
        assert_eq!(failed.exit_code(), 1);
        assert_eq!(failed.hints, ["run `ccm fleet init`"]);
        let source = failed.source().unwrap();
        let cause = source.downcast_ref::<NatsError>().unwrap();
        assert!(matches!(cause, NatsError::NoBucket(_)), "{cause:?}");
        assert_eq!(failed.to_string(), cause.to_string());
        let denied = CliError::of_init(NatsError::Denied(Denial {
            operation: Operation::Publish,
            subject: "$KV.CCM_DESIRED.incarnation".into(),
        }));
        assert_eq!(denied.hints, [PERMISSIONS]);
        let usage = CliError::from(StartError::GovernorTimeout);
        assert_eq!(usage.exit_code(), 2);
        assert_eq!(usage.to_string(), StartError::GovernorTimeout.to_string());
        assert_eq!(usage.hints.len(), 1);
    }

    #[test]
    fn the_context_is_a_prefix_and_hints_are_separate() {
        let error = CliError::usage("no seed").at("ops.seed").hint(SIGN);
        assert_eq!(error.to_string(), "ops.seed: no seed");
        assert_eq!(error.source().unwrap().to_string(), "no seed");
    }
}
