//! `ccm fleet backup`: copies the streams and buckets of the fleet into a directory.

use std::path::PathBuf;

use super::FleetArgs;
use super::trust::TrustArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::backup::{self, BackupError};

/// Copy the streams and buckets of the fleet into a directory
///
/// Each stream is copied at one point in time, one after the other. Needs the permissions of a
/// controller. The trust directory is not part of it.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Directory to create
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    #[command(flatten)]
    trust: TrustArgs,

    /// Leave out the events, which are the largest part
    #[arg(long)]
    without_events: bool,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let made = runtime::block_on(async {
        let connection = args.trust.connect(fleet).await?;
        let made = backup::create(
            &connection,
            &args.directory,
            !args.without_events,
            SystemClock.now(),
            |copy| {
                let (name, bytes) = (&copy.name, copy.bytes);
                let messages = copy.messages();
                console.print(&format!("copied {name}: {messages}, {bytes} bytes\n"));
            },
        );
        Ok(made.await?)
    })?;
    let directory = args.directory.display();
    let count = made.streams.len();
    console.print(&format!("created {directory} with {count} streams\n"));
    Ok(Verdict::default())
}

impl From<BackupError> for CliError {
    fn from(err: BackupError) -> Self {
        match err {
            BackupError::Nats(err) => Self::of_fleet(err),
            BackupError::HasData(_) => {
                Self::usage(err).hint("--force replaces it with the content of the backup")
            }
            BackupError::NoStreams => Self::usage(err).hint("run `ccm fleet init`"),
            BackupError::Exists(_) | BackupError::NoBackup(_) | BackupError::Version { .. } => {
                Self::usage(err)
            }
            err => Self::failed(err),
        }
    }
}
