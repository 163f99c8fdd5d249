//! `ccm apply`: a manifest, run once.

use super::environment::{FactArgs, NatsArgs, PackageArgs, environment};
use super::interrupt::Interrupt;
use super::output::{Console, Report, complain};
use super::{CliError, Verdict, data};
use crate::agent::config::local_identity;
use crate::agent::sources::{self, Fetched, SourceError};
use crate::engine::run::RunError;
use crate::engine::{Engine, Level, Line, Machine, Mode, Scope, Session, Sink as _};
use crate::hiera::Layers;
use crate::manifest::{self, Input, Manifest};
use crate::model::event::TransactionEvent;
use crate::model::governor::Claim;
use crate::model::node::Token;
use crate::model::text::{self, url_scheme};
use crate::model::{json, yaml};
use crate::nats::governor::{Governor, Slot};
use crate::nats::{Bus, NatsError};
use crate::system::{Accounts, Clock, SystemClock, files};
use crate::template::Env;
use crate::template::expr::Cache;

/// The largest manifest that is read.
const MAX_MANIFEST_BYTES: u64 = 256 * 1024 * 1024;

/// How many resources `--timings` lists.
const SLOWEST: usize = 10;

/// Applies a manifest
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The manifest: a YAML file, a directory with a manifest.yaml, or a .tar.gz of one, also
    /// from an http or https URL or from a NATS object store (obj://BUCKET/NAME)
    manifest: String,

    /// Says what would be done, changes nothing
    #[arg(long)]
    noop: bool,

    /// Runs health checks only
    #[arg(long)]
    monitor_only: bool,

    /// Shows what changes in files, or would change
    #[arg(long)]
    diff: bool,

    /// Prints the resolved manifest and stops
    #[arg(long)]
    render: bool,

    /// Prints a summary (the default)
    #[arg(long, overrides_with = "no_report", hide = true)]
    report: bool,

    /// Prints no summary
    #[arg(long)]
    no_report: bool,

    /// Lists the resources that took longest
    #[arg(long)]
    timings: bool,

    /// Prints the events and the summary as one JSON document, and nothing else
    #[arg(long)]
    json: bool,

    /// Exits with 2 when something changed, 4 when it failed, 6 for both
    #[arg(long)]
    detailed_exitcodes: bool,

    /// Does not wait for the slot in a Choria governor that the manifest asks for
    #[arg(long)]
    no_governor: bool,

    /// The collective whose governors are asked
    #[arg(long, env = "CCM_CHORIA_COLLECTIVE", value_name = "NAME", hide = true)]
    choria_collective: Option<Token>,

    #[command(flatten)]
    packages: PackageArgs,

    #[command(flatten)]
    inputs: Inputs,
}

/// What a manifest is read with.
#[derive(Debug, clap::Args)]
pub(super) struct Inputs {
    #[command(flatten)]
    facts: FactArgs,

    /// More data, over the manifest's own: a file, an http or https URL, or kv://BUCKET/KEY
    #[arg(long, env = "CCM_HIERA_DATA", value_name = "SOURCE")]
    hiera: Option<String>,

    #[command(flatten)]
    nats: NatsArgs,

    /// Reads variables for templates from ./.env (the default)
    #[arg(long, overrides_with = "no_read_env", hide = true)]
    read_env: bool,

    /// Does not read variables for templates from ./.env
    #[arg(long)]
    no_read_env: bool,
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    if args.noop && args.monitor_only {
        return Err(CliError::usage(
            "cannot set healthcheck only and noop mode at the same time",
        ));
    }
    if args.json {
        console.silence();
    }
    if args.render {
        console.keep_stdout_free();
    }
    let Loaded {
        env,
        manifest,
        fetched: _fetched,
    } = load(&args.manifest, &args.inputs, console)?;
    let mode = Mode {
        noop: args.noop,
        health_check_only: args.monitor_only,
        diff: args.diff,
    };
    let scope = Scope::new(env, mode);
    if args.render {
        let document = manifest.render().map_err(CliError::failed)?;
        console.print(&format!("{}\n", yaml::print(&document)));
        return Ok(Verdict::default());
    }
    let claim = manifest.governor.as_ref();
    let claim = claim.filter(|_| !(mode.noop || mode.health_check_only || args.no_governor));
    let Some(claim) = claim else {
        return execute(&args, &scope, &manifest, console);
    };
    let bus = args.inputs.nats.bus();
    let slot = enter(&args, claim, &bus, console)?;
    let verdict = execute(&args, &scope, &manifest, console);
    if let Err(err) = bus.run(|_| async move { slot.leave().await }) {
        let text = "Could not leave the slot, its lease will free it";
        console.line(&Line::new(Level::Warn, text).with("error", err));
    }
    verdict
}

/// Waits for the slot that a manifest asks for.
fn enter(args: &Args, claim: &Claim, bus: &Bus, console: &mut Console) -> Result<Slot, CliError> {
    let line = Line::new(Level::Info, "Waiting for a slot").with("governor", &claim.name);
    console.line(&line);
    let who = local_identity().map_or_else(|_| "ccm".into(), |identity| identity.to_string());
    let collective = args.choria_collective.clone();
    let collective = collective.unwrap_or_else(Token::choria_collective);
    let claim = claim.clone();
    bus.run(|connection| async move {
        let governor = Governor::new(connection, &collective, &claim.name);
        let limit = claim.timeout.duration();
        governor.enter(&who, limit, || None).await
    })
    .map_err(|err| {
        CliError::failed(format!(
            "{err} (--no-governor applies the manifest without a slot)"
        ))
    })
}

