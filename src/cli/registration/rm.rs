//! `ccm registration rm`: removes a registration entry.

use std::io::{BufRead as _, Read as _};

use super::{Identity, check, line};
use crate::cli::environment::NatsArgs;
use crate::cli::output::{Console, prompt};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Sink as _};

/// Size limit of the answer to the prompt.
const MAX_ANSWER: u64 = 1024;

/// Remove a registration entry
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    identity: Identity,

    /// Skip the confirmation prompt
    #[arg(long)]
    force: bool,
}

pub(super) fn run(
    args: &Args,
    nats: &NatsArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let entry = args.identity.entry(1);
    check(&entry)?;
    if !args.force && !is_confirmed(&args.identity)? {
        return Ok(Verdict::default());
    }
    runtime::block_on(async {
        let connection = nats.connect().await?;
        let stream = nats.registration_stream();
        let removed = connection.unregister(&entry, stream).await;
        removed.map_err(CliError::of_registrations)
    })?;
    let line = line(Level::Info, "Registration entry removed", &entry);
    console.line(&line.with("port", args.identity.port));
    Ok(Verdict::default())
}

/// Prompts on standard error and reads the answer; everything but yes means no.
fn is_confirmed(identity: &Identity) -> Result<bool, CliError> {
    let Identity {
        cluster,
        service,
        protocol,
        address,
        port,
    } = identity;
    prompt(&format!(
        "Remove registration entry {cluster}/{service}/{protocol} at {address}:{port}?"
    ));
    let mut answer = String::new();
    let mut input = std::io::stdin().lock().take(MAX_ANSWER);
    match input.read_line(&mut answer).map_err(CliError::failed)? {
        0 => Err(CliError::failed("no answer to the confirmation prompt")
            .hint("use --force to skip the prompt")),
        _ => {
            let answer = answer.trim().to_lowercase();
            Ok(matches!(answer.as_str(), "y" | "yes"))
        }
    }
}
