//! `ccm fleet events`: what happened, from the stream that keeps it.
//!
//! For people as text, for machines as a document or as lines without end. A collector that is
//! killed goes on where it was: with a number that it kept itself, with a file, or under a name
//! that the servers remember. The order is always the same: write, flush, then say that it is
//! told. Read next: `event` for what a line says, `output` and `cursor` for how it is kept.

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
use self::event::Wanted;
use self::output::{Output, Written};
use super::Place;
use super::flag_values::BadValue;
use super::reply_report::Format;
use super::request::FormatArgs;
use crate::cli::output::{Console, complain};
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::model::TypeName;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::event_feed::{BATCH, Begin, Feed, Gap, Heard, Stored};
use ccm_nats::{Connection, Subjects};
use ccm_value::json as text;
use ccm_value::text::{parse_duration, parse_time};

/// How far back events are shown, unless told.
const RECENT: TimeDelta = TimeDelta::hours(1);

/// How many events one document holds at most; lines have no end.
const MOST_IN_DOCUMENT: usize = 100_000;

/// How events, runs and requests come out.
const OUTCOMES: [&str; 7] = [
    "changed", "failed", "skipped", "stable", "noop", "allowed", "denied",
];

/// Shows events of nodes: those of the last hour, unless told otherwise
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Goes on with events as they happen; unless told where to begin with those to come only.
    /// --json prints one line for each then
    #[arg(long, short)]
    follow: bool,

    /// Since when: a duration such as 2h, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<DateTime<Utc>>,

    /// Begins with the event of this number: one more than the last `seq` that was seen
    #[arg(long, value_name = "N", conflicts_with = "since")]
    from_seq: Option<NonZeroU64>,

    /// Goes on after the last event that was printed under this name, which the servers remember.
    /// --since and --from-seq say where a new name begins
    #[arg(long, value_name = "NAME")]
    durable: Option<Token>,

    /// Goes on after the last event that this file names, and keeps it up to date. --since and
    /// --from-seq say where to begin without the file
    #[arg(long, value_name = "FILE", conflicts_with = "durable")]
    cursor_file: Option<PathBuf>,

    /// Only of this node; may be given often
    #[arg(long, value_name = "NAME")]
    node: Vec<NodeName>,

    /// Only about this type; `run` for the summaries of runs, `audit` for requests
    #[arg(long = "type", value_name = "TYPE", value_parser = types())]
    type_name: Vec<Token>,

    /// Only those that came out so; requests are allowed or denied
    #[arg(long, value_name = "OUTCOME", value_parser = OUTCOMES)]
    outcome: Vec<String>,

    /// Ends after so many
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    #[command(flatten)]
    format: FormatArgs,
}

impl Args {
    /// Returns how events are printed. What goes on for ever, or is confirmed bit by bit, is no
    /// document.
    fn format(&self) -> Format {
        let is_feed = self.follow || self.durable.is_some() || self.cursor_file.is_some();
        match self.format.format() {
            Format::Json if is_feed => Format::Lines,
            format => format,
        }
    }

    /// Returns where reading begins when nobody remembers.
    fn begin(&self) -> Begin {
        let recent = || SystemClock.now().checked_sub_signed(RECENT);
        match (self.from_seq, self.since) {
            (Some(number), _) => Begin::At(number.get()),
            (None, Some(since)) => Begin::Since(since),
            (None, None) if self.follow => Begin::Next,
            (None, None) => recent().map_or(Begin::Next, Begin::Since),
        }
    }
}

/// Returns what reads the things that events are about.
fn types() -> impl TypedValueParser<Value = Token> {
    let resources = TypeName::ALL.map(TypeName::as_str);
    let all = resources.into_iter().chain(["run", "audit"]);
    PossibleValuesParser::new(all).try_map(|name| name.parse())
}

/// Reads a time, or how long ago it was.
fn when(text: &str) -> Result<DateTime<Utc>, BadValue> {
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

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let mut showing = Showing {
        subjects: place.subjects()?,
        wanted: Wanted::of(args),
        format: args.format(),
        left: args.limit.map_or(usize::MAX, NonZeroUsize::get),
        documents: Vec::new(),
        output: Output::default(),
    };
    runtime::block_on(async {
        let mut stop = Stop::listen()?;
        let connection = tokio::select! {
            connection = place.connect() => connection?,
            () = stop.told() => return Ok(()),
        };
        showing.show(args, &connection, &mut stop).await
    })?;
    if showing.format == Format::Json {
        let document = json!({ "events": showing.documents });
        let text = text::pretty(&document).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    }
    Ok(Verdict::default())
}

