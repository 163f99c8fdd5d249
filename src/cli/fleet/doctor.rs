//! `ccm fleet doctor`: diagnoses the fleet. The checks are in `ccm_fleet::doctor`.

use super::FleetArgs;
use crate::cli::diagnosis::{self, DiagnosisArgs};
use crate::cli::environment::connect;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_agent::VERSION;
use ccm_core::system::SystemClock;
use ccm_fleet::doctor::diagnose;

/// Diagnose the fleet: servers, streams, rollouts, nodes and enrolments
///
/// Nothing is changed and no node is contacted. The exit code is 0 if no check failed, else 1.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    output: DiagnosisArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let settings = fleet.nats.settings_of(None).map_err(CliError::usage)?;
    let found = runtime::block_on(async {
        let connection = connect(&settings).await;
        Ok(diagnose(connection, &subjects, VERSION, &SystemClock).await)
    })?;
    diagnosis::print(&found, &args.output, console)
}
