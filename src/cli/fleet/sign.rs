//! `ccm fleet sign`: signs a request for other tools to send, or a bundle or data file for the
//! location that agents fetch it from.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::FleetArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::hiera;
use ccm_core::model::envelope::{
    CALLER, DEADLINE, FILTER, NOOP, REQUEST_ID, SIGNATURE, SIGNER, TIMESTAMP,
};
use ccm_core::run::ManifestLocation;
use ccm_core::system::{Clock as _, SystemClock, files};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Headers, Subject};
use ccm_value::json;
use ccm_value::text::url_scheme;

/// Size limit of a request body, as in the agent.
const MAX_BODY: u64 = 8 * 1024 * 1024;

/// Sign a request, bundle or data file
///
/// Prints the headers of a signed request, one per line, for `nats req -H`. With --file prints the
/// signature of a bundle or data file, to be stored next to it as SOURCE.sig.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Subject of the request
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    subject: Option<String>,

    /// Body, exactly as it will be sent; - reads standard input
    #[arg(default_value = "", hide_default_value = true)]
    body: String,

    /// Additional header to sign: Ccm-Caller, Ccm-Noop, Ccm-Filter, Ccm-Deadline or
    /// Ccm-Request-Id; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME:VALUE")]
    headers: Vec<String>,

    /// Print `-H` before each header, quoted for a shell
    #[arg(long, conflicts_with = "file")]
    shell: bool,

    /// Bundle or data file to sign instead of a request
    #[arg(long, value_name = "FILE", requires = "source")]
    file: Option<PathBuf>,

    /// Location as configured in the agents: obj://BUCKET/KEY, kv://BUCKET/KEY or a URL
    #[arg(long, value_name = "SOURCE", requires = "file")]
    source: Option<String>,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let signer = fleet.signing.required(&fleet.nats)?;
    if let (Some(file), Some(source)) = (&args.file, &args.source) {
        return sign_source(&signer, file, source, console);
    }
    let subject = args.subject.as_deref().unwrap_or_default();
    let subject: Subject = subject.parse().map_err(CliError::usage)?;
    let mut headers = Headers::new();
    for header in &args.headers {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| CliError::usage(format!("expected NAME:VALUE, got '{header}'")))?;
        if ![REQUEST_ID, CALLER, NOOP, FILTER, DEADLINE].contains(&name) {
            return Err(CliError::usage(format!("header {name} can't be signed")));
        }
        headers.set(name, value.trim()).map_err(CliError::usage)?;
    }
    let body = match args.body.as_str() {
        "-" => standard_input()?,
        text => text.as_bytes().to_vec(),
    };
    signer
        .sign(&subject, &mut headers, &body)
        .map_err(CliError::failed)?;
    let mut text = String::new();
    for name in [
        REQUEST_ID, CALLER, NOOP, FILTER, DEADLINE, TIMESTAMP, SIGNER, SIGNATURE,
    ] {
        if let Some(value) = headers.get(name) {
            text += &if args.shell {
                format!("-H '{name}:{}' ", value.replace('\'', r"'\''"))
            } else {
                format!("{name}:{value}\n")
            };
        }
    }
    console.print(&format!("{}\n", text.trim_end()));
    Ok(Verdict::default())
}

fn sign_source(
    signer: &Signer,
    file: &Path,
    source: &str,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let location = location(source)?;
    let digest = files::sha256(file).map_err(CliError::usage)?;
    let signature = signer
        .sign_bundle(&location, &digest, SystemClock.now())
        .map_err(CliError::failed)?;
    let text = json::pretty(&signature).map_err(CliError::failed)?;
    console.print(&format!("{text}\n"));
    Ok(Verdict::default())
}

/// Returns a source in the normalized form that agents verify.
fn location(source: &str) -> Result<String, CliError> {
    let is_data = url_scheme(source).is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("kv"));
    if is_data {
        let source: hiera::Source = source.parse().map_err(CliError::usage)?;
        return Ok(source.location());
    }
    match source.parse().map_err(CliError::usage)? {
        ManifestLocation::Path(path) => Err(CliError::usage(format!(
            "{} is a local path: signatures apply to obj://, kv:// and URLs only",
            path.display()
        ))),
        source => Ok(source.normalized()),
    }
}

fn standard_input() -> Result<Vec<u8>, CliError> {
    let mut body = Vec::new();
    let input = std::io::stdin().lock();
    input
        .take(MAX_BODY + 1)
        .read_to_end(&mut body)
        .map_err(CliError::failed)?;
    match u64::try_from(body.len()) {
        Ok(length) if length <= MAX_BODY => Ok(body),
        _ => Err(CliError::usage(format!(
            "body is larger than {MAX_BODY} bytes"
        ))),
    }
}
