//! `ccm fleet rollout plan` and `start`: the same flags, shown or begun.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value as Json, json};

use super::super::ask::{SlotArgs, caller, inventory, wait};
use super::super::select::SelectArgs;
use super::{Desk, LeaseArgs, failed, no_bucket};
use crate::cli::environment::read_document;
use crate::cli::{CliError, Verdict};
use crate::engine::{Level, Line};
use crate::fleet::answer::line_of;
use crate::fleet::bundles::{Bundles, BundlesError, Wanted, shown};
use crate::fleet::executor::Role;
use crate::fleet::fold::{Answer, Counts, Outcome, fold};
use crate::fleet::plan::{candidates, plan as cut};
use crate::fleet::probe::{self, Question};
use crate::fleet::rollouts::new_id;
use crate::fleet::selection::Selection;
use crate::model::amount::{Amount, Percent};
use crate::model::node::{BundleRef, NodeName};
use crate::model::rollout::{Budget, Plan, ROLLOUT, Rollout, Settings, State, Wave};
use crate::model::text::{count_of, parse_time, parse_wait};
use crate::model::{Value, json};
use crate::system::{Clock as _, SystemClock, random};

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
    lease: LeaseArgs,
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

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be 1 or more".into()),
        Ok(count) => Ok(count),
        Err(err) => Err(format!("{err}")),
    }
}

fn deadline(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = parse_time(text) {
        return Ok(time.to_utc());
    }
    let span = wait(text).map_err(|_| "expected a time such as 2027-01-15T08:00:00Z, or 2h")?;
    SystemClock
        .now()
        .checked_add_signed(chrono::TimeDelta::from_std(span).map_err(|err| err.to_string())?)
        .ok_or_else(|| "that is beyond all calendars".into())
}

impl HowArgs {
    /// Returns what the caller asks for, if a node can be both waiting for a slot and not silent.
    fn settings(&self) -> Result<Settings, CliError> {
        let governor = self.slot.claim();
        let longest = governor.as_ref().map(|claim| claim.timeout.duration());
        if longest.is_some_and(|longest| longest >= self.node_timeout) {
            return Err(CliError::usage(
                "--governor-timeout must be shorter than --node-timeout: a node that waits for its slot is silent",
            ));
        }
        Ok(Settings {
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
            governor,
            deadline: self.deadline,
        })
    }
}

/// What the flags amount to, now.
struct Intended {
    bundle: BundleRef,
    data: Value,
    settings: Settings,
    selection: Selection,
    plan: Plan,
    /// Those of the plan that are away.
    offline: Vec<NodeName>,
}

impl WhatArgs {
    async fn intended(&self, desk: &Desk<'_>) -> Result<Intended, CliError> {
        let selection = self.select.careful_selection(&[])?;
        let data = match &self.data {
            Some(file) => read_document(file)?,
            None => Value::Null,
        };
        let bundles = Bundles::open(&desk.connection).await.map_err(missing)?;
        let version = bundles.find(&self.bundle).await.map_err(missing)?;
        let inventory = inventory(&desk.connection, &desk.subjects, desk.console).await?;
        let resolved = inventory.resolve(&selection).map_err(CliError::usage)?;
        if !resolved.unknown.is_empty() {
            let names = resolved.unknown.join(", ");
            return Err(CliError::usage(format!("unknown nodes: {names}")));
        }
        for (node, reason) in &resolved.undecided {
            let line = Line::new(Level::Warn, "Left out a node that can't be decided about")
                .with("node", node)
                .with("reason", reason);
            desk.console.log(&line);
        }
        // A part of the fleet is a part of those that are there.
        let is_part = selection.sample.is_some() || selection.limit.is_some();
        let offline = match is_part {
            true => Vec::new(),
            false => resolved.offline,
        };
        let mut nodes = resolved.chosen;
        nodes.extend(offline.iter().cloned());
        let settings = self.how.settings()?;
        let plan = cut(&candidates(&inventory, &nodes), &settings).map_err(CliError::usage)?;
        Ok(Intended {
            bundle: version.bundle,
            data,
            settings,
            selection,
            plan,
            offline,
        })
    }
}

fn missing(err: BundlesError) -> CliError {
    match err {
        BundlesError::Nats(err) => no_bucket(err),
        BundlesError::NotFound(_) | BundlesError::Ambiguous(_) => CliError::usage(err),
        err => CliError::failed(err),
    }
}

pub(super) async fn start(args: &StartArgs, desk: &Desk<'_>) -> Result<Verdict, CliError> {
    let intended = args.what.intended(desk).await?;
    let now = SystemClock.now();
    let lease = args.lease.length();
    let controller = desk.controller(lease)?;
    let rollout = Rollout {
        protocol: ROLLOUT.into(),
        id: new_id(now, random().map_err(CliError::failed)?).map_err(failed)?,
        collective: desk.subjects.collective().clone(),
        bundle: intended.bundle,
        data: intended.data,
        noop: args.what.noop,
        selection: described(&intended.selection),
        created: now,
        caller: caller(),
        settings: intended.settings,
        plan: intended.plan,
        state: State::Running,
        wave: 0,
        nodes: Default::default(),
        previous: Default::default(),
        forgiven: None,
        lease: (!args.detach).then(|| controller.lease()),
    };
    let rollouts = desk.rollouts().await?;
    let stored = rollouts.create(rollout).await.map_err(failed)?;
    let id = &stored.rollout.id;
    desk.say(&format!(
        "rollout {id}: {}\n",
        heading(&stored.rollout.bundle, &stored.rollout.plan.waves)
    ));
    match args.detach {
        true => {
            desk.print_json(&stored.rollout)?;
            Ok(Verdict::default())
        }
        false => {
            desk.follow_as(&controller, id, Role::Drive, desk.progress())
                .await
        }
    }
}

