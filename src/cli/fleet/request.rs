//! Requests to nodes: shared flags, selection of the nodes, output of the replies and exit code.
//!
//! The commands build the request body; [`ccm_fleet`] interprets the replies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::FleetArgs;
use super::flag_values::BadValue;
use super::reply_report::{Format, Reporter, RequestSummary, TextStyle};
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::amount::Amount;
use ccm_core::model::governor::{GovernorClaim, GovernorName, GovernorTimeout};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Accounts, SystemClock};
use ccm_fleet::batches::{BatchReport, BatchSettings, Targets, request_in_batches};
use ccm_fleet::inventory::{Inventory, KeptFacts, Unreadable};
use ccm_fleet::node_reply::NodeReply;
use ccm_fleet::scatter::{NodeRequest, ScatterClient};
use ccm_fleet::selection::Selection;
use ccm_fleet::summarize::{Counts, Outcome};
use ccm_nats::{Connection, NatsError, Subjects, Verb};
use ccm_value::text::parse_wait;

/// Error message if no node is known.
pub(super) const NO_NODES: &str = "the fleet has no nodes";

/// Default timeout of requests that start no run.
pub(super) const QUICK_TIMEOUT: Duration = Duration::from_secs(10);

/// Default timeout of requests that start a run.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// Flags of requests to nodes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
pub(super) struct RequestArgs {
    /// Time to wait for the reply of a node [default: 10s, 5m for runs]
    #[arg(id = "request_timeout", long = "timeout", value_name = "DURATION", value_parser = positive_duration, global = true)]
    timeout: Option<Duration>,

    #[command(flatten)]
    format: FormatArgs,
}

impl RequestArgs {
    /// Returns the timeout, or the given default.
    pub(super) fn limit(&self, default: Duration) -> Duration {
        self.timeout.unwrap_or(default)
    }

    pub(super) fn format(&self) -> Format {
        self.format.format()
    }
}

/// Output format flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormatArgs {
    /// Output one JSON document
    #[arg(id = "request_json", long = "json", global = true)]
    json: bool,

    /// Output JSON lines, one per result
    #[arg(
        id = "request_jsonl",
        long = "jsonl",
        global = true,
        conflicts_with = "request_json"
    )]
    jsonl: bool,
}

impl FormatArgs {
    pub(super) fn format(&self) -> Format {
        match (self.json, self.jsonl) {
            (true, _) => Format::Json,
            (_, true) => Format::Lines,
            _ => Format::Text,
        }
    }
}

/// Governor flags.
#[derive(Debug, clap::Args)]
pub(super) struct SlotArgs {
    /// Choria governor that limits concurrent runs, unless the manifest names one
    #[arg(long, value_name = "NAME")]
    governor: Option<GovernorName>,

    /// Time that a run waits for its governor slot [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "governor")]
    governor_timeout: Option<GovernorTimeout>,
}

impl SlotArgs {
    /// Returns the governor slot that every run must claim.
    pub(super) fn claim(&self) -> Option<GovernorClaim> {
        Some(GovernorClaim {
            name: self.governor.clone()?,
            timeout: self.governor_timeout.unwrap_or_default(),
        })
    }
}

/// Batch size and failure limit flags.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Requests")]
pub(super) struct BatchArgs {
    /// Number or percentage of nodes per batch
    #[arg(id = "request_batch", long = "batch", value_name = "N|N%", value_parser = positive_amount, global = true)]
    batch: Option<Amount>,

    /// Halt if more nodes than this fail; uses batches of 128 nodes without --batch
    #[arg(
        id = "request_max_failures",
        long = "max-failures",
        value_name = "N|N%",
        global = true
    )]
    max_failures: Option<Amount>,
}

impl BatchArgs {
    pub(super) fn settings(&self) -> BatchSettings {
        BatchSettings {
            batch: self.batch,
            max_failures: self.max_failures,
        }
    }
}

