//! `ccm fleet rollout pause|resume|abort|retry|rollback`.
//!
//! `ccm_fleet::controls` decides which change is allowed in which state. A command that continues a
//! rollout follows it to its end and drives it, unless another controller does or `--detach` is
//! given.

use super::super::candidates;
use super::super::request::caller;
use super::{Context, DrivingArgs};
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::rollout::{Progress, Rollout};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::controls;
use ccm_fleet::executor::Role;
use ccm_fleet::node_progress::exit_code;
use ccm_fleet::rollout_store::StoredRollout;
use ccm_value::text::count_of;

/// Maximum number of nodes that a line names.
const MAX_NAMES: usize = 50;

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

/// Resume a paused or halted rollout, or its rollback; failures so far no longer count
#[derive(Debug, clap::Args)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    target: ContinueArgs,
}

/// Abort a rollout; nodes keep their current assignments, also those under way
#[derive(Debug, clap::Args)]
pub(super) struct AbortArgs {
    /// Rollout id
    #[arg(add = candidates::rollouts())]
    id: Token,
}

/// Retry failed, unhealthy and unreachable nodes of a rollout or its rollback, and continue
#[derive(Debug, clap::Args)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    target: ContinueArgs,
}

/// Restore the previous assignment of every node the rollout changed, and wait until all converged
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
        .control(&args.id, "pause", &by, |it| {
            controls::pause(it, &args.reason, &by)
        })
        .await;
    print_state(context, steered.map_err(CliError::from)?.1)
}

pub(super) async fn abort(args: &AbortArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let by = caller();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.id, "abort", &by, |it| controls::abort(it, &by))
        .await;
    let mut rollout = steered.map_err(CliError::from)?.1.rollout;
    context.apply_reports(&mut rollout).await?;
    context.print_text(&abort_text(&rollout));
    context.print_json(&rollout)?;
    Ok(Verdict::exit(exit_code(&rollout)))
}

/// Returns the state of an aborted rollout, and the nodes that keep its assignment.
fn abort_text(rollout: &Rollout) -> String {
    let planned = rollout.plan.waves.iter().flat_map(|wave| &wave.nodes);
    let (mut kept, mut under_way, mut others) = (Vec::new(), Vec::new(), 0);
    for node in planned {
        match rollout.progress(node) {
            Progress::Assigned { .. } => under_way.push(node),
            Progress::Ok
            | Progress::Changed
            | Progress::WouldChange
            | Progress::Failed { .. }
            | Progress::Unhealthy { .. }
            | Progress::Unreachable { .. }
                if rollout.previous.get(node).is_some() =>
            {
                kept.push(node);
            }
            _ => others += 1,
        }
    }
    let mut text = format!("rollout {} is {}\n", rollout.id, rollout.state.as_str());
    for (nodes, what) in [
        (kept, "with the new assignment"),
        (under_way, "under way with the new assignment"),
    ] {
        if !nodes.is_empty() {
            let count = count_of(nodes.len(), "node");
            let names = listed(&nodes, &rollout.id);
            text.push_str(&format!("{count} {what}: {names}\n"));
        }
    }
    if others > 0 {
        text.push_str(&format!("{} not assigned\n", count_of(others, "node")));
    }
    text
}

/// Returns the names of the first nodes.
fn listed(nodes: &[&NodeName], id: &Token) -> String {
    let names = nodes.iter().take(MAX_NAMES).map(|node| node.as_str());
    let names = names.collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(MAX_NAMES) {
        0 => names,
        more => format!("{names} and {more} more; list all with `ccm fleet rollout show {id}`"),
    }
}

pub(super) async fn resume(args: &ResumeArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let now = SystemClock.now();
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.target.id, "resume", &caller(), |it| {
            controls::resume(it, now)
        })
        .await;
    continue_rollout(&args.target, context, steered.map_err(CliError::from)?.1).await
}

pub(super) async fn retry(args: &RetryArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let rollouts = context.rollouts().await?;
    let steered = rollouts
        .control(&args.target.id, "retry", &caller(), controls::retry)
        .await;
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
        .control(&args.target.id, "rollback", &caller(), |it| {
            controls::rollback(it, signer, now)
        })
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
        .follow_as(&controller, stored.into(), Role::Drive, progress)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aborted_rollout_lists_the_nodes_that_keep_its_assignment() {
        let mut rollout: Rollout = serde_json::from_value(serde_json::json!({
            "protocol": ccm_core::model::rollout::ROLLOUT,
            "id": "r1",
            "bundle": {"name": "app", "digest": "ab".repeat(32)},
            "created": "2027-01-15T08:00:00Z",
            "plan": {"waves": [{"name": "wave 1", "nodes": ["a", "b", "c", "d", "e"]}]},
            "state": {"name": "aborted", "by": "ann"},
            "nodes": {"a": "changed", "b": {"failed": {"reason": "no"}},
                      "c": {"assigned": {"generation": 1, "at": "2027-01-15T08:00:00Z"}},
                      "d": {"failed": {"reason": "never assigned"}}}
        }))
        .unwrap();
        for node in ["a", "b", "c"] {
            rollout.previous.record(node.parse().unwrap(), None);
        }
        assert_eq!(
            abort_text(&rollout),
            "rollout r1 is aborted\n2 nodes with the new assignment: a, b\n\
             1 node under way with the new assignment: c\n2 nodes not assigned\n"
        );
    }
}
