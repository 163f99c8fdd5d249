//! `ccm fleet init`: the streams and buckets that a fleet needs, made or brought up to date.

use std::time::Duration;

use super::Place;
use super::values::BadValue;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use crate::model::text::parse_wait;
use crate::nats::streams::{self, InitOptions};

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
    let done = runtime::block_on(async {
        let connection = place.connect().await?;
        let done = streams::init(&connection, &options).await;
        done.map_err(CliError::failed)
    })?;
    for one in done {
        console.print(&format!("{} {} {}\n", one.what, one.name, one.change));
    }
    Ok(Verdict::default())
}

/// Reads a duration of a second or more.
fn duration(text: &str) -> Result<Duration, BadValue> {
    let wait = parse_wait(text)?;
    if wait < Duration::from_secs(1) {
        return Err(BadValue::TooShort);
    }
    Ok(wait)
}
