//! The life of a manifest: its resources in order, each applied, reported and recorded.

use super::{Engine, FlowError, Level, Line, Scope, Session, SessionError};
use crate::manifest::Manifest;
use crate::model::event::TransactionEvent;
use crate::model::{Resource, TypeName};

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
        let mode = scope.mode;
        if mode.noop && mode.health_check_only {
            return Err(RunError::TwoModes);
        }
        self.say(scope, opening(scope, manifest));
        self.packages.expect_many();
        for resource in &manifest.resources {
            if mode.health_check_only && !has_checks(resource) {
                continue;
            }
            let event = self
                .apply(scope, resource)
                .map_err(|cause| RunError::Flow {
                    label: resource.label(),
                    cause: cause.into(),
                })?;
            let failed = event.failed;
            if let Err(err) = self.record(scope, event) {
                let line = Line::new(Level::Error, "Could not save event");
                self.say(scope, line.with("error", err));
            }
            if failed && manifest.fail_on_error && !mode.health_check_only {
                let text = "Terminating manifest execution due to failed resource";
                self.say(scope, Line::new(Level::Warn, text));
                break;
            }
        }
        Ok(())
    }

    /// Reports and records an event.
    pub fn record(&mut self, scope: &Scope, event: TransactionEvent) -> Result<(), SessionError> {
        let manifest = scope.manifest.as_deref();
        self.sink.borrow_mut().event(&event, manifest);
        self.session.record(event)
    }

    /// Ends the engine and returns what it remembers.
    pub fn into_session(self) -> Session {
        self.session
    }
}

/// Reports whether a run of health checks only has anything to do here; a nested manifest may.
fn has_checks(resource: &Resource) -> bool {
    !resource.common.health_checks.is_empty() || resource.type_name() == TypeName::Apply
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