/// Whoever may end us in good order.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(CliError::failed)?,
            terminate: signal(SignalKind::terminate()).map_err(CliError::failed)?,
        })
    }

    /// Returns when we are to end.
    async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether there is a reason to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Yes,
    Enough,
}

/// Events on their way to whoever asked.
struct Showing {
    subjects: Subjects,
    wanted: Wanted,
    format: Format,
    /// How many are still to be shown.
    left: usize,
    documents: Vec<Value>,
    output: Output,
}

impl Showing {
    async fn show(
        &mut self,
        args: &Args,
        connection: &Connection,
        stop: &mut Stop,
    ) -> Result<(), CliError> {
        let filter = self.wanted.subject(&self.subjects);
        let begin = args.begin();
        let mut cursor = match &args.cursor_file {
            Some(path) => {
                let extent = connection
                    .extent_of_events()
                    .await
                    .map_err(CliError::of_fleet)?;
                Some(Cursor::open(path, extent.made)?)
            }
            None => None,
        };
        let mut feed = match &args.durable {
            Some(name) => {
                let opening = Feed::durable(connection, name, &filter, begin, args.follow);
                tokio::select! {
                    feed = opening => feed.map_err(CliError::of_fleet)?,
                    () = stop.told() => return Ok(()),
                }
            }
            None => {
                let next = cursor.as_ref().and_then(Cursor::next);
                let begin = next.map_or(begin, Begin::At);
                Feed::ordered(connection, &filter, begin, args.follow)
                    .map_err(CliError::of_fleet)?
            }
        };
        let shown = self.drain(&mut feed, &mut cursor, stop).await;
        feed.close().await;
        shown
    }

    /// Shows what a feed has until it ends, enough is shown, or nobody reads any more.
    async fn drain(
        &mut self,
        feed: &mut Feed,
        cursor: &mut Option<Cursor>,
        stop: &mut Stop,
    ) -> Result<(), CliError> {
        let mut last = None;
        let mut taken = 0;
        loop {
            let heard = tokio::select! {
                heard = feed.next() => heard.map_err(CliError::of_fleet)?,
                () = stop.told() => None,
            };
            let is_pause = heard == Some(Heard::Pause);
            let more = match heard {
                Some(Heard::Event { sequence, stored }) => {
                    last = Some(sequence);
                    taken += 1;
                    self.event(sequence, &stored)?
                }
                Some(Heard::Gap(gap)) => {
                    self.gap(gap);
                    More::Yes
                }
                Some(Heard::Pause) => More::Yes,
                None => More::Enough,
            };
            let is_enough = self.output.is_full() || taken >= BATCH;
            let is_time = is_pause || is_enough || feed.is_drained();
            if more == More::Enough || is_time {
                if !self.output.is_empty() {
                    let written = tokio::select! {
                        written = self.output.flush() => written?,
                        // What a reader does not take is not told, and comes again.
                        () = stop.told() => Written::Unwanted,
                    };
                    if written == Written::Unwanted {
                        return Ok(());
                    }
                    if let (Some(cursor), Some(last)) = (cursor.as_mut(), last) {
                        cursor.store(last)?;
                    }
                }
                feed.confirm().await;
                taken = 0;
            }
            if more == More::Enough {
                return Ok(());
            }
        }
    }

    /// Takes an event, and shows it if it is wanted.
    fn event(&mut self, sequence: u64, stored: &Stored) -> Result<More, CliError> {
        let Some(event) = self.wanted.event(&self.subjects, sequence, stored) else {
            return Ok(More::Yes);
        };
        match self.format {
            Format::Json if self.documents.len() >= MOST_IN_DOCUMENT => {
                let text = format!("there are more than {MOST_IN_DOCUMENT} events");
                return Err(CliError::failed(text).hint("use --jsonl, --since or --limit"));
            }
            Format::Json => self.documents.push(event.document()),
            Format::Lines => self.output.line(&event.document().to_string()),
            Format::Text => self.output.line(&event.line()),
        }
        self.left = self.left.saturating_sub(1);
        match self.left {
            0 => Ok(More::Enough),
            _ => Ok(More::Yes),
        }
    }

    /// Tells that events are gone: machines in their lines, and whoever reads the log.
    fn gap(&mut self, gap: Gap) {
        let Gap { from, to } = gap;
        complain(&format!(
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
    fn since_is_a_time_or_how_long_ago() {
        let time = when("2024-01-15T08:00:00+01:00").unwrap();
        assert_eq!(ccm_value::text::go_time(&time), "2024-01-15T07:00:00Z");
        assert!(when("2999-01-01T00:00:00Z").is_err());
        assert!(when("2h").unwrap() < SystemClock.now());
        assert!(when("yesterday").is_err());
    }
}