/// Brings the manifest here. What is wrong with the source is the caller's; that a server does not
/// give it is not.
fn fetch(source: &str, bus: &Bus, console: &mut Console) -> Result<Fetched, CliError> {
    let base = std::env::current_dir().map_err(CliError::failed)?;
    let temporary = std::env::temp_dir();
    let fetched =
        sources::fetch(source, &base, &temporary, &SystemClock, bus).map_err(|err| match err {
            SourceError::Nats(NatsError::Context(_)) => CliError::usage(err),
            SourceError::Http(_) | SourceError::Nats(_) => CliError::failed(err),
            _ => CliError::usage(err),
        })?;
    if fetched.temp.is_some() && url_scheme(source).is_some() {
        let place = match &fetched.object {
            Some(_) => "Object Store",
            None => "HTTP URL",
        };
        let text = format!("Using manifest from {place} in temporary directory");
        let line = Line::new(Level::Info, &text).with("manifest", fetched.manifest_path.display());
        let line = match &fetched.object {
            Some(object) => line
                .with("bucket", &object.bucket)
                .with("file", &object.name),
            None => line.with("url", &fetched.shown),
        };
        console.line(&line);
    }
    Ok(fetched)
}

/// A manifest, and what its templates see.
pub(super) struct Loaded {
    pub(super) env: Env,
    pub(super) manifest: Manifest,
    /// Where it is; what was fetched goes when this goes.
    pub(super) fetched: Fetched,
}

/// Reads a manifest with the facts, variables and extra data of this host.
pub(super) fn load(
    source: &str,
    inputs: &Inputs,
    console: &mut Console,
) -> Result<Loaded, CliError> {
    let bus = inputs.nats.bus();
    let fetched = fetch(source, &bus, console)?;
    let mut env = environment(
        &fetched.directory,
        !inputs.no_read_env,
        &inputs.facts,
        &inputs.nats,
        &bus,
    )?;
    let text = files::read_to_string(&fetched.manifest_path, MAX_MANIFEST_BYTES)
        .map_err(CliError::usage)?;
    let mut layers = Layers::default();
    if let Some(hiera) = &inputs.hiera {
        layers.source = data::resolve(hiera, &env.facts, &bus, console)?;
    }
    let input = Input {
        text: &text,
        source: &fetched.shown,
        layers,
    };
    let manifest = manifest::load(input, &mut env, &Cache::default()).map_err(CliError::usage)?;
    for warning in &manifest.warnings {
        console.log(&Line::new(Level::Warn, warning));
    }
    Ok(Loaded {
        env,
        manifest,
        fetched,
    })
}

fn execute(
    args: &Args,
    scope: &Scope,
    manifest: &Manifest,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    if !manifest.pre_message.is_empty() && !args.json {
        console.print(&format!("\n{}\n", manifest.pre_message));
    }
    let interrupt = Interrupt::listen()?;
    let stop = || interrupt.reason();
    let runner = interrupt.runner();
    let machine = Machine {
        runner: &runner,
        clock: &SystemClock,
        accounts: Accounts::default(),
    };
    let session = Session::memory(SystemClock.now());
    let mut engine = Engine::new(machine, session, console)
        .with_packages(args.packages.shared())
        .stopping(&stop);
    let result = engine.run(scope, manifest);
    let session = engine.into_session();
    match result {
        // What was done by then is told like any other run.
        Err(err @ RunError::Stopped { .. }) => complain(&format!("ccm: {err}")),
        result => result.map_err(CliError::failed)?,
    }
    let summary = session.summary();
    if args.json {
        let document = serde_json::json!({ "events": session.events(), "summary": summary });
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        if !manifest.post_message.is_empty() && summary.total_errors == 0 {
            console.print(&format!("{}\n", manifest.post_message));
        }
        if !args.no_report {
            console.report("Manifest Run Summary", &summary, Report::Manifest);
        }
        if args.timings {
            console.print(&timings(session.events()));
        }
    }
    Ok(interrupt.judge(Verdict {
        changed: summary.changed_resources > 0,
        failed: summary.failed_resources > 0 || summary.requirements_unmet_count > 0,
        detailed: args.detailed_exitcodes,
        ..Verdict::default()
    }))
}

fn timings(events: &[TransactionEvent]) -> String {
    let mut slowest: Vec<&TransactionEvent> = events.iter().collect();
    slowest.sort_by_key(|event| std::cmp::Reverse(event.duration));
    let mut text = String::from("\nSlowest Resources\n\n");
    for event in slowest.into_iter().take(SLOWEST) {
        let time = match text::go_millis(event.duration).as_str() {
            "0s" => text::go_duration(event.duration),
            millis => millis.to_owned(),
        };
        text.push_str(&format!("{time:>21}: {}#{}\n", event.type_name, event.name));
    }
    text
}
