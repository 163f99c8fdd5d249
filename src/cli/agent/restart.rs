//! `ccm agent restart`: restarts the agent's unit between two runs.

use std::time::Duration;

use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_agent::config::Config;
use ccm_core::run::RunLock;
use ccm_core::system::{Command, LockError, Runner as _, SystemClock, SystemRunner};

/// Unit of the agent.
const UNIT: &str = "ccm-agent.service";

/// Time that the agent may take to cancel a run that exceeds its time limit.
const CANCEL_GRACE: Duration = Duration::from_secs(300);

/// Restart the agent's systemd unit once no run is in progress
///
/// Waits for the current run, so that none is interrupted. The package uses it when a run of the
/// agent upgrades the agent. A unit that is not running is not started.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {}

pub(in crate::cli) fn run(config: &Config, console: &Console) -> Result<Verdict, CliError> {
    let timeout = config.run_timeout.saturating_add(CANCEL_GRACE);
    // Held during the restart: no run begins in between.
    let lock = RunLock::of(&config.state_dir).take_between_runs("restart", timeout, &SystemClock);
    let _lock = match lock {
        // Without a state directory there was no run yet.
        Err(LockError::Os { .. }) => None,
        lock => Some(lock.map_err(CliError::failed)?),
    };
    let output = SystemRunner::new()
        .run(&Command::new("systemctl", ["try-restart", UNIT]))
        .map_err(CliError::failed)?;
    if !output.is_success() {
        let reason = output.stderr_text();
        return Err(CliError::failed(reason.trim().to_owned()).at(format!("restart of {UNIT}")));
    }
    console.print(&format!("restarted {UNIT}\n"));
    Ok(Verdict::default())
}