/// Returns how nodes were chosen, for people.
fn described(selection: &Selection) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    words.extend(selection.nodes.iter().map(|it| format!("--node {it}")));
    words.extend(selection.groups.iter().map(|it| format!("--group {it}")));
    words.extend(selection.facts.iter().map(|it| format!("--fact {it}")));
    words.extend(selection.select.iter().map(|it| format!("--select {it}")));
    words.extend(selection.sample.iter().map(|it| format!("--sample {it}")));
    words.extend(selection.limit.iter().map(|it| format!("--limit {it}")));
    match words.is_empty() {
        true => vec!["--all".into()],
        false => words,
    }
}

pub(super) async fn plan(args: &PlanArgs, desk: &Desk<'_>) -> Result<Verdict, CliError> {
    let intended = args.what.intended(desk).await?;
    let outlook = match args.noop_first {
        true => Some(ask(&intended, desk).await?),
        false => None,
    };
    let code = outlook
        .iter()
        .flatten()
        .map(|answer| answer.outcome)
        .collect::<Counts>()
        .exit_code();
    if desk.is_json {
        let document = json!({
            "bundle": intended.bundle,
            "selection": described(&intended.selection),
            "settings": intended.settings,
            "plan": intended.plan,
            "offline": intended.offline,
            "outlook": outlook.map(|answers| {
                answers.iter().map(outlook_document).collect::<Vec<Json>>()
            }),
        });
        let text = json::pretty(&document).map_err(CliError::failed)?;
        desk.console.print(&format!("{text}\n"));
        return Ok(Verdict::exit(code));
    }
    desk.say(&plan_text(&intended));
    if let Some(answers) = outlook {
        let mut text = String::from("\nWhat would change:\n");
        for folded in fold(answers) {
            text.push_str(&format!("{folded}\n"));
        }
        desk.say(&text);
    }
    Ok(Verdict::exit(code))
}

fn outlook_document(answer: &Answer) -> Json {
    json!({"node": answer.node, "outcome": answer.outcome, "message": answer.text})
}

/// Asks the nodes of a plan what they would change.
async fn ask(intended: &Intended, desk: &Desk<'_>) -> Result<Vec<Answer>, CliError> {
    let question = |node: &NodeName| Question {
        node: node.clone(),
        bundle: intended.bundle.clone(),
        data: intended.data.clone(),
    };
    let waves = intended.plan.waves.iter();
    let questions = waves.flat_map(|wave| wave.nodes.iter().map(question));
    let (connection, subjects) = (&desk.connection, &desk.subjects);
    let questions = questions.collect();
    let asked = probe::ask(connection, subjects, questions, &caller(), NOOP_LIMIT).await;
    let answers = asked.map_err(CliError::failed)?;
    Ok(answers
        .into_iter()
        .map(|(question, answer)| {
            let (outcome, text) = match answer {
                Err(probe::Silence::NoAnswer) => (Outcome::NoAnswer, "no answer".into()),
                Err(probe::Silence::Refused(reason)) => (Outcome::Failed, reason),
                Ok(outlook) if outlook.events.is_empty() => (Outcome::Ok, "nothing".into()),
                Ok(outlook) => {
                    let lines: Vec<String> = outlook.events.iter().map(line_of).collect();
                    let outcome = match outlook.events.iter().any(|event| event.failed) {
                        true => Outcome::Failed,
                        false => Outcome::Changed,
                    };
                    (outcome, lines.join("; "))
                }
            };
            Answer {
                node: question.node,
                outcome,
                text,
            }
        })
        .collect())
}

/// Returns what goes to how many, in how many waves.
fn heading(bundle: &BundleRef, waves: &[Wave]) -> String {
    let count: usize = waves.iter().map(|wave| wave.nodes.len()).sum();
    let (nodes, waves) = (count_of(count, "node"), count_of(waves.len(), "wave"));
    format!("{} to {nodes} in {waves}", shown(bundle))
}

fn plan_text(intended: &Intended) -> String {
    let waves = &intended.plan.waves;
    let mut text = format!("{}\n", heading(&intended.bundle, waves));
    for wave in waves {
        let nodes: Vec<String> = wave
            .nodes
            .iter()
            .map(|node| match intended.offline.contains(node) {
                true => format!("{node} (offline)"),
                false => node.to_string(),
            })
            .collect();
        text.push_str(&format!(
            "{} ({}): {}\n",
            wave.name,
            nodes.len(),
            nodes.join(", ")
        ));
    }
    for left in &intended.plan.left_out {
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
        assert_eq!(at_least_one("3"), Ok(3));
    }

    #[test]
    fn how_nodes_were_chosen_is_kept_for_people() {
        assert_eq!(described(&Selection::default()), ["--all"]);
        let selection = Selection {
            nodes: vec!["web1".into()],
            limit: Some(3),
            ..Selection::default()
        };
        assert_eq!(described(&selection), ["--node web1", "--limit 3"]);
    }
}
