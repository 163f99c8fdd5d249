//! `ccm fleet rollout drive`: drives rollouts that have no controller. `ccm fleet serve --drive` runs
//! the same loop beside the page.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, unfold};

use super::{Context, DriveArgs, DrivingArgs, available_line, stop_signal, waiting_line};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::model::node::Token;
use ccm_fleet::executor::{Controller, FollowTarget, Role};
use ccm_fleet::late_reports;
use ccm_fleet::nats_waits::NatsWaits;
use ccm_fleet::rollout_store::{RolloutError, RolloutHead, RolloutStore};
use ccm_nats::{Connection, Subjects};
use ccm_value::text::go_duration;

/// Interval at which rollouts without a controller are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Delay after a NATS error.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// The name of the search for rollouts in the record of what waits for NATS.
const SEARCH: &str = "search for rollouts";

pub(super) async fn drive(args: &DriveArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let controller = context.controller(&args.driving)?;
    if let Some(id) = &args.id {
        return follow(&controller, id, context).await;
    }
    if args.forever {
        return drive_forever(&controller, context, &NatsWaits::default()).await;
    }
    let ids = find_undriven(&controller, context).await?;
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
    waits: NatsWaits,
) -> Result<(), CliError> {
    let context = Context {
        connection,
        subjects,
        is_json: false,
        console,
    };
    let controller = context.controller(&DrivingArgs::default())?;
    let controller = controller.with_waits(waits.clone());
    drive_forever(&controller, &context, &waits).await.map(drop)
}

/// Looks for rollouts without a controller and drives each of them, until SIGINT or SIGTERM. Failures
/// are reported and tried again: a controller outlives an outage of NATS.
async fn drive_forever(
    controller: &Controller,
    context: &Context<'_>,
    waits: &NatsWaits,
) -> Result<Verdict, CliError> {
    let mut stop = std::pin::pin!(stop_signal()?);
    // Looked for beside the driven rollouts: a slow reply must not delay the renewal of their leases.
    let mut lookups = std::pin::pin!(unfold(Duration::ZERO, |delay| async move {
        tokio::time::sleep(delay).await;
        Some((look_up(controller, context).await, POLL_INTERVAL))
    }));
    let mut driven = BTreeSet::new();
    let mut driving = FuturesUnordered::new();
    let mut worst = 0;
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
                    if waits.end(SEARCH) {
                        context.console.log(&available_line());
                    }
                    for id in ids.into_iter().filter(|id| driven.insert(id.clone())) {
                        driving.push(async move {
                            let result = follow(controller, &id, context).await;
                            (id, result)
                        });
                    }
                }
                Err(err) => {
                    if waits.begin(SEARCH, &err.to_string()) {
                        context.console.log(&waiting_line(&err));
                    }
                }
            },
        }
    }
    // Every controller gives its lease back before the program ends.
    while driving.next().await.is_some() {}
    Ok(Verdict::exit(worst))
}

/// Returns the active rollouts whose lease is free, and stores late reports of ended ones.
async fn look_up(
    controller: &Controller,
    context: &Context<'_>,
) -> Result<Vec<Token>, RolloutError> {
    let (connection, subjects) = (&context.connection, &context.subjects);
    let rollouts = RolloutStore::open(connection, subjects).await?;
    let (all, _) = rollouts.list().await?;
    late_reports::store(connection, subjects, &rollouts, &all).await?;
    Ok(undriven(controller, &all))
}

/// Returns the active rollouts whose lease is free.
fn undriven(controller: &Controller, all: &[RolloutHead]) -> Vec<Token> {
    let free = active(all).filter(|it| controller.lease_remaining(it).is_zero());
    free.map(|head| head.rollout.id.clone()).collect()
}

fn active(all: &[RolloutHead]) -> impl Iterator<Item = &RolloutHead> {
    all.iter().filter(|it| it.rollout.state.is_active())
}

/// Returns the active rollouts whose lease is free, after those with a lease were observed for its
/// duration.
async fn find_undriven(
    controller: &Controller,
    context: &Context<'_>,
) -> Result<Vec<Token>, CliError> {
    let all = list_through_outages(context).await?;
    let longest = active(&all).map(|it| controller.lease_remaining(it)).max();
    let longest = longest.unwrap_or_default();
    if longest.is_zero() {
        return Ok(undriven(controller, &all));
    }
    let line = Line::new(Level::Warn, "Waiting for leases of other controllers");
    let duration = go_duration(longest);
    context.console.log(&line.with("duration", duration));
    tokio::time::sleep(longest).await;
    Ok(undriven(controller, &list_through_outages(context).await?))
}

/// Returns all rollouts. Waits for NATS if it is not available.
async fn list_through_outages(context: &Context<'_>) -> Result<Vec<RolloutHead>, CliError> {
    let mut is_waiting = false;
    loop {
        let listed = async {
            let rollouts = RolloutStore::open(&context.connection, &context.subjects).await?;
            rollouts.list().await
        };
        match listed.await {
            Err(err) if err.is_outage() => {
                if !is_waiting {
                    context.console.log(&waiting_line(&err));
                }
                is_waiting = true;
                tokio::time::sleep(ERROR_DELAY).await;
            }
            listed => {
                let (all, _) = listed.map_err(CliError::from)?;
                if is_waiting {
                    context.console.log(&available_line());
                }
                return Ok(all);
            }
        }
    }
}

async fn follow(
    controller: &Controller,
    id: &Token,
    context: &Context<'_>,
) -> Result<Verdict, CliError> {
    let progress = context.progress();
    let target = FollowTarget::Id(id.clone());
    context
        .follow_as(controller, target, Role::Drive, progress)
        .await
}
