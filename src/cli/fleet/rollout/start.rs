//! `ccm fleet rollout plan` and `start`: the same flags, shown or begun.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value as Json, json};

use super::super::flag_values::BadValue;
use super::super::request::{SlotArgs, caller, wait};
use super::super::select::SelectArgs;
use super::{Context, DrivingArgs};
use crate::cli::environment::read_document;
use crate::cli::{CliError, Verdict};
use ccm_core::engine::{Level, Line};
use ccm_core::model::amount::{Amount, Percent};
use ccm_core::model::node::BundleRef;
use ccm_core::model::rollout::{Budget, Settings, Wave};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle_store::{Wanted, shown};
use ccm_fleet::decision::TrustedSigners;
use ccm_fleet::executor::Role;
use ccm_fleet::start::{Proposal, Request, propose};
use ccm_fleet::summarize::{Answer, Counts, fold};
use ccm_value::text::{count_of, parse_time, parse_wait};
use ccm_value::{Value, json};

/// How long a node may take to say what it would change.
const NOOP_LIMIT: Duration = Duration::from_secs(300);

/// Takes a bundle to nodes, wave by wave; nodes that are away converge when they return
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    what: WhatArgs,

    /// Leaves the driving to another controller
    #[arg(long)]
    detach: bool,

    #[command(flatten)]
    driving: DrivingArgs,
}

/// Shows the waves that the same flags would start, and changes nothing
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    what: WhatArgs,

    /// Asks the nodes what they would change
    #[arg(long)]
    noop_first: bool,
}

/// What is taken where.
#[derive(Debug, clap::Args)]
struct WhatArgs {
    /// The bundle: NAME for the newest, or NAME@DIGEST
    bundle: Wanted,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    how: HowArgs,

    /// Nodes only say what they would do
    #[arg(long)]
    noop: bool,

    /// A JSON or YAML file of data, laid over the manifest's
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

/// In which steps, and when to stop.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Waves and limits")]
struct HowArgs {
    /// So many nodes go first; none of them may fail
    #[arg(long, value_name = "N", default_value_t = 0)]
    canary: usize,

    /// How large the waves are: counts, or percentages of all nodes to go on to
    #[arg(long = "wave", value_name = "N|N%", value_delimiter = ',')]
    waves: Vec<Amount>,

    /// The label or fact that nodes are ordered by before their names
    #[arg(long, value_name = "NAME")]
    order_by: Option<String>,

    /// How long a finished wave is watched before the next one begins
    #[arg(long, value_name = "DURATION", value_parser = parse_wait, default_value = "0s")]
    bake: Duration,

    /// Halts when a node is unhealthy at the end of a wave
    #[arg(long)]
    health_gate: bool,

    /// Halts when more nodes fail; without any limit at the first
    #[arg(long, value_name = "N")]
    max_failures: Option<usize>,

    /// Halts when a larger part of the finished nodes failed
    #[arg(long, value_name = "N%")]
    max_failures_percent: Option<Percent>,

    /// How many nodes must have finished before a percentage counts
    #[arg(long, value_name = "N", default_value_t = Budget::default().min_sample)]
    min_sample: usize,

    /// Halts when more nodes could not be reached
    #[arg(long, value_name = "N|N%")]
    max_unreachable: Option<Amount>,

    /// How many nodes are under way at once
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    parallel: Option<usize>,

    /// How long a node may stay silent before it counts as unreachable
    #[arg(long, value_name = "DURATION", value_parser = wait, default_value = "10m")]
    node_timeout: Duration,

    #[command(flatten)]
    slot: SlotArgs,

