//! `ccm fleet init`: the streams and buckets that a fleet needs, made or brought up to date.

use std::time::Duration;

use super::Place;
use super::flag_values::BadValue;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_nats::connection::Exposure;
use ccm_nats::streams::{self, InitOptions};
use ccm_value::text::parse_wait;

/// Creates or updates the streams and buckets of a fleet; changes nothing the second time
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// How many servers keep each message; 1 for new streams, what it is for others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,

    /// How long events are kept; 30 days for a new stream
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    events_max_age: Option<Duration>,

    /// How long a node that says nothing counts as present; 90s for a new bucket
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    presence_ttl: Option<Duration>,
}

pub(super) fn run(args: &Args, place: &Place, console: &mut Console) -> Result<Verdict, CliError> {
    let options = InitOptions {
        replicas: args.replicas.map(usize::from),
        events_max_age: args.events_max_age,
        presence_ttl: args.presence_ttl,
        ..InitOptions::new(place.subjects()?)
    };
    let (done, exposure) = runtime::block_on(async {
        let connection = place.connect().await?;
        let done = streams::init(&connection, &options).await;
        Ok((done.map_err(CliError::failed)?, connection.exposure()))
    })?;
    if let Some(text) = warning(exposure) {
        console.log(&Line::new(Level::Warn, text));
    }
    for one in done {
        console.print(&format!("{} {} {}\n", one.what, one.name, one.change));
    }
    Ok(Verdict::default())
}

/// Returns what is wrong with a server that others than the programs of its machine can reach.
fn warning(exposure: Exposure) -> Option<&'static str> {
    match exposure {
        Exposure { is_local: true, .. } => None,
        Exposure {
            asks_who: false, ..
        } => Some(
            "This NATS server is not protected: whoever reaches it can change every node; set up \
             users with `ccm fleet permissions`, or let it listen on 127.0.0.1",
        ),
        Exposure {
            is_encrypted: false,
            ..
        } => Some(
            "This NATS server does not use TLS: passwords and manifests can be read on the network",
        ),
        _ => None,
    }
}

/// Reads a duration of a second or more.
fn duration(text: &str) -> Result<Duration, BadValue> {
    let wait = parse_wait(text)?;
    if wait < Duration::from_secs(1) {
        return Err(BadValue::TooShort);
    }
    Ok(wait)
}
