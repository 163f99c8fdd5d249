//! `ccm registration`: commands for the service registry. One file per command.
//!
//! Flags and output match upstream CCM. The registry itself is in `ccm_nats::registration`.

mod create;
mod init;
mod query;
mod rm;
mod watch;

use clap::Subcommand;

use super::environment::NatsArgs;
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::model::registration::{Entry, Port};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    nats: NatsArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    #[command(visible_alias = "c")]
    Create(create::Args),
    #[command(visible_alias = "q")]
    Query(query::Args),
    #[command(visible_alias = "delete")]
    Rm(rm::Args),
    Watch(watch::Args),
}

/// Identity of a service instance.
#[derive(Debug, clap::Args)]
struct Identity {
    /// Cluster name
    #[arg(long)]
    cluster: String,

    /// Service name
    #[arg(long)]
    service: String,

    /// Protocol name
    #[arg(long)]
    protocol: String,

    /// IP address or host
    #[arg(long)]
    address: String,

    /// Port number
    #[arg(long, allow_negative_numbers = true)]
    port: i64,
}

/// Filter for entries; `*` matches everything.
#[derive(Debug, clap::Args)]
struct EntryFilter {
    /// Cluster to query
    #[arg(default_value = "*")]
    cluster: String,

    /// Protocol to query
    #[arg(default_value = "*")]
    protocol: String,

    /// Service to query
    #[arg(default_value = "*")]
    service: String,

    /// IP address or host to query
    #[arg(default_value = "*")]
    address: String,
}

impl EntryFilter {
    /// Returns the subject tokens in the order that lookups use.
    fn tokens(&self) -> [&str; 4] {
        [&self.cluster, &self.protocol, &self.service, &self.address]
    }
}

impl Identity {
    /// Returns an entry with this identity and no further fields.
    fn entry(&self, priority: i64) -> Entry {
        Entry {
            cluster: self.cluster.clone(),
            service: self.service.clone(),
            protocol: self.protocol.clone(),
            address: self.address.clone(),
            port: Port::Number(self.port),
            priority,
            ..Entry::default()
        }
    }
}

/// Validates an entry.
fn check(entry: &Entry) -> Result<(), CliError> {
    let checked = entry.validate();
    checked.map_err(|err| CliError::usage(err).at("invalid registration entry"))
}

/// Returns a log line with the identity of an entry.
fn line(level: Level, text: &str, entry: &Entry) -> Line {
    Line::new(level, text)
        .with("cluster", &entry.cluster)
        .with("service", &entry.service)
        .with("protocol", &entry.protocol)
        .with("address", &entry.address)
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let nats = &args.nats;
    match args.command {
        Command::Init(command) => init::run(&command, nats, console),
        Command::Create(command) => create::run(&command, nats, console),
        Command::Query(command) => query::run(&command, nats, console),
        Command::Rm(command) => rm::run(&command, nats, console),
        Command::Watch(command) => watch::run(&command, nats, console),
    }
}
