//! Who carries a loaded run out: the engine on this machine, or a simulation of it.

use std::sync::Arc;

use crate::engine::apply_manifest::RunError;
use crate::engine::{
    Engine, FlowError, Gate, Machine, PendingRefreshes, Scope, Session, SessionError, Sink,
};
use crate::manifest::Manifest;
use crate::model::Resource;
use crate::model::event::TransactionEvent;
use crate::resource::package;
use crate::system::{Accounts, Cancel, Clock, SystemRunner};

/// What a run is carried out with.
pub struct Work<'a> {
    pub scope: &'a Scope,
    pub clock: &'a dyn Clock,
    pub session: Session,
    pub packages: package::Shared,
    /// Refreshes that earlier runs still have to make.
    pub pending: PendingRefreshes,
    /// Asked before each resource whether it may be applied.
    pub gate: &'a Gate<'a>,
    /// Asked before each resource whether to stop there.
    pub stop: &'a dyn Fn() -> Option<String>,
    /// Ends the command at work.
    pub cancel: Option<Cancel>,
}

/// Why one resource has no event, or none that was kept.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    #[error(transparent)]
    Flow(#[from] FlowError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Carries runs out.
pub trait Executor: Send + Sync {
    /// Applies a manifest. The session holds what was done, also when the run ended early.
    fn apply(
        &self,
        work: Work<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>);

    /// Brings one resource to its state, and reports and records its event.
    fn ensure(
        &self,
        work: Work<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>);
}

/// The engine, on this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

impl Executor for Local {
    fn apply(
        &self,
        work: Work<'_>,
        manifest: &Manifest,
        sink: &mut dyn Sink,
    ) -> (Session, Result<(), RunError>) {
        let runner = runner(&work);
        let scope = work.scope;
        let mut engine = engine(work, &runner, sink);
        let result = engine.run(scope, manifest);
        (engine.into_session(), result)
    }

    fn ensure(
        &self,
        work: Work<'_>,
        resource: &Arc<Resource>,
        sink: &mut dyn Sink,
    ) -> (Session, Result<TransactionEvent, EnsureError>) {
        let runner = runner(&work);
        let scope = work.scope;
        let mut engine = engine(work, &runner, sink);
        let applied = engine.apply(scope, resource).map_err(EnsureError::from);
        let recorded = applied.and_then(|event| {
            engine.record(scope, event.clone())?;
            Ok(event)
        });
        (engine.into_session(), recorded)
    }
}

fn runner(work: &Work<'_>) -> SystemRunner {
    match &work.cancel {
        Some(cancel) => SystemRunner::cancellable(cancel.clone()),
        None => SystemRunner::new(),
    }
}

fn engine<'e>(work: Work<'e>, runner: &'e SystemRunner, sink: &'e mut dyn Sink) -> Engine<'e> {
    let machine = Machine {
        runner,
        clock: work.clock,
        accounts: Accounts::default(),
    };
    Engine::new(machine, work.session, sink)
        .with_packages(work.packages)
        .owing(work.pending)
        .guarded(work.gate)
        .stopping(work.stop)
}
