//! `ccm fleet rollout`: a bundle taken to many nodes in waves.
//!
//! - `begin`: from flags to a plan, shown or begun
//! - `steer`: pause, resume, abort, retry, roll back
//! - `look`: list and show
//! - `progress`: what is seen while one is on its way
//!
//! What happens next is decided by `fleet::judge` and done by `fleet::executor`.

mod controls;
mod progress;
mod show;
mod start;

use std::time::Duration;

use clap::Subcommand;
use futures_util::future::join_all;
use tokio::signal::unix::{SignalKind, signal};

use self::progress::Progress;
use super::Place;
use super::flag_values::BadValue;
use super::request::{caller, wait};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;
use ccm_core::system::{Clock as _, SystemClock, random};
use ccm_fleet::decision::TrustedSigners;
use ccm_fleet::executor::{Controller, Ending, LEASE, Role, is_free};
use ccm_fleet::node_progress::exit_code;
use ccm_fleet::rollout_store::Rollouts;
use ccm_nats::request_signature::PublicKey;
use ccm_nats::{Connection, Subjects};
use ccm_value::json;

/// How often somebody who drives whatever comes looks for more.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Takes a bundle to many nodes in waves, and stops when too much goes wrong
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Prints JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Start(start::StartArgs),
    Plan(start::PlanArgs),
    #[command(alias = "ls")]
    /// Lists rollouts, the newest last
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

/// Shows a rollout while it goes on
#[derive(Debug, clap::Args)]
struct WatchArgs {
    /// The rollout
    id: Token,
}

/// Drives a rollout that nobody drives, or waits until nobody does
#[derive(Debug, clap::Args)]
struct DriveArgs {
    /// The rollout; without it all that nobody drives
    id: Option<Token>,

    /// Goes on looking for rollouts to drive
    #[arg(long, conflicts_with = "id")]
    forever: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

/// How a controller drives rollouts.
#[derive(Debug, Default, clap::Args)]
struct DrivingArgs {
    /// After which silence of ours another controller may take over [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,

    /// Public key of somebody whose rollouts are driven; without any, of everybody who signs
    #[arg(
        long = "trust-signer",
        value_name = "KEY",
        env = "CCM_TRUST_SIGNERS",
        value_delimiter = ','
    )]
    trust_signers: Vec<String>,
}

/// Reads how long a lease is: long enough to be renewed in time.
fn lease(text: &str) -> Result<Duration, BadValue> {
    let length = wait(text)?;
    if length < Duration::from_secs(1) {
        return Err(BadValue::TooShort);
    }
    Ok(length)
}

pub(super) fn run(args: &Args, place: &Place, console: &mut Console) -> Result<Verdict, CliError> {
    let subjects = place.subjects()?;
    runtime::block_on(async {
        let context = Context {
            connection: place.connect().await?,
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
                    .follow_as(&controller, &args.id, Role::Watch, context.progress())
                    .await
            }
            Command::Drive(args) => drive(args, &context).await,
            Command::Pause(args) => controls::pause(args, &context).await,
            Command::Resume(args) => controls::resume(args, &context).await,
            Command::Abort(args) => controls::abort(args, &context).await,
            Command::Retry(args) => controls::retry(args, &context).await,
            Command::Rollback(args) => controls::rollback(args, &context).await,
        }
    })
}

/// What every command works with.
struct Context<'a> {
    connection: Connection,
    subjects: Subjects,
    is_json: bool,
    console: &'a Console,
}

impl Context<'_> {
    async fn rollouts(&self) -> Result<Rollouts, CliError> {
        let rollouts = Rollouts::open(&self.connection, &self.subjects).await;
        rollouts.map_err(CliError::from)
    }

    fn controller(&self, driving: &DrivingArgs) -> Result<Controller, CliError> {
        for key in &driving.trust_signers {
            PublicKey::parse(key)
                .map_err(|err| CliError::usage(err).at(format_args!("--trust-signer {key}")))?;
        }
        let chance = random().map_err(CliError::failed)?;
        let holder = format!("{} {:x} {chance:x}", caller(), std::process::id());
        let lease = driving.lease.unwrap_or(LEASE);
        let controller = Controller::new(&self.connection, &self.subjects, holder, lease);
        if driving.trust_signers.is_empty() {
            return Ok(controller);
        }
        let keys = driving.trust_signers.iter().cloned();
        Ok(controller.trusting(TrustedSigners::new(keys, true)))
    }

    fn progress(&self) -> Progress<'_> {
        if self.is_json {
            Progress::silent()
        } else {
            Progress::shown(self.console)
        }
    }

    /// Follows one rollout to its end, shows it, and returns what a script is told.
    async fn follow_as(
        &self,
        controller: &Controller,
        id: &Token,
        role: Role,
        mut progress: Progress<'_>,
    ) -> Result<Verdict, CliError> {
        let followed = controller
            .follow(id, role, told_to_stop()?, |rollout| progress.hear(rollout))
            .await;
        match followed.map_err(CliError::from)? {
            Ending::AtRest(rollout) => {
                progress.finish(&rollout);
                self.print_json(&rollout)?;
                Ok(Verdict::exit(exit_code(&rollout)))
            }
            Ending::Stopped(rollout) => {
                progress.leave();
                Err(match role {
                    Role::Watch => {
                        let text = format!("stopped watching; rollout {id} goes on without us");
                        CliError::failed(text)
                    }
                    Role::Drive => {
                        let hint = format!("`ccm fleet rollout drive {}` goes on", rollout.id);
                        CliError::failed("stopped").hint(hint)
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

    /// Prints a line where no document is wanted.
    fn say(&self, text: &str) {
        if !self.is_json {
            self.console.print(text);
        }
    }
}

async fn drive(args: &DriveArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let controller = context.controller(&args.driving)?;
    if let Some(id) = &args.id {
        return context
            .follow_as(&controller, id, Role::Drive, context.progress())
            .await;
    }
    let rollouts = context.rollouts().await?;
    let mut worst = None;
    loop {
        let (all, _) = rollouts.list().await.map_err(CliError::from)?;
        let now = SystemClock.now();
        let is_abandoned = |rollout: &Rollout| rollout.state.is_active() && is_free(rollout, now);
        let abandoned = all.iter().filter(|stored| is_abandoned(&stored.rollout));
        let driving = abandoned.map(|stored| {
            let id = &stored.rollout.id;
            context.follow_as(&controller, id, Role::Drive, context.progress())
        });
        let driven = join_all(driving).await;
        if driven.is_empty() && !args.forever {
            if worst.is_none() {
                context.say("no rollout waits for somebody to drive it\n");
            }
            return Ok(Verdict::exit(worst.unwrap_or_default()));
        }
        for verdict in driven {
            worst = worst.max(Some(verdict?.code()));
        }
        if args.forever {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = told_to_stop()? => return Ok(Verdict::exit(worst.unwrap_or_default())),
            }
        }
    }
}

/// Returns what ends when somebody wants the program to.
fn told_to_stop() -> Result<impl Future<Output = ()>, CliError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
