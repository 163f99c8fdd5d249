//! `ccm fleet rollout`: assigns a bundle to nodes in waves.
//!
//! - `start`: plan and start
//! - `controls`: pause, resume, abort, retry and roll back
//! - `show`: list and show
//! - `drive`: run as the controller of rollouts
//! - `progress`: output while a rollout is running
//!
//! `ccm_fleet::planner` decides the next step, `ccm_fleet::executor` executes it.

mod controls;
mod drive;
mod progress;
mod show;
mod start;

use std::time::Duration;

use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};

pub(super) use self::drive::drive_beside;
use self::progress::Progress;
use super::FleetArgs;
use super::candidates;
use super::flag_values::BadValue;
use super::request::{caller, positive_duration, warn_unreadable};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;
use ccm_core::system::random;
use ccm_fleet::decision::TrustedSigners;
use ccm_fleet::executor::{Controller, FollowEvent, FollowOutcome, FollowTarget, LEASE, Role};
use ccm_fleet::late_reports;
use ccm_fleet::node_progress::exit_code;
use ccm_fleet::rollout_store::{RolloutError, RolloutStore};
use ccm_nats::request_signature::PublicKey;
use ccm_nats::{Connection, Subjects};
use ccm_value::json;

/// Roll out a bundle to nodes in waves, with limits on failures
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Output JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Start(start::StartArgs),
    Plan(start::PlanArgs),
    #[command(alias = "ls")]
    /// List rollouts, oldest first
    List,
    Show(show::Args),
    Watch(WatchArgs),
    Drive(DriveArgs),
    Pause(controls::PauseArgs),
    Resume(controls::ResumeArgs),
    Abort(controls::AbortArgs),
    Retry(controls::RetryArgs),
    Rollback(controls::RollbackArgs),
}

/// Watch the progress of a rollout
#[derive(Debug, clap::Args)]
struct WatchArgs {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,
}

/// Drive a rollout as its controller, or wait until its current controller stops
#[derive(Debug, clap::Args)]
struct DriveArgs {
    /// Rollout id [default: all rollouts without a driver]
    #[arg(add = candidates::rollouts())]
    id: Option<Token>,

    /// Keep looking for rollouts to drive
    #[arg(long, conflicts_with = "id")]
    forever: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

/// Controller flags.
#[derive(Debug, Default, clap::Args)]
struct DrivingArgs {
    /// Lease duration: time after which another controller may take over [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,

    /// Public key of a signer whose rollouts are driven; repeatable [default: all signers]
    #[arg(
        long = "trust-signer",
        value_name = "KEY",
        env = "CCM_TRUST_SIGNERS",
        value_delimiter = ','
    )]
    trust_signers: Vec<String>,
}

/// Parses a lease duration of at least one second.
fn lease(text: &str) -> Result<Duration, BadValue> {
    let length = positive_duration(text)?;
    if length < Duration::from_secs(1) {
        return Err(BadValue::TooShort);
    }
    Ok(length)
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    runtime::block_on(async {
        let context = Context {
            connection: fleet.connect().await?,
            subjects,
            is_json: args.json,
            console,
        };
        match &args.command {
            Command::Start(args) => start::start(args, &context).await,
            Command::Plan(args) => start::plan(args, &context).await,
            Command::List => show::list(&context).await,
            Command::Show(args) => show::show(args, &context).await,
            Command::Watch(args) => {
                let controller = context.controller(&DrivingArgs::default())?;
                context
                    .follow_as(
                        &controller,
                        FollowTarget::Id(args.id.clone()),
                        Role::Watch,
                        context.progress(),
                    )
                    .await
            }
            Command::Drive(args) => drive::drive(args, &context).await,
            Command::Pause(args) => controls::pause(args, &context).await,
            Command::Resume(args) => controls::resume(args, &context).await,
            Command::Abort(args) => controls::abort(args, &context).await,
            Command::Retry(args) => controls::retry(args, &context).await,
            Command::Rollback(args) => controls::rollback(args, &context).await,
        }
    })
}

