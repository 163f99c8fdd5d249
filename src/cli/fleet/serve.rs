//! `ccm fleet serve`: starts the web page, JSON API and metrics of the fleet, which are in
//! `ccm_fleet::web`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::signal::unix::{SignalKind, signal};

use super::FleetArgs;
use super::flag_values::BadValue;
use super::request::caller;
use super::rollout::drive_beside;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::system::files;
use ccm_fleet::web::{Options, Server, WebError};
use ccm_value::secret::Secret;

/// Size limit of a token file.
const MAX_TOKEN: u64 = 64 * 1024;

/// Serve a live web page of the fleet with a JSON API and Prometheus metrics
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Listen address; requires --token-file unless it is a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8480", value_parser = address)]
    listen: SocketAddr,

    /// Allow pausing nodes, ensuring resources and controlling rollouts; requires --token-file
    #[arg(long, requires = "token_file")]
    allow_actions: bool,

    /// File with the bearer token that every request must send, including reads; must not be
    /// readable by other users
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Also drive rollouts that have no controller, as `ccm fleet rollout drive --forever` does
    #[arg(long)]
    drive: bool,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let options = Options {
        listen: args.listen,
        token,
        allow_actions: args.allow_actions,
        caller: caller(),
    };
    runtime::block_on(async {
        let server = Server::bind(options).await.map_err(|err| match err {
            WebError::Open(_) => CliError::usage(err).hint("see --token-file"),
            WebError::WeakToken | WebError::NoToken => CliError::usage(err),
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
        let driving = async {
            match args.drive {
                true => drive_beside(connection.clone(), subjects.clone(), console).await,
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

/// Reads a token, without the trailing newline.
fn read_token(path: &Path) -> Result<Secret, CliError> {
    let text = files::read_secret(path, MAX_TOKEN).map_err(CliError::usage)?;
    Ok(Secret::new(text.trim()))
}
