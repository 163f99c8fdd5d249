//! `ccm fleet`: many nodes at once. One file per command; this one only finds it.

mod init;
mod sign;

use clap::Subcommand;

use super::environment::NatsArgs;
use super::output::Console;
use super::signing::SigningArgs;
use super::{CliError, Verdict};
use crate::model::node::Token;
use crate::nats::Subjects;
use crate::nats::subject::DEFAULT_PREFIX;

/// Manages a fleet over NATS
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,

    #[command(flatten)]
    signing: SigningArgs,

    #[command(subcommand)]
    command: Command,
}

/// Which fleet, and where it is.
#[derive(Debug, clap::Args)]
struct Place {
    #[command(flatten)]
    nats: NatsArgs,

    /// The collective of the fleet
    #[arg(
        long,
        global = true,
        env = "CCM_COLLECTIVE",
        value_name = "NAME",
        default_value = "default"
    )]
    collective: Token,

    /// What all subjects of the fleet begin with
    #[arg(
        long,
        global = true,
        env = "CCM_PREFIX",
        value_name = "SUBJECT",
        default_value = DEFAULT_PREFIX
    )]
    prefix: String,
}

impl Place {
    /// Returns the subjects and keys of the fleet.
    fn subjects(&self) -> Result<Subjects, CliError> {
        Subjects::new(&self.prefix, self.collective.clone()).map_err(CliError::usage)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Args),
    Sign(sign::Args),
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    match args.command {
        Command::Init(command) => init::run(&command, &args.place, console),
        Command::Sign(command) => sign::run(&command, &args.signing, console),
    }
}
