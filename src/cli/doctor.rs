//! `ccm doctor`: diagnoses this node. The checks are in `ccm_agent::doctor`.

use std::path::PathBuf;

use super::diagnosis::{self, DiagnosisArgs};
use super::environment::NatsArgs;
use super::output::Console;
use super::{CliError, Verdict, runtime};
use ccm_agent::config::Config;
use ccm_agent::doctor::Doctor;
use ccm_core::system::{SystemClock, SystemRunner};

#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
pub(super) struct Args {
    /// Configuration file of the agent
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/choria/ccm/agent.yaml"
    )]
    config: PathBuf,

    #[command(flatten)]
    output: DiagnosisArgs,

    #[command(flatten)]
    nats: NatsArgs,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Verdict, CliError> {
    let config = Config::load(&args.config);
    let settings = config.as_ref().ok().map(|config| {
        let servers = config.server_list().map(|list| list.reveal().to_owned());
        args.nats
            .settings_over(servers, config.nats_context.clone())
    });
    let doctor = Doctor {
        config_file: &args.config,
        runner: &SystemRunner::default(),
        clock: &SystemClock,
    };
    let found = runtime::block_on(async { Ok(doctor.diagnose(&config, settings).await) })?;
    diagnosis::print(&found, &args.output, console)
}
