//! `ccm fleet apply`: applies a manifest on nodes once. Rollouts assign manifests permanently.

use std::path::Path;
use std::time::Duration;

use clap::ValueHint;

use super::FleetArgs;
use super::candidates;
use super::reply_report::TextStyle;
use super::request::{BatchArgs, FleetCall, QUICK_TIMEOUT, RUN_TIMEOUT, RequestArgs, SlotArgs};
use super::select::SelectArgs;
use crate::cli::environment::read_document;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::model::node::NodeName;
use ccm_core::model::run::{APPLY_REQUEST, ApplyRequest};
use ccm_core::system::files;
use ccm_nats::Verb;
use ccm_value::text::url_scheme;
use ccm_value::{Value, json};

/// Size limit of a manifest that is sent in the request; larger ones need an object store.
const MAX_INLINE_BYTES: u64 = 8 * 1024 * 1024;

/// Apply a manifest on nodes once
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Manifest: a local file, sent to the nodes, or a location that each node fetches from:
    /// obj://BUCKET/NAME or an http or https URL
    #[arg(value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    source: String,

    /// Nodes to apply it on
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Do not make changes, only show what would be done
    #[arg(long)]
    noop: bool,

    /// Show differences in file contents; implies --wait
    #[arg(long)]
    diff: bool,

    /// Only run health checks
    #[arg(long, conflicts_with = "noop")]
    monitor_only: bool,

    /// JSON or YAML file with data that overrides the manifest's
    #[arg(long, value_name = "FILE")]
    data: Option<std::path::PathBuf>,

    /// Wait for the runs to finish and show their results
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    slot: SlotArgs,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    batch: BatchArgs,
}

impl Args {
    /// Diffs are part of the result, so `--diff` waits as well.
    fn waits(&self) -> bool {
        self.wait || self.diff
    }

    /// Returns the default timeout.
    fn default_timeout(&self) -> Duration {
        match (self.waits(), self.slot.claim()) {
            (false, _) => QUICK_TIMEOUT,
            (true, None) => RUN_TIMEOUT,
            (true, Some(claim)) => RUN_TIMEOUT + claim.timeout.duration(),
        }
    }
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.explicit_selection(&args.named)?;
    let mut call = FleetCall::new(Verb::Apply, selection, &args.request);
    call.request.body = json::compact(&request(args)?)
        .map_err(CliError::failed)?
        .into();
    call.request.noop = args.noop;
    call.request.diff = args.diff;
    // Without --wait the run may start whenever the queue reaches it.
    call.request.sends_deadline = args.waits();
    call.request.timeout = args.request.limit(args.default_timeout());
    call.batch = args.batch.settings();
    call.style = if args.waits() {
        TextStyle::HideOk
    } else {
        TextStyle::Runs
    };
    call.shows_request_id = true;
    call.run(fleet, console)
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
                let text = format!("{} is not a single file", args.source);
                let hint = "upload it to an object store and use obj://";
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
