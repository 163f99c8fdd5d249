//! Methods of values: of times `(now).Year`, of versions `(semver "1.2.3").Major`, and of lists
//! `PrometheusFileSD`.

use std::rc::Rc;

use super::call::{Args, CallResult};
use super::datum::Datum;
use super::version::Version;
use crate::functions::prometheus_file_sd;
use crate::time::{self, Time, Zone};

/// Calls a method; `None` if the value has no such method.
pub(super) fn call(receiver: &Datum, name: &str, args: &Args<'_>) -> Option<CallResult> {
    match receiver {
        Datum::Time(time) => of_time(time, name, args),
        Datum::Version(version) => of_version(version, name, args),
        Datum::List(_) if name == "PrometheusFileSD" => {
            let entries = receiver.to_value(args.meter());
            let text = entries.and_then(|entries| prometheus_file_sd(&entries));
            Some(text.map(Datum::text))
        }
        _ => None,
    }
}

fn of_time(time: &Time, name: &str, args: &Args<'_>) -> Option<CallResult> {
    if let Some(number) = time.number(name) {
        // Go returns `int64` for Unix times and `int` for parts of a date.
        return Some(Ok(if name.starts_with("Unix") {
            Datum::Int64(number)
        } else {
            Datum::Int(number)
        }));
    }
    Some(match name {
        "Month" => Ok(time.month().to_string().into()),
        "Weekday" => Ok(time.weekday().to_string().into()),
        "IsZero" => Ok(time.cmp_instant(&Time::zero()).is_eq().into()),
        "String" => Ok(time.to_string().into()),
        "UTC" => Ok(Datum::Time(time.in_zone(Zone::Utc))),
        "Local" => Ok(Datum::Time(time.in_zone(Zone::Local))),
        "Format" => args.str(0).and_then(|layout| {
            let most = layout.len().saturating_mul(time::MAX_FORMAT_GROWTH);
            args.meter().spend(most)?;
            Ok(time.format(layout).into())
        }),
        "Before" => args
            .time(0)
            .map(|other| time.cmp_instant(other).is_lt().into()),
        "After" => args
            .time(0)
            .map(|other| time.cmp_instant(other).is_gt().into()),
        "Equal" => args
            .time(0)
            .map(|other| time.cmp_instant(other).is_eq().into()),
        "AddDate" => (|| {
            let moved = time.add_date(args.int(0)?, args.int(1)?, args.int(2)?)?;
            Ok(Datum::Time(moved))
        })(),
        _ => return None,
    })
}

fn of_version(version: &Version, name: &str, args: &Args<'_>) -> Option<CallResult> {
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
