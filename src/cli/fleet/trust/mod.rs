//! `ccm fleet trust`: keys, accounts and users of the fleet's NATS servers.
//!
//! One file per command. `ccm_fleet::trust` creates and signs everything; changes of the account are
//! sent to the servers by [`push`].

mod init;
mod issue;
mod list;
mod revoke;
mod rotate;
mod signer;

use std::path::PathBuf;

use clap::Subcommand;

use super::FleetArgs;
use crate::cli::environment;
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::trust::{TrustDir, TrustError};
use ccm_nats::jwt::push_account;
use ccm_nats::{Connection, Settings};

/// Manage the keys, accounts and users of the fleet's NATS servers
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    directory: TrustArgs,

    #[command(subcommand)]
    command: Command,
}

/// Flag of the trust directory.
#[derive(Debug, clap::Args)]
pub(super) struct TrustArgs {
    /// Directory created by `ccm fleet trust init`
    #[arg(
        long,
        global = true,
        env = "CCM_TRUST_DIR",
        value_name = "DIR",
        default_value = "/etc/choria/ccm/trust"
    )]
    trust_dir: PathBuf,
}

impl TrustArgs {
    pub(super) fn open(&self) -> Result<TrustDir, CliError> {
        TrustDir::open(&self.trust_dir).map_err(CliError::from)
    }

    /// Opens the directory, if there is one.
    pub(super) fn find(&self) -> Result<Option<TrustDir>, CliError> {
        match TrustDir::open(&self.trust_dir) {
            Err(TrustError::NoDirectory(_)) => Ok(None),
            trust => Ok(Some(trust?)),
        }
    }

    /// Connects with the given context, or with that of the controller in the trust directory.
    pub(super) async fn connect(&self, fleet: &FleetArgs) -> Result<Connection, CliError> {
        if fleet.nats.is_given() {
            return fleet.connect().await;
        }
        match TrustDir::open(&self.trust_dir) {
            Ok(trust) => connect(&trust.controller_settings()?).await,
            Err(TrustError::NoDirectory(_)) => fleet.connect().await,
            Err(err) => Err(err.into()),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Issue(issue::Args),
    /// List issued users
    List(list::Args),
    Revoke(revoke::Args),
    Rotate(rotate::Args),
    /// Update the permissions of all roles to those of this version, send the account to the servers,
    /// and publish the statements about request signers
    Push,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    if let Command::Init(command) = &args.command {
        return init::run(command, fleet, console);
    }
    let mut trust = args.directory.open()?;
    let lock = trust.lock(&SystemClock)?;
    match &args.command {
        Command::Init(_) => {}
        Command::Issue(command) => issue::run(command, &trust, console)?,
        Command::List(command) => list::run(command, &trust, console)?,
        Command::Revoke(command) => revoke::run(command, &args.directory, fleet, &trust, console)?,
        Command::Rotate(command) => {
            rotate::run(command, &args.directory, fleet, &mut trust, console)?;
        }
        Command::Push => {
            let jwt = trust.refresh(SystemClock.now())?;
            runtime::block_on(async {
                push(&trust, &jwt).await?;
                if trust.signer_updates()?.is_empty() {
                    // The bucket may not exist before the first `ccm fleet init` of this version.
                    return Ok(());
                }
                let connection = args.directory.connect(fleet).await?;
                signer::publish(&connection, &fleet.subjects()?, &trust).await
            })?;
        }
    }
    drop(lock);
    Ok(Verdict::default())
}

/// Sends the account to the servers.
pub(super) async fn push(trust: &TrustDir, jwt: &str) -> Result<(), CliError> {
    let hint =
        "the change is stored; send it with `ccm fleet trust push` once a server is reachable";
    let connection = connect(&trust.system_settings()?).await;
    let connection = connection.map_err(|err| err.hint(hint))?;
    let count = push_account(&connection, jwt)
        .await
        .map_err(|err| CliError::failed(err).hint(hint))?;
    let servers = if count == 1 { "server" } else { "servers" };
    print_error(&format!("ccm: updated the account on {count} {servers}"));
    Ok(())
}

async fn connect(settings: &Settings) -> Result<Connection, CliError> {
    environment::connect(settings)
        .await
        .map_err(CliError::failed)
}

impl From<TrustError> for CliError {
    fn from(err: TrustError) -> Self {
        match err {
            TrustError::NoDirectory(_) => Self::usage(err)
                .hint("use --trust-dir or CCM_TRUST_DIR, or run `ccm fleet trust init DIR`"),
            TrustError::SignerNotRetired(_) => {
                Self::usage(err).hint("retire it with `ccm fleet trust rotate signer --retire`")
            }
            TrustError::NoPreviousSigner => {
                Self::usage(err).hint("create one with `ccm fleet trust rotate signer`")
            }
            TrustError::NotEmpty(_) | TrustError::Name { .. } | TrustError::PublicKey => {
                Self::usage(err)
            }
            err => Self::failed(err),
        }
    }
}
