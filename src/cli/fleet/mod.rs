//! `ccm fleet`: commands for a fleet of nodes. One file per command.
//!
//! Shared modules: `select` (node selection flags), `request` (requests to nodes), `reply_report`
//! (output of replies), `node_columns` (columns of tables of nodes), `list_output` (output of lists),
//! `flag_values` (errors about flag values) and `candidates` (shell completion).

mod apply;
mod backup;
mod bundle;
mod cancel;
mod candidates;
mod doctor;
mod drift;
mod enroll;
mod ensure;
mod events;
mod facts;
mod flag_values;
mod forget;
mod init;
mod label;
mod list_output;
mod node_columns;
mod nodes;
mod output_blocks;
mod pause;
mod permissions;
mod ping;
mod query;
pub(super) mod recipients;
mod reply_report;
mod request;
mod restore;
mod resume;
mod rollout;
mod run;
mod runs;
mod select;
mod serve;
mod sign;
mod simulate;
mod status;
mod trust;

use clap::Subcommand;

use super::environment::NatsArgs;
use super::output::Console;
use super::signing::SigningArgs;
use super::{CliError, Verdict};
use ccm_core::model::node::Token;
use ccm_fleet::role_permissions::FleetNames;
use ccm_nats::subject::DEFAULT_PREFIX;
use ccm_nats::{Connection, Subjects};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    fleet: FleetArgs,

    #[command(subcommand)]
    command: Command,
}

/// Flags that select the fleet.
#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
pub(super) struct FleetArgs {
    #[command(flatten)]
    nats: NatsArgs,

    #[command(flatten)]
    signing: SigningArgs,

    /// Collective of the fleet
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "CCM_COLLECTIVE",
        value_name = "NAME",
        default_value = "default"
    )]
    collective: Token,

    /// Subject prefix of the fleet
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "CCM_PREFIX",
        value_name = "SUBJECT",
        default_value = DEFAULT_PREFIX
    )]
    prefix: String,
}

impl FleetArgs {
    /// Connects to NATS, with a signer if `--sign-with` was given.
    async fn connect(&self) -> Result<Connection, CliError> {
        let signer = self.signing.signer(&self.nats)?;
        Ok(self.nats.connect().await?.with_signer(signer))
    }

    /// Returns the subjects of the fleet.
    fn subjects(&self) -> Result<Subjects, CliError> {
        Subjects::new(&self.prefix, self.collective.clone()).map_err(CliError::usage)
    }

    /// Returns the validated prefix and the collective.
    fn names(&self) -> Result<FleetNames, CliError> {
        self.subjects()?;
        Ok(FleetNames {
            prefix: self.prefix.clone(),
            collective: self.collective.clone(),
        })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Doctor(doctor::Args),
    Nodes(nodes::Args),
    Query(query::Args),
    Ping(ping::Args),
    Facts(facts::Args),
    Status(status::Args),
    Ensure(Box<ensure::Args>),
    Run(Box<run::Args>),
    Apply(Box<apply::Args>),
    Events(events::Args),
    Runs(runs::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Cancel(cancel::Args),
    Label(label::Args),
    Forget(forget::Args),
    Backup(backup::Args),
    Restore(restore::Args),
    Simulate(simulate::Args),
    Bundle(bundle::Args),
    Rollout(Box<rollout::Args>),
    Drift(drift::Args),
    Serve(serve::Args),
    Sign(sign::Args),
    Permissions(permissions::Args),
    Trust(Box<trust::Args>),
    Enroll(Box<enroll::Args>),
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let fleet = &args.fleet;
    match args.command {
        Command::Init(command) => init::run(&command, fleet, console),
        Command::Doctor(command) => doctor::run(&command, fleet, console),
        Command::Nodes(command) => nodes::run(&command, fleet, console),
        Command::Query(command) => query::run(&command, fleet, console),
        Command::Runs(command) => runs::run(&command, fleet, console),
        Command::Ping(command) => ping::run(&command, fleet, console),
        Command::Facts(command) => facts::run(&command, fleet, console),
        Command::Status(command) => status::run(&command, fleet, console),
        Command::Ensure(command) => ensure::run(*command, fleet, console),
        Command::Run(command) => run::run(&command, fleet, console),
        Command::Apply(command) => apply::run(&command, fleet, console),
        Command::Events(command) => events::run(&command, fleet, console),
        Command::Pause(command) => pause::run(&command, fleet, console),
        Command::Resume(command) => resume::run(&command, fleet, console),
        Command::Cancel(command) => cancel::run(&command, fleet, console),
        Command::Label(command) => label::run(&command, fleet, console),
        Command::Forget(command) => forget::run(&command, fleet, console),
        Command::Backup(command) => backup::run(&command, fleet, console),
        Command::Restore(command) => restore::run(&command, fleet, console),
        Command::Simulate(command) => simulate::run(&command, fleet, console),
        Command::Bundle(command) => bundle::run(&command, fleet, console),
        Command::Rollout(command) => rollout::run(&command, fleet, console),
        Command::Drift(command) => drift::run(&command, fleet, console),
        Command::Serve(command) => serve::run(&command, fleet, console),
        Command::Sign(command) => sign::run(&command, fleet, console),
        Command::Permissions(command) => permissions::run(&command, fleet, console),
        Command::Trust(command) => trust::run(&command, fleet, console),
        Command::Enroll(command) => enroll::run(&command, fleet, console),
    }
}
