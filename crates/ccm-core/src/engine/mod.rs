//! Engine: applies resources one at a time, in order, with one event per resource.
//!
//! The engine owns all policy (control, require, subscribe, noop, health checks); resource types and
//! providers own none. It is independent of the entry point that calls it. `apply_resource` handles one
//! resource, [`apply_manifest`] a manifest, [`session`] stores events, `pending_refreshes` persists
//! refreshes across runs, and `registration` decides which services are published.

pub mod apply_manifest;
mod apply_resource;
mod control;
mod data_files;
mod flow_error;
mod log_line;
mod nested_manifest;
mod pending_refreshes;
mod redact_event;
mod registration;
mod rendered_secret;
pub mod session;
mod status;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::health::Measurement;
use crate::manifest::Manifest;
use crate::model::diagnostic::Diagnostic;
use crate::model::event::TransactionEvent;
use crate::model::governor::{GovernorName, SlotProgress};
use crate::model::health::{HealthCheck, HealthResult};
use crate::model::id::EventId;
use crate::model::output::CommandOutput;
use crate::model::policy::Denied;
use crate::model::registration::Entry;
use crate::model::run::RunSummary;
use crate::model::secret::REDACTED;
use crate::model::text::go_millis;
use crate::model::{Resource, TypeName, Value};
use crate::resource::{Host, package, scaffold, service};
use crate::system::files::{Temporaries, Writer};
use crate::system::runner::{CommandRecord, RecordingRunner};
use crate::system::{Accounts, Cancel, Clock, RandomError, Runner};
use ccm_template::Env;
use ccm_template::expr::Cache;
use pending_refreshes::Subscribers;
use redact_event::redact_line;

pub use data_files::{read_data_file, unseal};
pub use flow_error::FlowError;
pub use log_line::{Level, Line, levels_line, status_line};
pub use pending_refreshes::PendingRefreshes;
pub use registration::Availability;
pub use session::{EventFileError, EventIds, NoEvents, Session, SessionError};
pub use status::{StatusError, inspect, resource_from_request, resource_to_inspect};

/// Receiver of events and log lines: a terminal, a log, a spool.
pub trait Sink {
    /// Receives a finished event; `manifest` names the nested manifest it belongs to, if any.
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>);

    /// Receives a log line.
    fn line(&mut self, line: &Line);

    /// Receives a warning about the manifest or its data, before the run begins.
    fn warning(&mut self, line: &Line) {
        self.line(line);
    }

    /// Returns the least level of the details that it receives; `None` for no details.
    fn detail_level(&self) -> Option<Level> {
        None
    }

    /// Receives a line about how a result came about: providers, commands, data, conditions.
    fn detail(&mut self, _line: &Line) {}

    /// Called before the first resource is applied; `None` means a run of a single resource.
    fn starting(&mut self, _manifest: Option<&Manifest>) {}

    /// Receives the progress of the run's governor slot.
    fn slot(&mut self, _governor: &GovernorName, _progress: SlotProgress) {}

    /// Receives the summary of a manifest run, after its last event.
    fn finished(&mut self, _run: &RunSummary) {}

    /// Receives the unified diff of what a resource changes, or would change.
    fn diff(&mut self, text: &str);

    /// Receives the output of a command that failed or whose output was requested; the resource's event
    /// has its last lines.
    fn output(&mut self, _output: &CommandOutput) {}

    /// Receives the problems of a nested manifest or a template, with their source lines; the
    /// resource's event has one line for each.
    fn problems(&mut self, _diagnostics: &[Diagnostic]) {}

    /// Receives the progress of a resource's download, for interactive output.
    fn received(&mut self, _resource: &str, _bytes: u64, _of: Option<u64>) {}

    /// Receives the full result of a health check; the resource's event has a short form.
    fn checked(&mut self, _checked: &CompletedCheck<'_>) {}

    /// Receives the registration entries of a resource and whether its services are available.
    fn services(&mut self, _entries: &[Entry], _availability: Availability) {}
}

/// A completed health check, with its timing.
#[derive(Clone, Copy)]
pub struct CompletedCheck<'a> {
    pub type_name: TypeName,
    pub name: &'a str,
    /// The output of the check must not be shown.
    pub sensitive: bool,
    pub check: &'a HealthCheck,
    pub result: &'a HealthResult,
    /// Performance data of a Nagios plugin.
    pub perfdata: &'a [Measurement],
    pub began: DateTime<Utc>,
    pub took: Duration,
}

/// The mode of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Plans and reports changes without making them.
    pub noop: bool,
    /// Runs health checks only.
    pub health_check_only: bool,
    /// Shows planned changes as diffs.
    pub diff: bool,
}

/// The template environment, mode and data of one manifest's resources.
#[derive(Clone, Default)]
pub struct Scope {
    pub env: Env,
    pub mode: Mode,
    /// External data that overrides the manifest's own, also in nested manifests.
    pub external: Value,
    /// The name of a nested manifest.
    manifest: Option<String>,
    /// The nesting depth.
    depth: usize,
}

impl Scope {
    /// Returns the scope of a top-level manifest.
    pub fn new(env: Env, mode: Mode) -> Self {
        Self {
            env,
            mode,
            ..Self::default()
        }
    }

    fn working_dir(&self) -> &Path {
        &self.env.working_dir
    }
}

/// Authorization check: whether a resource may be applied by the named provider in a mode.
pub type Gate<'g> = dyn Fn(&Resource, &str, Mode) -> Result<(), Denied> + 'g;

/// Access to the machine that an engine manages.
pub struct Machine<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: Accounts,
}

