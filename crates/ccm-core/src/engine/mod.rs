//! Applies resources: one at a time, in order, each ending in one event.
//!
//! The engine owns all policy (control, require, subscribe, noop, health) and knows nothing of
//! who called it. Types and providers own none of it. [`apply_resource`] is the life of one resource,
//! [`apply_manifest`] that of a manifest, [`session`] what is remembered, `owed` what must not be forgotten,
//! `registration` which services may be found.

pub mod apply_manifest;
pub mod apply_resource;
mod control;
mod log_line;
mod nested_manifest;
mod pending_refreshes;
mod registration;
pub mod session;
mod status;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::health::Datum;
use crate::manifest::Manifest;
use crate::model::event::TransactionEvent;
use crate::model::governor::{GovernorName, SlotProgress};
use crate::model::health::{HealthCheck, HealthResult};
use crate::model::id::EventId;
use crate::model::policy::Denied;
use crate::model::registration::Entry;
use crate::model::run::RunSummary;
use crate::model::{Resource, TypeName, Value};
use crate::resource::{Host, package, scaffold, service};
use crate::system::{Accounts, Clock, RandomError, Runner};
use ccm_template::Env;
use ccm_template::expr::Cache;
use pending_refreshes::Subscribers;

pub use apply_resource::FlowError;
pub use log_line::{Level, Line, status_line};
pub use pending_refreshes::PendingRefreshes;
pub use registration::Standing;
pub use session::{EventIds, NoEvents, NotAnEvent, Session, SessionError};
pub use status::{LookError, asked_about, look, to_look_at};

/// Where events and lines go: a terminal, a log, a spool.
pub trait Sink {
    /// Takes a finished event; `manifest` names the nested manifest it belongs to, if any.
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>);

    /// Takes a line.
    fn line(&mut self, line: &Line);

    /// Takes a warning about what is applied, from before the run begins.
    fn warning(&mut self, line: &Line) {
        self.line(line);
    }

    /// Takes that a run is about to begin, of this manifest or of a single resource: nothing was
    /// touched yet.
    fn starting(&mut self, _manifest: Option<&Manifest>) {}

    /// Takes how the run gets on with its slot in a governor.
    fn slot(&mut self, _governor: &GovernorName, _progress: SlotProgress) {}

    /// Takes how the run of a manifest ended, after its last event.
    fn finished(&mut self, _run: &RunSummary) {}

    /// Takes what a resource changes, or would change, as a unified diff.
    fn diff(&mut self, text: &str);

    /// Takes how far the download of a resource is; its event tells the end. Of interest only to
    /// who watches.
    fn received(&mut self, _resource: &str, _bytes: u64, _of: Option<u64>) {}

    /// Takes what a health check said; the resource's event tells it in short. Of interest only to
    /// who watches checks.
    fn checked(&mut self, _checked: &Checked<'_>) {}

    /// Takes how the services of a resource stand. Of interest only to who registers them.
    fn services(&mut self, _entries: &[Entry], _standing: Standing) {}
}

/// A health check that has just run.
#[derive(Clone, Copy)]
pub struct Checked<'a> {
    pub type_name: TypeName,
    pub name: &'a str,
    /// What the check says must not be shown.
    pub sensitive: bool,
    pub check: &'a HealthCheck,
    pub result: &'a HealthResult,
    /// What a nagios plugin measured.
    pub perfdata: &'a [Datum],
    pub began: DateTime<Utc>,
    pub took: Duration,
}

/// How a run is meant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Plans and says what it would do.
    pub noop: bool,
    /// Only health checks run.
    pub health_check_only: bool,
    /// Plans are shown as diffs.
    pub diff: bool,
}

/// What the resources of one manifest see.
#[derive(Clone, Default)]
pub struct Scope {
    pub env: Env,
    pub mode: Mode,
    /// Data that whoever runs the manifest insists on, also in nested ones.
    pub external: Value,
    /// The name of a manifest that another one applies.
    manifest: Option<String>,
    /// How many manifests this one is nested in.
    depth: usize,
}

impl Scope {
    /// Returns the scope of a manifest that nobody applies but the caller.
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

/// Says why a resource may not be applied by a provider in a mode, or that it may.
pub type Gate<'g> = dyn Fn(&Resource, &str, Mode) -> Result<(), Denied> + 'g;

/// The parts of the machine an engine works with.
pub struct Machine<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: Accounts,
}

/// Applies resources and remembers what happened.
pub struct Engine<'a> {
    machine: Machine<'a>,
    session: Session,
    /// Made with the first event.
    ids: Option<EventIds>,
    programs: Cache,
    packages: package::Shared,
    services: service::Memory,
    /// Who subscribes to what in the manifest that is being run.
    subscribers: Subscribers,
    owed: RefCell<PendingRefreshes>,
    /// Gives the reason to begin no further resource, once there is one.
    stop: Option<&'a dyn Fn() -> Option<String>>,
    gate: Option<&'a Gate<'a>>,
    scaffolds: scaffold::Sources,
    sink: RefCell<&'a mut dyn Sink>,
}

impl<'a> Engine<'a> {
    pub fn new(machine: Machine<'a>, session: Session, sink: &'a mut dyn Sink) -> Self {
        Self {
            machine,
            session,
            ids: None,
            programs: Cache::default(),
            packages: package::Shared::default(),
            services: service::Memory::default(),
            subscribers: Subscribers::default(),
            owed: RefCell::default(),
            stop: None,
            gate: None,
            scaffolds: scaffold::Sources::default(),
            sink: RefCell::new(sink),
        }
    }

    /// Also pays the refreshes that earlier runs owe, and notes those that this one will.
    #[must_use]
    pub fn owing(mut self, owed: PendingRefreshes) -> Self {
        self.owed = RefCell::new(owed);
        self
    }

    /// Asks before each resource whether to stop there, and why.
    #[must_use]
    pub fn stopping(mut self, stop: &'a dyn Fn() -> Option<String>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Asks before each resource, also of nested manifests, whether it may be applied.
    #[must_use]
    pub fn guarded(mut self, gate: &'a Gate<'a>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Returns the same engine with what packages share, as somebody set it up.
    #[must_use]
    pub fn with_packages(self, packages: package::Shared) -> Self {
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
            runner: self.machine.runner,
            clock: self.machine.clock,
            accounts: &self.machine.accounts,
            working_dir: scope.working_dir(),
            env: &scope.env,
            packages: &self.packages,
            services: &self.services,
            scaffolds: &self.scaffolds,
        }
    }

    /// Passes a line on; lines of a nested manifest begin with its name.
    fn say(&self, scope: &Scope, mut line: Line) {
        if let Some(manifest) = &scope.manifest {
            line.fields.insert(0, ("manifest", manifest.clone()));
        }
        self.sink.borrow_mut().line(&line);
    }
}

/// Returns the directory a file's relative paths start from.
pub fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
