//! `ccm registration`: services that registered, by hand and by eye. One file per command.
//!
//! Flags, lines and texts are upstream's. What a registry is, is in `nats::registration`.

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

/// Finds, watches and changes registered services
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

/// What tells one instance of a service from all others.
#[derive(Debug, clap::Args)]
struct Identity {
    /// The cluster of the service
    #[arg(long)]
    cluster: String,

    /// The name of the service
    #[arg(long)]
    service: String,

    /// The protocol it speaks
    #[arg(long)]
    protocol: String,

    /// Its IP address
    #[arg(long)]
    address: String,

    /// Its port
    #[arg(long, allow_negative_numbers = true)]
    port: i64,
}

/// Which services: a word that is not given stands for any.
#[derive(Debug, clap::Args)]
struct Words {
    /// Only of this cluster
    #[arg(default_value = "*")]
    cluster: String,

    /// Only with this protocol
    #[arg(default_value = "*")]
    protocol: String,

    /// Only this service
    #[arg(default_value = "*")]
    service: String,

    /// Only at this address
    #[arg(default_value = "*")]
    address: String,
}

impl Words {
    /// Returns the words in the order of a lookup.
    fn all(&self) -> [&str; 4] {
        [&self.cluster, &self.protocol, &self.service, &self.address]
    }
}

impl Identity {
    /// Returns an entry of this service, with nothing else in it.
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

/// Refuses an entry that nobody could use.
fn check(entry: &Entry) -> Result<(), CliError> {
    let checked = entry.validate();
    checked.map_err(|err| CliError::usage(err).at("invalid registration entry"))
}

/// Returns a line that names an instance of a service.
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
