//! `ccm fleet init`: creates or updates the streams and buckets of a fleet.

use std::time::Duration;

use super::FleetArgs;
use super::flag_values::BadValue;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_nats::connection::ServerExposure;
use ccm_nats::streams::{self, InitOptions};
use ccm_value::text::parse_wait;

/// Create or update the streams and buckets of a fleet
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Number of replicas [default: 1 for new streams, else unchanged]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,

    /// Maximum age of events [default: 30 days for a new stream, else unchanged]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    events_max_age: Option<Duration>,

    /// Time after which a silent node counts as offline [default: 90s for a new bucket, else unchanged]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    presence_ttl: Option<Duration>,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let options = InitOptions {
        replicas: args.replicas.map(usize::from),
        events_max_age: args.events_max_age,
        presence_ttl: args.presence_ttl,
        ..InitOptions::new(fleet.subjects()?)
    };
    let (changes, exposure) = runtime::block_on(async {
        let connection = fleet.connect().await?;
        let changes = streams::init(&connection, &options).await;
        Ok((changes.map_err(CliError::of_init)?, connection.exposure()))
    })?;
    if let Some(text) = warning(exposure) {
        console.log(&Line::new(Level::Warn, text));
    }
    for change in changes {
        console.print(&format!(
            "{} {} {}\n",
            change.kind, change.name, change.outcome
        ));
    }
    Ok(Verdict::default())
}

/// Returns a warning about a server that is reachable over the network without protection.
fn warning(exposure: ServerExposure) -> Option<&'static str> {
    match exposure {
        ServerExposure { is_local: true, .. } => None,
        ServerExposure {
            requires_auth: false,
            ..
        } => Some(
            "This NATS server requires no authentication: every client that reaches it can change every node; set up \
             users with `ccm fleet permissions`, or let it listen on 127.0.0.1 only",
        ),
        ServerExposure {
            requires_tls: false,
            ..
        } => Some(
            "This NATS server does not use TLS: passwords and manifests can be read on the network",
        ),
        _ => None,
    }
}

/// Parses a duration of at least one second.
fn duration(text: &str) -> Result<Duration, BadValue> {
    let wait = parse_wait(text)?;
    if wait < Duration::from_secs(1) {
        return Err(BadValue::TooShort);
    }
    Ok(wait)
}
