//! Dates and durations, with the manners of Go's `time` package.
//!
//! Authors know these from Go: layouts written as a sample date, durations such as `1h30m`,
//! methods such as `.Add` and `.Format`. Calendar arithmetic is chrono's; what is here is how Go
//! names and prints things. Layouts are in `layout`, methods in `methods`.

mod layout;
mod methods;
mod tzif;
mod zone;

use std::cmp::Ordering;
use std::fmt;

use chrono::{Datelike, NaiveDate, NaiveDateTime, TimeDelta};

use super::val::Reason;

pub(super) use layout::{format, parse};
pub(super) use methods::{Receiver, call, has_method, signature};
pub(super) use zone::Zone;

/// An instant and the zone it is read in.
#[derive(Clone, Debug)]
pub(super) struct Time {
    utc: NaiveDateTime,
    zone: Zone,
}

/// A month, 1 to 12; Go prints its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Month(pub(super) u32);

/// A day of the week, 0 is Sunday; Go prints its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weekday(pub(super) u32);

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl Time {
    /// Returns the present instant, in the zone of the machine.
    pub(super) fn now() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "`now()` asks for the real time; an expression has no other clock"
        )]
        let now = chrono::Utc::now();
        Self {
            utc: now.naive_utc(),
            zone: Zone::Local,
        }
    }

    /// Returns the instant at which clocks of a zone show this date and time.
    fn at(local: NaiveDateTime, zone: Zone) -> Option<Self> {
        let offset = zone.offset_of_local(local);
        let utc = local.checked_sub_signed(TimeDelta::seconds(offset.into()))?;
        Some(Self { utc, zone })
    }

    pub(super) fn is_same_instant(&self, other: &Self) -> bool {
        self.utc == other.utc
    }

    pub(super) fn cmp_instant(&self, other: &Self) -> Ordering {
        self.utc.cmp(&other.utc)
    }

    /// Returns the time a duration later.
    pub(super) fn add(&self, nanos: i64) -> Result<Self, Reason> {
        match self.utc.checked_add_signed(TimeDelta::nanoseconds(nanos)) {
            Some(utc) => Ok(Self {
                utc,
                zone: self.zone.clone(),
            }),
            None => Err("time out of range".into()),
        }
    }

    /// Returns how much later this is, at most what a duration can hold.
    pub(super) fn since(&self, other: &Self) -> i64 {
        let delta = self.utc - other.utc;
        delta
            .num_nanoseconds()
            .unwrap_or(match self.utc < other.utc {
                true => i64::MIN,
                false => i64::MAX,
            })
    }

    pub(super) fn within(&self, zone: Zone) -> Self {
        Self {
            utc: self.utc,
            zone,
        }
    }

    /// Returns what clocks of its zone show.
    fn local(&self) -> NaiveDateTime {
        let offset = TimeDelta::seconds(self.offset().into());
        self.utc.checked_add_signed(offset).unwrap_or(self.utc)
    }

    fn offset(&self) -> i32 {
        self.zone.at(self.utc).0
    }

    /// Returns the date so many years, months and days later; days past the end of a month run
    /// over into the next.
    fn add_date(&self, years: i64, months: i64, days: i64) -> Result<Self, Reason> {
        let local = self.local();
        let moved = || {
            let months = (i64::from(local.year()).checked_add(years)?)
                .checked_mul(12)?
                .checked_add(i64::from(local.month0()))?
                .checked_add(months)?;
            let year = i32::try_from(months.div_euclid(12)).ok()?;
            let month = u32::try_from(months.rem_euclid(12)).ok()? + 1;
            let days = i64::from(local.day0()).checked_add(days)?;
            let date = NaiveDate::from_ymd_opt(year, month, 1)?
                .checked_add_signed(TimeDelta::try_days(days)?)?;
            Self::at(date.and_time(local.time()), self.zone.clone())
        };
        moved().ok_or_else(|| "time out of range".into())
    }

    /// Returns the time rounded down to a multiple of a duration, counted from year one.
    fn truncate(&self, nanos: i64) -> Result<Self, Reason> {
        match self.remainder(nanos) {
            Some(over) => self.add(-over),
            None => Ok(self.clone()),
        }
    }

    /// Returns the time rounded to the nearest multiple of a duration, halves up.
    fn round(&self, nanos: i64) -> Result<Self, Reason> {
        match self.remainder(nanos) {
            Some(over) if over < nanos - over => self.add(-over),
            Some(over) => self.add(nanos - over),
            None => Ok(self.clone()),
        }
    }

    fn remainder(&self, nanos: i64) -> Option<i64> {
        let year_one = NaiveDate::from_ymd_opt(1, 1, 1)?.and_hms_opt(0, 0, 0)?;
        let since = self.utc - year_one;
        let total =
            i128::from(since.num_seconds()) * i128::from(SECOND) + i128::from(since.subsec_nanos());
        (nanos > 0)
            .then(|| i64::try_from(total.rem_euclid(i128::from(nanos))).ok())
            .flatten()
    }

    /// Returns the time as JSON has it.
    pub(super) fn json(&self) -> String {
        format(self, "2006-01-02T15:04:05.999999999Z07:00")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&format(self, "2006-01-02 15:04:05.999999999 -0700 MST"))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = (self.0 as usize).wrapping_sub(1);
        out.write_str(MONTHS.get(index).copied().unwrap_or_default())
    }
}

