//! `ccm agent`: the daemon. Starts it, hands signals to it, and starts it anew when somebody says
//! that its file has changed.

mod check_policy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::environment::{NatsArgs, variables};
use super::output::Console;
use super::{CliError, Verdict, runtime};
use ccm_agent::Agent;
use ccm_agent::config::Config;
use ccm_agent::metrics::Metrics;
use ccm_agent::node::VERSION;
use ccm_agent::service_manager::{Notifier, NotifyError};
use ccm_core::engine::{Level, Line};
use ccm_core::run::log::{Format, Log};
use ccm_core::system::SystemClock;
use ccm_nats::Settings;

/// Runs the agent: keeps this node at its manifests and answers for it on the bus
#[derive(Debug, clap::Args)]
#[command(mut_arg("registration", |arg| arg.hide(true)))]
pub(super) struct Args {
    /// The agent's file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// How lines are written: text or json
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
}

/// Runs the agent; `loudest` is how loud the command line wants the log, whatever the file says.
pub(super) fn run(
    args: &Args,
    loudest: Option<Level>,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let missing = || CliError::usage("the agent's file is not given").hint("give --config FILE");
    let file = args.config.as_deref().ok_or_else(missing)?;
    let config = Config::load(file).map_err(CliError::usage)?;
    if let Some(Command::CheckPolicy(command)) = &args.command {
        return check_policy::run(command, &config, console);
    }
    let environ = variables();
    let settings = resolve(args, &config)?;
    let log = Log::open(
        loudest.unwrap_or(config.log_level),
        args.log_format,
        &environ,
    );
    let notifier = Notifier::from_env(&environ, std::process::id()).map_err(CliError::failed)?;
    let daemon = Daemon {
        args,
        file,
        loudest,
        environ,
        log,
        metrics: Metrics::new(VERSION),
        notifier,
    };
    // One thread: a question is answered without waking another, and work has threads of its own.
    runtime::block_on(daemon.run(config, settings))?;
    Ok(Verdict::default())
}

fn resolve(args: &Args, config: &Config) -> Result<Settings, CliError> {
    let servers = config.server_list().map(|list| list.reveal().to_owned());
    args.nats
        .settings_over(servers, config.nats_context.clone())
        .map_err(CliError::usage)
}

/// Why an agent is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Stop,
    Reload,
}

struct Daemon<'a> {
    args: &'a Args,
    file: &'a Path,
    loudest: Option<Level>,
    environ: BTreeMap<String, String>,
    log: Log,
    metrics: Metrics,
    notifier: Notifier,
}

impl Daemon<'_> {
    async fn run(&self, mut config: Config, mut settings: Settings) -> Result<(), CliError> {
        let mut signals = Signals::new()?;
        loop {
            let agent = Agent::start(
                &config,
                &settings,
                self.environ.clone(),
                self.log.clone(),
                self.metrics.clone(),
            )
            .await?;
            self.tell(self.notifier.ready("Serving"));
            let ending = loop {
                match signals.next(&self.notifier).await {
                    Ending::Stop => break Ending::Stop,
                    Ending::Reload => match self.reload() {
                        Ok((new_config, new_settings)) => {
                            config = new_config;
                            settings = new_settings;
                            break Ending::Reload;
                        }
                        Err(err) => {
                            let text = "Keeping the configuration that is in force";
                            self.log
                                .line(&Line::new(Level::Error, text).with("error", err));
                        }
                    },
                }
            };
            match ending {
                Ending::Stop => self.tell(self.notifier.stopping()),
                Ending::Reload => self.tell(self.notifier.reloading(&SystemClock)),
            }
            agent.stop().await;
            if ending == Ending::Stop {
                return Ok(());
            }
            self.log.set_level(self.loudest.unwrap_or(config.log_level));
        }
    }

    fn reload(&self) -> Result<(Config, Settings), CliError> {
        let config = Config::load(self.file).map_err(CliError::usage)?;
        let settings = resolve(self.args, &config)?;
        Ok((config, settings))
    }

    fn tell(&self, told: Result<(), NotifyError>) {
        if let Err(err) = told {
            let line = Line::new(Level::Warn, "Could not tell the service manager");
            self.log.line(&line.with("error", err));
        }
    }
}

/// What the process may be told from outside.
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

    /// Waits for a signal, and says that we are alive meanwhile.
    async fn next(&mut self, notifier: &Notifier) -> Ending {
        loop {
            let beat = async {
                match notifier.watchdog() {
                    Some(every) => tokio::time::sleep(every / 2).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => return Ending::Stop,
                _ = self.interrupt.recv() => return Ending::Stop,
                _ = self.hangup.recv() => return Ending::Reload,
                () = beat => {
                    // A manager that hears nothing restarts us; there is nobody else to tell.
                    let _ = notifier.alive();
                }
            }
        }
    }
}
