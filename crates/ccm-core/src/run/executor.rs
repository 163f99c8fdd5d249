//! Executors: how a loaded run is performed, by the engine on this machine or by a simulation.

use std::path::Path;
use std::sync::Arc;

use crate::engine::apply_manifest::RunError;
use crate::engine::{
    Engine, FlowError, Gate, Level, Line, Machine, PendingRefreshes, Scope, Session, SessionError,
    Sink,
};
use crate::manifest::Manifest;
use crate::model::Resource;
use crate::model::event::TransactionEvent;
use crate::resource::package;
use crate::system::files::Temporaries;
use crate::system::{Accounts, Cancel, Clock, SystemRunner};

/// What an executor needs to set up an engine.
pub struct EngineSetup<'a> {
    pub scope: &'a Scope,
    pub clock: &'a dyn Clock,
    pub accounts: Accounts,
    pub session: Session,
    pub packages: package::PackageCache,
    /// The directory for records that outlive the run.
    pub state_dir: Option<&'a Path>,
    /// Refreshes left pending by earlier runs.
    pub pending: PendingRefreshes,
    /// Authorizes each resource before it is applied.
    pub gate: &'a Gate<'a>,
    /// Called before each resource; a returned reason stops the run there.
    pub stop: &'a dyn Fn() -> Option<String>,
    /// Cancels the running command.
    pub cancel: Option<Cancel>,
}

/// A failure to apply a single resource or to record its event.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    #[error(transparent)]
    Flow(#[from] FlowError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Performs runs.
pub trait Executor: Send + Sync {
    /// Applies a manifest. The returned session holds all events, also if the run ended early.
    fn apply(
        &self,
        setup: EngineSetup<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>);

    /// Applies one resource, and reports and records its event.
    fn ensure(
        &self,
        setup: EngineSetup<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>);
}

/// Executor that runs the engine on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalExecutor {
    /// Starts commands below supervisors. Only for programs that call
    /// [`supervise`](crate::system::supervise) first.
    pub has_supervisor: bool,
}

impl Executor for LocalExecutor {
    fn apply(
        &self,
        setup: EngineSetup<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>) {
        let runner = self.runner(&setup);
        let temporaries = temporaries(&setup, sink);
        let scope = setup.scope;
        let mut engine = engine(setup, &runner, temporaries.as_ref(), sink);
        let result = engine.run(scope, manifest);
        let session = engine.into_session();
        warn_about_orphans(&runner, sink);
        (session, result)
    }

    fn ensure(
        &self,
        setup: EngineSetup<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>) {
        let runner = self.runner(&setup);
        let temporaries = temporaries(&setup, sink);
        let scope = setup.scope;
        let mut engine = engine(setup, &runner, temporaries.as_ref(), sink);
        let applied = engine.apply(scope, resource).map_err(EnsureError::from);
        let recorded = applied.and_then(|event| {
            engine.record(scope, event.clone())?;
            Ok(event)
        });
        let session = engine.into_session();
        warn_about_orphans(&runner, sink);
        (session, recorded)
    }
}

impl LocalExecutor {
    fn runner(self, setup: &EngineSetup<'_>) -> SystemRunner {
        let runner = match &setup.cancel {
            Some(cancel) => SystemRunner::cancellable(cancel.clone()),
            None => SystemRunner::new(),
        };
        runner.with_supervisor(self.has_supervisor)
    }
}

/// Reports commands of killed runs that did not end.
fn warn_about_orphans(runner: &SystemRunner, sink: &mut dyn Sink) {
    for pid in runner.orphans() {
        let text = "A command of an interrupted run did not end in time; this run did not wait for \
                    it any longer";
        sink.line(&Line::new(Level::Warn, text).with("supervisor", pid));
    }
}

/// Removes what killed runs left, and returns the record of this one's temporary files.
fn temporaries(setup: &EngineSetup<'_>, sink: &mut dyn Sink) -> Option<Temporaries> {
    if setup.scope.mode.noop || setup.scope.mode.health_check_only {
        return None;
    }
    let temporaries = Temporaries::of(setup.state_dir?);
    match temporaries.remove_stale() {
        Ok(0) => {}
        Ok(count) => {
            let text = "Removed temporary files of an interrupted run";
            sink.line(&Line::new(Level::Info, text).with("count", count));
        }
        Err(err) => {
            let text = "Could not remove temporary files of an interrupted run";
            sink.line(&Line::new(Level::Warn, text).with("error", err));
        }
    }
    Some(temporaries)
}

fn engine<'e>(
    setup: EngineSetup<'e>,
    runner: &'e SystemRunner,
    temporaries: Option<&'e Temporaries>,
    sink: &'e mut dyn Sink,
) -> Engine<'e> {
    let machine = Machine {
        runner,
        clock: setup.clock,
        accounts: setup.accounts,
    };
    Engine::new(machine, setup.session, sink)
        .with_packages(setup.packages)
        .with_state_dir(setup.state_dir)
        .with_temporaries(temporaries)
        .with_pending_refreshes(setup.pending)
        .with_gate(setup.gate)
        .with_stop_check(setup.stop)
        .with_cancel(setup.cancel)
}