impl fmt::Display for Weekday {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.0 as usize;
        out.write_str(WEEKDAYS.get(index).copied().unwrap_or_default())
    }
}

/// Reads a duration such as `1h30m` or `1.5s`.
pub(super) fn parse_duration(text: &str) -> Result<i64, Reason> {
    let wrong = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = |text: &str| {
            text.find(|c: char| !c.is_ascii_digit())
                .unwrap_or(text.len())
        };
        let (whole, after) = rest.split_at(digits(rest));
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(wrong());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => i128::from(SECOND),
            "m" => i128::from(MINUTE),
            "h" => i128::from(HOUR),
            _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        let number = |digits: &str| match digits.is_empty() {
            true => Ok(0),
            false => digits.parse::<i128>().map_err(|_| wrong()),
        };
        // More digits than a nanosecond can show do not count.
        let fraction: String = fraction.chars().take(18).collect();
        let scale = 10_i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        let nanos = number(whole)?
            .checked_mul(unit)
            .and_then(|nanos| nanos.checked_add(number(&fraction).ok()? * unit / scale))
            .and_then(|nanos| nanos.checked_add(total))
            .ok_or_else(wrong)?;
        total = nanos;
        if total > i128::from(i64::MAX) + 1 {
            return Err(wrong());
        }
        rest = after;
    }
    let total = if negative { -total } else { total };
    i64::try_from(total).map_err(|_| wrong())
}

/// Prints a duration as Go does: `1h30m0s`, `1.5s`, `20ms`.
pub(super) fn duration_text(nanos: i64) -> String {
    let size = nanos.unsigned_abs();
    let sign = if nanos < 0 { "-" } else { "" };
    let fraction = |value: u64, unit: u64| {
        let text = format!(
            "{}.{:0width$}",
            value / unit,
            value % unit,
            width = unit.ilog10() as usize
        );
        let short = text.trim_end_matches('0');
        short.strip_suffix('.').unwrap_or(short).to_owned()
    };
    match size {
        0 => "0s".into(),
        1..1_000 => format!("{sign}{size}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", fraction(size, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", fraction(size, 1_000_000)),
        _ => {
            let minute = MINUTE.unsigned_abs();
            let seconds = fraction(size % minute, SECOND.unsigned_abs());
            match (size / minute / 60, size / minute % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, printed) in [
            ("0", "0s"),
            ("90m", "1h30m0s"),
            ("1.5h", "1h30m0s"),
            ("-1h2m3.004s", "-1h2m3.004s"),
            ("1500us", "1.5ms"),
            ("1µs1ns", "1.001µs"),
            (".5s", "500ms"),
            ("100h", "100h0m0s"),
        ] {
            assert_eq!(
                duration_text(parse_duration(text).unwrap()),
                printed,
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_durations_say_why() {
        for (text, reason) in [
            ("", "time: invalid duration \"\""),
            ("x", "time: invalid duration \"x\""),
            ("3", "time: missing unit in duration \"3\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            (
                "999999999999999999999h",
                "time: invalid duration \"999999999999999999999h\"",
            ),
        ] {
            assert_eq!(parse_duration(text).unwrap_err(), reason);
        }
    }
}
