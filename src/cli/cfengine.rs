//! `ccm cfengine`: ourselves as a package module of CFEngine's.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::output::Console;
use super::{CliError, Verdict};
use crate::cfengine::{self, Wrapper, module};
use ccm_core::resource::{Host, package, scaffold, service};
use ccm_core::system::{Accounts, SystemClock, SystemRunner};
use ccm_template::Env;

/// Serves as a package module for CFEngine
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers one command of CFEngine's package module API: request on standard input, answer on
    /// standard output
    Module {
        command: cfengine::Command,

        /// The package manager, instead of the host's own: apt or dnf
        #[arg(long, default_value_t)]
        provider: String,
    },

    /// Writes the program that a policy names as its module_path
    Install {
        /// Where CFEngine keeps package modules, such as /var/cfengine/modules/packages
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,

        /// What the module is called
        #[arg(long, default_value = "ccm")]
        name: String,

        /// The package manager, instead of the host's own: apt or dnf
        #[arg(long)]
        provider: Option<String>,
    },
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    match args.command {
        Command::Module { command, provider } => answer(command, &provider, console),
        Command::Install {
            dir,
            name,
            provider,
        } => {
            let program = std::env::current_exe().map_err(CliError::failed)?;
            let wrapper = Wrapper {
                directory: &dir,
                name: &name,
                program: &program,
                provider: provider.as_deref(),
            };
            let path = wrapper.install().map_err(CliError::failed)?;
            console.print(&format!("{}\n", path.display()));
            Ok(Verdict::default())
        }
    }
}

fn answer(
    command: cfengine::Command,
    provider: &str,
    console: &Console,
) -> Result<Verdict, CliError> {
    // All of it, before anything else: the agent takes a pipe that closes early for a failure.
    let mut input = Vec::new();
    let limit = module::MAX_REQUEST_BYTES as u64 + 1;
    let mut stdin = std::io::stdin().lock();
    stdin
        .by_ref()
        .take(limit)
        .read_to_end(&mut input)
        .and_then(|_| std::io::copy(&mut stdin, &mut std::io::sink()))
        .map_err(CliError::failed)?;
    let host = Host {
        runner: &SystemRunner::new(),
        clock: &SystemClock,
        accounts: &Accounts::default(),
        working_dir: Path::new("/"),
        env: &Env::default(),
        packages: &package::Shared::default(),
        services: &service::Memory::default(),
        scaffolds: &scaffold::Sources::default(),
    };
    console.print(&cfengine::answer(command, &input, provider, host));
    Ok(Verdict::default())
}
