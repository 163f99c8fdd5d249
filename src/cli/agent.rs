//! `ccm agent`: runs the agent as a daemon. SIGTERM and SIGINT stop it, SIGHUP reloads its
//! configuration.

mod check_policy;
mod enroll;
mod restart;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Subcommand;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::environment::{NatsArgs, variables};
use super::output::Console;
use super::{CliError, Verdict, runtime};
use ccm_agent::config::Config;
use ccm_agent::job_host::{self, JobHost};
use ccm_agent::metrics::Metrics;
use ccm_agent::nats_client_log;
use ccm_agent::service_manager::{Notifier, NotifyError};
use ccm_agent::{Agent, ProcessParts, VERSION, check_choria_server};
use ccm_core::engine::{Level, Line};
use ccm_core::run::executor::LocalExecutor;
use ccm_core::run::log::{Format, Log};
use ccm_core::system::SystemClock;
use ccm_nats::Settings;

#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
pub(super) struct Args {
    /// Configuration file to use
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "/etc/choria/ccm/agent.yaml"
    )]
    config: PathBuf,

    /// Log format: text or json
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    log_format: Format,

    #[command(flatten)]
    nats: NatsArgs,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    CheckPolicy(check_policy::Args),
    Enroll(enroll::Args),
    Restart(restart::Args),
}

/// Runs the agent; `log_level` overrides the level of the configuration file.
pub(super) fn run(
    args: Args,
    log_level: Option<Level>,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    if let Some(Command::Enroll(command)) = &args.command {
        return enroll::run(command, &args.config, &args.nats, console);
    }
    let config = Config::load(&args.config)?;
    if let Some(Command::Restart(_)) = &args.command {
        return restart::run(&config, console);
    }
    if let Some(Command::CheckPolicy(command)) = &args.command {
        return check_policy::run(command, &config, console);
    }
    let environ = variables();
    let settings = resolve(&args, &config)?;
    let log = Log::open(
        log_level.unwrap_or(config.log_level),
        args.log_format,
        &environ,
    );
    tracing::subscriber::set_global_default(nats_client_log::subscriber(log.clone()))
        .map_err(CliError::failed)?;
    let notifier = Notifier::from_env(&environ, std::process::id()).map_err(CliError::failed)?;
    let daemon = Daemon {
        args,
        log_level,
        environ,
        log,
        metrics: Metrics::new(VERSION),
        notifier,
    };
    // A single-threaded runtime answers requests with less latency.
    let runtime = runtime::build()?;
    job_host::run(runtime, |host| daemon.run(config, settings, host))
        .map_err(CliError::failed)??;
    Ok(Verdict::default())
}

fn resolve(args: &Args, config: &Config) -> Result<Settings, CliError> {
    let servers = config.server_list().map(|list| list.reveal().to_owned());
    args.nats
        .settings_over(servers, config.nats_context.clone())
        .map_err(CliError::usage)
}

/// Reason why an agent is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Stop,
    Reload,
}

struct Daemon {
    args: Args,
    log_level: Option<Level>,
    environ: BTreeMap<String, String>,
    log: Log,
    metrics: Metrics,
    notifier: Notifier,
}

impl Daemon {
    async fn run(
        self,
        mut config: Config,
        mut settings: Settings,
        jobs: JobHost,
    ) -> Result<(), CliError> {
        let mut signals = Signals::new()?;
        loop {
            let process = ProcessParts {
                environ: self.environ.clone(),
                log: self.log.clone(),
                metrics: self.metrics.clone(),
                executor: LocalExecutor {
                    has_supervisor: true,
                },
            };
            let agent = Agent::start(&config, &settings, process).await?;
            agent.perform_runs_on(&jobs);
            self.check_notify(self.notifier.ready("Serving"));
            let reason = loop {
                match signals.next(&self.notifier).await {
                    StopReason::Stop => break StopReason::Stop,
                    StopReason::Reload => match self.reload() {
                        Ok((new_config, new_settings)) => {
                            config = new_config;
                            settings = new_settings;
                            break StopReason::Reload;
                        }
                        Err(err) => {
                            let text =
                                "Could not reload the configuration, keeping the current one";
                            self.log
                                .line(&Line::new(Level::Error, text).with("error", err));
                        }
                    },
                }
            };
            match reason {
                StopReason::Stop => self.check_notify(self.notifier.stopping()),
                StopReason::Reload => self.check_notify(self.notifier.reloading(&SystemClock)),
            }
            agent.stop().await;
            if reason == StopReason::Stop {
                return Ok(());
            }
            self.log
                .set_level(self.log_level.unwrap_or(config.log_level));
        }
    }

    /// Loads the configuration and verifies what it refers to, so that the current agent continues if
    /// one with the new configuration could not start.
    fn reload(&self) -> Result<(Config, Settings), CliError> {
        let config = Config::load(&self.args.config).map_err(CliError::usage)?;
        let settings = resolve(&self.args, &config)?;
        check_choria_server(&config).map_err(CliError::usage)?;
        Ok((config, settings))
    }

    fn check_notify(&self, result: Result<(), NotifyError>) {
        if let Err(err) = result {
            let line = Line::new(Level::Warn, "Could not notify the service manager");
            self.log.line(&line.with("error", err));
        }
    }
}

/// Signals that control the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(CliError::failed);
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal and sends watchdog keep-alives meanwhile.
    async fn next(&mut self, notifier: &Notifier) -> StopReason {
        loop {
            let keep_alive = async {
                match notifier.watchdog_interval() {
                    Some(every) => tokio::time::sleep(every / 2).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => return StopReason::Stop,
                _ = self.interrupt.recv() => return StopReason::Stop,
                _ = self.hangup.recv() => return StopReason::Reload,
                () = keep_alive => {
                    // If this fails, the service manager restarts the agent.
                    let _ = notifier.keep_alive();
                }
            }
        }
    }
}
