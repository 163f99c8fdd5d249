//! `ccm fleet rollout plan` and `start`.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value as Json, json};

use super::super::candidates;
use super::super::flag_values::BadValue;
use super::super::request::{SlotArgs, caller, positive_duration, warn_unreadable};
use super::super::select::SelectArgs;
use super::{Context, DrivingArgs, waiting_line};
use crate::cli::environment::read_document;
use crate::cli::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::model::amount::{Amount, Percent};
use ccm_core::model::node::{BundleRef, NodeName};
use ccm_core::model::rollout::{Budget, Settings, Wave};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle_store::{BundleSelector, short_name};
use ccm_fleet::decision::TrustedSigners;
use ccm_fleet::executor::Role;
use ccm_fleet::start::{DeadlineError, Proposal, Request, parse_deadline, propose};
use ccm_fleet::summarize::{Counts, ReplyLine, summarize};
use ccm_value::text::{count_of, parse_wait};
use ccm_value::{Value, json};

/// Timeout of the noop preview of a node.
const NOOP_LIMIT: Duration = Duration::from_secs(300);

/// Start a rollout of a bundle; offline nodes converge when they return
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    rollout: RolloutArgs,

    /// Do not drive the rollout; leave it to another controller
    #[arg(long)]
    detach: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

/// Show the waves that `start` with the same flags would use
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    rollout: RolloutArgs,

    /// Preview the changes with a noop run on the nodes
    #[arg(long)]
    noop_first: bool,
}

/// Bundle, nodes and settings of a rollout.
#[derive(Debug, clap::Args)]
struct RolloutArgs {
    /// Bundle: NAME for the newest version, or NAME@DIGEST
    #[arg(add = candidates::bundles())]
    bundle: BundleSelector,

    /// Nodes to roll out to
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    strategy: StrategyArgs,

    /// Do not make changes on nodes, only report what would be done
    #[arg(long)]
    noop: bool,

    /// JSON or YAML file with data that overrides the manifest's
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

/// Wave and limit flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Waves and limits")]
struct StrategyArgs {
    /// Number of canary nodes; none of them may fail
    #[arg(long, value_name = "N", default_value_t = 0)]
    canary: usize,

    /// Wave sizes: node counts, or cumulative percentages of all nodes
    #[arg(long = "wave", value_name = "N|N%", value_delimiter = ',')]
    waves: Vec<Amount>,

    /// Label or fact to order nodes by, before their names
    #[arg(long, value_name = "NAME")]
    order_by: Option<String>,

    /// Time to observe a finished wave before the next one starts
    #[arg(long, value_name = "DURATION", value_parser = parse_wait, default_value = "0s")]
    bake: Duration,

    /// Halt if a node is unhealthy at the end of a wave
    #[arg(long)]
    health_gate: bool,

    /// Halt if more nodes than this fail [default: 0 without any limit]
    #[arg(long, value_name = "N")]
    max_failures: Option<usize>,

    /// Halt if a larger percentage of the finished nodes failed
    #[arg(long, value_name = "N%")]
    max_failures_percent: Option<Percent>,

    /// Number of finished nodes before --max-failures-percent applies
    #[arg(long, value_name = "N", default_value_t = Budget::default().min_sample)]
    min_sample: usize,

    /// Halt if more nodes than this are unreachable
    #[arg(long, value_name = "N|N%")]
    max_unreachable: Option<Amount>,

    /// Maximum number of nodes in progress at once
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    parallel: Option<usize>,

    /// Time without a report after which a node counts as unreachable
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "10m")]
    node_timeout: Duration,

    #[command(flatten)]
    slot: SlotArgs,

    /// Do not start new nodes after this time, or after this duration from now
    #[arg(long, value_name = "TIME|DURATION", value_parser = deadline)]
    deadline: Option<DateTime<Utc>>,
}

fn at_least_one(text: &str) -> Result<usize, BadValue> {
    let count = text.parse()?;
    if count == 0 {
        return Err(BadValue::Zero);
    }
    Ok(count)
}

fn deadline(text: &str) -> Result<DateTime<Utc>, DeadlineError> {
    parse_deadline(text, SystemClock.now())
}

impl StrategyArgs {
    /// Returns the settings of the rollout.
    fn settings(&self) -> Settings {
        Settings {
            canary: self.canary,
            waves: self.waves.clone(),
            order_by: self.order_by.clone(),
            bake: self.bake,
            health_gate: self.health_gate,
            budget: Budget {
                max_failures: self.max_failures,
                max_failures_percent: self.max_failures_percent,
                min_sample: self.min_sample,
                max_unreachable: self.max_unreachable,
            },
            parallel: self.parallel,
            node_timeout: self.node_timeout,
            governor: self.slot.claim(),
            deadline: self.deadline,
        }
    }
}

