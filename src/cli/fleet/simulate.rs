//! `ccm fleet simulate`: runs simulated nodes for tests and demos.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::flag_values::BadValue;
use super::{CliError, Console, FleetArgs, Verdict};
use crate::cli::runtime;
use ccm_agent::simulate::{Options, SimulatedExecutor, Simulation};
use ccm_core::engine::Level;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::run::log::{Log, Style};
use ccm_core::system::files::PrivateDir;
use ccm_core::system::{SystemClock, raise_open_files};
use ccm_value::text::parse_duration;

/// Open files of the simulation besides those of its nodes.
const SPARE_FILES: u64 = 200;

/// Open files of a node with its own connection.
const FILES_PER_NODE: u64 = 2;

/// Run simulated nodes that reply, report and converge but change nothing
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Number of nodes
    #[arg(long, default_value_t = 100)]
    nodes: usize,

    /// Fraction of resources that fail, from 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION", value_parser = fraction)]
    failure_rate: f64,

    /// Time that a resource takes
    #[arg(long, default_value = "20ms", value_name = "DURATION", value_parser = duration)]
    latency: Duration,

    /// Number of connections that the nodes share; such nodes have no files and do not evaluate
    /// manifests [default: one per node]
    #[arg(long, value_name = "N", conflicts_with_all = ["events", "directory"])]
    connections: Option<NonZeroUsize>,

    /// Fraction of nodes that lose their connection in each heartbeat interval, for one interval
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION", value_parser = fraction, requires = "connections")]
    disconnect_rate: f64,

    /// Fraction of nodes that restart in each heartbeat interval
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION", value_parser = fraction, requires = "connections")]
    restart_rate: f64,

    /// Heartbeat interval
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    beat: Duration,

    /// Number of additional synthetic events per second
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    events: u32,

    /// Domain of the node names
    #[arg(long, default_value = "sim.lab", value_name = "NAME")]
    domain: String,

    /// Group of all nodes; repeatable
    #[arg(long = "in-group", value_name = "GROUP")]
    groups: Vec<Token>,

    /// State directory of the nodes [default: temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

fn fraction(text: &str) -> Result<f64, BadValue> {
    match text.parse() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err(BadValue::Fraction),
    }
}

fn duration(text: &str) -> Result<Duration, BadValue> {
    let nanos = u64::try_from(parse_duration(text)?).map_err(|_| BadValue::Negative)?;
    Ok(Duration::from_nanos(nanos))
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let wanted = match args.connections {
        Some(connections) => count(connections.get()),
        None => count(args.nodes).saturating_mul(FILES_PER_NODE),
    };
    let wanted = wanted.saturating_add(SPARE_FILES);
    raise_open_files(wanted).map_err(|err| {
        CliError::failed(err).at(format_args!(
            "{} nodes need {wanted} open files",
            args.nodes
        ))
    })?;
    let options = Options {
        nodes: args.nodes,
        domain: args.domain.clone(),
        groups: args.groups.clone(),
        collective: fleet.collective.clone(),
        subject_prefix: fleet.prefix.clone(),
        beat: args.beat,
        events: args.events,
        connections: args.connections.map(NonZeroUsize::get),
        disconnect_rate: args.disconnect_rate,
        restart_rate: args.restart_rate,
    };
    runtime::block_on(simulate(args, &options, fleet, console))?;
    Ok(Verdict::default())
}

async fn simulate(
    args: &Args,
    options: &Options,
    fleet: &FleetArgs,
    console: &Console,
) -> Result<(), CliError> {
    let listen = |kind| signal(kind).map_err(CliError::failed);
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    // Fail early if there is no server; the nodes would retry forever.
    fleet.connect().await?.drain().await;
    let settings = fleet
        .nats
        .settings_over(None, None)
        .map_err(CliError::usage)?;
    let temporary = match args.directory {
        Some(_) => None,
        None => Some(
            PrivateDir::create(&std::env::temp_dir(), "ccm-simulate-").map_err(CliError::failed)?,
        ),
    };
    let directory = match (&args.directory, &temporary) {
        (Some(directory), _) => directory.as_path(),
        (None, Some(temporary)) => temporary.path(),
        (None, None) => return Ok(()),
    };
    let log = Log::to(std::io::stderr(), Style::Text, Level::Error, SystemClock);
    let (failure_rate, latency) = (args.failure_rate, args.latency);
    let executor = move |node: &NodeName| SimulatedExecutor::new(node, failure_rate, latency);
    let simulation = Simulation::start(options, &settings, directory, &executor, log)
        .await
        .map_err(CliError::failed)?;
    console.print(&format!(
        "{} simulated nodes are running, from sim00000.{domain}; stop with Ctrl-C\n",
        options.nodes,
        domain = options.domain,
    ));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    simulation.stop().await;
    Ok(())
}
