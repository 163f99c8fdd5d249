//! Handling of Ctrl-C and SIGTERM during a run.
//!
//! The first signal lets the current resource finish and starts no further one, so that no package
//! is left half installed. The second one ends the running command and all its child processes.
//! Before the first command or change of the run there is nothing to finish: a signal then ends the
//! program, and a run that finds everything stable needs no handlers and no thread for them.
//!
//! Commands run in process groups of their own, so Ctrl-C in the terminal does not reach them
//! directly. How a command is ended is in `ccm_core::system`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::print_error;
use super::{CliError, Verdict};
use ccm_core::run::nats_client::StopCheck;
use ccm_core::system::Cancel;

/// Time that the current resource has to finish after the first signal, as in the agent.
const GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Exit code of an interrupted run, as in shells.
const INTERRUPTED: u8 = 130;

/// Interrupt state of a run.
pub(super) struct Interrupt {
    is_requested: Arc<AtomicBool>,
    cancel: Cancel,
}

impl Interrupt {
    /// Returns an instance without signal handlers: until the first command or change of the run,
    /// signals end the program.
    pub(super) fn new() -> Result<Self, CliError> {
        let is_requested = Arc::<AtomicBool>::default();
        let requested = is_requested.clone();
        let cancel = Cancel::prepared_by(move |cancel| {
            if let Err(error) = listen(requested, cancel.clone()) {
                // Signals then end the program directly.
                print_error(&format!("ccm: could not install signal handlers: {error}"));
            }
        });
        Ok(Self {
            is_requested,
            cancel: cancel.map_err(CliError::failed)?,
        })
    }

    /// Returns the handle that ends running commands.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns the check that the engine makes before each resource.
    pub(super) fn stop(&self) -> StopCheck {
        let is_requested = self.is_requested.clone();
        Arc::new(move || {
            let is_requested = is_requested.load(Ordering::SeqCst);
            is_requested.then(|| "interrupted".into())
        })
    }

    /// Returns the verdict, with exit code 130 if the run was interrupted.
    pub(super) fn verdict(&self, verdict: Verdict) -> Verdict {
        if self.is_requested.load(Ordering::SeqCst) {
            Verdict::exit(INTERRUPTED)
        } else {
            verdict
        }
    }
}

/// Installs the signal handlers; signals no longer end the program directly.
fn listen(is_requested: Arc<AtomicBool>, cancel: Cancel) -> std::io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _context = runtime.enter();
        Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        }
    };
    // The run uses the main thread; this thread ends with the program.
    std::thread::spawn(move || {
        runtime.block_on(async move {
            signals.next().await;
            is_requested.store(true, Ordering::SeqCst);
            print_error(&format!(
                "ccm: interrupted: waiting up to {GRACE_PERIOD:?} for the current resource; interrupt again to stop it now"
            ));
            // After the second signal or the grace period the command is ended.
            let _ = tokio::time::timeout(GRACE_PERIOD, signals.next()).await;
            cancel.cancel();
        });
    });
    Ok(())
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
