//! `ccm choria`: an agent for Choria's server. Only arguments; the agent is `choria`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;

use super::environment::variables;
use super::output::{Console, complain};
use super::{CliError, Verdict};
use crate::choria::{self, Call, Done};
use ccm_core::system::SystemClock;

/// Serves as an external agent for Choria
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers one request of a Choria server, which names its files by variables
    Agent {
        /// The request, the reply and the protocol, as the server passes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },

    /// Carries out the order on standard input
    #[command(hide = true)]
    Run,

    /// Puts the agent and its DDL where a Choria server finds them
    Install {
        /// A directory of plugin.choria.agent_provider.mcorpc.libdir, such as
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
                complain(&line);
            }
        }
        Command::Run => {
            let (order, tell) = (std::io::stdin().lock(), std::io::stdout().lock());
            choria::carry_out(order, tell, Arc::new(SystemClock)).map_err(CliError::failed)?;
        }
        Command::Install { libdir } => {
            let program = std::env::current_exe().map_err(CliError::failed)?;
            let places = choria::install(&libdir, &program).map_err(CliError::failed)?;
            for place in places {
                let word = match place.done {
                    Done::Written => "written",
                    Done::Unchanged => "unchanged",
                };
                console.print(&format!("{} {word}\n", place.path.display()));
            }
        }
    }
    Ok(Verdict::default())
}