/// Shared state of the rollout commands.
struct Context<'a> {
    connection: Connection,
    subjects: Subjects,
    is_json: bool,
    console: &'a Console,
}

impl Context<'_> {
    async fn rollouts(&self) -> Result<RolloutStore, CliError> {
        let rollouts = RolloutStore::open(&self.connection, &self.subjects).await;
        rollouts.map_err(CliError::from)
    }

    /// Applies the current reports of nodes to a rollout, and warns about those that can't be read.
    async fn apply_reports(&self, rollout: &mut Rollout) -> Result<(), CliError> {
        let applied = late_reports::apply(&self.connection, &self.subjects, rollout).await;
        warn_unreadable(&applied.map_err(CliError::from)?, self.console);
        Ok(())
    }

    fn controller(&self, driving: &DrivingArgs) -> Result<Controller, CliError> {
        for key in &driving.trust_signers {
            PublicKey::parse(key)
                .map_err(|err| CliError::usage(err).at(format_args!("--trust-signer {key}")))?;
        }
        let nonce = random().map_err(CliError::failed)?;
        let holder = format!("{} {:x} {nonce:x}", caller(), std::process::id());
        let lease = driving.lease.unwrap_or(LEASE);
        let controller = Controller::new(&self.connection, &self.subjects, holder, lease);
        if driving.trust_signers.is_empty() {
            return Ok(controller);
        }
        let keys = driving.trust_signers.iter().cloned();
        Ok(controller.with_trusted_signers(TrustedSigners::new(keys, true)))
    }

    fn progress(&self) -> Progress<'_> {
        if self.is_json {
            Progress::silent()
        } else {
            Progress::shown(self.console)
        }
    }

    /// Follows a rollout to its end, prints the progress and returns the exit code.
    async fn follow_as(
        &self,
        controller: &Controller,
        target: FollowTarget,
        role: Role,
        mut progress: Progress<'_>,
    ) -> Result<Verdict, CliError> {
        let id = target.id().clone();
        let followed = controller
            .follow(target, role, stop_signal()?, |event| match event {
                FollowEvent::Changed(rollout) => progress.update(rollout),
                FollowEvent::WaitingForNats(err) => {
                    progress.log(self.console, &waiting_line(err).with("rollout", &id));
                }
                FollowEvent::NatsAvailable => {
                    progress.log(self.console, &available_line().with("rollout", &id));
                }
            })
            .await;
        match followed.map_err(CliError::from)? {
            FollowOutcome::AtRest(rollout) => {
                progress.finish(&rollout);
                self.print_json(&rollout)?;
                Ok(Verdict::exit(exit_code(&rollout)))
            }
            FollowOutcome::Stopped => {
                progress.clear();
                Err(match role {
                    Role::Watch => {
                        let text = format!("stopped watching; rollout {id} continues");
                        CliError::failed(text)
                    }
                    Role::Drive => {
                        let hint = format!("continue with `ccm fleet rollout drive {id}`");
                        CliError::failed("stopped driving the rollout").hint(hint)
                    }
                })
            }
        }
    }

    fn print_json(&self, rollout: &Rollout) -> Result<(), CliError> {
        if self.is_json {
            let text = json::pretty(rollout).map_err(CliError::failed)?;
            self.console.print(&format!("{text}\n"));
        }
        Ok(())
    }

    /// Prints text unless the output is JSON.
    fn print_text(&self, text: &str) {
        if !self.is_json {
            self.console.print(text);
        }
    }
}

/// Returns the log line about an outage of NATS.
fn waiting_line(err: &RolloutError) -> Line {
    Line::new(Level::Warn, "Waiting for NATS").with("reason", err)
}

/// Returns the log line about the end of an outage of NATS.
fn available_line() -> Line {
    Line::new(Level::Warn, "NATS is available again")
}

/// Returns a future that completes on SIGINT or SIGTERM.
fn stop_signal() -> Result<impl Future<Output = ()>, CliError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
