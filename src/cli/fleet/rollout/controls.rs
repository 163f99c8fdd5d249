//! `ccm fleet rollout pause|resume|abort|retry|rollback`.
//!
//! `ccm_fleet::controls` decides which change is allowed in which state. A command that continues a
//! rollout also drives it, unless another controller does or `--detach` is given.

use super::super::candidates;
use super::super::request::caller;
use super::{Context, DrivingArgs};
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::Token;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::controls;
use ccm_fleet::executor::Role;
use ccm_fleet::rollout_store::StoredRollout;
use ccm_value::text::count_of;

/// Pause a rollout: no further nodes are started until it is resumed
#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,

    /// Reason, shown in the rollout's state
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

/// Resume a paused or halted rollout; failures so far no longer count
#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    target: ContinueArgs,
}

/// Abort a rollout; nodes keep their current assignments
#[derive(Debug, clap::Args)]
pub(super) struct AbortArgs {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,
}

/// Retry failed, unhealthy and unreachable nodes, and continue
#[derive(Debug, clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    target: ContinueArgs,
}

/// Restore the previous assignment of every node the rollout changed
#[derive(Debug, clap::Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    target: ContinueArgs,
}

/// Rollout to continue, and how to drive it.
#[derive(Debug, clap::Args)]
struct ContinueArgs {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,

    /// Do not drive the rollout; leave it to another controller
    #[arg(long)]
    detach: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

pub(super) async fn pause(args: &PauseArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let by = caller();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.id, |it| controls::pause(it, &args.reason, &by))
        .await;
    print_state(context, steered.map_err(CliError::from)?.1)
}

pub(super) async fn abort(args: &AbortArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let by = caller();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.id, |it| controls::abort(it, &by))
        .await;
    print_state(context, steered.map_err(CliError::from)?.1)
}

pub(super) async fn resume(args: &ResumeArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let now = SystemClock.now();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.target.id, |it| controls::resume(it, now))
        .await;
    continue_rollout(&args.target, context, steered.map_err(CliError::from)?.1).await
}

pub(super) async fn retry(args: &RetryArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let rollouts = context.rollouts().await?;
    let steered = rollouts.control(&args.target.id, controls::retry).await;
    let (again, stored) = steered.map_err(CliError::from)?;
    context.print_text(&format!("retrying {}\n", count_of(again.len(), "node")));
    continue_rollout(&args.target, context, stored).await
}

pub(super) async fn rollback(
    args: &RollbackArgs,
    context: &Context<'_>,
) -> Result<Verdict, CliError> {
    let (signer, now) = (context.connection.signer(), SystemClock.now());
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.target.id, |it| controls::rollback(it, signer, now))
        .await;
    continue_rollout(&args.target, context, steered.map_err(CliError::from)?.1).await
}

/// Prints the state of a rollout that is not driven further.
fn print_state(context: &Context<'_>, stored: StoredRollout) -> Result<Verdict, CliError> {
    let rollout = stored.rollout;
    let state = rollout.state.as_str();
    context.print_text(&format!("rollout {} is {state}\n", rollout.id));
    context.print_json(&rollout)?;
    Ok(Verdict::default())
}

async fn continue_rollout(
    args: &ContinueArgs,
    context: &Context<'_>,
    stored: StoredRollout,
) -> Result<Verdict, CliError> {
    if args.detach {
        return print_state(context, stored);
    }
    let controller = context.controller(&args.driving)?;
    let progress = context.progress().since(&stored.rollout);
    context
        .follow_as(&controller, &args.id, Role::Drive, progress)
        .await
}
