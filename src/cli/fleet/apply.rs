//! `ccm fleet apply`: a manifest on many nodes, once. What nodes should stay at is a rollout.

use std::path::Path;
use std::time::Duration;

use super::Place;
use super::reply_report::Show;
use super::request::{AskArgs, Errand, PaceArgs, SOON, SlotArgs, WORK};
use super::select::SelectArgs;
use crate::cli::environment::read_document;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::run::{APPLY_REQUEST, ApplyRequest};
use ccm_core::system::files;
use ccm_nats::Verb;
use ccm_value::text::url_scheme;
use ccm_value::{Value, json};

/// The largest manifest that is sent along; a larger one belongs into an object store.
const MAX_INLINE_BYTES: u64 = 8 * 1024 * 1024;

/// Applies a manifest on nodes, once
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// A manifest file, which is sent along, or where each node gets it: obj://BUCKET/NAME or an
    /// http or https URL
    #[arg(value_name = "SOURCE")]
    source: String,

    /// Says what would be done, changes nothing
    #[arg(long)]
    noop: bool,

    /// Shows what changes in files, or would change; waits for it
    #[arg(long)]
    diff: bool,

    /// Runs health checks only
    #[arg(long, conflicts_with = "noop")]
    monitor_only: bool,

    /// A JSON or YAML file of data, over the manifest's own
    #[arg(long, value_name = "FILE")]
    data: Option<std::path::PathBuf>,

    /// Waits until the runs are over, and tells what came of them
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    slot: SlotArgs,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    ask: AskArgs,

    #[command(flatten)]
    pace: PaceArgs,
}

impl Args {
    /// Only a run that is over knows what it changed.
    fn waits(&self) -> bool {
        self.wait || self.diff
    }

    /// Returns how long an answer usually takes.
    fn usual_limit(&self) -> Duration {
        match (self.waits(), self.slot.claim()) {
            (false, _) => SOON,
            (true, None) => WORK,
            (true, Some(claim)) => WORK + claim.timeout.duration(),
        }
    }
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.careful_selection(&[])?;
    let mut errand = Errand::of(Verb::Apply, selection, &args.ask);
    errand.ask.body = json::compact(&request(args)?)
        .map_err(CliError::failed)?
        .into();
    errand.ask.noop = args.noop;
    errand.ask.diff = args.diff;
    // A run that nobody waits for may begin whenever its turn comes.
    errand.ask.binding = args.waits();
    errand.ask.limit = args.ask.limit(args.usual_limit());
    errand.pace = args.pace.pace();
    errand.show = if args.waits() {
        Show::Noteworthy
    } else {
        Show::Lines
    };
    errand.run(place, console)
}

fn request(args: &Args) -> Result<ApplyRequest, CliError> {
    let data = match &args.data {
        Some(file) => read_document(file)?,
        None => Value::Null,
    };
    let mut request = ApplyRequest {
        protocol: APPLY_REQUEST.into(),
        noop: args.noop,
        health_check_only: args.monitor_only,
        wait: args.waits(),
        governor: args.slot.claim(),
        data,
        ..ApplyRequest::default()
    };
    let scheme = url_scheme(&args.source).filter(|(_, rest)| rest.starts_with("//"));
    match scheme
        .map(|(scheme, _)| scheme.to_ascii_lowercase())
        .as_deref()
    {
        Some("obj" | "http" | "https") => request.source.clone_from(&args.source),
        Some(other) => {
            return Err(CliError::usage(format!("unsupported source {other}://"))
                .hint("use a file, obj://, http:// or https://"));
        }
        None => {
            let file = Path::new(&args.source);
            if file.is_dir() || args.source.ends_with(".tar.gz") || args.source.ends_with(".tgz") {
                let text = format!("{} is more than one file", args.source);
                let hint = "put it into an object store and use obj://";
                return Err(CliError::usage(text).hint(hint));
            }
            request.manifest =
                files::read_to_string(file, MAX_INLINE_BYTES).map_err(CliError::usage)?;
            if request.manifest.trim().is_empty() {
                return Err(CliError::usage(format!("{} is empty", args.source)));
            }
        }
    }
    Ok(request)
}
