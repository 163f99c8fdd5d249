//! Applies resources: one at a time, in order, each ending in one event.
//!
//! The engine owns all policy (control, require, subscribe, noop, health) and knows nothing of
//! who called it. Types and providers own none of it. [`flow`] is the life of one resource,
//! [`run`] that of a manifest, [`session`] what is remembered.

mod child;
mod control;
pub mod flow;
pub mod run;
pub mod session;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use crate::model::Value;
use crate::model::event::TransactionEvent;
use crate::resource::{Host, package, service};
use crate::system::{Accounts, Clock, Runner};
use crate::template::Env;
use crate::template::expr::Cache;

pub use flow::FlowError;
pub use session::{EventIds, NoEvents, Session, SessionError};

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A line for the person who watches: a message and what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub level: Level,
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}

impl Line {
    pub fn new(level: Level, message: impl Into<String>) -> Self {
        Self {
            level,
            message: message.into(),
            fields: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.fields.push((key, value.to_string()));
        self
    }
}

/// Where events and lines go: a terminal, a log, a spool.
pub trait Sink {
    /// Takes a finished event; `manifest` names the nested manifest it belongs to, if any.
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>);

    /// Takes a line.
    fn line(&mut self, line: &Line);

    /// Takes what a resource changes, or would change, as a unified diff.
    fn diff(&mut self, text: &str);
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
    ids: EventIds,
    programs: Cache,
    packages: package::Shared,
    services: service::Memory,
    sink: RefCell<&'a mut dyn Sink>,
}

impl<'a> Engine<'a> {
    pub fn new(machine: Machine<'a>, session: Session, sink: &'a mut dyn Sink) -> Self {
        Self {
            machine,
            session,
            ids: EventIds::default(),
            programs: Cache::default(),
            packages: package::Shared::default(),
            services: service::Memory::default(),
            sink: RefCell::new(sink),
        }
    }

    /// Returns the same engine with what packages share, as somebody set it up.
    #[must_use]
    pub fn with_packages(self, packages: package::Shared) -> Self {
        Self { packages, ..self }
    }

    pub fn session(&self) -> &Session {
        &self.session
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
