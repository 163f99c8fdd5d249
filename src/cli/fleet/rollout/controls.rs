//! `ccm fleet rollout pause|resume|abort|retry|rollback`: what people want of a rollout.
//!
//! What may be wanted when is decided by `fleet::steer`. Whoever sets a rollout going again also
//! drives it, unless somebody does or `--detach` says not to.

use super::super::request::caller;
use super::{Context, DrivingArgs};
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::Token;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::controls;
use ccm_fleet::executor::Role;
use ccm_fleet::rollout_store::Stored;
use ccm_value::text::count_of;

/// Stops a rollout before the next node, until somebody resumes it
#[derive(Debug, clap::Args)]
pub(super) struct PauseArgs {
    /// The rollout
    id: Token,

    /// Why, for those who wonder
    #[arg(long, default_value = "")]
    reason: String,
}

/// Goes on with a rollout that was paused or halted; what halted it is forgiven
#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    going: GoingArgs,
}

/// Ends a rollout where it is; nodes keep what they have
#[derive(Debug, clap::Args)]
pub(super) struct AbortArgs {
    /// The rollout
    id: Token,
}

/// Tries again what failed, fell ill or could not be reached, and goes on
#[derive(Debug, clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    going: GoingArgs,
}

/// Gives every node that was touched back what it was assigned before
#[derive(Debug, clap::Args)]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    going: GoingArgs,
}

/// Which rollout goes on, and who drives it.
#[derive(Debug, clap::Args)]
struct GoingArgs {
    /// The rollout
    id: Token,

    /// Leaves the driving to another controller
    #[arg(long)]
    detach: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

pub(super) async fn pause(args: &PauseArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let by = caller();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .steer(&args.id, |it| controls::pause(it, &args.reason, &by))
        .await;
    stay(context, steered.map_err(CliError::from)?.1)
}

pub(super) async fn abort(args: &AbortArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let by = caller();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .steer(&args.id, |it| controls::abort(it, &by))
        .await;
    stay(context, steered.map_err(CliError::from)?.1)
}

pub(super) async fn resume(args: &ResumeArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let now = SystemClock.now();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .steer(&args.going.id, |it| controls::resume(it, now))
        .await;
    go_on(&args.going, context, steered.map_err(CliError::from)?.1).await
}

pub(super) async fn retry(args: &RetryArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let rollouts = context.rollouts().await?;
    let steered = rollouts.steer(&args.going.id, controls::retry).await;
    let (again, stored) = steered.map_err(CliError::from)?;
    context.say(&format!("trying {} again\n", count_of(again.len(), "node")));
    go_on(&args.going, context, stored).await
}

pub(super) async fn rollback(
    args: &RollbackArgs,
    context: &Context<'_>,
) -> Result<Verdict, CliError> {
    let (signer, now) = (context.connection.signer(), SystemClock.now());
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .steer(&args.going.id, |it| controls::rollback(it, signer, now))
        .await;
    go_on(&args.going, context, steered.map_err(CliError::from)?.1).await
}

/// Says where a rollout is that does not go on.
fn stay(context: &Context<'_>, stored: Stored) -> Result<Verdict, CliError> {
    let rollout = stored.rollout;
    let state = rollout.state.as_str();
    context.say(&format!("rollout {} is {state}\n", rollout.id));
    context.print_json(&rollout)?;
    Ok(Verdict::default())
}

async fn go_on(
    args: &GoingArgs,
    context: &Context<'_>,
    stored: Stored,
) -> Result<Verdict, CliError> {
    if args.detach {
        return stay(context, stored);
    }
    let controller = context.controller(&args.driving)?;
    let progress = context.progress().since(&stored.rollout);
    context
        .follow_as(&controller, &args.id, Role::Drive, progress)
        .await
}
