//! `ccm fleet enroll`: decides about nodes that want to become members of the fleet.
//!
//! One file per command. The rules are in `ccm_fleet::enrolment`.

mod decide;
mod list;
mod serve;
mod token;

use clap::Subcommand;

use super::FleetArgs;
use super::trust::TrustArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_fleet::enrolment::{Approver, EnrolmentError, EnrolmentStore};

/// Enroll nodes: tokens, requests and decisions
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    directory: TrustArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    List(list::Args),
    Approve(decide::ApproveArgs),
    Reject(decide::RejectArgs),
    Token(token::Args),
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let context = Context {
        directory: &args.directory,
        fleet,
        console,
    };
    match &args.command {
        Command::Serve(command) => serve::run(command, &context)?,
        Command::List(command) => list::run(command, &context)?,
        Command::Approve(command) => decide::approve(command, &context)?,
        Command::Reject(command) => decide::reject(command, &context)?,
        Command::Token(command) => token::run(command, &context)?,
    }
    Ok(Verdict::default())
}

/// What every command uses.
struct Context<'a> {
    directory: &'a TrustArgs,
    fleet: &'a FleetArgs,
    console: &'a Console,
}

impl Context<'_> {
    /// Opens the records.
    async fn store(&self) -> Result<EnrolmentStore, CliError> {
        let connection = self.directory.connect(self.fleet).await?;
        let store = EnrolmentStore::open(&connection, &self.fleet.subjects()?).await;
        store.map_err(CliError::of_fleet)
    }

    /// Opens the records and the signing key of agents.
    async fn approver(&self) -> Result<Approver, CliError> {
        let directory = self.directory.open()?;
        let connection = self.directory.connect(self.fleet).await?;
        let store = EnrolmentStore::open(&connection, &self.fleet.subjects()?).await;
        let store = store.map_err(CliError::of_fleet)?;
        Ok(Approver::new(connection, store, directory.path())?)
    }
}

impl From<EnrolmentError> for CliError {
    fn from(err: EnrolmentError) -> Self {
        match err {
            EnrolmentError::Nats(err) => Self::of_fleet(err),
            EnrolmentError::Trust(err) => err.into(),
            EnrolmentError::Taken { .. } => {
                Self::usage(err).hint("revoke the old key and approve the new one with --replace")
            }
            EnrolmentError::Ambiguous { .. } => {
                Self::usage(err).hint("compare the keys in `ccm fleet enroll list` and use --key")
            }
            EnrolmentError::NoRequest(_) => Self::usage(err).hint("see `ccm fleet enroll list`"),
            EnrolmentError::NoToken(_) => {
                Self::usage(err).hint("see `ccm fleet enroll token list`")
            }
            EnrolmentError::Pattern(..) | EnrolmentError::Revoked(_) => Self::usage(err),
            err => Self::failed(err),
        }
    }
}
