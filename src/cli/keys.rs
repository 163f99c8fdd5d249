//! `ccm keys`: seeds to sign with, and the public keys that nodes list as signers.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

use super::output::Console;
use super::{CliError, Verdict, signing};
use ccm_core::system::files::{self, Durability};
use ccm_nats::request_signature::Signer;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key, store its seed in a file and print the public key
    New {
        /// File to store the seed in; must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },

    /// Print the public key of a seed
    Show {
        /// Seed, or a file that contains it
        #[arg(value_name = "SEED|FILE", value_hint = ValueHint::FilePath)]
        key: String,
    },
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let signer = match &args.command {
        Command::Show { key } => signing::load(key)?,
        Command::New { file } => {
            let found = files::inspect(file, false).map_err(CliError::usage)?;
            if found.is_some() {
                let name = file.display();
                return Err(CliError::usage(format!("{name} already exists")));
            }
            let signer = Signer::generate();
            let seed = signer.seed().map_err(CliError::failed)?;
            let text = format!("{}\n", seed.reveal());
            files::write_private(file, text.as_bytes(), Durability::Complete)
                .map_err(CliError::failed)?;
            signer
        }
    };
    console.print(&format!("{}\n", signer.public_key()));
    Ok(Verdict::default())
}
