//! Asking: from flags to nodes, from nodes to lines and an exit code. What is asked is for the
//! commands to say; what an answer means is for [`ccm_fleet`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Place;
use super::flag_values::BadValue;
use super::reply_report::{Format, Reporter, Show, Summing};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::amount::Amount;
use ccm_core::model::governor::{Claim, GovernorName, Timeout};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Accounts, SystemClock};
use ccm_fleet::batches::{Course, Ended, Pace, sweep};
use ccm_fleet::inventory::Inventory;
use ccm_fleet::node_reply::Told;
use ccm_fleet::scatter::{Ask, Gatherer};
use ccm_fleet::selection::Selection;
use ccm_fleet::summarize::{Counts, Outcome};
use ccm_nats::{Connection, Subjects, Verb};
use ccm_value::text::parse_wait;

/// How long a node may take to answer what costs it nothing.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// How long a node may take for work.
pub(super) const WORK: Duration = Duration::from_secs(300);

/// How answers are shown, and how long they are waited for.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Asking")]
pub(super) struct AskArgs {
    /// How long a node may take to answer [default: 10s, 5m for work]
    #[arg(id = "ask_timeout", long = "timeout", value_name = "DURATION", value_parser = wait, global = true)]
    timeout: Option<Duration>,

    #[command(flatten)]
    format: FormatArgs,
}

impl AskArgs {
    /// Returns how long a node may take, unless told otherwise.
    pub(super) fn limit(&self, usual: Duration) -> Duration {
        self.timeout.unwrap_or(usual)
    }

    pub(super) fn format(&self) -> Format {
        self.format.format()
    }
}

/// For people or for machines.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FormatArgs {
    /// Prints one JSON document
    #[arg(id = "ask_json", long = "json", global = true)]
    json: bool,

    /// Prints one line of JSON for each
    #[arg(
        id = "ask_jsonl",
        long = "jsonl",
        global = true,
        conflicts_with = "ask_json"
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

/// Which slot a run needs.
#[derive(Debug, clap::Args)]
pub(super) struct SlotArgs {
    /// Lets a run begin only when it has a slot in this Choria governor, unless the manifest names
    /// one
    #[arg(long, value_name = "NAME")]
    governor: Option<GovernorName>,

    /// How long a run may wait for its slot [default: 5m]
    #[arg(long, value_name = "DURATION", requires = "governor")]
    governor_timeout: Option<Timeout>,
}

impl SlotArgs {
    /// Returns the claim that every run has.
    pub(super) fn claim(&self) -> Option<Claim> {
        Some(Claim {
            name: self.governor.clone()?,
            timeout: self.governor_timeout.unwrap_or_default(),
        })
    }
}

/// How fast, and how much may go wrong.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Asking")]
pub(super) struct PaceArgs {
    /// Asks so many nodes at a time: a number or a percentage
    #[arg(id = "ask_batch", long = "batch", value_name = "N|N%", value_parser = some, global = true)]
    batch: Option<Amount>,

    /// Halts when more nodes than this failed, over all batches; asks 128 at a time without --batch
    #[arg(
        id = "ask_max_failures",
        long = "max-failures",
        value_name = "N|N%",
        global = true
    )]
    max_failures: Option<Amount>,
}

impl PaceArgs {
    pub(super) fn pace(&self) -> Pace {
        Pace {
            batch: self.batch,
            max_failures: self.max_failures,
        }
    }
}

/// Reads an amount of at least one.
fn some(text: &str) -> Result<Amount, BadValue> {
    match text.parse()? {
        Amount::Count(0) => Err(BadValue::Zero),
        amount => Ok(amount),
    }
}

/// Reads a duration that is one.
pub(super) fn wait(text: &str) -> Result<Duration, BadValue> {
    let wait = parse_wait(text)?;
    if wait.is_zero() {
        return Err(BadValue::NoTime);
    }
    Ok(wait)
}

/// One question to many nodes, and how its answers are shown.
pub(super) struct Errand {
    pub(super) selection: Selection,
    pub(super) ask: Ask,
    pub(super) pace: Pace,
    pub(super) format: Format,
    pub(super) show: Show,
    /// What to complain about when all answered and no node changed anything.
    pub(super) must_change: Option<String>,
}

impl Errand {
    /// Returns a question that changes nothing and takes no time to speak of.
    pub(super) fn of(verb: Verb, selection: Selection, args: &AskArgs) -> Self {
        Self {
            selection,
            ask: Ask {
                verb,
                body: Default::default(),
                noop: false,
                diff: false,
                limit: args.limit(SOON),
                binding: false,
            },
            pace: Pace::default(),
            format: args.format(),
            show: Show::Lines,
            must_change: None,
        }
    }