    /// When nothing more is begun: a time, or a duration from now
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

fn deadline(text: &str) -> Result<DateTime<Utc>, BadValue> {
    if let Ok(time) = parse_time(text) {
        return Ok(time.to_utc());
    }
    let span = wait(text).map_err(|_| BadValue::Deadline)?;
    TimeDelta::from_std(span)
        .ok()
        .and_then(|span| SystemClock.now().checked_add_signed(span))
        .ok_or(BadValue::TooLate)
}

impl HowArgs {
    /// Returns what the caller asks for.
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

impl WhatArgs {
    /// Finds out what the flags amount to, and warns of what is left out.
    async fn proposal(&self, context: &Context<'_>) -> Result<Proposal, CliError> {
        let selection = self.select.careful_selection(&[])?;
        let data = match &self.data {
            Some(file) => read_document(file)?,
            None => Value::Null,
        };
        let request = Request {
            bundle: self.bundle.clone(),
            selection,
            settings: self.how.settings(),
            data,
            noop: self.noop,
        };
        let proposal = propose(&context.connection, &context.subjects, request).await;
        let proposal = proposal.map_err(CliError::from)?;
        for one in &proposal.unreadable {
            let line = Line::new(Level::Warn, "Left out a record of the fleet")
                .with("bucket", one.bucket)
                .with("key", &one.key)
                .with("reason", &one.reason);
            context.console.log(&line);
        }
        for (node, reason) in &proposal.undecided {
            let line = Line::new(Level::Warn, "Left out a node that can't be decided about")
                .with("node", node)
                .with("reason", reason);
            context.console.log(&line);
        }
        Ok(proposal)
    }
}

pub(super) async fn start(args: &StartArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let proposal = args.what.proposal(context).await?;
    let signer = context.connection.signer();
    let controller = context.controller(&args.driving)?;
    // What comes back from the bucket must be what we signed ourselves.
    let controller = match signer {
        Some(signer) => controller.trusting(TrustedSigners::new([signer.public_key()], true)),
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
        )
        .await
        .map_err(CliError::from)?;
    let id = &stored.rollout.id;
    context.say(&format!(
        "rollout {id}: {}\n",
        heading(&stored.rollout.bundle, &stored.rollout.plan.waves)
    ));
    if args.detach {
        context.print_json(&stored.rollout)?;
        return Ok(Verdict::default());
    }
    context
        .follow_as(&controller, id, Role::Drive, context.progress())
        .await
}

pub(super) async fn plan(args: &PlanArgs, context: &Context<'_>) -> Result<Verdict, CliError> {
    let proposal = args.what.proposal(context).await?;
    let outlook = if args.noop_first {
        let (connection, subjects) = (&context.connection, &context.subjects);
        let caller = caller();
        let asked = proposal.ask(connection, subjects, &caller, NOOP_LIMIT);
        Some(asked.await.map_err(CliError::failed)?)
    } else {
        None
    };
    let code = outlook
        .iter()
        .flatten()
        .map(|answer| answer.outcome)
        .collect::<Counts>()
        .exit_code();
    if context.is_json {
        let document = json!({
            "bundle": proposal.bundle,
            "selection": proposal.selection,
            "settings": proposal.settings,
            "plan": proposal.plan,
            "offline": proposal.offline,
            "outlook": outlook.map(|answers| {
                answers.iter().map(outlook_document).collect::<Vec<Json>>()
            }),
        });
        let text = json::pretty(&document).map_err(CliError::failed)?;
        context.console.print(&format!("{text}\n"));
        return Ok(Verdict::exit(code));
    }
    context.say(&plan_text(&proposal));
    if let Some(answers) = outlook {
        let mut text = String::from("\nWhat would change:\n");
        for folded in fold(answers) {
            text.push_str(&format!("{folded}\n"));
        }
        context.say(&text);
    }
    Ok(Verdict::exit(code))
}

fn outlook_document(answer: &Answer) -> Json {
    json!({"node": answer.node, "outcome": answer.outcome, "message": answer.text})
}

/// Returns what goes to how many, in how many waves.
fn heading(bundle: &BundleRef, waves: &[Wave]) -> String {
    let count: usize = waves.iter().map(|wave| wave.nodes.len()).sum();
    let (nodes, waves) = (count_of(count, "node"), count_of(waves.len(), "wave"));
    format!("{} to {nodes} in {waves}", shown(bundle))
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
    for left in &proposal.plan.left_out {
        text.push_str(&format!("left out: {} ({})\n", left.node, left.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_time_or_a_span() {
        assert_eq!(
            deadline("2027-01-15T08:00:00Z").unwrap().to_rfc3339(),
            "2027-01-15T08:00:00+00:00"
        );
        assert!(deadline("2h").unwrap() > SystemClock.now());
        assert!(deadline("soon").is_err());
    }

    #[test]
    fn nobody_at_once_is_a_mistake() {
        assert!(at_least_one("0").is_err());
        assert_eq!(at_least_one("3").unwrap(), 3);
    }
}
