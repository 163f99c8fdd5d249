//! The life of a manifest: its resources in order, each applied, reported and recorded.

use super::{Engine, FlowError, Level, Line, Scope};
use crate::manifest::Manifest;
use crate::model::event::TransactionEvent;

/// Why a run ended before its last resource.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot set healthcheck only and noop mode at the same time")]
    TwoModes,
    #[error("{label}: {cause}")]
    Flow { label: String, cause: FlowError },
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
                    cause,
                })?;
            let failed = event.failed;
            self.finish(event);
            if failed && manifest.fail_on_error && !mode.health_check_only {
                let text = "Terminating manifest execution due to failed resource";
                self.say(&Line::new(Level::Warn, text));
                break;
            }
        }
        Ok(())
    }

    /// Reports and records an event; a record that can't be written is said, not fatal.
    pub fn finish(&mut self, event: TransactionEvent) {
        self.sink.borrow_mut().event(&event);
        if let Err(err) = self.session.record(event) {
            self.say(&Line::new(Level::Error, "Could not save event").with("error", err));
        }
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
