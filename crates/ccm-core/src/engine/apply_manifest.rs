//! Applying a manifest: its resources in order, each applied, reported and recorded.

use std::sync::Arc;

use super::{Engine, FlowError, Level, Line, NoEvents, Scope, Session, SessionError};
use crate::manifest::Manifest;
use crate::model::diagnostic::{Diagnostic, Location, Note};
use crate::model::event::TransactionEvent;
use crate::model::{Resource, TypeName};

/// The reason a run ended before its last resource.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot set healthcheck only and noop mode at the same time")]
    TwoModes,
    #[error("stopped before {label}: {reason}")]
    Stopped { label: String, reason: String },
    #[error("{label}: {cause} (at {location})")]
    Flow {
        label: String,
        location: Box<Location>,
        /// Position in the template of rendered resources.
        notes: Vec<Note>,
        #[source]
        cause: Box<FlowError>,
    },
}

impl RunError {
    /// Returns the error of a resource, by its number from 0 in its manifest.
    fn of(scope: &Scope, manifest: &Manifest, index: usize, cause: FlowError) -> Self {
        let is_hidden = scope.env.hide_rendered;
        let cause = match cause {
            FlowError::Requirement(NoEvents(reference)) if !is_hidden => FlowError::Unmet {
                reason: manifest.unapplied_reason(index, &reference),
                reference,
            },
            cause => cause,
        };
        let (mut location, mut notes) =
            manifest.location(index, |text, mark| cause.mark_in(text, mark));
        if is_hidden {
            location.line = None;
            notes.clear();
        }
        let resource = manifest.resources.get(index);
        Self::Flow {
            label: resource.map(|it| it.label()).unwrap_or_default(),
            location: location.into(),
            notes,
            cause: cause.into(),
        }
    }

    /// Returns the error with its source line; none if it has no position.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let Self::Flow {
            label,
            location,
            notes,
            cause,
        } = self
        else {
            return Vec::new();
        };
        vec![Diagnostic {
            message: cause.message(),
            subject: Some(label.clone()),
            location: (**location).clone(),
            notes: notes.clone(),
            help: cause.help(),
        }]
    }
}

impl Engine<'_> {
    /// Runs a manifest to its end, or to the first failed resource with `fail_on_error`.
    pub fn run(&mut self, scope: &Scope, manifest: &Manifest) -> Result<(), RunError> {
        let mode = scope.mode;
        if mode.noop && mode.health_check_only {
            return Err(RunError::TwoModes);
        }
        self.log(scope, start_line(scope, manifest));
        self.packages.expect_many();
        self.subscribers.enter(manifest);
        let result = self.run_resources(scope, manifest);
        self.subscribers.leave();
        result
    }

    fn run_resources(&mut self, scope: &Scope, manifest: &Manifest) -> Result<(), RunError> {
        let mode = scope.mode;
        for (index, resource) in manifest.resources.iter().enumerate() {
            let flow_error = |cause| RunError::of(scope, manifest, index, cause);
            self.subscribers.reach(resource);
            if mode.health_check_only && !has_checks(resource) {
                self.record_unchecked(scope, resource).map_err(flow_error)?;
                continue;
            }
            if let Some(reason) = self.stop.and_then(|stop| stop()) {
                let label = resource.label();
                return Err(RunError::Stopped { label, reason });
            }
            let new_refreshes = self.new_refreshes(resource);
            let event = self.apply(scope, resource).map_err(flow_error)?;
            self.update_pending_refreshes(scope, resource, &event, new_refreshes);
            let failed = event.failed;
            // The event has one line for it; the sink gets its source line, too.
            if failed
                && !scope.env.hide_rendered
                && let Err(no_events) = self.changed_subscription(resource)
                && event.errors.contains(&no_events.to_string())
            {
                let diagnostics = flow_error(no_events.into()).diagnostics();
                self.sink.borrow_mut().problems(&diagnostics);
            }
            if let Err(err) = self.record(scope, event) {
                self.log_unsaved_event(scope, &err);
            }
            if failed && manifest.fail_on_error && !mode.health_check_only {
                let text = "Terminating manifest execution due to failed resource";
                self.log(scope, Line::new(Level::Warn, text));
                break;
            }
        }
        Ok(())
    }

    /// Records a resource without health checks in a health-check-only run. Sends nothing to the sink.
    fn record_unchecked(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
    ) -> Result<(), FlowError> {
        let is_managed = self.is_managed(scope, resource)?;
        let now = self.machine.clock.now();
        let provider = &resource.common.provider;
        let id = self.next_id(now)?;
        let mut event = TransactionEvent::begin(id, now, provider, resource);
        event.health_check_only = true;
        event.skipped = !is_managed;
        if let Err(err) = self.session.record(event) {
            self.log_unsaved_event(scope, &err);
        }
        Ok(())
    }

    fn log_unsaved_event(&self, scope: &Scope, error: &SessionError) {
        let line = Line::new(Level::Error, "Could not save event");
        self.log(scope, line.with("error", error));
    }

    /// Returns the subscribers of a resource whose refresh is not pending yet.
    fn new_refreshes(&self, resource: &Resource) -> Vec<String> {
        let mut labels = self.subscribers.to(resource);
        let pending = self.pending_refreshes.borrow();
        labels.retain(|label| !pending.contains(label));
        labels
    }

    /// Updates pending refreshes after an event: removes this resource's own, removes those of its
    /// subscribers if nothing changed, and keeps them for the next run if it failed.
    fn update_pending_refreshes(
        &self,
        scope: &Scope,
        resource: &Resource,
        event: &TransactionEvent,
        new_refreshes: Vec<String>,
    ) {
        if scope.mode.noop || scope.mode.health_check_only {
            return;
        }
        if event.failed {
            self.pending_refreshes
                .borrow_mut()
                .keep_for_next_run(new_refreshes);
            return;
        }
        let mut completed = if event.changed {
            Vec::new()
        } else {
            new_refreshes
        };
        let label = resource.label();
        let mut pending = self.pending_refreshes.borrow_mut();
        let is_kept = pending.is_kept_for_next_run(&label) && !event.refreshed;
        if !is_kept && !event.skipped {
            completed.push(label);
        }
        if let Err(err) = pending.remove(&completed) {
            let line = Line::new(Level::Error, "Could not save pending refreshes");
            self.log(scope, line.with("error", err));
        }
    }

    /// Sends an event and the services of its resource to the sink, and records the event.
    pub fn record(&mut self, scope: &Scope, event: TransactionEvent) -> Result<(), SessionError> {
        let manifest = scope.manifest.as_deref();
        self.sink.borrow_mut().event(&event, manifest);
        self.report_services(scope, &event);
        self.session.record(event)
    }

    /// Returns the session with all recorded events.
    pub(crate) fn into_session(self) -> Session {
        self.session
    }
}

/// Reports whether a health-check-only run has something to check; a nested manifest may have.
fn has_checks(resource: &Resource) -> bool {
    !resource.common.health_checks.is_empty() || resource.type_name() == TypeName::Apply
}

fn start_line(scope: &Scope, manifest: &Manifest) -> Line {
    let line = if scope.mode.health_check_only {
        Line::new(Level::Info, "Executing manifest health checks").with("healthcheck", true)
    } else {
        Line::new(Level::Info, "Executing manifest")
    };
    line.with("manifest", &manifest.source)
        .with("resources", manifest.resources.len())
}
