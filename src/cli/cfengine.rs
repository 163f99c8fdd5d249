//! `ccm cfengine`: arguments of the CFEngine package module, which is in [`crate::cfengine`].

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::output::Console;
use super::{CliError, Verdict};
use crate::cfengine::{self, Wrapper, module};
use ccm_core::resource::{Host, package, scaffold, service};
use ccm_core::system::files::Writer;
use ccm_core::system::{Accounts, SystemClock, SystemRunner};
use ccm_template::Env;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one command of the CFEngine package module API: request on standard input, response on
    /// standard output
    Module {
        /// API command
        command: cfengine::Command,

        /// Package manager to use instead of the system's own: apt or dnf
        #[arg(long, default_value_t, hide_default_value = true)]
        provider: String,
    },

    /// Install a wrapper script for use as module_path in a policy
    Install {
        /// CFEngine package module directory, such as /var/cfengine/modules/packages
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,

        /// Module name
        #[arg(long, default_value = "ccm")]
        name: String,

        /// Package manager to use instead of the system's own: apt or dnf
        #[arg(long)]
        provider: Option<String>,
    },
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    match args.command {
        Command::Module { command, provider } => respond(command, &provider, console),
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

fn respond(
    command: cfengine::Command,
    provider: &str,
    console: &Console,
) -> Result<Verdict, CliError> {
    // Read all input first: cf-agent treats a pipe that closes early as a failure.
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
        state_dir: None,
        files: Writer::default(),
        env: &Env::default(),
        packages: &package::PackageCache::default(),
        services: &service::ServiceCache::default(),
        scaffolds: &scaffold::SourceCache::default(),
    };
    console.print(&cfengine::respond(command, &input, provider, host));
    Ok(Verdict::default())
}
