//! `ccm choria`: arguments of the external agent, which is in [`crate::choria`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;

use super::environment::variables;
use super::output::{Console, print_error};
use super::{CliError, Verdict};
use crate::choria::{self, Call, FileChange};
use ccm_core::system::SystemClock;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Handle one request from the Choria server
    Agent {
        /// Request file, reply file and protocol, as passed by the server
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },

    /// Run the request read from standard input
    #[command(hide = true)]
    Run,

    /// Install the agent and its DDL for the Choria server
    Install {
        /// Directory listed in plugin.choria.agent_provider.mcorpc.libdir, such as
        /// /opt/puppetlabs/mcollective/plugins
        #[arg(long, value_name = "DIR")]
        libdir: PathBuf,
    },
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    match args.command {
        Command::Agent { arguments } => {
            let program = std::env::current_exe().map_err(CliError::failed)?;
            let call = Call {
                arguments: &arguments,
                variables: &variables(),
                program: &program,
                clock: Arc::new(SystemClock),
            };
            if let Some(line) = choria::serve(&call).map_err(CliError::failed)? {
                print_error(&line);
            }
        }
        Command::Run => {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            choria::run_detached(input, output, Arc::new(SystemClock)).map_err(CliError::failed)?;
        }
        Command::Install { libdir } => {
            let program = std::env::current_exe().map_err(CliError::failed)?;
            let files = choria::install(&libdir, &program).map_err(CliError::failed)?;
            for file in files {
                let word = match file.change {
                    FileChange::Written => "written",
                    FileChange::Unchanged => "unchanged",
                };
                console.print(&format!("{} {word}\n", file.path.display()));
            }
        }
    }
    Ok(Verdict::default())
}