impl RolloutArgs {
    /// Returns the proposal for these flags, and warns about skipped nodes and records.
    async fn proposal(&self, context: &Context<'_>) -> Result<Proposal, CliError> {
        let selection = self.select.explicit_selection(&self.named)?;
        let data = match &self.data {
            Some(file) => read_document(file)?,
            None => Value::Null,
        };
        let request = Request {
            bundle: self.bundle.clone(),
            selection,
            settings: self.strategy.settings(),
            data,
            noop: self.noop,
        };
        let proposal = propose(&context.connection, &context.subjects, request).await;
        let proposal = proposal.map_err(CliError::from)?;
        warn_unreadable(&proposal.unreadable, context.console);
        for (node, reason) in &proposal.undecided {
            let line = Line::new(
                Level::Warn,
                "Skipped a node: the selection could not be evaluated",
            )
            .with("node", node)
            .with("reason", reason);
            context.console.log(&line);
        }
        Ok(proposal)
    }
}

pub(super) async fn start(args: &StartArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let proposal = args.rollout.proposal(context).await?;
    let signer = context.connection.signer();
    let controller = context.controller(&args.driving)?;
    // The stored rollout must carry our own signature.
    let controller = match signer {
        Some(signer) => {
            controller.with_trusted_signers(TrustedSigners::new([signer.public_key()], true))
        }
        None => controller,
    };
    let lease = (!args.detach).then(|| controller.lease());
    let stored = proposal
        .start(
            &context.connection,
            &context.subjects,
            signer,
            caller(),
            lease,
            |err| context.console.log(&waiting_line(err)),
        )
        .await
        .map_err(CliError::from)?;
    context.print_text(&format!(
        "rollout {}: {}\n",
        stored.rollout.id,
        heading(&stored.rollout.bundle, &stored.rollout.plan.waves)
    ));
    if args.detach {
        context.print_json(&stored.rollout)?;
        return Ok(Verdict::default());
    }
    context
        .follow_as(&controller, stored.into(), Role::Drive, context.progress())
        .await
}

pub(super) async fn plan(args: &PlanArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let proposal = args.rollout.proposal(context).await?;
    let preview = if args.noop_first {
        let (connection, subjects) = (&context.connection, &context.subjects);
        let caller = caller();
        let replies = proposal.preview(connection, subjects, &caller, NOOP_LIMIT);
        Some(replies.await.map_err(CliError::failed)?)
    } else {
        None
    };
    let code = preview
        .iter()
        .flatten()
        .map(|reply| reply.outcome)
        .collect::<Counts>()
        .exit_code();
    if context.is_json {
        let document = json!({
            "bundle": proposal.bundle,
            "selection": proposal.selection,
            "settings": proposal.settings,
            "plan": proposal.plan,
            "offline": proposal.offline,
            "outlook": preview.map(|replies| {
                replies.iter().map(preview_document).collect::<Vec<Json>>()
            }),
        });
        let text = json::pretty(&document).map_err(CliError::failed)?;
        context.console.print(&format!("{text}\n"));
        return Ok(Verdict::exit(code));
    }
    context.print_text(&plan_text(&proposal));
    if let Some(replies) = preview {
        let mut text = String::from("\nChanges (noop):\n");
        for folded in summarize(replies) {
            text.push_str(&format!("{folded}\n"));
        }
        context.print_text(&text);
    }
    Ok(Verdict::exit(code))
}

fn preview_document(reply: &ReplyLine) -> Json {
    json!({"node": reply.node, "outcome": reply.outcome, "message": reply.text})
}

/// Returns the bundle with the numbers of nodes and waves.
fn heading(bundle: &BundleRef, waves: &[Wave]) -> String {
    let count: usize = waves.iter().map(|wave| wave.nodes.len()).sum();
    let (nodes, waves) = (count_of(count, "node"), count_of(waves.len(), "wave"));
    format!("{} to {nodes} in {waves}", short_name(bundle))
}

fn plan_text(proposal: &Proposal) -> String {
    let waves = &proposal.plan.waves;
    let mut text = format!("{}\n", heading(&proposal.bundle, waves));
    for wave in waves {
        let nodes: Vec<String> = wave
            .nodes
            .iter()
            .map(|node| {
                if proposal.offline.contains(node) {
                    format!("{node} (offline)")
                } else {
                    node.to_string()
                }
            })
            .collect();
        text.push_str(&format!(
            "{} ({}): {}\n",
            wave.name,
            nodes.len(),
            nodes.join(", ")
        ));
    }
    for skipped in &proposal.plan.left_out {
        text.push_str(&format!("skipped: {} ({})\n", skipped.node, skipped.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_time_or_a_duration() {
        assert_eq!(
            deadline("2027-01-15T08:00:00Z").unwrap().to_rfc3339(),
            "2027-01-15T08:00:00+00:00"
        );
        assert!(deadline("2h").unwrap() > SystemClock.now());
        assert!(deadline("soon").is_err());
    }

    #[test]
    fn parallel_zero_is_refused() {
        assert!(at_least_one("0").is_err());
        assert_eq!(at_least_one("3").unwrap(), 3);
    }
}
