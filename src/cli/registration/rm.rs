//! `ccm registration rm`: removes a registration entry.

use super::{Identity, check, line};
use crate::cli::environment::NatsArgs;
use crate::cli::output::{Console, is_confirmed};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Sink as _};

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
    if !args.force && !is_confirmed(&question(&args.identity), "--force")? {
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

/// Returns the text of the confirmation prompt.
fn question(identity: &Identity) -> String {
    let Identity {
        cluster,
        service,
        protocol,
        address,
        port,
    } = identity;
    format!("Remove registration entry {cluster}/{service}/{protocol} at {address}:{port}?")
}
