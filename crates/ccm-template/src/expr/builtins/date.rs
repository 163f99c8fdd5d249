//! Built-ins that create dates, durations and zones.

use super::{Builtin, Overload, TEXT, argument, checked, overloads, wrong_number};
use crate::expr::budget::Budget;
use crate::expr::kind::Kind;
use crate::expr::runtime_value::{Reason, Val};
use crate::time::{Time, Zone, duration};

pub(super) static BUILTINS: &[Builtin] = &[
    checked("now", now_kind, |args, budget| {
        let now = Time::now(budget.env.now.as_ref());
        Ok(Val::Time(match args {
            [Val::Zone(zone)] => now.in_zone(zone.clone()),
            _ => now,
        }))
    }),
    checked("date", date_kind, date),
    overloads(
        "duration",
        &[Overload(&[TEXT], Kind::Duration)],
        |args, _| Ok(Val::Duration(duration::parse(argument(args, 0).text()?)?)),
    ),
    overloads("timezone", &[Overload(&[TEXT], Kind::Zone)], |args, _| {
        Ok(Val::Zone(Zone::load(argument(args, 0).text()?)?))
    }),
];

/// Layouts tried when none is given.
const LAYOUTS: [&str; 7] = [
    "2006-01-02",
    "15:04:05",
    "2006-01-02 15:04:05",
    "2006-01-02T15:04:05Z07:00",
    "02 Jan 06 15:04 MST",
    "Monday, 02-Jan-06 15:04:05 MST",
    "Mon, 02 Jan 2006 15:04:05 MST",
];

fn now_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    match kinds {
        [] | [Kind::Zone] => Ok(Kind::Time),
        _ => Err(wrong_number("0", kinds.len())),
    }
}

fn date_kind(kinds: &[Kind]) -> Result<Kind, Reason> {
    let given = match kinds {
        [] => return Err(wrong_number("at least 1", 0)),
        [Kind::Zone, rest @ ..] => rest,
        all => all,
    };
    match given.len() {
        0..=3 => Ok(Kind::Time),
        many => Err(wrong_number("at most 3", many)),
    }
}

/// Implements `date([zone,] text[, layout[, zone name]])`.
fn date(args: &[Val], _: &mut Budget<'_>) -> Result<Val, Reason> {
    let (zone, args) = match args {
        [Val::Zone(zone), rest @ ..] => (zone.clone(), rest),
        all => (Zone::Utc, all),
    };
    let text = argument(args, 0).text()?;
    match args {
        [_, layout] => Ok(Val::Time(Time::parse(layout.text()?, text, &zone)?)),
        [_, layout, zone] => {
            let zone = Zone::load(zone.text()?)?;
            Ok(Val::Time(Time::parse(layout.text()?, text, &zone)?))
        }
        _ => LAYOUTS
            .iter()
            .find_map(|layout| Time::parse(layout, text, &zone).ok())
            .map(Val::Time)
            .ok_or_else(|| format!("invalid date {text}").into()),
    }
}
