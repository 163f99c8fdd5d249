//! `ccm fleet runs`: the runs of nodes from the run summaries in the event stream.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::FleetArgs;
use super::candidates;
use super::events::{warn_unreadable, when};
use super::node_columns::outcome_cell;
use super::reply_report::Format;
use super::request::FormatArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::table::{Cell, Table};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::event::Summary;
use ccm_core::model::node::NodeName;
use ccm_core::model::run::{RunOutcome, RunSummary};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::run_history::{HistoryError, RunQuery, Runs};
use ccm_value::json as text;
use ccm_value::text::{count_of, go_millis, to_the_second};

/// Default age of the oldest run.
const RECENT: TimeDelta = TimeDelta::days(1);

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
    #[arg(long, value_name = "OUTCOME", value_parser = RunOutcome::ALL.map(RunOutcome::as_str))]
    outcome: Vec<String>,

    /// Maximum number of runs, the newest ones
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIMIT)]
    limit: NonZeroUsize,

    #[command(flatten)]
    format: FormatArgs,
}

impl Args {
    fn query(&self) -> RunQuery {
        let recent = || {
            let recent = SystemClock.now().checked_sub_signed(RECENT);
            recent.unwrap_or(DateTime::UNIX_EPOCH)
        };
        let is_wanted = |outcome: &RunOutcome| self.outcome.iter().any(|it| it == outcome.as_str());
        RunQuery {
            nodes: self.named.iter().chain(&self.node).cloned().collect(),
            outcomes: RunOutcome::ALL.into_iter().filter(is_wanted).collect(),
            since: self.since.unwrap_or_else(recent),
            limit: self.limit.get(),
        }
    }
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let subjects = fleet.subjects()?;
    let query = args.query();
    let Runs {
        runs,
        omitted,
        unreadable,
    } = runtime::block_on(async {
        let connection = fleet.connect().await?;
        let read = query.read(&connection, &subjects, |_| {}).await;
        read.map_err(|err| match err {
            HistoryError::Nats(err) => CliError::of_fleet(err),
            err => CliError::failed(err),
        })
    })?;
    match args.format.format() {
        Format::Json => {
            let document = json!({
                "runs": runs, "omitted": omitted, "unreadable": unreadable.count,
            });
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
    warn_unreadable(&unreadable, "run");
    Ok(Verdict::default())
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
