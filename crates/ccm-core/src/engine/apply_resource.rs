//! The life of one resource: provider, control, templates, requirements, then inspect, plan and
//! change or noop, verify, health checks. Every way through ends in one event, except errors in
//! the manifest itself, which end the run.

use std::sync::Arc;

use super::nested_manifest::ChildError;
use super::{Checked, Engine, Level, Line, NoEvents, Scope};
use crate::health::{Note, Outcome, Probes, Report};
use crate::manifest::resolve::{self, ResolveError};
use crate::model::event::{Part, TransactionEvent};
use crate::model::health::HealthCheck;
use crate::model::policy::{Denied, Lookup};
use crate::model::resource::{Invalid, Phase, Resource};
use crate::model::secret::REDACTED;
use crate::model::state::State;
use crate::model::text::go_duration;
use crate::resource::scaffold::ScaffoldError;
use crate::resource::{self, Managed, Planned, Progress, ProviderError, ResourceError, Selected};
use crate::system::{FileError, RandomError};
use ccm_template::expr::ExprError;

/// Why a run can't go on: the manifest is wrong, not the machine.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Expression(#[from] ExprError),
    #[error(transparent)]
    Template(#[from] ResolveError),
    #[error(transparent)]
    Requirement(#[from] NoEvents),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Random(#[from] RandomError),
    /// One of these, for somebody who may not see what was rendered.
    #[error("{0}")]
    Hidden(String),
}

impl FlowError {
    /// Returns the error without anything that was rendered.
    #[must_use]
    pub fn hidden(self) -> Self {
        let missing = Lookup::missing_in(&self.to_string()).map(str::to_owned);
        let text = match &self {
            Self::Provider(_) | Self::Requirement(_) | Self::Random(_) | Self::Hidden(_) => {
                return self;
            }
            Self::Expression(_) => "a control expression has no value".into(),
            Self::Template(err) => format!("the template in {} has no value", err.field),
            Self::Invalid(err) => format!("{} is not valid", err.property),
        };
        Self::Hidden(missing.unwrap_or(text))
    }
}

/// Why applying a resource failed; the run goes on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error(transparent)]
    Subscription(#[from] NoEvents),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error("could not note the refreshes that are owed: {0}")]
    PendingRefreshes(#[from] FileError),
}

impl Engine<'_> {
    /// Applies one resource and returns its event; recording it is the caller's.
    pub fn apply(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
    ) -> Result<TransactionEvent, FlowError> {
        let applied = self.apply_one(scope, resource);
        match scope.env.hide_rendered {
            true => applied.map_err(FlowError::hidden),
            false => applied,
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
        // To look whether a provider can be used may run it. What is not resolved yet is looked at
        // again when it is.
        if !named.is_empty()
            && !resolve::is_deferred(resource)
            && let Err(denied) = self.may_apply(scope, resource, named)
        {
            let id = self.next_id(now)?;
            let mut event = TransactionEvent::begin(id, now, named, resource);
            event.failed = true;
            event.errors.push(denied.to_string());
            return Ok(event);
        }
        let selected = resource::select_provider(resource, self.host(scope))?;
        let began = clock.monotonic();
        let id = self.next_id(now)?;
        let provider = selected.provider_name();
        let mut event = TransactionEvent::begin(id, now, provider, resource);
        event.health_check_only = scope.mode.health_check_only;
        self.go_through(scope, resource, selected, &mut event)?;
        event.duration = clock.monotonic().saturating_sub(began);
        Ok(event)
    }

    fn go_through(
        &mut self,
        scope: &Scope,
        resource: &Arc<Resource>,
        selected: Selected<'_>,
        event: &mut TransactionEvent,
    ) -> Result<(), FlowError> {
        if !self.is_managed(scope, resource)? {
            event.skipped = true;
            return Ok(());
        }
        let resolved = self.resolve_deferred(scope, resource)?;
        let resource = resolved.as_ref().unwrap_or(resource);
        event.properties = Part::Typed(resource.shown());
        if let Err(denied) = self.may_apply(scope, resource, selected.provider_name()) {
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
        let selected = match &resolved {
            Some(resolved) => resource::select_provider(resolved, self.host(scope))?,
            None => selected,
        };
        let state = match selected {
            Selected::Manifest(apply) => self
                .promise_refreshes(scope, resource)
                .and_then(|()| self.apply_child(scope, resource, apply))
                .map(Some),
            Selected::Managed(_) if scope.mode.health_check_only => Ok(None),
            Selected::Managed(managed) => self.converge(scope, resource, &managed).map(Some),
        };
        let state = state.unwrap_or_else(|err| {
            event.failed = true;
            event.errors.push(match (resource.common.sensitive, err) {
                // The program may be what the resource hides.
                (true, ApplyError::Resource(ResourceError::Run(err))) => {
                    err.without_program().to_string()
                }
                // And what a template says may be its data.
                (
                    true,
                    ApplyError::Resource(ResourceError::Scaffold(ScaffoldError::Template(_))),
                ) => "a template failed, and the resource is sensitive".into(),
                (_, err) => err.to_string(),
            });
            None
        });
        if !scope.mode.noop {
            self.check_health(scope, resource, event);
        }
        if let Some(mut state) = state {
            if resource.common.sensitive {
                state.hide_content();
            }
            let common = &state.common;
            event.changed = common.changed;
            event.refreshed = common.refreshed;
            event.noop = common.noop;
            event.noop_message.clone_from(&common.noop_message);
            event.final_ensure.clone_from(&common.ensure);
            event.status = Some(Part::Typed(Arc::new(state)));
        }
        Ok(())
    }

    fn may_apply(&self, scope: &Scope, resource: &Resource, provider: &str) -> Result<(), Denied> {
        match self.gate {
            Some(gate) => gate(resource, provider, scope.mode),
            None => Ok(()),
        }
    }

    /// Reads, plans and, unless this is a noop run, changes and reads again.
    fn converge(
        &self,
        scope: &Scope,
        resource: &Resource,
        managed: &Managed<'_>,
    ) -> Result<State, ApplyError> {
        let host = self.host(scope);
        let before = managed.inspect(host)?;
        let refresh = self.is_refreshed(resource)?;
        let planned = managed.plan(&before, refresh, host)?;
        if scope.mode.diff
            && let Some(diff) = planned.diff(host)?
        {
            self.sink.borrow_mut().diff(&diff);
        }
        let plan = planned.plan();
        let mut stable = plan.satisfied;
        let mut changed = !plan.is_empty();
        let mut after = None;
        if changed && !scope.mode.noop {
            self.promise_refreshes(scope, resource)?;
            let state = self.change(scope, resource, managed, &planned)?;
            changed = !plan.tentative || state.detail != before.detail;
            stable = stable || plan.settles;
            after = Some(state);
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

    /// Notes that what subscribes to this resource must refresh, before the resource changes.
    fn promise_refreshes(&self, scope: &Scope, resource: &Resource) -> Result<(), ApplyError> {
        let labels = self.subscribers.to(resource);
        if !labels.is_empty() && !scope.mode.noop && !scope.mode.health_check_only {
            self.owed.borrow_mut().promise(&labels)?;
        }
        Ok(())
    }

    fn change(
        &self,
        scope: &Scope,
        resource: &Resource,
        managed: &Managed<'_>,
        planned: &Planned<'_>,
    ) -> Result<State, ResourceError> {
        let host = self.host(scope);
        let label = resource.label();
        let tell = |progress: Progress<'_>| match progress {
            Progress::Line(line) => {
                self.sink.borrow_mut().line(&Line::new(Level::Info, line));
            }
            Progress::Received { bytes, of } => {
                self.sink.borrow_mut().received(&label, bytes, of);
            }
        };
        let mut done = planned.change(host, &tell)?;
        let result = managed.verify(&mut done, host);
        for text in done.complaint.iter().chain(&done.warning) {
            let line = Line::new(Level::Warn, text).with("resource", resource.label());
            self.say(scope, line);
        }
        result
    }

    /// Resolves what may only be resolved now: an earlier resource may have made what it reads.
    /// Returns nothing where there is nothing like that.
    fn resolve_deferred(
        &self,
        scope: &Scope,
        resource: &Resource,
    ) -> Result<Option<Arc<Resource>>, FlowError> {
        if !resolve::is_deferred(resource) {
            return Ok(None);
        }
        let mut resolved = resource.clone();
        resolve::resource(&mut resolved, Phase::Deferred, &scope.env, &self.programs)?;
        resolved.complete()?;
        Ok(Some(Arc::new(resolved)))
    }

    fn check_health(&self, scope: &Scope, resource: &Resource, event: &mut TransactionEvent) {
        for check in &resource.common.health_checks {
            let clock = self.machine.clock;
            let (began, since) = (clock.now(), clock.monotonic());
            let report = self.probe(scope, resource, check);
            self.sink.borrow_mut().checked(&Checked {
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
                mut result, error, ..
            } = report;
            if result.status.is_failure() {
                event.failed = true;
                let text = format!("health check status \"{}\"", result.status);
                event.errors.push(text);
            }
            // What a probe runs, and what that says, may be what the resource hides.
            if resource.common.sensitive {
                result.hide_output();
                let hidden = error.map(|_| "the health check could not be carried out".into());
                event.errors.extend(hidden);
            } else {
                event.errors.extend(error.map(|error| error.to_string()));
            }
            event.health_check.push(Some(result));
        }
    }

    fn probe(&self, scope: &Scope, resource: &Resource, check: &HealthCheck) -> Report {
        let probes = Probes {
            runner: self.machine.runner,
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
        let report = probes.probe(check, &mut |note| match note {
            Note::Rule(finding) => {
                let level = match finding.outcome {
                    Outcome::Passed => Level::Debug,
                    Outcome::Failed | Outcome::Skipped => Level::Error,
                };
                // What was looked at, and seen, may be what the resource hides.
                let text = if resource.common.sensitive {
                    format!("goss rule: {REDACTED}")
                } else {
                    finding.to_string()
                };
                self.say(scope, line(level, &text, "goss"));
            }
            Note::FailedTry(failed) => {
                let line = line(Level::Warn, "Health check failed", failed.format)
                    .with("try", failed.number)
                    .with("sleep", go_duration(failed.pause))
                    .with("status", failed.status);
                self.say(scope, line);
            }
        });
        if !report.perfdata.is_empty() && !resource.common.sensitive {
            let data: Vec<String> = report.perfdata.iter().map(ToString::to_string).collect();
            let line = line(Level::Debug, "Health check measured", "nagios");
            self.say(scope, line.with("perfdata", data.join(" ")));
        }
        report
    }
}
