//! `ccm fleet`: many nodes at once. One file per command; this one only finds it.
//!
//! What they share is `select` (which nodes), `ask` (asking them), `report` (what is shown) and
//! `values` (why the value of a flag is refused).

mod apply;
mod bundle;
mod cancel;
mod drift;
mod ensure;
mod events;
mod facts;
mod flag_values;
mod init;
mod label;
mod nodes;
mod pause;
mod permissions;
mod ping;
mod reply_report;
mod request;
mod resume;
mod rollout;
mod select;
mod serve;
mod sign;
mod simulate;
mod status;

use clap::Subcommand;

use super::environment::NatsArgs;
use super::output::Console;
use super::signing::SigningArgs;
use super::{CliError, Verdict};
use ccm_core::model::node::Token;
use ccm_nats::subject::DEFAULT_PREFIX;
use ccm_nats::{Connection, Subjects};

/// Manages a fleet over NATS
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,

    #[command(subcommand)]
    command: Command,
}

/// Which fleet, and where it is.
#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
struct Place {
    #[command(flatten)]
    nats: NatsArgs,

    #[command(flatten)]
    signing: SigningArgs,

    /// The collective of the fleet
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "CCM_COLLECTIVE",
        value_name = "NAME",
        default_value = "default"
    )]
    collective: Token,

    /// What all subjects of the fleet begin with
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

impl Place {
    /// Connects, as somebody who signs if flags say so.
    async fn connect(&self) -> Result<Connection, CliError> {
        let signer = self.signing.signer(&self.nats)?;
        Ok(self.nats.connect().await?.signing(signer))
    }

    /// Returns the subjects and keys of the fleet.
    fn subjects(&self) -> Result<Subjects, CliError> {
        Subjects::new(&self.prefix, self.collective.clone()).map_err(CliError::usage)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Nodes(nodes::Args),
    Ping(ping::Args),
    Facts(facts::Args),
    Status(status::Args),
    Ensure(Box<ensure::Args>),
    Apply(Box<apply::Args>),
    Events(events::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Cancel(cancel::Args),
    Label(label::Args),
    Simulate(simulate::Args),
    Bundle(bundle::Args),
    Rollout(Box<rollout::Args>),
    Drift(drift::Args),
    Serve(serve::Args),
    Sign(sign::Args),
    Permissions(permissions::Args),
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let place = &args.place;
    match args.command {
        Command::Init(command) => init::run(&command, place, console),
        Command::Nodes(command) => nodes::run(&command, place, console),
        Command::Ping(command) => ping::run(&command, place, console),
        Command::Facts(command) => facts::run(command, place, console),
        Command::Status(command) => status::run(&command, place, console),
        Command::Ensure(command) => ensure::run(*command, place, console),
        Command::Apply(command) => apply::run(&command, place, console),
        Command::Events(command) => events::run(&command, place, console),
        Command::Pause(command) => pause::run(&command, place, console),
        Command::Resume(command) => resume::run(&command, place, console),
        Command::Cancel(command) => cancel::run(&command, place, console),
        Command::Label(command) => label::run(&command, place, console),
        Command::Simulate(command) => simulate::run(&command, place, console),
        Command::Bundle(command) => bundle::run(&command, place, console),
        Command::Rollout(command) => rollout::run(&command, place, console),
        Command::Drift(command) => drift::run(&command, place, console),
        Command::Serve(command) => serve::run(&command, place, console),
        Command::Sign(command) => sign::run(&command, place, console),
        Command::Permissions(command) => permissions::run(&command, place, console),
    }
}