    /// Asks, prints what came of it, and returns the exit code.
    pub(super) fn run(self, place: &Place, console: &Console) -> Result<Verdict, CliError> {
        let subjects = place.subjects()?;
        runtime::block_on(async {
            let connection = place.connect().await?;
            let inventory = inventory(&connection, &subjects, console).await?;
            self.ask(connection, subjects, &inventory, console).await
        })
    }

    async fn ask(
        self,
        connection: Connection,
        subjects: Subjects,
        inventory: &Inventory,
        console: &Console,
    ) -> Result<Verdict, CliError> {
        let (course, mut absent) = course(inventory, &self.selection, console)?;
        let gatherer = Gatherer::new(connection, subjects, &caller(), Arc::new(SystemClock))
            .map_err(CliError::failed)?;
        let mut reporter = Reporter::new(self.format, self.show, course.nodes.len());
        let mut waiting: BTreeSet<&NodeName> = course.nodes.iter().collect();
        let mut counts = Counts::default();
        let asked = sweep(&gatherer, &self.ask, &course, self.pace, |told| {
            waiting.remove(&told.node);
            counts.add(told.outcome);
            reporter.hear(told, console);
        });
        let ended = tokio::select! {
            ended = asked => Some(ended.map_err(CliError::failed)?),
            _ = tokio::signal::ctrl_c() => None,
        };
        // Whoever loses patience still learns what has happened, and to whom it may yet.
        let mut ended = ended.unwrap_or_else(|| {
            let silent = waiting.into_iter().cloned();
            absent.extend(silent.map(|node| Told::absent(node, "interrupted before it answered")));
            Ended {
                counts,
                ..Ended::default()
            }
        });
        for told in absent {
            ended.counts.add(told.outcome);
            reporter.hear(told, console);
        }
        let code = if ended.is_halted {
            3
        } else {
            ended.counts.exit_code()
        };
        let summing = Summing {
            verb: self.ask.verb.as_str(),
            request_id: gatherer.request_id(),
            ended: &ended,
        };
        reporter.finish(&summing, console)?;
        match self.must_change {
            Some(complaint) if code == 0 && ended.counts.of(Outcome::Changed) == 0 => {
                Err(CliError::failed(complaint))
            }
            _ => Ok(Verdict::exit(code)),
        }
    }
}

/// Reads the inventory, and warns of what in it can't be read.
pub(super) async fn inventory(
    connection: &Connection,
    subjects: &Subjects,
    console: &Console,
) -> Result<Inventory, CliError> {
    let inventory = Inventory::load(connection, subjects).await;
    let inventory = inventory.map_err(CliError::of_fleet)?;
    for one in inventory.unreadable() {
        let line = Line::new(Level::Warn, "Left out a record of the fleet")
            .with("bucket", one.bucket)
            .with("key", &one.key)
            .with("reason", &one.reason);
        console.log(&line);
    }
    Ok(inventory)
}

/// Finds the nodes to ask, and what is told of those that are meant and can't be.
fn course(
    inventory: &Inventory,
    selection: &Selection,
    console: &Console,
) -> Result<(Course, Vec<Told>), CliError> {
    let resolved = inventory.resolve(selection).map_err(CliError::usage)?;
    for (node, reason) in &resolved.undecided {
        let line = Line::new(Level::Warn, "Left out a node that can't be decided about")
            .with("node", node)
            .with("reason", reason);
        console.log(&line);
    }
    let mut absent = Vec::new();
    if !selection.is_part() {
        let offline = resolved.offline.into_iter();
        absent.extend(offline.map(|node| Told::absent(node, "offline")));
    }
    for name in &resolved.unknown {
        let node = name.parse().map_err(CliError::usage)?;
        absent.push(Told::absent(node, "unknown node"));
    }
    if resolved.chosen.is_empty() && absent.is_empty() {
        return Err(if inventory.present().is_empty() {
            CliError::usage("the fleet has no nodes").hint("`ccm agent` on a machine makes it one")
        } else {
            CliError::usage("no node is meant by the selection")
        });
    }
    // Who comes up meanwhile is meant only where there is no condition to meet.
    let is_everyone = selection.filter().is_empty() && !selection.is_part();
    let course = Course {
        nodes: resolved.chosen,
        is_everyone,
    };
    Ok((course, absent))
}

/// Returns who asks, as nodes log it.
pub(super) fn caller() -> String {
    let accounts = Accounts::default();
    let (uid, _) = accounts.current();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{}@{host}", accounts.user_name(uid))
}
