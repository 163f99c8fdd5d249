//! Ctrl-C in the middle of a run. The resource at work is finished and nothing more is begun: half
//! a package is worse than a short wait. Whoever can't wait asks a second time, and everything that
//! the command at work has started ends with it. SIGTERM is the same request by a program.
//!
//! Commands have process groups of their own, so a terminal's Ctrl-C never reaches them, and a run
//! that simply died would leave them behind. How a command is ended is `system`'s.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::complain;
use super::{CliError, Verdict};
use ccm_core::run::bus::StopReason;
use ccm_core::system::Cancel;

/// How long the resource at work may take once somebody wants to stop, as with the agent.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exit code of what was interrupted, as a shell has it.
const INTERRUPTED: u8 = 130;

/// Whether somebody wants the run to stop.
pub(super) struct Interrupt {
    is_asked: Arc<AtomicBool>,
    cancel: Cancel,
    listening: Once,
}

impl Interrupt {
    /// Returns one that hears nothing yet: until a run begins, signals end the program.
    pub(super) fn new() -> Result<Self, CliError> {
        Ok(Self {
            is_asked: Arc::default(),
            cancel: Cancel::new().map_err(CliError::failed)?,
            listening: Once::new(),
        })
    }

    /// Listens from now on; the signals no longer end the program by themselves.
    pub(super) fn listen(&self) {
        self.listening.call_once(|| {
            if let Err(error) = self.spawn() {
                // Then a signal ends the program, as it does without this.
                complain(&format!("ccm: can't listen for signals: {error}"));
            }
        });
    }

    fn spawn(&self) -> std::io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut signals = {
            let _context = runtime.enter();
            Signals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            }
        };
        let (asked, ending) = (self.is_asked.clone(), self.cancel.clone());
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
        Ok(())
    }

    /// Returns what ends the commands of a run when nobody wants to wait for them.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns the question why nothing more is to be begun.
    pub(super) fn stop(&self) -> StopReason {
        let is_asked = self.is_asked.clone();
        Arc::new(move || {
            let is_asked = is_asked.load(Ordering::SeqCst);
            is_asked.then(|| "interrupted".into())
        })
    }

    /// Returns the verdict with the exit code of an interrupted run, if it was one.
    pub(super) fn judge(&self, verdict: Verdict) -> Verdict {
        if self.is_asked.load(Ordering::SeqCst) {
            Verdict::exit(INTERRUPTED)
        } else {
            verdict
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
