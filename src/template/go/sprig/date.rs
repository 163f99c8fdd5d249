//! Dates and spans of time.
//!
//! The clock is asked in one place, [`now`], and a caller that has a clock of its own gives a
//! function `now` to the template.

use chrono::{DateTime, Utc};

use crate::model::Value;
use crate::template::go::call::{Answer, Args, Native, takes};
use crate::template::go::datum::Datum;
use crate::template::go::time::{Time, Zone, span};

/// Returns the function of a name.
pub fn find(name: &str) -> Option<Native> {
    Some(match name {
        "now" => takes(0, |args| Ok(Datum::Time(now(args)))),
        "date" => takes(2, |args| shown(args, args.str(0)?, args.any(1), "Local")),
        "dateInZone" | "date_in_zone" => takes(3, |args| {
            shown(args, args.str(0)?, args.any(1), args.str(2)?)
        }),
        "htmlDate" => takes(1, |args| shown(args, "2006-01-02", args.any(0), "Local")),
        "htmlDateInZone" => takes(2, |args| {
            shown(args, "2006-01-02", args.any(0), args.str(1)?)
        }),
        // A span that cannot be read leaves the date as it is; only `must` says so.
        "dateModify" | "date_modify" => takes(2, |args| {
            let time = args.time(1)?;
            let moved = span::parse(args.str(0)?).map(|nanos| time.add_nanos(nanos));
            match moved {
                Ok(moved) => moved.map(Datum::Time).ok_or("date out of range".into()),
                Err(_) => Ok(Datum::Time(time.clone())),
            }
        }),
        "mustDateModify" | "must_date_modify" => takes(2, |args| {
            let nanos = span::parse(args.str(0)?)?;
            let moved = args.time(1)?.add_nanos(nanos);
            moved.map(Datum::Time).ok_or("date out of range".into())
        }),
        "toDate" => takes(2, |args| {
            let time = Time::parse(args.str(0)?, args.str(1)?);
            Ok(Datum::Time(time.unwrap_or_else(|_| Time::zero())))
        }),
        "mustToDate" => takes(2, |args| {
            Time::parse(args.str(0)?, args.str(1)?).map(Datum::Time)
        }),
        "unixEpoch" => takes(1, |args| Ok(args.time(0)?.unix().to_string().into())),
        "ago" => takes(1, ago),
        "duration" => takes(1, duration),
        "durationRound" => takes(1, duration_round),
        _ => return None,
    })
}

/// Returns the caller's time where it gives one, else the clock's.
fn now(args: &Args<'_>) -> Time {
    let given = args
        .world
        .functions
        .get("now")
        .and_then(|now| now(&[]).ok());
    let given = match given {
        Some(Value::Int(seconds)) => DateTime::from_timestamp(seconds, 0),
        Some(Value::Str(text)) => DateTime::parse_from_rfc3339(&text).ok().map(|t| t.to_utc()),
        _ => None,
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where a template asks the clock; callers with a clock give `now`"
    )]
    let utc = given.unwrap_or_else(Utc::now);
    Time::new(utc, Zone::Local)
}

/// Returns the moment a datum stands for: a time, or seconds since 1970. Anything else is now,
/// as in sprig.
fn moment(args: &Args<'_>, datum: &Datum) -> Result<Time, String> {
    match datum {
        Datum::Time(time) => Ok(time.clone()),
        Datum::Int(seconds) | Datum::Int64(seconds) => {
            Time::from_unix(*seconds, Zone::Local).ok_or("date out of range".into())
        }
        _ => Ok(now(args)),
    }
}

fn shown(args: &Args<'_>, layout: &str, datum: &Datum, zone: &str) -> Answer {
    // No part of a layout prints more than nine letters per character of it.
    args.meter().spend(layout.len().saturating_mul(9))?;
    let time = moment(args, datum)?.in_zone(Zone::named(zone));
    Ok(time.format(layout).into())
}

fn since(args: &Args<'_>, time: &Time) -> i64 {
    let nanos = now(args).nanos() - time.nanos();
    i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
}

fn ago(args: &Args<'_>) -> Answer {
    const SECOND: i64 = 1_000_000_000;
    let nanos = since(args, &moment(args, args.any(0))?);
    // To the nearest second, halves away from zero.
    let half = SECOND / 2 * nanos.signum();
    let seconds = nanos.saturating_add(half) / SECOND;
    Ok(span::print(seconds.saturating_mul(SECOND)).into())
}

/// Prints a count of seconds. An `int` counts as 0: sprig knows only text and `int64`.
fn duration(args: &Args<'_>) -> Answer {
    let seconds: i64 = match args.any(0) {
        Datum::Str(text) => text.parse().unwrap_or(0),
        Datum::Int64(seconds) => *seconds,
        _ => 0,
    };
    Ok(span::print(seconds.wrapping_mul(1_000_000_000)).into())
}

/// Prints only the largest unit of a span.
fn duration_round(args: &Args<'_>) -> Answer {
    let nanos = match args.any(0) {
        Datum::Str(text) => span::parse(text).unwrap_or(0),
        Datum::Int64(nanos) => *nanos,
        Datum::Time(time) => since(args, time),
        _ => 0,
    };
    let size = nanos.unsigned_abs();
    const HOUR: u64 = 3_600_000_000_000;
    let units = [
        (HOUR * 24 * 365, "y"),
        (HOUR * 24 * 30, "mo"),
        (HOUR * 24, "d"),
        (HOUR, "h"),
        (HOUR / 60, "m"),
        (HOUR / 3600, "s"),
    ];
    let found = units.iter().find(|(unit, _)| size > *unit);
    Ok(match found {
        Some((unit, name)) => format!("{}{name}", size / unit).into(),
        None => "0s".into(),
    })
}
