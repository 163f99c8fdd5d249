//! Sprig functions for dates and durations.
//!
//! Errors that sprig ignores are ignored here too; the `must` variants report them.

use crate::CallError;
use crate::go::call::{Args, CallResult, Native, takes};
use crate::go::datum::Datum;
use crate::time::duration::{self, HOUR, MINUTE, SECOND};
use crate::time::{self, Time, Zone};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "now" => takes(0, |args| Ok(Datum::Time(now(args)))),
        "date" => takes(2, |args| {
            format_time(args, args.str(0)?, args.any(1), "Local")
        }),
        "dateInZone" | "date_in_zone" => takes(3, |args| {
            format_time(args, args.str(0)?, args.any(1), args.str(2)?)
        }),
        "htmlDate" => takes(1, |args| {
            format_time(args, "2006-01-02", args.any(0), "Local")
        }),
        "htmlDateInZone" => takes(2, |args| {
            format_time(args, "2006-01-02", args.any(0), args.str(1)?)
        }),
        // An invalid duration leaves the date unchanged; only `must` reports it.
        "dateModify" | "date_modify" => takes(2, |args| {
            let time = args.time(1)?;
            match duration::parse(args.str(0)?) {
                Ok(nanos) => Ok(Datum::Time(time.add(nanos)?)),
                Err(_) => Ok(Datum::Time(time.clone())),
            }
        }),
        "mustDateModify" | "must_date_modify" => takes(2, |args| {
            let nanos = duration::parse(args.str(0)?)?;
            Ok(Datum::Time(args.time(1)?.add(nanos)?))
        }),
        "toDate" => takes(2, |args| {
            let time = Time::parse(args.str(0)?, args.str(1)?, &Zone::Local);
            Ok(Datum::Time(time.unwrap_or_else(|_| Time::zero())))
        }),
        "mustToDate" => takes(2, |args| {
            Ok(Datum::Time(Time::parse(
                args.str(0)?,
                args.str(1)?,
                &Zone::Local,
            )?))
        }),
        "unixEpoch" => takes(1, |args| Ok(args.time(0)?.unix().to_string().into())),
        "ago" => takes(1, ago),
        "duration" => takes(1, seconds),
        "durationRound" => takes(1, duration_round),
        _ => return None,
    })
}

fn now(args: &Args<'_>) -> Time {
    Time::now(args.context.now)
}

/// Converts a value to a time: a time, or seconds since 1970. Anything else is the current time, as
/// in sprig.
fn to_time(args: &Args<'_>, datum: &Datum) -> Result<Time, CallError> {
    match datum {
        Datum::Time(time) => Ok(time.clone()),
        Datum::Int(seconds) | Datum::Int64(seconds) => Ok(Time::from_unix(*seconds, Zone::Local)?),
        _ => Ok(now(args)),
    }
}

fn format_time(args: &Args<'_>, layout: &str, datum: &Datum, zone: &str) -> CallResult {
    let most = layout.len().saturating_mul(time::MAX_FORMAT_GROWTH);
    args.meter().spend(most)?;
    let zone = Zone::load(zone).unwrap_or(Zone::Utc);
    let time = to_time(args, datum)?.in_zone(zone);
    Ok(time.format(layout).into())
}

fn ago(args: &Args<'_>) -> CallResult {
    let nanos = now(args).since(&to_time(args, args.any(0))?);
    Ok(duration::print(duration::round(nanos, SECOND)).into())
}

/// Formats a number of seconds. An `int` counts as 0, because sprig handles only text and `int64`.
fn seconds(args: &Args<'_>) -> CallResult {
    let seconds: i64 = match args.any(0) {
        Datum::Str(text) => text.parse().unwrap_or(0),
        Datum::Int64(seconds) => *seconds,
        _ => 0,
    };
    Ok(duration::print(seconds.wrapping_mul(SECOND)).into())
}

/// Formats only the largest unit of a duration.
fn duration_round(args: &Args<'_>) -> CallResult {
    let nanos = match args.any(0) {
        Datum::Str(text) => duration::parse(text).unwrap_or(0),
        Datum::Int64(nanos) => *nanos,
        Datum::Time(time) => now(args).since(time),
        _ => 0,
    };
    let size = nanos.unsigned_abs();
    let units = [
        (365 * 24 * HOUR, "y"),
        (30 * 24 * HOUR, "mo"),
        (24 * HOUR, "d"),
        (HOUR, "h"),
        (MINUTE, "m"),
        (SECOND, "s"),
    ];
    let found = units
        .iter()
        .map(|(unit, name)| (unit.unsigned_abs(), name))
        .find(|(unit, _)| size > *unit);
    Ok(match found {
        Some((unit, name)) => format!("{}{name}", size / unit).into(),
        None => "0s".into(),
    })
}