/// Parses an amount of at least one.
fn positive_amount(text: &str) -> Result<Amount, BadValue> {
    match text.parse()? {
        Amount::Count(0) => Err(BadValue::Zero),
        amount => Ok(amount),
    }
}

/// Parses a duration greater than zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, BadValue> {
    let wait = parse_wait(text)?;
    if wait.is_zero() {
        return Err(BadValue::ZeroDuration);
    }
    Ok(wait)
}

/// Request to a selection of nodes, and the output format of the replies.
pub(super) struct FleetCall {
    pub(super) selection: Selection,
    pub(super) request: NodeRequest,
    pub(super) batch: BatchSettings,
    pub(super) format: Format,
    pub(super) style: TextStyle,
    /// Whether the output of commands is part of the text output.
    pub(super) shows_output: bool,
    /// Whether the id of the request is printed, by which its runs can be cancelled.
    pub(super) shows_request_id: bool,
    /// Error message if all nodes replied and none changed anything.
    pub(super) must_change: Option<String>,
}

impl FleetCall {
    /// Returns a request without a body, with the default timeout and no batches.
    pub(super) fn new(verb: Verb, selection: Selection, args: &RequestArgs) -> Self {
        Self {
            selection,
            request: NodeRequest {
                verb,
                body: Default::default(),
                noop: false,
                diff: false,
                timeout: args.limit(QUICK_TIMEOUT),
                sends_deadline: false,
            },
            batch: BatchSettings::default(),
            format: args.format(),
            style: TextStyle::Lines,
            shows_output: false,
            shows_request_id: false,
            must_change: None,
        }
    }

    /// Sends the request, prints the replies and returns the exit code.
    pub(super) fn run(self, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
        let subjects = fleet.subjects()?;
        runtime::block_on(async {
            let connection = fleet.connect().await?;
            let inventory = Inventory::load_for(&connection, &subjects, &self.selection).await;
            let inventory = checked(inventory, console)?;
            self.send(connection, subjects, &inventory, console).await
        })
    }

    /// Sends the request to nodes of an inventory.
    pub(super) async fn send(
        self,
        connection: Connection,
        subjects: Subjects,
        inventory: &Inventory,
        console: &Console,
    ) -> Result<Verdict, CliError> {
        let (targets, mut absent) = targets(inventory, &self.selection, console)?;
        let client = ScatterClient::new(connection, subjects, &caller(), Arc::new(SystemClock))
            .map_err(CliError::failed)?;
        if self.shows_request_id && self.format == Format::Text {
            let id = client.request_id();
            print_error(&format!(
                "request {id}; stop it with: ccm fleet cancel {id}"
            ));
        }
        let expected = targets.nodes.len() + absent.len();
        let mut reporter = Reporter::new(self.format, self.style, expected);
        reporter.shows_output = self.shows_output;
        let mut pending: BTreeSet<&NodeName> = targets.nodes.iter().collect();
        let mut counts = Counts::default();
        let sending = request_in_batches(&client, &self.request, &targets, self.batch, |reply| {
            pending.remove(&reply.node);
            counts.add(reply.outcome);
            reporter.add(reply, console);
        });
        let report = tokio::select! {
            report = sending => Some(report.map_err(CliError::failed)?),
            _ = tokio::signal::ctrl_c() => None,
        };
        // After Ctrl-C, print the replies so far and list the nodes that have not replied.
        let mut report = report.unwrap_or_else(|| {
            let silent = pending.into_iter().cloned();
            absent
                .extend(silent.map(|node| NodeReply::no_reply(node, "interrupted before a reply")));
            BatchReport {
                counts,
                ..BatchReport::default()
            }
        });
        for reply in absent {
            report.counts.add(reply.outcome);
            reporter.add(reply, console);
        }
        let code = if report.is_halted {
            3
        } else {
            report.counts.exit_code()
        };
        let summary = RequestSummary {
            verb: self.request.verb.as_str(),
            request_id: client.request_id(),
            report: &report,
        };
        reporter.finish(&summary, console)?;
        match self.must_change {
            Some(message) if code == 0 && report.counts.of(Outcome::Changed) == 0 => {
                Err(CliError::failed(message))
            }
            _ => Ok(Verdict::exit(code)),
        }
    }
}

