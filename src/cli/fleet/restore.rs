//! `ccm fleet restore`: creates the streams and buckets of the fleet from a backup.

use std::path::PathBuf;

use super::FleetArgs;
use super::trust::TrustArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_fleet::backup::Backup;
use ccm_value::text::to_the_second;

/// Create the streams and buckets of the fleet from a backup
///
/// Verifies the backup first. Streams that have messages are replaced with --force only. Run it
/// again if it is interrupted. Needs the permissions of a controller.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Directory created by `ccm fleet backup`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    #[command(flatten)]
    trust: TrustArgs,

    /// Replace streams that have messages
    #[arg(long)]
    force: bool,

    /// Number of replicas [default: as in the backup]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let backup = Backup::open(&args.directory)?;
    runtime::block_on(async {
        let connection = args.trust.connect(fleet).await?;
        let restoring = backup.restore(
            &connection,
            &args.directory,
            args.force,
            args.replicas,
            |copy| {
                let (name, messages) = (&copy.name, copy.messages());
                console.print(&format!("restored {name}: {messages}\n"));
            },
        );
        Ok(restoring.await?)
    })?;
    let created = to_the_second(&backup.created);
    console.print(&format!("restored the backup of {created}\n"));
    Ok(Verdict::default())
}
