//! Applying one resource: provider selection, control expressions, deferred templates, requirements,
//! then inspect, plan, change (unless noop), verify and health checks. Every path produces one event,
//! except errors in the manifest itself, which end the run.

use std::sync::Arc;

use super::nested_manifest::ChildError;
use super::redact_event::redact_event;
use super::{CompletedCheck, Engine, FlowError, Level, Line, NoEvents, Scope};
use crate::health::{Outcome, ProbeEvent, Probes, Report};
use crate::manifest::resolve;
use crate::model::diagnostic::Diagnostic;
use crate::model::event::{EventField, TransactionEvent};
use crate::model::health::HealthCheck;
use crate::model::output::{self, CommandOutput};
use crate::model::policy::Denied;
use crate::model::resource::{Phase, Resource};
use crate::model::secret::REDACTED;
use crate::model::state::{PreviousState, State};
use crate::model::text::go_duration;
use crate::resource::scaffold::ScaffoldError;
use crate::resource::{
    self, ManagedResource, PlannedChange, Progress, ResourceError, SelectedProvider,
};
use crate::system::{Cancel, FileError};

/// The number of output lines of a failed health check in its error.
const MAX_CHECK_LINES: usize = 3;

/// A failure to apply a resource; the run continues.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error(transparent)]
    Subscription(#[from] NoEvents),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error("could not save pending refreshes: {0}")]
    PendingRefreshes(#[from] FileError),
}

impl ApplyError {
    /// Returns the problems of a nested manifest or template, with their source lines.
    fn diagnostics(&self) -> Vec<Diagnostic> {
        match self {
            Self::Child(ChildError::Manifest(err)) => err.diagnostics(),
            Self::Child(ChildError::Run(err)) => err.diagnostics(),
            Self::Resource(
                ResourceError::Template { diagnostic, .. }
                | ResourceError::Scaffold(ScaffoldError::Template { diagnostic, .. }),
            ) => vec![(**diagnostic).clone()],
            _ => Vec::new(),
        }
    }

    /// Returns the texts for the event: one line for each problem of a nested manifest.
    fn texts(&self) -> Vec<String> {
        match self {
            Self::Child(ChildError::Manifest(err)) => {
                err.problems.iter().map(ToString::to_string).collect()
            }
            err => vec![err.to_string()],
        }
    }
}

impl Engine<'_> {
    /// Applies one resource and returns its event; the caller records it.
    pub fn apply(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
    ) -> Result<TransactionEvent, FlowError> {
        let applied = self.apply_one(scope, resource);
        let secrets = &scope.env.secrets;
        match applied {
            Ok(mut event) => {
                redact_event(&mut event, secrets);
                Ok(event)
            }
            Err(err) if scope.env.hide_rendered || secrets.is_in(&err.to_string()) => {
                Err(err.hidden())
            }
            Err(err) => Err(err),
        }
    }

    fn apply_one(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
    ) -> Result<TransactionEvent, FlowError> {
        let clock = self.machine.clock;
        let now = clock.now();
        let named = resource.common.provider.as_str();
        // Selecting a provider may run a program, so a named provider is authorized first. A resource
        // with deferred templates is authorized again once they are resolved.
        if !named.is_empty()
            && !resolve::is_deferred(resource)
            && let Err(denied) = self.authorize(scope, resource, named)
        {
            let id = self.next_id(now)?;
            let mut event = TransactionEvent::begin(id, now, named, resource);
            event.failed = true;
            event.errors.push(denied.to_string());
            return Ok(event);
        }
        let selected = resource::select_provider(resource, self.host(scope))?;
        self.detail(scope, Level::Info, resource, "Selected provider", |line| {
            line.with("provider", selected.provider_name())
        });
        self.detail_commands(scope, resource);
        let began = clock.monotonic();
        let id = self.next_id(now)?;
        let provider = selected.provider_name();
        let mut event = TransactionEvent::begin(id, now, provider, resource);
        event.health_check_only = scope.mode.health_check_only;
        self.apply_selected(scope, resource, selected, &mut event)?;
        event.duration = clock.monotonic().saturating_sub(began);
        Ok(event)
    }

    fn apply_selected(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
        selected: SelectedProvider<'_>,
        event: &mut TransactionEvent,
    ) -> Result<(), FlowError> {
        if !self.is_managed(scope, resource)? {
            event.skipped = true;
            return Ok(());
        }
        let resolved = self.resolve_deferred(scope, resource)?;
        let resource = resolved.as_ref().unwrap_or(resource);
        event.properties = EventField::Typed(resource.redacted());
        if let Err(denied) = self.authorize(scope, resource, selected.provider_name()) {
            event.failed = true;
            event.errors.push(denied.to_string());
            return Ok(());
        }
        if !scope.mode.health_check_only {
            event.unmet_requirements = self.unmet_requirements(resource)?;
        }
        if !event.unmet_requirements.is_empty() {
            event.skipped = true;
            return Ok(());
        }
        let hidden = match self.hide_rendered_secret(scope, resource, event) {
            Ok(hidden) => hidden,
            Err(err) => {
                self.report_failure(scope, resource, err.into(), event);
                return Ok(());
            }
        };
        let resource = hidden.as_ref().unwrap_or(resource);
        let selected = match hidden.as_ref().or(resolved.as_ref()) {
            Some(resolved) => resource::select_provider(resolved, self.host(scope))?,
            None => selected,
        };
        let state = match selected {
            SelectedProvider::Manifest(apply) => self
                .record_pending_refreshes(scope, resource)
                .and_then(|()| self.apply_child(scope, resource, apply))
                .map(Some),
            SelectedProvider::Managed(_) if scope.mode.health_check_only => Ok(None),
            SelectedProvider::Managed(managed) => {
                self.converge(scope, resource, &managed, event).map(Some)
            }
        };
        let state = state.unwrap_or_else(|err| {
            self.report_failure(scope, resource, err, event);
            None
        });
        self.detail_commands(scope, resource);
        if !scope.mode.noop {
            self.check_health(scope, resource, event);
        }
        if let Some(mut state) = state {
            if resource.common.sensitive {
                state.redact_checksums();
            }
            let common = &state.common;
            event.changed = common.changed;
            event.refreshed = common.refreshed;
            event.noop = common.noop;
            event.noop_message.clone_from(&common.noop_message);
            event.final_ensure.clone_from(&common.ensure);
            event.status = Some(EventField::Typed(Arc::new(state)));
        }
        Ok(())
    }

    /// Adds a failure to the event; its problems with source lines are sent to the sink.
    fn report_failure(
        &self,
        scope: &Scope,
        resource: &Resource,
        error: ApplyError,
        event: &mut TransactionEvent,
    ) {
        event.failed = true;
        if resource.common.sensitive {
            event.errors.push(match error {
                // The program name may be sensitive.
                ApplyError::Resource(ResourceError::Run(err)) => err.without_program().to_string(),
                // A template error may contain sensitive data.
                ApplyError::Resource(
                    ResourceError::Template { .. }
                    | ResourceError::Scaffold(ScaffoldError::Template { .. }),
                ) => "template failed; details are hidden because the resource is sensitive".into(),
                err => err.to_string(),
            });
            return;
        }
        if let ApplyError::Resource(err) = &error {
            event.output = err.output();
        }
        event.errors.extend(error.texts());
        let diagnostics = error.diagnostics();
        if !diagnostics.is_empty() && !scope.env.hide_rendered {
            self.sink.borrow_mut().problems(&diagnostics);
        }
    }

    fn authorize(&self, scope: &Scope, resource: &Resource, provider: &str) -> Result<(), Denied> {
        match self.gate {
            Some(gate) => gate(resource, provider, scope.mode),
            None => Ok(()),
        }
    }

    /// Inspects, plans and, unless this is a noop run, changes and verifies. Sets the previous state and
    /// the output of the event.
    fn converge(
        &self,
        scope: &Scope,
        resource: &Resource,
        managed: &ManagedResource<'_>,
        event: &mut TransactionEvent,
    ) -> Result<State, ApplyError> {
        let host = self.host(scope);
        let before = managed.inspect(host)?;
        self.detail_commands(scope, resource);
        self.detail(
            scope,
            Level::Debug,
            resource,
            "Inspected resource",
            |line| line.with("ensure", &before.common.ensure),
        );
        let refresh = self.is_refreshed(scope, resource)?;
        let planned = managed.plan(&before, refresh, host)?;
        self.detail_plan(scope, resource, managed, &planned, &before);
        if scope.mode.diff
            && let Some(diff) = planned.diff(host)?
        {
            self.sink
                .borrow_mut()
                .diff(&scope.env.secrets.redact(&diff));
        }
        let plan = planned.plan();
        let mut stable = plan.satisfied;
        let mut changed = !plan.is_empty();
        let mut after = None;
        if changed {
            event.previous = Some(previous(&before, resource));
        }
        if changed && !scope.mode.noop {
            self.record_pending_refreshes(scope, resource)?;
            let (state, output) = self.change(scope, resource, managed, &planned)?;
            event.output = output.tail();
            changed = !plan.tentative || state.detail != before.detail;
            stable = stable || plan.settles;
            after = Some(state);
        }
        if !changed {
            event.previous = None;
        }
        let (refreshed, message) = (plan.refreshed, plan.message.clone());
        let mut state = after.unwrap_or(before);
        let common = &mut state.common;
        common.changed = changed;
        common.refreshed = refreshed;
        common.stable = stable;
        common.noop = scope.mode.noop;
        if scope.mode.noop {
            common.noop_message = message;
        }
        Ok(state)
    }

    fn detail_plan(
        &self,
        scope: &Scope,
        resource: &Resource,
        managed: &ManagedResource<'_>,
        planned: &PlannedChange<'_>,
        before: &State,
    ) {
        let plan = planned.plan();
        if !plan.is_empty() {
            self.detail(scope, Level::Debug, resource, "Planned change", |line| {
                line.with("plan", &plan.message)
            });
        } else if let Some(reason) = managed.condition(before) {
            let message = "Command is not needed";
            self.detail(scope, Level::Info, resource, message, |line| {
                line.with("reason", reason)
            });
        }
    }

    /// Records the refreshes of this resource's subscribers as pending, before the resource changes.
    fn record_pending_refreshes(
        &self,
        scope: &Scope,
        resource: &Resource,
    ) -> Result<(), ApplyError> {
        let labels = self.subscribers.to(resource);
        if !labels.is_empty() && !scope.mode.noop && !scope.mode.health_check_only {
            self.cancel.iter().for_each(Cancel::prepare);
            self.pending_refreshes.borrow_mut().add(&labels)?;
        }
        Ok(())
    }

    fn change(
        &self,
        scope: &Scope,
        resource: &Resource,
        managed: &ManagedResource<'_>,
        planned: &PlannedChange<'_>,
    ) -> Result<(State, CommandOutput), ResourceError> {
        self.cancel.iter().for_each(Cancel::prepare);
        let host = self.host(scope);
        let label = resource.label();
        let on_progress = |progress: Progress<'_>| match progress {
            Progress::Line(line) => {
                self.sink.borrow_mut().line(&Line::new(Level::Info, line));
            }
            Progress::Received { bytes, of } => {
                self.sink.borrow_mut().received(&label, bytes, of);
            }
        };
        let mut report = planned.change(host, &on_progress).inspect_err(|err| {
            if let ResourceError::Run(err) = err
                && let Some(output) = err.output()
                && !resource.common.sensitive
            {
                self.sink.borrow_mut().output(output);
            }
        })?;
        if !report.output.is_empty() {
            self.sink.borrow_mut().output(&report.output);
        }
        let result = managed.verify(&mut report, host);
        for text in report.error_output.iter().chain(&report.warning) {
            let line = Line::new(Level::Warn, text).with("resource", resource.label());
            self.log(scope, line);
        }
        Ok((result?, report.output))
    }

    /// Resolves deferred templates, which may read what an earlier resource created. Returns nothing if
    /// the resource has none.
    fn resolve_deferred(
        &self,
        scope: &Scope,
        resource: &Resource,
    ) -> Result<Option<Arc<Resource>>, FlowError> {
        if !resolve::is_deferred(resource) {
            return Ok(None);
        }
        let mut resolved = resource.clone();
        resolve::resolve_properties(&mut resolved, Phase::Deferred, &scope.env, &self.programs)?;
        resolved.complete()?;
        Ok(Some(Arc::new(resolved)))
    }

    fn check_health(&self, scope: &Scope, resource: &Resource, event: &mut TransactionEvent) {
        for check in &resource.common.health_checks {
            let clock = self.machine.clock;
            let (began, since) = (clock.now(), clock.monotonic());
            let report = self.probe(scope, resource, check);
            self.detail_commands(scope, resource);
            self.sink.borrow_mut().checked(&CompletedCheck {
                type_name: resource.type_name(),
                name: &resource.common.name,
                sensitive: resource.common.sensitive,
                check,
                result: &report.result,
                perfdata: &report.perfdata,
                began,
                took: clock.monotonic().saturating_sub(since),
            });
            let Report {
                mut result,
                error,
                details,
                ..
            } = report;
            if result.status.is_failure() {
                event.failed = true;
                let mut text = format!("health check status \"{}\"", result.status);
                if error.is_none() && !resource.common.sensitive {
                    // The summary of goss has a duration, which differs in every run.
                    let first = if check.goss_rules.is_some() {
                        ""
                    } else {
                        &result.output
                    };
                    text.push_str(&short_output(first, &details));
                    let printed = [&event.output, &result.output, &details].map(|it| it.trim());
                    event.output = output::tail(printed.join("\n").trim());
                }
                event.errors.push(text);
            }
            // The command of a check and its output may be sensitive.
            if resource.common.sensitive {
                result.redact_output();
                let hidden = error.map(|_| "health check could not be run".into());
                event.errors.extend(hidden);
            } else {
                event.errors.extend(error.map(|error| error.to_string()));
            }
            event.health_check.push(Some(result));
        }
    }

    fn probe(&self, scope: &Scope, resource: &Resource, check: &HealthCheck) -> Report {
        let probes = Probes {
            runner: &self.commands,
            clock: self.machine.clock,
            accounts: &self.machine.accounts,
            env: &scope.env,
            programs: &self.programs,
        };
        let line = |level, text: &str, format| {
            Line::new(level, text)
                .with("type", resource.type_name())
                .with("name", &resource.common.name)
                .with("format", format)
                .with("check", &check.name)
        };
        let report = probes.probe(check, &mut |event| match event {
            ProbeEvent::Rule(finding) => {
                let level = match finding.outcome {
                    Outcome::Passed => Level::Debug,
                    Outcome::Failed | Outcome::Skipped => Level::Error,
                };
                // The rule and the found value may be sensitive.
                let text = if resource.common.sensitive {
                    format!("goss rule: {REDACTED}")
                } else {
                    finding.to_string()
                };
                self.log(scope, line(level, &text, "goss"));
            }
            ProbeEvent::FailedTry(failed) => {
                // As in upstream, failed rules are an error and a failed plugin is a warning.
                let level = failed.failed_rules.map_or(Level::Warn, |_| Level::Error);
                let line = line(level, "Health check failed", failed.format)
                    .with("try", failed.number)
                    .with("sleep", go_duration(failed.pause))
                    .with("status", failed.status);
                let line = match failed.failed_rules {
                    Some(count) => line.with("failed", count),
                    None => line,
                };
                self.log(scope, line);
            }
        });
        if !report.perfdata.is_empty() && !resource.common.sensitive {
            let data: Vec<String> = report.perfdata.iter().map(ToString::to_string).collect();
            let line = line(Level::Debug, "Health check performance data", "nagios");
            self.log(scope, line.with("perfdata", data.join(" ")));
        }
        report
    }
}

/// Returns the state before a change for the event.
fn previous(before: &State, resource: &Resource) -> PreviousState {
    let mut previous = PreviousState::from(before);
    if resource.common.sensitive {
        // A guess of the content could be confirmed by it.
        previous.checksum.clear();
    }
    previous
}

/// Returns the last lines of a failed check for its error, without performance data.
fn short_output(printed: &str, details: &str) -> String {
    let mut lines = output::last_lines(printed, MAX_CHECK_LINES);
    if lines.is_empty() {
        lines = output::last_lines(details, MAX_CHECK_LINES);
    }
    let texts = lines
        .iter()
        .map(|line| line.split('|').next().unwrap_or_default().trim());
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    match texts.is_empty() {
        true => String::new(),
        false => format!(": {}", texts.join("; ")),
    }
}
