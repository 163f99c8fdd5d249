//! `ccm fleet serve`: starts the web page, JSON API and metrics of the fleet, which are in
//! `ccm_fleet::web`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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
use ccm_core::system::files;
use ccm_fleet::web::{Access, AccessRole, Options, Server, WebError};
use ccm_value::secret::Secret;

/// Size limit of a file with tokens.
const MAX_ACCESS: u64 = 1024 * 1024;

/// Serve a live web page of the fleet with a JSON API and Prometheus metrics
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Listen address; requires --access or --token-file unless it is a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8480", value_parser = address)]
    listen: SocketAddr,

    /// YAML file with named tokens, their roles (read, ask, roll-out) and limits on rollouts; must not
    /// be readable by other users
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
    let options = Options {
        listen: args.listen,
        access: args.access()?,
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
    /// Returns the tokens of the server.
    fn access(&self) -> Result<Access, CliError> {
        let role = match self.allow_actions {
            true => AccessRole::RollOut,
            false => AccessRole::Read,
        };
        let (path, parsed) = match (&self.access, &self.token_file) {
            (Some(path), _) => (path, Access::parse(&read(path)?)),
            (None, Some(path)) => {
                let token = Secret::new(read(path)?.trim());
                (path, Access::single(&token, role))
            }
            (None, None) => return Ok(Access::open()),
        };
        parsed.map_err(|err| CliError::usage(err).at(path.display()))
    }
}

/// Reads a file with tokens.
fn read(path: &Path) -> Result<String, CliError> {
    files::read_secret(path, MAX_ACCESS).map_err(CliError::usage)
}
