//! Ctrl-C in the middle of a run. The resource at work is finished and nothing more is begun: half
//! a package is worse than a short wait. Whoever can't wait asks a second time, and everything that
//! the command at work has started ends with it. SIGTERM is the same request by a program.
//!
//! Commands have process groups of their own, so a terminal's Ctrl-C never reaches them, and a run
//! that simply died would leave them behind. How a command is ended is `system`'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::complain;
use super::{CliError, Verdict};
use crate::system::{Cancel, SystemRunner};

/// How long the resource at work may take once somebody wants to stop, as with the agent.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exit code of what was interrupted, as a shell has it.
const INTERRUPTED: u8 = 130;

/// Whether somebody wants the run to stop.
pub(super) struct Interrupt {
    is_asked: Arc<AtomicBool>,
    cancel: Cancel,
}

impl Interrupt {
    /// Listens from now on; the signals no longer end the program by themselves.
    pub(super) fn listen() -> Result<Self, CliError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CliError::failed)?;
        let mut signals = {
            let _context = runtime.enter();
            let listen = |kind| signal(kind).map_err(CliError::failed);
            Signals {
                interrupt: listen(SignalKind::interrupt())?,
                terminate: listen(SignalKind::terminate())?,
            }
        };
        let is_asked = Arc::new(AtomicBool::new(false));
        let cancel = Cancel::new().map_err(CliError::failed)?;
        let (asked, ending) = (Arc::clone(&is_asked), cancel.clone());
        // The run keeps the main thread; this one ends with the program.
        std::thread::spawn(move || {
            runtime.block_on(async move {
                signals.next().await;
                asked.store(true, Ordering::SeqCst);
                complain(&format!(
                    "ccm: interrupted: the resource at work has {PATIENCE:?} to finish; once more ends it now"
                ));
                // Either way its time is over.
                let _ = tokio::time::timeout(PATIENCE, signals.next()).await;
                ending.cancel();
            });
        });
        Ok(Self { is_asked, cancel })
    }

    /// Returns a runner whose commands end when nobody wants to wait for them.
    pub(super) fn runner(&self) -> SystemRunner {
        SystemRunner::cancellable(self.cancel.clone())
    }

    /// Returns why nothing more is to be begun, if so.
    pub(super) fn reason(&self) -> Option<String> {
        let is_asked = self.is_asked.load(Ordering::SeqCst);
        is_asked.then(|| "interrupted".into())
    }

    /// Returns the verdict with the exit code of an interrupted run, if it was one.
    pub(super) fn judge(&self, verdict: Verdict) -> Verdict {
        match self.is_asked.load(Ordering::SeqCst) {
            true => Verdict::exit(INTERRUPTED),
            false => verdict,
        }
    }
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
