//! `ccm fleet rollout drive`: drives rollouts that have no controller. `ccm fleet serve --drive` runs
//! the same loop beside the page.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, unfold};

use super::{Context, DriveArgs, DrivingArgs, stop_signal};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::Token;
use ccm_core::model::rollout::Rollout;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::executor::{Controller, Role, is_lease_free};
use ccm_nats::{Connection, Subjects};

/// Interval at which rollouts without a controller are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn drive(args: &DriveArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let controller = context.controller(&args.driving)?;
    if let Some(id) = &args.id {
        return follow(&controller, id, context).await;
    }
    if args.forever {
        return drive_forever(&controller, context).await;
    }
    let ids = undriven(context).await?;
    if ids.is_empty() {
        context.print_text("no rollouts to drive\n");
    }
    let driving = ids.iter().map(|id| follow(&controller, id, context));
    let mut worst = 0;
    for verdict in join_all(driving).await {
        worst = worst.max(verdict?.code());
    }
    Ok(Verdict::exit(worst))
}

/// Drives every rollout that has no controller until SIGINT or SIGTERM, for a program that does
/// something else as well.
pub(in crate::cli::fleet) async fn drive_beside(
    connection: Connection,
    subjects: Subjects,
    console: &Console,
) -> Result<(), CliError> {
    let context = Context {
        connection,
        subjects,
        is_json: false,
        console,
    };
    let controller = context.controller(&DrivingArgs::default())?;
    drive_forever(&controller, &context).await.map(drop)
}

/// Looks for rollouts without a controller and drives each of them, until SIGINT or SIGTERM. Failures
/// are reported and tried again: a controller outlives an outage of NATS.
async fn drive_forever(
    controller: &Controller,
    context: &Context<'_>,
) -> Result<Verdict, CliError> {
    let mut stop = std::pin::pin!(stop_signal()?);
    // Looked for beside the driven rollouts: a slow reply must not delay the renewal of their leases.
    let mut lookups = std::pin::pin!(unfold(Duration::ZERO, |delay| async move {
        tokio::time::sleep(delay).await;
        Some((undriven(context).await, POLL_INTERVAL))
    }));
    let mut driven = BTreeSet::new();
    let mut driving = FuturesUnordered::new();
    let mut worst = 0;
    let mut is_waiting_for_nats = false;
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some((id, result)) = driving.next() => {
                driven.remove(&id);
                match result {
                    Ok(verdict) => worst = worst.max(Verdict::code(verdict)),
                    Err(err) => CliError::at(err, format_args!("rollout {id}")).print(),
                }
            }
            Some(found) = lookups.next() => match found {
                Ok(ids) => {
                    is_waiting_for_nats = false;
                    for id in ids.into_iter().filter(|id| driven.insert(id.clone())) {
                        driving.push(async move {
                            let result = follow(controller, &id, context).await;
                            (id, result)
                        });
                    }
                }
                Err(err) => {
                    if !is_waiting_for_nats {
                        CliError::at(err, "waiting for NATS").print();
                    }
                    is_waiting_for_nats = true;
                }
            },
        }
    }
    // Every controller gives its lease back before the program ends.
    while driving.next().await.is_some() {}
    Ok(Verdict::exit(worst))
}

/// Returns the active rollouts whose lease is free.
async fn undriven(context: &Context<'_>) -> Result<Vec<Token>, CliError> {
    let rollouts = context.rollouts().await?;
    let (all, _) = rollouts.list().await.map_err(CliError::from)?;
    let now = SystemClock.now();
    let is_undriven = |rollout: &Rollout| rollout.state.is_active() && is_lease_free(rollout, now);
    let found = all.into_iter().map(|stored| stored.rollout);
    Ok(found
        .filter(is_undriven)
        .map(|rollout| rollout.id)
        .collect())
}

async fn follow(
    controller: &Controller,
    id: &Token,
    context: &Context<'_>,
) -> Result<Verdict, CliError> {
    let progress = context.progress();
    context
        .follow_as(controller, id, Role::Drive, progress)
        .await
}
