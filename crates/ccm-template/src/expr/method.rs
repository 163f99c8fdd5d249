//! Methods of times and durations: one table for the checker and the evaluator.

use super::budget::Budget;
use super::kind::Kind;
use super::runtime_value::{Reason, Val};
use crate::time::duration::{self, HOUR, MINUTE, SECOND};
use crate::time::{self, Time, Zone};

/// Types that have methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    Time,
    Duration,
    /// Months and weekdays, whose only method is `String`.
    Name,
    Zone,
}

impl Receiver {
    fn of(value: &Val) -> Option<Self> {
        match value {
            Val::Time(_) => Some(Self::Time),
            Val::Duration(_) => Some(Self::Duration),
            Val::Month(_) | Val::Weekday(_) => Some(Self::Name),
            Val::Zone(_) => Some(Self::Zone),
            _ => None,
        }
    }
}

/// Returns the parameter kinds and the result kind of a method.
pub(super) fn signature(receiver: Receiver, name: &str) -> Option<(&'static [Kind], Kind)> {
    const TIME: &[Kind] = &[Kind::Time];
    const DURATION: &[Kind] = &[Kind::Duration];
    Some(match (receiver, name) {
        (_, "String") => (&[], Kind::Text),
        (
            Receiver::Time,
            "Year" | "Day" | "Hour" | "Minute" | "Second" | "Nanosecond" | "YearDay" | "Unix"
            | "UnixMilli" | "UnixMicro" | "UnixNano",
        ) => (&[], Kind::Int),
        (Receiver::Time, "Month") => (&[], Kind::Month),
        (Receiver::Time, "Weekday") => (&[], Kind::Weekday),
        (Receiver::Time, "UTC" | "Local") => (&[], Kind::Time),
        (Receiver::Time, "Location") => (&[], Kind::Zone),
        (Receiver::Time, "IsZero") => (&[], Kind::Bool),
        (Receiver::Time, "Before" | "After" | "Equal") => (TIME, Kind::Bool),
        (Receiver::Time, "Compare") => (TIME, Kind::Int),
        (Receiver::Time, "Sub") => (TIME, Kind::Duration),
        (Receiver::Time, "Add" | "Truncate" | "Round") => (DURATION, Kind::Time),
        (Receiver::Time, "AddDate") => (&[Kind::Int, Kind::Int, Kind::Int], Kind::Time),
        (Receiver::Time, "Format") => (&[Kind::Text], Kind::Text),
        (Receiver::Time, "In") => (&[Kind::Zone], Kind::Time),
        (Receiver::Duration, "Hours" | "Minutes" | "Seconds") => (&[], Kind::Float),
        (Receiver::Duration, "Milliseconds" | "Microseconds" | "Nanoseconds") => (&[], Kind::Int),
        (Receiver::Duration, "Abs") => (&[], Kind::Duration),
        (Receiver::Duration, "Truncate" | "Round") => (DURATION, Kind::Duration),
        _ => return None,
    })
}

pub(super) fn has_method(value: &Val, name: &str) -> bool {
    Receiver::of(value).is_some_and(|receiver| signature(receiver, name).is_some())
}

/// Calls a method; `None` if the value has no method of this name.
pub(super) fn call(
    value: &Val,
    name: &str,
    arguments: &[Val],
    budget: &mut Budget<'_>,
) -> Option<Result<Val, Reason>> {
    let (wanted, _) = signature(Receiver::of(value)?, name)?;
    if wanted.len() != arguments.len() {
        return Some(Err(format!(
            "invalid number of arguments: expected {}, got {}",
            wanted.len(),
            arguments.len()
        )
        .into()));
    }
    Some(match value {
        Val::Time(time) => time_method(time, name, arguments, budget),
        Val::Duration(nanos) => duration_method(*nanos, name, arguments),
        other => Ok(other.to_string().into()),
    })
}

fn wrong_argument(name: &str, value: &Val) -> Reason {
    format!("cannot use {} as argument to call {name}", value.go_type()).into()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "same loss of precision as in Go"
)]
fn duration_method(nanos: i64, name: &str, arguments: &[Val]) -> Result<Val, Reason> {
    let step = match arguments.first() {
        None => 0,
        Some(Val::Duration(step)) => *step,
        Some(other) => return Err(wrong_argument(name, other)),
    };
    let share = |unit: i64| Val::from((nanos / unit) as f64 + (nanos % unit) as f64 / unit as f64);
    Ok(match name {
        "Hours" => share(HOUR),
        "Minutes" => share(MINUTE),
        "Seconds" => share(SECOND),
        "Milliseconds" => (nanos / 1_000_000).into(),
        "Microseconds" => (nanos / 1_000).into(),
        "Nanoseconds" => nanos.into(),
        "Abs" => Val::Duration(nanos.saturating_abs()),
        "Truncate" => Val::Duration(duration::truncate(nanos, step)),
        "Round" => Val::Duration(duration::round(nanos, step)),
        _ => duration::print(nanos).into(),
    })
}

fn time_method(
    time: &Time,
    name: &str,
    arguments: &[Val],
    budget: &mut Budget<'_>,
) -> Result<Val, Reason> {
    match (name, arguments) {
        ("Before", [Val::Time(other)]) => Ok(time.cmp_instant(other).is_lt().into()),
        ("After", [Val::Time(other)]) => Ok(time.cmp_instant(other).is_gt().into()),
        ("Equal", [Val::Time(other)]) => Ok(time.cmp_instant(other).is_eq().into()),
        ("Compare", [Val::Time(other)]) => Ok(Val::from(time.cmp_instant(other) as i64)),
        ("Sub", [Val::Time(other)]) => Ok(Val::Duration(time.since(other))),
        ("Add", [Val::Duration(nanos)]) => Ok(Val::Time(time.add(*nanos)?)),
        ("Truncate", [Val::Duration(nanos)]) => Ok(Val::Time(time.truncate(*nanos)?)),
        ("Round", [Val::Duration(nanos)]) => Ok(Val::Time(time.round(*nanos)?)),
        ("AddDate", [years, months, days]) => Ok(Val::Time(time.add_date(
            years.int()?,
            months.int()?,
            days.int()?,
        )?)),
        ("Format", [layout]) => {
            let layout = layout.text()?;
            budget.charge_text(layout.len().saturating_mul(time::MAX_FORMAT_GROWTH))?;
            Ok(time.format(layout).into())
        }
        ("In", [Val::Zone(zone)]) => Ok(Val::Time(time.in_zone(zone.clone()))),
        (_, [other, ..]) => Err(wrong_argument(name, other)),
        (_, []) => Ok(time_part(time, name)),
    }
}

fn time_part(time: &Time, name: &str) -> Val {
    match name {
        "Month" => Val::Month(time.month()),
        "Weekday" => Val::Weekday(time.weekday()),
        "UTC" => Val::Time(time.in_zone(Zone::Utc)),
        "Local" => Val::Time(time.in_zone(Zone::Local)),
        "Location" => Val::Zone(time.zone().clone()),
        "IsZero" => time.cmp_instant(&Time::zero()).is_eq().into(),
        _ => match time.number(name) {
            Some(number) => number.into(),
            None => time.to_string().into(),
        },
    }
}
