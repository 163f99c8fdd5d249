//! `ccm registration init`: creates or updates the registration stream.

use std::time::Duration;

use crate::cli::environment::NatsArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line, Sink as _};
use ccm_nats::registration::StreamOptions;
use ccm_value::text::parse_wait;

/// Create or update the registration JetStream stream
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Number of stream replicas, 1 to 5 [default: 1 for a new stream, else unchanged]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    replicas: Option<i64>,

    /// Maximum age of entries in the stream [default: 1m for a new stream, else unchanged]
    #[arg(long, value_name = "DURATION", value_parser = max_age)]
    max_age: Option<Duration>,
}

pub(super) fn run(
    args: &Args,
    nats: &NatsArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let replicas = args.replicas.map(|replicas| match replicas {
        1..=5 => usize::try_from(replicas).map_err(CliError::usage),
        _ => Err(CliError::usage("replicas must be between 1 and 5")),
    });
    let options = StreamOptions {
        replicas: replicas.transpose()?,
        max_age: args.max_age,
    };
    let ready = runtime::block_on(async {
        let connection = nats.connect().await?;
        let stream = nats.registration_stream();
        let ready = connection.init_registrations(stream, options).await;
        ready.map_err(CliError::failed)
    })?;
    let line = Line::new(Level::Info, "Registration stream ready")
        .with("stream", ready.name)
        .with("subjects", format_args!("[{}]", ready.subjects.join(" ")))
        .with("replicas", ready.replicas);
    console.line(&line);
    Ok(Verdict::default())
}

/// Parses a maximum age: 0 for none, or at least one second.
fn max_age(text: &str) -> Result<Duration, CliError> {
    let age = parse_wait(text).map_err(CliError::usage)?;
    if !age.is_zero() && age < Duration::from_secs(1) {
        let text = "must be 1s or more, or 0 for no limit";
        return Err(CliError::usage(text));
    }
    Ok(age)
}
