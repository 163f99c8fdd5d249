//! Dates and spans of time.
//!
//! Where sprig swallows an error, so do these; the `must` variants report it.

use crate::CallError;
use crate::go::call::{Answer, Args, Native, takes};
use crate::go::datum::Datum;
use crate::time::duration::{self, HOUR, MINUTE, SECOND};
use crate::time::{self, Time, Zone};

/// Returns the function of a name.
pub(super) fn find(name: &str) -> Option<Native> {
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
    Time::now(args.world.now)
}

/// Returns the moment a datum stands for: a time, or seconds since 1970. Anything else is now,
/// as in sprig.
fn moment(args: &Args<'_>, datum: &Datum) -> Result<Time, CallError> {
    match datum {
        Datum::Time(time) => Ok(time.clone()),
        Datum::Int(seconds) | Datum::Int64(seconds) => Ok(Time::from_unix(*seconds, Zone::Local)?),
        _ => Ok(now(args)),
    }
}

fn shown(args: &Args<'_>, layout: &str, datum: &Datum, zone: &str) -> Answer {
    let most = layout.len().saturating_mul(time::GROWTH);
    args.meter().spend(most)?;
    let zone = Zone::load(zone).unwrap_or(Zone::Utc);
    let time = moment(args, datum)?.within(zone);
    Ok(time.format(layout).into())
}

fn ago(args: &Args<'_>) -> Answer {
    let nanos = now(args).since(&moment(args, args.any(0))?);
    Ok(duration::print(duration::round(nanos, SECOND)).into())
}

/// Prints a count of seconds. An `int` counts as 0: sprig knows only text and `int64`.
fn seconds(args: &Args<'_>) -> Answer {
    let seconds: i64 = match args.any(0) {
        Datum::Str(text) => text.parse().unwrap_or(0),
        Datum::Int64(seconds) => *seconds,
        _ => 0,
    };
    Ok(duration::print(seconds.wrapping_mul(SECOND)).into())
}

/// Prints only the largest unit of a span.
fn duration_round(args: &Args<'_>) -> Answer {
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
