//! `ccm registration create`: publishes a registration entry.

use super::{Identity, check, line};
use crate::cli::environment::{NatsArgs, split_pair};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Sink as _};
use ccm_nats::registration::Destination;

/// Create a registration entry
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    identity: Identity,

    /// Priority, 1 to 255; lower values are preferred
    #[arg(long, default_value_t = 100, allow_negative_numbers = true)]
    priority: i64,

    /// Time to live of the entry: a duration or never; the stream's limit if empty
    #[arg(long, default_value = "30s")]
    ttl: String,

    /// Annotation of the service; repeatable
    #[arg(short = 'A', long, value_name = "KEY=VALUE")]
    annotation: Vec<String>,
}

pub(super) fn run(
    args: &Args,
    nats: &NatsArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let mut entry = args.identity.entry(args.priority);
    if !args.ttl.is_empty() {
        entry.ttl = Some(args.ttl.parse().map_err(CliError::usage)?);
    }
    for pair in &args.annotation {
        let (key, value) = split_pair(pair)?;
        entry.annotations.insert(key.into(), value.into());
    }
    check(&entry)?;
    let destination = Destination::Jetstream(nats.registration_stream().into());
    runtime::block_on(async {
        let connection = nats.connect().await?;
        let registered = connection.register(&entry, &destination).await;
        registered.map_err(CliError::of_registrations)
    })?;
    let line = line(Level::Info, "Registration entry created", &entry)
        .with("port", args.identity.port)
        .with("priority", entry.priority);
    console.line(&line);
    Ok(Verdict::default())
}