/// Connects and loads the inventory.
pub(super) fn load_inventory(fleet: &FleetArgs, console: &Console) -> Result<Inventory, CliError> {
    let subjects = fleet.subjects()?;
    runtime::block_on(async {
        let connection = fleet.connect().await?;
        inventory(&connection, &subjects, console).await
    })
}

/// Connects and loads what is needed to show the nodes of a selection.
pub(super) fn load_selected(
    fleet: &FleetArgs,
    selection: &Selection,
    kept: KeptFacts,
    console: &Console,
) -> Result<Inventory, CliError> {
    let subjects = fleet.subjects()?;
    runtime::block_on(async {
        let connection = fleet.connect().await?;
        let loading = Inventory::load_selected(&connection, &subjects, selection, kept);
        checked(loading.await, console)
    })
}

/// Loads the inventory and warns about unreadable records.
pub(super) async fn inventory(
    connection: &Connection,
    subjects: &Subjects,
    console: &Console,
) -> Result<Inventory, CliError> {
    checked(Inventory::load(connection, subjects).await, console)
}

/// Warns about unreadable records of an inventory.
fn checked(
    inventory: Result<Inventory, NatsError>,
    console: &Console,
) -> Result<Inventory, CliError> {
    let inventory = inventory.map_err(CliError::of_fleet)?;
    warn_unreadable(inventory.unreadable(), console);
    Ok(inventory)
}

/// Warns about unreadable records.
pub(super) fn warn_unreadable(records: &[Unreadable], console: &Console) {
    for record in records {
        let line = Line::new(Level::Warn, "Skipped an unreadable fleet record")
            .with("bucket", record.bucket)
            .with("key", &record.key)
            .with("reason", &record.reason);
        console.log(&line);
    }
}

/// Resolves the selection to the nodes to contact, and replies for those that are absent.
fn targets(
    inventory: &Inventory,
    selection: &Selection,
    console: &Console,
) -> Result<(Targets, Vec<NodeReply>), CliError> {
    let resolved = inventory.resolve(selection).map_err(CliError::usage)?;
    for (node, reason) in &resolved.undecided {
        let line = Line::new(
            Level::Warn,
            "Skipped a node: the selection could not be evaluated",
        )
        .with("node", node)
        .with("reason", reason);
        console.log(&line);
    }
    let mut absent = Vec::new();
    if !selection.is_subset() {
        let offline = resolved.offline.into_iter();
        absent.extend(offline.map(|node| NodeReply::no_reply(node, "offline")));
    }
    for name in &resolved.unknown {
        let node = name.parse().map_err(CliError::usage)?;
        absent.push(NodeReply::no_reply(node, "unknown node"));
    }
    if resolved.chosen.is_empty() && absent.is_empty() {
        return Err(if inventory.is_empty() {
            CliError::usage(NO_NODES).hint("run `ccm agent` on a machine to add it")
        } else if inventory.online() == 0 {
            let known = inventory.len();
            CliError::usage(format!("no node is online ({known} known)"))
                .hint("`ccm fleet nodes` lists them")
        } else {
            CliError::usage("no node matches the selection")
        });
    }
    // Nodes that come online during the request are included only if there is no condition.
    let is_whole_fleet = selection.filter().is_empty() && !selection.is_subset();
    let targets = Targets {
        nodes: resolved.chosen,
        is_whole_fleet,
    };
    Ok((targets, absent))
}

/// Returns the caller in the form user@host, as nodes log it.
pub(super) fn caller() -> String {
    let accounts = Accounts::default();
    let (uid, _) = accounts.current();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{}@{host}", accounts.user_name(uid))
}
