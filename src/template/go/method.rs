//! The methods of times and versions that templates can call: `(now).Year`,
//! `(semver "1.2.3").Major`. Maps and lists have none.

use std::rc::Rc;

use super::call::{Answer, Args};
use super::datum::Datum;
use super::time::Time;
use super::version::Version;

/// Returns the answer of a method, or nothing when the value has no such method.
pub fn call(receiver: &Datum, name: &str, args: &Args<'_>) -> Option<Answer> {
    match receiver {
        Datum::Time(time) => of_time(time, name, args),
        Datum::Version(version) => of_version(version, name, args),
        _ => None,
    }
}

fn of_time(time: &Time, name: &str, args: &Args<'_>) -> Option<Answer> {
    let part = |layout: &str| Ok(Datum::Int(time.format(layout).trim().parse().unwrap_or(0)));
    Some(match name {
        "Year" => part("2006"),
        "Day" => part("2"),
        "Hour" => part("15"),
        "Minute" => part("4"),
        "Second" => part("5"),
        "YearDay" => part("002"),
        "Month" => Ok(time.format("January").into()),
        "Weekday" => Ok(time.format("Monday").into()),
        "Unix" => Ok(Datum::Int64(time.unix())),
        "UnixMilli" => Ok(Datum::Int64(time.unix_millis())),
        "String" => Ok(time.to_string().into()),
        "UTC" => Ok(Datum::Time(time.in_utc())),
        "Local" => Ok(Datum::Time(time.in_local())),
        "Format" => args.str(0).map(|layout| time.format(layout).into()),
        "Before" => args
            .time(0)
            .map(|other| (time.nanos() < other.nanos()).into()),
        "After" => args
            .time(0)
            .map(|other| (time.nanos() > other.nanos()).into()),
        "Equal" => args
            .time(0)
            .map(|other| (time.nanos() == other.nanos()).into()),
        "AddDate" => (|| {
            let moved = time.add_date(args.int(0)?, args.int(1)?, args.int(2)?);
            moved.map(Datum::Time).ok_or("date out of range".into())
        })(),
        _ => return None,
    })
}

fn of_version(version: &Version, name: &str, args: &Args<'_>) -> Option<Answer> {
    let made = |version: Version| Ok(Datum::Version(Rc::new(version)));
    Some(match name {
        "Major" => Ok(Datum::Uint(version.major)),
        "Minor" => Ok(Datum::Uint(version.minor)),
        "Patch" => Ok(Datum::Uint(version.patch)),
        "Prerelease" => Ok(version.prerelease.as_str().into()),
        "Metadata" => Ok(version.metadata.as_str().into()),
        "Original" => Ok(version.original.as_str().into()),
        "String" => Ok(version.to_string().into()),
        "IncMajor" => made(version.next_major()),
        "IncMinor" => made(version.next_minor()),
        "IncPatch" => made(version.next_patch()),
        "Compare" => args
            .version(0)
            .map(|other| Datum::Int(version.compare(other) as i64)),
        "Equal" => args
            .version(0)
            .map(|other| version.compare(other).is_eq().into()),
        "LessThan" => args
            .version(0)
            .map(|other| version.compare(other).is_lt().into()),
        "GreaterThan" => args
            .version(0)
            .map(|other| version.compare(other).is_gt().into()),
        _ => return None,
    })
}
