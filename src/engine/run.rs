//! The life of a manifest: its resources in order, each applied, reported and recorded.

use super::{Engine, FlowError, Level, Line, Scope, Session, SessionError};
use crate::manifest::Manifest;
use crate::model::event::TransactionEvent;

/// Why a run ended before its last resource.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot set healthcheck only and noop mode at the same time")]
    TwoModes,
    #[error("{label}: {cause}")]
    Flow {
        label: String,
        cause: Box<FlowError>,
    },
}

impl Engine<'_> {
    /// Runs a manifest to its end, or to its first failed resource if it says so.
    pub fn run(&mut self, scope: &Scope, manifest: &Manifest) -> Result<(), RunError> {
        let mode = &scope.mode;
        if mode.noop && mode.health_check_only {
            return Err(RunError::TwoModes);
        }
        self.say(&opening(scope, manifest));
        for resource in &manifest.resources {
            if mode.health_check_only && resource.common.health_checks.is_empty() {
                continue;
            }
            let event = self
                .apply(scope, resource)
                .map_err(|cause| RunError::Flow {
                    label: resource.label(),
                    cause: cause.into(),
                })?;
            let failed = event.failed;
            if let Err(err) = self.record(event) {
                self.say(&Line::new(Level::Error, "Could not save event").with("error", err));
            }
            if failed && manifest.fail_on_error && !mode.health_check_only {
                let text = "Terminating manifest execution due to failed resource";
                self.say(&Line::new(Level::Warn, text));
                break;
            }
        }
        Ok(())
    }

    /// Reports and records an event.
    pub fn record(&mut self, event: TransactionEvent) -> Result<(), SessionError> {
        self.sink.borrow_mut().event(&event);
        self.session.record(event)
    }

    /// Ends the engine and returns what it remembers.
    pub fn into_session(self) -> Session {
        self.session
    }
}

fn opening(scope: &Scope, manifest: &Manifest) -> Line {
    let line = if scope.mode.health_check_only {
        Line::new(Level::Info, "Executing manifest health checks").with("healthcheck", true)
    } else {
        Line::new(Level::Info, "Executing manifest")
    };
    line.with("manifest", &manifest.source)
        .with("resources", manifest.resources.len())
}
