//! `ccm fleet serve`: starts the web page, JSON API and metrics of the fleet, which are in
//! `ccm_fleet::web`.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use super::FleetArgs;
use super::flag_values::BadValue;
use super::request::caller;
use super::rollout::drive_beside;
use crate::cli::environment::variables;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::Level;
use ccm_core::run::log::{Format, Log};
use ccm_fleet::web::{Access, AccessFile, AccessRole, Options, Server, WebError};

/// Serve a live web page of the fleet with a JSON API and Prometheus metrics
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Listen address; requires --access or --token-file unless it is a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8480", value_parser = address)]
    listen: SocketAddr,

    /// YAML file with named tokens, their roles (read, ask, roll-out) and limits on rollouts; read again
    /// when it changes; must not be readable by other users
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    access: Option<PathBuf>,

    /// File with a single token that every request must send, including reads; must not be readable
    /// by other users
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Allow all actions with the single token: requests to nodes, rollouts and labels
    #[arg(long, requires = "token_file")]
    allow_actions: bool,

    /// Also drive rollouts that have no controller, as `ccm fleet rollout drive --forever` does
    #[arg(long)]
    drive: bool,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let access_file = args.access_file();
    let access = match &access_file {
        Some(file) => file.load().map_err(CliError::usage)?,
        None => Access::open(),
    };
    let options = Options {
        listen: args.listen,
        access,
        access_file,
        caller: caller(),
        log: Log::open(Level::Info, Format::Text, &variables()),
    };
    runtime::block_on(async {
        let server = Server::bind(options).await.map_err(|err| match err {
            WebError::Open(_) => CliError::usage(err).hint("see --access and --token-file"),
            err => CliError::failed(err),
        })?;
        let connection = fleet.connect().await?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
        let stop = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        console.print(&format!("serving http://{}/\n", server.address()));
        let waits = server.waits();
        let driving = async {
            match args.drive {
                true => drive_beside(connection.clone(), subjects.clone(), console, waits).await,
                false => Ok(()),
            }
        };
        let serving = server.serve(connection.clone(), subjects.clone(), stop);
        let serving = async { serving.await.map_err(CliError::failed) };
        tokio::try_join!(serving, driving).map(drop)
    })?;
    Ok(Verdict::default())
}

fn address(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_| BadValue::Address)
}

impl Args {
    /// Returns the file with the tokens of the server.
    fn access_file(&self) -> Option<AccessFile> {
        let role = match self.allow_actions {
            true => AccessRole::RollOut,
            false => AccessRole::Read,
        };
        let single = || Some(AccessFile::with_token(self.token_file.as_deref()?, role));
        let named = self.access.as_deref().map(AccessFile::with_roles);
        named.or_else(single)
    }
}
