//! `ccm fleet events`: prints events from the event stream as text, JSON or JSON lines.
//!
//! A reader resumes after a restart from a sequence number, a cursor file or a durable consumer.
//! Events are written and flushed before the position is stored or acknowledged. See `event` for
//! the format, `output` for buffering and `cursor` for the cursor file.

mod cursor;
mod event;
mod output;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::cursor::Cursor;
use self::event::EventFilter;
use self::output::{Flushed, Output};
use super::FleetArgs;
use super::candidates;
use super::flag_values::BadValue;
use super::reply_report::Format;
use super::request::FormatArgs;
use crate::cli::output::{Console, print_error};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::TypeName;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::run_history::UnreadableEvents;
use ccm_nats::event_feed::{BATCH, Feed, FeedItem, FeedStart, Gap, StoredEvent};
use ccm_nats::{Connection, Subjects};
use ccm_value::json as text;
use ccm_value::text::{count_of, parse_duration, parse_time, to_the_second};

/// Default age of the oldest event.
const RECENT: TimeDelta = TimeDelta::hours(1);

/// Limit on the events of one JSON document; JSON lines have no limit.
const MAX_IN_DOCUMENT: usize = 100_000;

/// Outcomes of resources, runs and requests.
const OUTCOMES: [&str; 7] = [
    "changed", "failed", "skipped", "stable", "noop", "allowed", "denied",
];

/// Show events of nodes, by default those of the last hour
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Only events of these nodes
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Follow new events; starts with new ones unless a start is given. --json then prints one
    /// line per event
    #[arg(long, short)]
    follow: bool,

    /// Start time: a duration such as 2h, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<DateTime<Utc>>,

    /// Start at this sequence number: one more than the last `seq` received
    #[arg(long, value_name = "N", conflicts_with = "since")]
    from_seq: Option<NonZeroU64>,

    /// Durable consumer: continue after the last event printed under this name, which the NATS
    /// servers store. --since and --from-seq set the start for a new name
    #[arg(long, value_name = "NAME")]
    durable: Option<Token>,

    /// Continue after the event stored in this file, and update it. --since and --from-seq set the
    /// start if the file does not exist
    #[arg(long, value_name = "FILE", conflicts_with = "durable")]
    cursor_file: Option<PathBuf>,

    /// Only events of this node; repeatable
    #[arg(long, value_name = "NAME", add = candidates::nodes())]
    node: Vec<NodeName>,

    /// Only events of this type; `run` for run summaries, `audit` for requests; repeatable
    #[arg(long = "type", value_name = "TYPE", value_parser = types())]
    type_name: Vec<Token>,

    /// Only events with this outcome; requests are allowed or denied; repeatable
    #[arg(long, value_name = "OUTCOME", value_parser = OUTCOMES)]
    outcome: Vec<String>,

    /// Maximum number of events
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    #[command(flatten)]
    format: FormatArgs,
}

impl Args {
    /// Returns the output format. A single JSON document is impossible for a feed that has no end
    /// or is acknowledged in batches.
    fn format(&self) -> Format {
        let is_feed = self.follow || self.durable.is_some() || self.cursor_file.is_some();
        match self.format.format() {
            Format::Json if is_feed => Format::Lines,
            format => format,
        }
    }

    /// Returns the start position if none is stored.
    fn begin(&self) -> FeedStart {
        let recent = || SystemClock.now().checked_sub_signed(RECENT);
        match (self.from_seq, self.since) {
            (Some(number), _) => FeedStart::Sequence(number.get()),
            (None, Some(since)) => FeedStart::Since(since),
            (None, None) if self.follow => FeedStart::Next,
            (None, None) => recent().map_or(FeedStart::Next, FeedStart::Since),
        }
    }
}

/// Returns the parser for `--type`.
fn types() -> impl TypedValueParser<Value = Token> {
    let resources = TypeName::ALL.map(TypeName::as_str);
    let all = resources.into_iter().chain(["run", "audit"]);
    PossibleValuesParser::new(all).try_map(|name| name.parse())
}

/// Parses a time or an age.
pub(super) fn when(text: &str) -> Result<DateTime<Utc>, BadValue> {
    let now = SystemClock.now();
    if let Ok(time) = parse_time(text) {
        if time > now {
            return Err(BadValue::Future);
        }
        return Ok(time.to_utc());
    }
    let nanos = parse_duration(text).map_err(|_| BadValue::Since)?;
    now.checked_sub_signed(TimeDelta::nanoseconds(nanos.max(0)))
        .ok_or(BadValue::TooLongAgo)
}

/// Warns about events that can't be read; `noun` says what they are.
pub(super) fn warn_unreadable(unreadable: &UnreadableEvents, noun: &str) {
    if let Some(last) = &unreadable.last {
        let count = count_of(unreadable.count, noun);
        let (subject, stored) = (&last.subject, to_the_second(&last.stored));
        print_error(&format!(
            "ccm: warning: {count} could not be read, the last on {subject} at {stored}: {}",
            last.reason
        ));
    }
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let mut printer = EventPrinter {
        subjects: fleet.subjects()?,
        filter: EventFilter::of(args),
        format: args.format(),
        remaining: args.limit.map_or(usize::MAX, NonZeroUsize::get),
        documents: Vec::new(),
        output: Output::default(),
    };
    runtime::block_on(async {
        let mut stop = StopSignals::listen()?;
        let connection = tokio::select! {
            connection = fleet.connect() => connection?,
            () = stop.recv() => return Ok(()),
        };
        printer.show(args, &connection, &mut stop).await
    })?;
    if printer.format == Format::Json {
        let document = json!({ "events": printer.documents });
        let text = text::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    }
    Ok(Verdict::default())
}

