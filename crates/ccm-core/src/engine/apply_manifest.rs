//! The life of a manifest: its resources in order, each applied, reported and recorded.

use std::sync::Arc;

use super::pending_refreshes::Subscribers;
use super::{Engine, FlowError, Level, Line, Scope, Session, SessionError};
use crate::manifest::Manifest;
use crate::model::event::TransactionEvent;
use crate::model::{Resource, TypeName};

/// Why a run ended before its last resource.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot set healthcheck only and noop mode at the same time")]
    TwoModes,
    #[error("stopped before {label}: {reason}")]
    Stopped { label: String, reason: String },
    #[error("{label}: {cause}")]
    Flow {
        label: String,
        #[source]
        cause: Box<FlowError>,
    },
}

impl RunError {
    fn of(resource: &Resource, cause: FlowError) -> Self {
        Self::Flow {
            label: resource.label(),
            cause: cause.into(),
        }
    }
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
        let outer = std::mem::replace(&mut self.subscribers, Subscribers::of(manifest));
        let result = self.run_resources(scope, manifest);
        self.subscribers = outer;
        result
    }

    fn run_resources(&mut self, scope: &Scope, manifest: &Manifest) -> Result<(), RunError> {
        let mode = scope.mode;
        for resource in &manifest.resources {
            if mode.health_check_only && !has_checks(resource) {
                self.pass_over(scope, resource)?;
                continue;
            }
            if let Some(reason) = self.stop.and_then(|stop| stop()) {
                let label = resource.label();
                return Err(RunError::Stopped { label, reason });
            }
            let not_owed = self.not_owed(resource);
            let event = self
                .apply(scope, resource)
                .map_err(|cause| RunError::of(resource, cause))?;
            self.settle(scope, resource, &event, not_owed);
            let failed = event.failed;
            if let Err(err) = self.record(scope, event) {
                self.say_lost(scope, &err);
            }
            if failed && manifest.fail_on_error && !mode.health_check_only {
                let text = "Terminating manifest execution due to failed resource";
                self.say(scope, Line::new(Level::Warn, text));
                break;
            }
        }
        Ok(())
    }

    /// Counts a resource that a run of health checks has nothing to ask. Who watches is not told.
    fn pass_over(&mut self, scope: &Scope, resource: &Arc<Resource>) -> Result<(), RunError> {
        let is_managed = self
            .is_managed(scope, resource)
            .map_err(|cause| RunError::of(resource, cause))?;
        let now = self.machine.clock.now();
        let provider = &resource.common.provider;
        let id = self
            .next_id(now)
            .map_err(|cause| RunError::of(resource, cause.into()))?;
        let mut event = TransactionEvent::begin(id, now, provider, resource);
        event.health_check_only = true;
        event.skipped = !is_managed;
        if let Err(err) = self.session.record(event) {
            self.say_lost(scope, &err);
        }
        Ok(())
    }

    fn say_lost(&self, scope: &Scope, error: &SessionError) {
        let line = Line::new(Level::Error, "Could not save event");
        self.say(scope, line.with("error", error));
    }

    /// Returns what subscribes to a resource and has no refresh owed yet.
    fn not_owed(&self, resource: &Resource) -> Vec<String> {
        let mut labels = self.subscribers.to(resource);
        let owed = self.owed.borrow();
        labels.retain(|label| !owed.contains(label));
        labels
    }

    /// Takes debts back that did not come to be, strikes out the one this resource paid, and leaves
    /// what it owes to the next run if it failed.
    fn settle(
        &self,
        scope: &Scope,
        resource: &Resource,
        event: &TransactionEvent,
        not_owed: Vec<String>,
    ) {
        if scope.mode.noop || scope.mode.health_check_only {
            return;
        }
        if event.failed {
            self.owed.borrow_mut().leave(not_owed);
            return;
        }
        let mut settled = if event.changed { Vec::new() } else { not_owed };
        let label = resource.label();
        let is_left = self.owed.borrow().is_left(&label) && !event.refreshed;
        if !is_left && !event.skipped {
            settled.push(label);
        }
        if let Err(err) = self.owed.borrow_mut().settle(&settled) {
            let line = Line::new(Level::Error, "Could not save owed refreshes");
            self.say(scope, line.with("error", err));
        }
    }

    /// Reports and records an event, and announces the services of its resource.
    pub fn record(&mut self, scope: &Scope, event: TransactionEvent) -> Result<(), SessionError> {
        let manifest = scope.manifest.as_deref();
        self.sink.borrow_mut().event(&event, manifest);
        self.announce(scope, &event);
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
