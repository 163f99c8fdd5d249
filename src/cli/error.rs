//! Errors as people and scripts see them: sorted into kinds, each with its exit code, and with hints
//! about what to do.
//!
//! Only here, and where commands make these errors, is advice for a terminal worded. Libraries say
//! what happened; their errors stay behind ours as the source.

use std::error::Error;
use std::fmt;

use super::output::complain;
use ccm_agent::AgentError;
use ccm_agent::http_server::MonitorError;
use ccm_core::run::RunError;
use ccm_fleet::bundle_store::BundlesError;
use ccm_fleet::controls::SteerError;
use ccm_fleet::rollout_store::RolloutError;
use ccm_fleet::start::StartError;
use ccm_nats::NatsError;

/// What to do where something has to be signed and nobody signs.
pub(super) const SIGN: &str = "give --sign-with or CCM_SIGN_WITH";

/// What to do about a digest that stands for several bundles.
const DIGEST: &str = "give more of the digest";

/// What kind of error ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The request itself is wrong; nothing was touched.
    Usage,
    /// The request was right, carrying it out was not possible.
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

/// Why a command ended without doing, or without finishing, what it was asked.
#[derive(Debug)]
pub(super) struct CliError {
    kind: Kind,
    /// What the cause is about, where it does not say so itself.
    place: Option<String>,
    cause: Box<dyn Error + Send + Sync>,
    hints: Vec<String>,
}

impl CliError {
    /// The request itself is wrong; nothing was touched.
    pub(super) fn usage(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Usage, cause.into())
    }

    /// The request was right, carrying it out was not possible.
    pub(super) fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Failed, cause.into())
    }

    fn new(kind: Kind, cause: Box<dyn Error + Send + Sync>) -> Self {
        Self {
            kind,
            place: None,
            cause,
            hints: Vec::new(),
        }
    }

    /// Puts what the error is about before its text.
    #[must_use]
    pub(super) fn at(self, place: impl fmt::Display) -> Self {
        Self {
            place: Some(place.to_string()),
            ..self
        }
    }

    /// Adds what a person can do about it.
    #[must_use]
    pub(super) fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }

    /// Sorts what went wrong with the fleet's buckets and streams.
    pub(super) fn of_fleet(err: NatsError) -> Self {
        let is_missing = matches!(err, NatsError::NoBucket(_) | NatsError::NotStored(_));
        let error = Self::failed(err);
        if is_missing {
            return error.hint("`ccm fleet init` makes it");
        }
        error
    }

    /// Sorts what went wrong with registered services.
    pub(super) fn of_registrations(err: NatsError) -> Self {
        let is_missing = matches!(err, NatsError::NoStream(_) | NatsError::NotStored(_));
        let error = Self::failed(err);
        if is_missing {
            return error.hint("run `ccm registration init`");
        }
        error
    }

    /// Returns what the program ends with.
    pub(super) fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }

    /// Returns what a person can do about it.
    pub(super) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Tells a person on standard error.
    pub(super) fn tell(&self) {
        complain(&format!("ccm: error: {self}"));
        for hint in self.hints() {
            complain(&format!("ccm: hint: {hint}"));
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(out, "{place}: ")?;
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
        if err.is_invalid() {
            Self::usage(err)
        } else {
            Self::failed(err)
        }
    }
}

impl From<AgentError> for CliError {
    fn from(err: AgentError) -> Self {
        let is_taken = matches!(err, AgentError::Monitor(MonitorError::Bind { .. }));
        let error = Self::failed(err);
        if is_taken {
            return error.hint("see the keys monitor_port and monitor_address of the agent's file");
        }
        error
    }
}

impl From<BundlesError> for CliError {
    fn from(err: BundlesError) -> Self {
        match err {
            BundlesError::Nats(err) => Self::of_fleet(err),
            err @ BundlesError::Ambiguous(_) => Self::failed(err).hint(DIGEST),
            err => Self::failed(err),
        }
    }
}

impl From<RolloutError> for CliError {
    fn from(err: RolloutError) -> Self {
        match err {
            RolloutError::Steer(SteerError::Unsigned(_)) => Self::usage(err).hint(SIGN),
            RolloutError::NotFound(_) | RolloutError::Steer(_) => Self::usage(err),
            RolloutError::TooLarge { .. } => Self::failed(err).hint("choose fewer nodes"),
            RolloutError::Nats(err) => Self::of_fleet(err),
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
            StartError::Bundles(err @ BundlesError::NotFound(_)) => Self::usage(err),
            StartError::Bundles(err @ BundlesError::Ambiguous(_)) => Self::usage(err).hint(DIGEST),
            StartError::Bundles(BundlesError::Nats(err)) | StartError::Nats(err) => {
                Self::of_fleet(err)
            }
            StartError::Rollout(err) => err.into(),
            err @ (StartError::Bundles(_) | StartError::Signing(_) | StartError::Random(_)) => {
                Self::failed(err)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_exit_code_and_keeps_its_cause() {
        let failed = CliError::of_fleet(NatsError::NoBucket("NODES".into()));
        assert_eq!(failed.exit_code(), 1);
        assert_eq!(failed.hints, ["`ccm fleet init` makes it"]);
        let source = failed.source().unwrap();
        let cause = source.downcast_ref::<NatsError>().unwrap();
        assert!(matches!(cause, NatsError::NoBucket(_)), "{cause:?}");
        assert_eq!(failed.to_string(), cause.to_string());
        let usage = CliError::from(StartError::GovernorTimeout);
        assert_eq!(usage.exit_code(), 2);
        assert_eq!(usage.to_string(), StartError::GovernorTimeout.to_string());
        assert_eq!(usage.hints.len(), 1);
    }

    #[test]
    fn a_place_stands_before_the_cause_and_a_hint_is_no_part_of_the_text() {
        let error = CliError::usage("no seed").at("ops.seed").hint(SIGN);
        assert_eq!(error.to_string(), "ops.seed: no seed");
        assert_eq!(error.source().unwrap().to_string(), "no seed");
    }
}
