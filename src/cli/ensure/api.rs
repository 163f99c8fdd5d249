//! `ccm ensure api pipe`: reads a request from standard input and writes the response to standard
//! output. The exit code is 0 whenever a response was written.

use std::io::Read;

use clap::Subcommand;

use super::{CliError, Console, Options, Verdict};
use crate::cli::diagnostic;
use crate::cli::output::print_error;
use crate::cli::status::without_zero_mtime;
use ccm_core::engine::Session;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::request::{EnsureResponse, parse_ensure};
use ccm_core::run::RunError;
use ccm_core::system::Accounts;
use ccm_value::text::go_duration;
use ccm_value::{json, yaml};

/// Size limit of a request.
const MAX_REQUEST_BYTES: u64 = 64 * 1024 * 1024;

/// Resource management API
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read a request from standard input and write the response to standard output
    #[command(alias = "piped")]
    Pipe {
        /// Output YAML instead of JSON
        #[arg(long, overrides_with = "no_yaml")]
        yaml: bool,

        /// Output JSON (the default)
        #[arg(long, hide = true)]
        no_yaml: bool,
    },
}

pub(super) fn run(
    args: Args,
    options: &Options,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let Command::Pipe { yaml: as_yaml, .. } = args.command;
    console.reserve_stdout();
    let mut body = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_REQUEST_BYTES)
        .read_to_end(&mut body)
        .map_err(CliError::failed)?;
    let body = String::from_utf8_lossy(&body);
    let result = respond(&body, options, console);
    if let Err(err) = &result {
        // The response has the one-line form; the position is for the person who wrote the request.
        for found in err.diagnostics() {
            print_error(diagnostic::render(found).trim_end());
        }
    }
    let response = EnsureResponse::new(result.map_err(|err| err.to_string()));
    let text = if as_yaml {
        format!("{}\n", yaml::print(&yaml_form(&response)?))
    } else {
        let text = json::pretty(&response).map_err(CliError::failed)?;
        format!("{text}\n")
    };
    console.print(&text);
    Ok(Verdict::default())
}

fn respond(
    body: &str,
    options: &Options,
    console: &mut Console,
) -> Result<TransactionEvent, CliError> {
    let located = |err: RunError| {
        let diagnostics = err.request_diagnostic(body).into_iter().collect();
        CliError::from(err).with_diagnostics(diagnostics)
    };
    let resource = parse_ensure(body).map_err(|err| located(err.into()))?;
    let session = match options.store()? {
        Some(store) => Session::existing(store).map_err(CliError::usage)?,
        None => Session::default(),
    };
    let (_, event) = options.ensure(resource, session, Accounts::default(), console)?;
    event.map_err(located)
}

/// Returns a response in the form of upstream's YAML: durations are strings, and the fields that
/// all states share are nested below `commonresourcestate`.
fn yaml_form(response: &EnsureResponse) -> Result<serde_json::Value, CliError> {
    let mut document = serde_json::to_value(response).map_err(CliError::failed)?;
    let (Some(state), Some(event)) = (document.get_mut("state"), &response.state) else {
        return Ok(document);
    };
    if let Some(duration) = state.get_mut("duration") {
        *duration = go_duration(event.duration).into();
    }
    if let Some(checks) = state.get_mut("health_check").and_then(|v| v.as_array_mut()) {
        for check in checks.iter_mut().filter_map(|v| v.as_object_mut()) {
            if let Some(output) = check.shift_remove("Output") {
                check.insert("output".into(), output);
            }
        }
    }
    if let Some(status) = state.get_mut("status").and_then(|v| v.as_object_mut()) {
        nest_common(status);
        if let Some(metadata) = status.get_mut("metadata") {
            *metadata = without_zero_mtime(metadata.take());
        }
    }
    Ok(document)
}

const COMMON_KEYS: [&str; 11] = [
    "timestamp",
    "protocol",
    "type",
    "name",
    "ensure",
    "changed",
    "refreshed",
    "stable",
    "noop",
    "noop_message",
    "health_check",
];

fn nest_common(status: &mut serde_json::Map<String, serde_json::Value>) {
    let is_exec = status.get("type").is_some_and(|name| name == "exec");
    let mut common = serde_json::Map::new();
    for key in COMMON_KEYS {
        if let Some(value) = status.shift_remove(key) {
            common.insert(key.into(), value);
        }
    }
    status.shift_insert(0, "commonresourcestate".into(), common.into());
    if is_exec {
        for key in ["creates_satisfied", "onlyif_satisfied", "unless_satisfied"] {
            status.entry(key).or_insert(false.into());
        }
    }
}