/// Applies resources and records their events.
pub struct Engine<'a> {
    machine: Machine<'a>,
    /// The machine's runner, with a record of its commands if details are shown.
    commands: RecordingRunner<'a>,
    detail_level: Option<Level>,
    session: Session,
    /// Created with the first event.
    ids: Option<EventIds>,
    programs: Cache,
    packages: package::PackageCache,
    services: service::ServiceCache,
    /// Subscriptions of the manifest being run.
    subscribers: Subscribers,
    pending_refreshes: RefCell<PendingRefreshes>,
    /// Returns the reason to stop before the next resource, if there is one.
    stop: Option<&'a dyn Fn() -> Option<String>>,
    gate: Option<&'a Gate<'a>>,
    /// Cancels the running command; prepared before the first change.
    cancel: Option<Cancel>,
    /// The directory for records that outlive the run.
    state_dir: Option<&'a Path>,
    /// The record of temporary files.
    temporaries: Option<&'a Temporaries>,
    scaffolds: scaffold::SourceCache,
    sink: RefCell<&'a mut dyn Sink>,
}

impl<'a> Engine<'a> {
    pub fn new(machine: Machine<'a>, session: Session, sink: &'a mut dyn Sink) -> Self {
        let detail_level = sink.detail_level();
        let (runner, clock) = (machine.runner, machine.clock);
        Self {
            machine,
            commands: RecordingRunner::new(runner, clock, detail_level.is_some()),
            detail_level,
            session,
            ids: None,
            programs: Cache::default(),
            packages: package::PackageCache::default(),
            services: service::ServiceCache::default(),
            subscribers: Subscribers::default(),
            pending_refreshes: RefCell::default(),
            stop: None,
            gate: None,
            cancel: None,
            state_dir: None,
            temporaries: None,
            scaffolds: scaffold::SourceCache::default(),
            sink: RefCell::new(sink),
        }
    }

    /// Performs the refreshes left pending by earlier runs and records those of this run.
    #[must_use]
    pub(crate) fn with_pending_refreshes(mut self, pending: PendingRefreshes) -> Self {
        self.pending_refreshes = RefCell::new(pending);
        self
    }

    /// Calls `stop` before each resource; a returned reason ends the run there.
    #[must_use]
    pub(crate) fn with_stop_check(mut self, stop: &'a dyn Fn() -> Option<String>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Calls `gate` before each resource, also of nested manifests, to authorize it.
    #[must_use]
    pub(crate) fn with_gate(mut self, gate: &'a Gate<'a>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Prepares the token before the first change.
    #[must_use]
    pub(crate) fn with_cancel(self, cancel: Option<Cancel>) -> Self {
        Self { cancel, ..self }
    }

    /// Keeps records that outlive the run in this directory.
    #[must_use]
    pub(crate) fn with_state_dir(self, state_dir: Option<&'a Path>) -> Self {
        Self { state_dir, ..self }
    }

    /// Records temporary files there, so that those of a killed run are removed.
    #[must_use]
    pub(crate) fn with_temporaries(self, temporaries: Option<&'a Temporaries>) -> Self {
        Self {
            temporaries,
            ..self
        }
    }

    /// Returns the engine with a configured package cache.
    #[must_use]
    pub(crate) fn with_packages(self, packages: package::PackageCache) -> Self {
        Self { packages, ..self }
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    fn next_id(&mut self, now: DateTime<Utc>) -> Result<EventId, RandomError> {
        let ids = match self.ids.take() {
            Some(ids) => ids,
            None => EventIds::new()?,
        };
        Ok(self.ids.insert(ids).next(now))
    }

    fn host<'h>(&'h self, scope: &'h Scope) -> Host<'h> {
        Host {
            runner: &self.commands,
            clock: self.machine.clock,
            accounts: &self.machine.accounts,
            working_dir: scope.working_dir(),
            state_dir: self.state_dir,
            files: Writer::recording(self.temporaries),
            env: &scope.env,
            packages: &self.packages,
            services: &self.services,
            scaffolds: &self.scaffolds,
        }
    }

    /// Sends the details of a resource to the sink, if it receives those of this level.
    fn detail(
        &self,
        scope: &Scope,
        level: Level,
        resource: &Resource,
        message: &str,
        add_fields: impl FnOnce(Line) -> Line,
    ) {
        if self.detail_level.is_none_or(|least| level < least) {
            return;
        }
        let mut line = Line::new(level, message);
        if let Some(manifest) = &scope.manifest {
            line = line.with("manifest", manifest);
        }
        line = add_fields(line.with("resource", resource.label()));
        redact_line(&mut line, &scope.env.secrets);
        self.sink.borrow_mut().detail(&line);
    }

    /// Sends the commands since the last call to the sink.
    fn detail_commands(&self, scope: &Scope, resource: &Resource) {
        for CommandRecord { line, result, took } in self.commands.take() {
            let is_hidden = resource.common.sensitive;
            let command = if is_hidden { REDACTED.into() } else { line };
            let message = match &result {
                Ok(_) => "Ran command",
                Err(_) => "Could not run command",
            };
            self.detail(scope, Level::Info, resource, message, |line| {
                let line = line.with("command", command);
                let line = match result {
                    Ok(code) => line.with("exitcode", code),
                    Err(_) if is_hidden => line,
                    Err(reason) => line.with("error", reason),
                };
                line.with("runtime", go_millis(took))
            });
        }
    }

    /// Sends a line to the sink; lines of a nested manifest start with its name.
    fn log(&self, scope: &Scope, mut line: Line) {
        if let Some(manifest) = &scope.manifest {
            line.fields.insert(0, ("manifest", manifest.clone()));
        }
        redact_line(&mut line, &scope.env.secrets);
        self.sink.borrow_mut().line(&line);
    }
}

/// Returns the parent directory of a file, `.` for a bare file name.
pub fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
