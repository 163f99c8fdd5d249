//! `ccm fleet events`: what happened, from the stream that keeps it.

use std::num::NonZeroUsize;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::Place;
use super::ask::{FormatArgs, with_hint};
use super::report::Format;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use crate::fleet::answer::line_of;
use crate::model::event::TransactionEvent;
use crate::model::json as text;
use crate::model::node::{NodeName, Token};
use crate::model::run::RunSummary;
use crate::model::text::{go_time, parse_duration, parse_time};
use crate::nats::feed::{Reading, Stored};
use crate::nats::{Subject, Subjects};
use crate::system::{Clock as _, SystemClock};

/// How far back events are shown, unless told.
const RECENT: TimeDelta = TimeDelta::hours(1);

/// How many events one document holds at most; lines have no end.
const MOST_IN_DOCUMENT: usize = 100_000;

/// Shows events of nodes: those of the last hour, unless told otherwise
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Goes on with events as they happen; without --since with those to come only
    #[arg(long, short)]
    follow: bool,

    /// Since when: a duration such as 2h, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<DateTime<Utc>>,

    /// Only of this node; may be given often
    #[arg(long, value_name = "NAME")]
    node: Vec<NodeName>,

    /// Only about this type; `run` for the summaries of runs
    #[arg(long = "type", value_name = "TYPE")]
    type_name: Vec<Token>,

    /// Only those that came out so: changed, failed, skipped, stable or noop
    #[arg(long, value_name = "OUTCOME", value_parser = ["changed", "failed", "skipped", "stable", "noop"])]
    outcome: Vec<String>,

    /// Ends after so many
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    #[command(flatten)]
    format: FormatArgs,
}

/// Reads a time, or how long ago it was.
fn when(text: &str) -> Result<DateTime<Utc>, String> {
    let now = SystemClock.now();
    if let Ok(time) = parse_time(text) {
        return match time > now {
            true => Err("that is in the future".into()),
            false => Ok(time.to_utc()),
        };
    }
    let nanos = parse_duration(text)
        .map_err(|_| "expected a duration such as 2h, or an RFC 3339 time".to_owned())?;
    now.checked_sub_signed(TimeDelta::nanoseconds(nanos.max(0)))
        .ok_or_else(|| "that is too long ago".into())
}

pub(super) fn run(args: &Args, place: &Place, console: &Console) -> Result<Verdict, CliError> {
    let subjects = place.subjects()?;
    let format = args.format.format();
    if args.follow && format == Format::Json {
        return Err(CliError::usage(
            "one document has an end: use --jsonl with --follow",
        ));
    }
    let wanted = Wanted::of(args);
    let since = args.since.or_else(|| {
        let recent = SystemClock.now().checked_sub_signed(RECENT);
        recent.filter(|_| !args.follow)
    });
    let reading = Reading {
        filter: wanted.subject(&subjects),
        since,
        follow: args.follow,
    };
    let mut documents = Vec::new();
    let mut left = args.limit.map_or(usize::MAX, NonZeroUsize::get);
    let mut is_too_much = false;
    let mut show = |stored: Stored| {
        let Some(event) = wanted.event(&subjects, &stored) else {
            return true;
        };
        left = left.saturating_sub(1);
        match format {
            Format::Json => {
                is_too_much = documents.len() >= MOST_IN_DOCUMENT;
                documents.push(event.document());
            }
            Format::Lines => console.print(&format!("{}\n", event.document())),
            Format::Text => console.print(&format!("{}\n", event.line())),
        }
        left > 0 && !is_too_much
    };
    runtime::block_on(async {
        let connection = place.connect().await?;
        let read = connection.read_events(&reading, &mut show).await;
        read.map_err(with_hint)
    })?;
    if is_too_much {
        return Err(CliError::failed(format!(
            "there are more than {MOST_IN_DOCUMENT} events: use --jsonl, --since or --limit"
        )));
    }
    if format == Format::Json {
        let text = text::pretty(&json!({ "events": documents })).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    }
    Ok(Verdict::default())
}

/// Which events are wanted; of each kind any will do, and none given means all.
struct Wanted {
    nodes: Vec<Token>,
    types: Vec<Token>,
    outcomes: Vec<Token>,
}

impl Wanted {
    fn of(args: &Args) -> Self {
        Self {
            nodes: args.node.iter().map(NodeName::token).collect(),
            types: args.type_name.clone(),
            outcomes: args
                .outcome
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
        }
    }

