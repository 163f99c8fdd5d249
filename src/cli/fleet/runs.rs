//! `ccm fleet runs`: the runs of nodes from the run summaries in the event stream.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::FleetArgs;
use super::candidates;
use super::events::when;
use super::node_columns::outcome_cell;
use super::reply_report::Format;
use super::request::FormatArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::table::{Cell, Table};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::event::Summary;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::run::{RunOutcome, RunSummary};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::event_feed::{ReadOptions, StoredEvent};
use ccm_nats::{Connection, Subjects};
use ccm_value::json as text;
use ccm_value::text::{count_of, go_millis, to_the_second};

/// Default age of the oldest run.
const RECENT: TimeDelta = TimeDelta::days(1);

/// Outcomes of runs.
const OUTCOMES: [&str; 5] = [
    RunOutcome::Failed.as_str(),
    RunOutcome::Changed.as_str(),
    RunOutcome::Noop.as_str(),
    RunOutcome::Stable.as_str(),
    RunOutcome::Skipped.as_str(),
];

/// Default number of runs.
const DEFAULT_LIMIT: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();

/// Show runs of nodes, by default those of the last day, the newest last
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes whose runs to show [default: all nodes]
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Only runs of this node; repeatable
    #[arg(long, value_name = "NAME", add = candidates::nodes())]
    node: Vec<NodeName>,

    /// Start time: a duration such as 2d, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<DateTime<Utc>>,

    /// Only runs with this outcome; repeatable
    #[arg(long, value_name = "OUTCOME", value_parser = OUTCOMES)]
    outcome: Vec<String>,

    /// Maximum number of runs, the newest ones
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIMIT)]
    limit: NonZeroUsize,

    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let history = History::new(args, fleet.subjects()?);
    let (runs, omitted) = runtime::block_on(async {
        let connection = fleet.connect().await?;
        history.read(&connection, args).await
    })?;
    match args.format.format() {
        Format::Json => {
            let document = json!({ "runs": runs, "omitted": omitted });
            let text = text::pretty(&document).map_err(CliError::failed)?;
            console.print(&format!("{text}\n"));
        }
        Format::Lines => {
            for run in &runs {
                let text = text::compact(run).map_err(CliError::failed)?;
                console.print(&format!("{text}\n"));
            }
        }
        Format::Text => console.print(&table(&runs).render(console.has_colour())),
    }
    if omitted > 0 {
        let count = count_of(omitted, "earlier run");
        print_error(&format!(
            "{count} not shown: use --limit or a later --since"
        ));
    }
    Ok(Verdict::default())
}

/// Which runs to read.
struct History {
    subjects: Subjects,
    nodes: Vec<Token>,
}

impl History {
    fn new(args: &Args, subjects: Subjects) -> Self {
        let nodes = args.named.iter().chain(&args.node);
        Self {
            subjects,
            nodes: nodes.map(NodeName::token).collect(),
        }
    }

    /// Reads the newest runs, and returns the number of earlier ones that are left out.
    async fn read(
        &self,
        connection: &Connection,
        args: &Args,
    ) -> Result<(VecDeque<RunSummary>, usize), CliError> {
        let single = |words: &[Token]| match words {
            [word] => Some(word.clone()),
            _ => None,
        };
        let run: Token = "run".parse().map_err(CliError::failed)?;
        let node = single(&self.nodes);
        let options = ReadOptions {
            filter: self
                .subjects
                .events_matching(node.as_ref(), Some(&run), None),
            since: args
                .since
                .or_else(|| SystemClock.now().checked_sub_signed(RECENT)),
            follow: false,
        };
        let mut runs = VecDeque::new();
        let mut omitted = 0;
        let reading = connection.read_events(&options, |stored| {
            if let Some(run) = self.run_of(&stored, args) {
                if runs.len() >= args.limit.get() {
                    runs.pop_front();
                    omitted += 1;
                }
                runs.push_back(run);
            }
            true
        });
        reading.await.map_err(CliError::of_fleet)?;
        Ok((runs, omitted))
    }

    /// Parses a run summary if it matches. The node and outcome are those of the subject, which NATS
    /// permissions protect.
    fn run_of(&self, stored: &StoredEvent, args: &Args) -> Option<RunSummary> {
        let (node, _, outcome) = self.subjects.parse_event(&stored.subject)?;
        let is_node = self.nodes.is_empty() || self.nodes.contains(&node);
        let is_outcome = args.outcome.is_empty() || args.outcome.contains(&outcome);
        if !is_node || !is_outcome {
            return None;
        }
        let run: RunSummary = serde_json::from_slice(&stored.body).ok()?;
        (run.identity.token() == node).then_some(run)
    }
}

fn table(runs: &VecDeque<RunSummary>) -> Table {
    let mut table = Table::new([
        "TIME", "NODE", "OUTCOME", "TRIGGER", "CHANGED", "FAILED", "TOTAL", "DURATION", "SOURCE",
        "ERROR",
    ]);
    for run in runs {
        let Summary {
            changed_resources,
            failed_resources,
            total_resources,
            total_duration,
            ..
        } = &run.summary;
        let outcome = run.outcome.as_str();
        table.row([
            to_the_second(&run.timestamp).into(),
            run.identity.as_str().into(),
            outcome_cell(Some(run.outcome), outcome.into()),
            trigger(run).into(),
            changed_resources.to_string().into(),
            failed_resources.to_string().into(),
            total_resources.to_string().into(),
            go_millis(*total_duration).into(),
            Cell::from(run.source.as_str()),
            Cell::from(run.error.as_str()),
        ]);
    }
    table
}

/// Returns the trigger of a run as on the wire.
fn trigger(run: &RunSummary) -> String {
    match serde_json::to_value(run.trigger) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}