/// Signals that end the command.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(CliError::failed)?,
            terminate: signal(SignalKind::terminate()).map_err(CliError::failed)?,
        })
    }

    /// Returns when a signal was received.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether to read further events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

/// Prints the events of a feed.
struct EventPrinter {
    subjects: Subjects,
    filter: EventFilter,
    format: Format,
    /// Number of events that may still be printed.
    remaining: usize,
    documents: Vec<Value>,
    output: Output,
}

impl EventPrinter {
    async fn show(
        &mut self,
        args: &Args,
        connection: &Connection,
        stop: &mut StopSignals,
    ) -> Result<(), CliError> {
        let subject = self.filter.subject(&self.subjects);
        let begin = args.begin();
        let mut cursor = match &args.cursor_file {
            Some(path) => {
                let extent = connection
                    .event_stream_range()
                    .await
                    .map_err(CliError::of_fleet)?;
                Some(Cursor::open(path, extent.created)?)
            }
            None => None,
        };
        let mut feed = match &args.durable {
            Some(name) => {
                let opening = Feed::durable(connection, name, &subject, begin, args.follow);
                tokio::select! {
                    feed = opening => feed.map_err(CliError::of_fleet)?,
                    () = stop.recv() => return Ok(()),
                }
            }
            None => {
                let next = cursor.as_ref().and_then(Cursor::next);
                let begin = next.map_or(begin, FeedStart::Sequence);
                Feed::ordered(connection, &subject, begin, args.follow)
                    .map_err(CliError::of_fleet)?
            }
        };
        let shown = self.drain(&mut feed, &mut cursor, stop).await;
        feed.close().await;
        shown
    }

    /// Prints events until the feed ends, the limit is reached or the output is closed.
    async fn drain(
        &mut self,
        feed: &mut Feed,
        cursor: &mut Option<Cursor>,
        stop: &mut StopSignals,
    ) -> Result<(), CliError> {
        let mut last = None;
        let mut unconfirmed = 0;
        loop {
            let item = tokio::select! {
                item = feed.next() => item.map_err(CliError::of_fleet)?,
                () = stop.recv() => None,
            };
            let is_pause = item == Some(FeedItem::Idle);
            let flow = match item {
                Some(FeedItem::Event { sequence, stored }) => {
                    last = Some(sequence);
                    unconfirmed += 1;
                    self.event(sequence, &stored)?
                }
                Some(FeedItem::Gap(gap)) => {
                    self.gap(gap);
                    Flow::Continue
                }
                Some(FeedItem::Idle) => Flow::Continue,
                None => Flow::Stop,
            };
            let is_full = self.output.is_full() || unconfirmed >= BATCH;
            let must_flush = is_pause || is_full || feed.is_drained();
            if flow == Flow::Stop || must_flush {
                if !self.output.is_empty() {
                    let flushed = tokio::select! {
                        flushed = self.output.flush() => flushed?,
                        // Unwritten events are not confirmed, so they are delivered again.
                        () = stop.recv() => Flushed::Closed,
                    };
                    if flushed == Flushed::Closed {
                        return Ok(());
                    }
                    if let (Some(cursor), Some(last)) = (cursor.as_mut(), last) {
                        cursor.store(last)?;
                    }
                }
                feed.confirm().await;
                unconfirmed = 0;
            }
            if flow == Flow::Stop {
                return Ok(());
            }
        }
    }

    /// Prints an event if it matches the filter.
    fn event(&mut self, sequence: u64, stored: &StoredEvent) -> Result<Flow, CliError> {
        let Some(event) = self.filter.event(&self.subjects, sequence, stored) else {
            return Ok(Flow::Continue);
        };
        match self.format {
            Format::Json if self.documents.len() >= MAX_IN_DOCUMENT => {
                let text = format!("more than {MAX_IN_DOCUMENT} events");
                return Err(CliError::failed(text).hint("use --jsonl, --since or --limit"));
            }
            Format::Json => self.documents.push(event.document()),
            Format::Lines => self.output.line(&event.document().to_string()),
            Format::Text => self.output.line(&event.line()),
        }
        self.remaining = self.remaining.saturating_sub(1);
        match self.remaining {
            0 => Ok(Flow::Stop),
            _ => Ok(Flow::Continue),
        }
    }

    /// Reports events that are no longer stored, in the log and in JSON lines.
    fn gap(&mut self, gap: Gap) {
        let Gap { from, to } = gap;
        print_error(&format!(
            "ccm: events {from} to {to} are no longer stored and were not read"
        ));
        if self.format == Format::Lines {
            let line = json!({ "gap": { "from": from, "to": to } });
            self.output.line(&line.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_an_age() {
        let time = when("2024-01-15T08:00:00+01:00").unwrap();
        assert_eq!(ccm_value::text::go_time(&time), "2024-01-15T07:00:00Z");
        assert!(when("2999-01-01T00:00:00Z").is_err());
        assert!(when("2h").unwrap() < SystemClock.now());
        assert!(when("yesterday").is_err());
    }
}