    /// Returns the narrowest subject that covers them; servers send nothing else.
    fn subject(&self, subjects: &Subjects) -> Subject {
        fn single(words: &[Token]) -> Option<&Token> {
            match words {
                [word] => Some(word),
                _ => None,
            }
        }
        subjects.events_like(
            single(&self.nodes),
            single(&self.types),
            single(&self.outcomes),
        )
    }

    /// Reads a stored event, if it is wanted.
    fn event(&self, subjects: &Subjects, stored: &Stored) -> Option<Event> {
        let (node, type_name, outcome) = subjects.read_event(&stored.subject)?;
        let among = |words: &[Token], word: &str| {
            words.is_empty() || words.iter().any(|one| one.as_str() == word)
        };
        let is_wanted = among(&self.nodes, node.as_str())
            && among(&self.types, &type_name)
            && among(&self.outcomes, &outcome);
        is_wanted.then(|| Event {
            node: node.as_str().replace('_', "."),
            type_name,
            outcome,
            stored: stored.time,
            body: serde_json::from_slice(&stored.body).unwrap_or(Value::Null),
        })
    }
}

/// An event, with what its subject says about it.
struct Event {
    node: String,
    type_name: String,
    outcome: String,
    stored: DateTime<Utc>,
    body: Value,
}

impl Event {
    fn document(&self) -> Value {
        json!({
            "node": self.node,
            "type": self.type_name,
            "outcome": self.outcome,
            "stored": go_time(&self.stored),
            "event": self.body,
        })
    }

    /// Returns the event as a line for people. Events are the words of nodes: nothing in them
    /// reaches a terminal as a command.
    fn line(&self) -> String {
        let (at, what) = self.told();
        let at = at.unwrap_or(self.stored);
        let at = DateTime::from_timestamp(at.timestamp(), 0).unwrap_or(at);
        let line = format!("{} {} {what}", go_time(&at), self.node);
        line.replace(char::is_control, " ")
    }

    /// Returns when it happened, as far as it says, and what.
    fn told(&self) -> (Option<DateTime<Utc>>, String) {
        if self.type_name == "run" {
            if let Ok(run) = RunSummary::deserialize(&self.body) {
                let error = match run.error.as_str() {
                    "" => String::new(),
                    error => format!(": {error}"),
                };
                let what = format!("run {} {}{error}", run.source, self.outcome);
                return (Some(run.timestamp), what);
            }
        } else if let Ok(event) = TransactionEvent::deserialize(&self.body) {
            return (Some(event.timestamp), line_of(&event));
        }
        (None, format!("{} {}", self.type_name, self.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        let time = when("2024-01-15T08:00:00+01:00").unwrap();
        assert_eq!(go_time(&time), "2024-01-15T07:00:00Z");
        assert!(when("2999-01-01T00:00:00Z").is_err());
        assert!(when("2h").unwrap() < SystemClock.now());
        assert!(when("yesterday").is_err());
    }

    #[test]
    fn several_wishes_of_a_kind_are_sorted_out_here() {
        let subjects = Subjects::new("ccm.v1", "lab".parse().unwrap()).unwrap();
        let token = |text: &str| text.parse::<Token>().unwrap();
        let wanted = Wanted {
            nodes: vec![token("web1"), token("web2_lan")],
            types: vec![token("file")],
            outcomes: Vec::new(),
        };
        assert_eq!(
            wanted.subject(&subjects).as_str(),
            "ccm.v1.lab.event.*.file.*"
        );
        let stored = |subject: &str| Stored {
            subject: subject.into(),
            body: "{}".into(),
            time: DateTime::UNIX_EPOCH,
        };
        let found = |node: &str, type_name: &str| {
            let subject = format!("ccm.v1.lab.event.{node}.{type_name}.changed");
            wanted.event(&subjects, &stored(&subject))
        };
        assert_eq!(found("web2_lan", "file").unwrap().node, "web2.lan");
        assert!(found("db1", "file").is_none());
        assert!(found("web1", "exec").is_none());
    }

    #[test]
    fn an_event_that_says_nothing_is_told_by_its_subject() {
        let event = Event {
            node: "web1".into(),
            type_name: "fi\u{1b}le".into(),
            outcome: "changed".into(),
            stored: DateTime::UNIX_EPOCH,
            body: Value::Null,
        };
        assert_eq!(event.line(), "1970-01-01T00:00:00Z web1 fi le changed");
    }
}
