//! `ccm apply`: applies a manifest once.

use clap::ValueHint;

use super::environment::{FactArgs, NatsArgs, PackageArgs, SecretKeyArgs, StateArgs};
use super::host::{Hiera, Setup, Terminal};
use super::interrupt::Interrupt;
use super::output::{Console, Report, print_error};
use super::{CliError, Verdict};
use ccm_core::engine::{EventIds, Mode};
use ccm_core::manifest::Checks;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::node::Token;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::run::{self, CompletedRun, LoadedManifest, Request, RunError};
use ccm_core::system::{Accounts, Clock as _, SystemClock};
use ccm_value::{Value, json, text, yaml};

/// Number of resources that `--timings` lists.
const SLOWEST: usize = 10;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Manifest to apply: a YAML file, a directory with a manifest.yaml or a .tar.gz of one; also
    /// from an http or https URL or from a NATS object store (obj://BUCKET/NAME)
    #[arg(value_hint = ValueHint::AnyPath)]
    manifest: String,

    /// Do not make changes, only show what would be done
    #[arg(long)]
    noop: bool,

    /// Only run health checks
    #[arg(long)]
    monitor_only: bool,

    /// Show differences in file contents
    #[arg(long)]
    diff: bool,

    /// Do not apply, only render the resolved manifest
    #[arg(long)]
    render: bool,

    /// Print a summary (the default)
    #[arg(long, overrides_with = "no_report", hide = true)]
    report: bool,

    /// Do not print a summary
    #[arg(long)]
    no_report: bool,

    /// List the slowest resources
    #[arg(long)]
    timings: bool,

    /// Output events and summary as one JSON document
    #[arg(long)]
    json: bool,

    /// Exit with 2 if resources changed, 4 if any failed, 6 for both
    #[arg(long)]
    detailed_exitcodes: bool,

    /// Do not wait for the Choria governor slot that the manifest requires
    #[arg(long)]
    no_governor: bool,

    /// Choria collective of the governors
    #[arg(long, env = "CCM_CHORIA_COLLECTIVE", value_name = "NAME", hide = true)]
    choria_collective: Option<Token>,

    #[command(flatten)]
    packages: PackageArgs,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    inputs: Inputs,
}

/// Flags for loading a manifest.
#[derive(Debug, clap::Args)]
pub(super) struct Inputs {
    #[command(flatten)]
    facts: FactArgs,

    /// Hiera data that overrides the manifest's: a file, an http or https URL, kv://BUCKET/KEY
    /// or obj://BUCKET/NAME
    #[arg(long, env = "CCM_HIERA_DATA", value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    hiera: Option<String>,

    #[command(flatten)]
    secret_key: SecretKeyArgs,

    #[command(flatten)]
    nats: NatsArgs,

    /// Read extra variables from the .env file (the default)
    #[arg(long, overrides_with = "no_read_env", hide = true)]
    read_env: bool,

    /// Do not read extra variables from the .env file
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
        console.reserve_stdout();
        let loaded = load(&args.manifest, &args.inputs, Checks::Run, console)?;
        let document = loaded.manifest.render().map_err(CliError::failed)?;
        console.print(&format!("{}\n", yaml::print(&document)));
        return Ok(Verdict::default());
    }
    let mode = Mode {
        noop: args.noop,
        health_check_only: args.monitor_only,
        diff: args.diff,
    };
    let manifest = ManifestSource::Source(args.manifest.clone());
    let mut ids = EventIds::new().map_err(CliError::failed)?;
    let request = Request::new(ids.next(SystemClock.now()), manifest, mode);
    let collective = args.choria_collective.clone();
    let collective = collective.unwrap_or_else(Token::choria_collective);
    let setup = Setup {
        governors: (!args.no_governor).then_some(collective),
        state_dir: args.state.directory(),
        ..args.inputs.setup(&args.packages)
    };
    let interrupt = Interrupt::new()?;
    let completed = setup.run(&interrupt, |host| {
        let mut terminal = Terminal {
            console,
            pre_message: !args.json,
        };
        run::apply(&request, host, &mut terminal)
    })?;
    report(&args, completed, &interrupt, console)
}

/// Prints the result of the run; an interrupted run is reported like any other.
fn report(
    args: &Args,
    completed: CompletedRun,
    interrupt: &Interrupt,
    console: &Console,
) -> Result<Verdict, CliError> {
    let CompletedRun { session, error, .. } = completed;
    match error {
        Some(error) if error.is_stopped() => print_error(&format!("ccm: {error}")),
        Some(error) => return Err(run_error(error)),
        None => {}
    }
    let summary = session.summary();
    if args.json {
        let document = serde_json::json!({ "events": session.events(), "summary": summary });
        let text = json::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    } else {
        if !completed.post_message.is_empty() && summary.total_errors == 0 {
            console.print(&format!("{}\n", completed.post_message));
        }
        if !args.no_report {
            console.report("Manifest Run Summary", &summary, Report::Manifest);
        }
        if args.timings {
            console.print(&timings(session.events()));
        }
    }
    Ok(interrupt.verdict(Verdict {
        changed: summary.changed_resources > 0,
        failed: summary.failed_resources > 0 || summary.requirements_unmet_count > 0,
        detailed: args.detailed_exitcodes,
        ..Verdict::default()
    }))
}

fn run_error(error: RunError) -> CliError {
    match error {
        RunError::Slot(error) => {
            CliError::failed(error).hint("use --no-governor to apply the manifest without a slot")
        }
        error => error.into(),
    }
}

impl Inputs {
    fn setup<'a>(&'a self, packages: &'a PackageArgs) -> Setup<'a> {
        Setup {
            nats: &self.nats,
            facts: &self.facts,
            packages,
            secret_key: &self.secret_key,
            accounts: Accounts::default(),
            state_dir: None,
            hiera: self.hiera.as_deref().map_or(Hiera::None, Hiera::Manifest),
            read_env: !self.no_read_env,
            governors: None,
        }
    }
}

/// Loads a manifest with the facts, variables and external data of this node.
pub(super) fn load(
    source: &str,
    inputs: &Inputs,
    checks: Checks,
    console: &mut Console,
) -> Result<LoadedManifest, CliError> {
    let interrupt = Interrupt::new()?;
    let packages = PackageArgs::default();
    let loaded = inputs.setup(&packages).run(&interrupt, |host| {
        let mut terminal = Terminal {
            console,
            pre_message: false,
        };
        let manifest = ManifestSource::Source(source.into());
        run::load(&manifest, &Value::Null, checks, host, &mut terminal)
    })?;
    Ok(loaded?)
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
