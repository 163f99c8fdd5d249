//! Times with the behaviour of Go's `time` package, for all engines.
//!
//! Layouts are written as a sample date, durations like `1h30m`, zones by name. Calendar arithmetic
//! is chrono's; this module adds Go's naming, parsing and formatting. The methods available to
//! templates are defined by each engine. Layouts are in `layout` and `read`, durations in
//! `duration`, zones in `zone`.

pub(crate) mod duration;
mod layout;
mod read;
mod zone;

use std::cmp::Ordering;
use std::fmt;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, TimeDelta, Timelike, Utc};

use super::env::Now;

pub(crate) use zone::Zone;

const MONTHS: [&str; 12] = [
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

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Maximum ratio of a formatted time's length to its layout's: `MST` may become `GMT+0003`.
pub(crate) const MAX_FORMAT_GROWTH: usize = 3;

/// Error of parsing or computing a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TimeError {
    #[error("time out of range")]
    OutOfRange,
    #[error("unknown time zone {0}")]
    Zone(String),
    /// A part of the text does not match its layout.
    #[error(
        "parsing time {} as {}: cannot parse {} as {}",
        quote(.text), quote(.layout), quote(.value), quote(.part)
    )]
    Mismatch {
        text: String,
        layout: String,
        value: String,
        part: String,
    },
    #[error("parsing time {}: extra text: {}", quote(.text), quote(.extra))]
    Extra { text: String, extra: String },
    /// The parts of the text do not form a valid time.
    #[error("parsing time {}: {problem}", quote(.text))]
    Impossible { text: String, problem: String },
}

/// An instant and a zone. Equality compares both; see [`Time::cmp_instant`] for the instant alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Time {
    utc: DateTime<Utc>,
    zone: Zone,
}

/// A month, 1 to 12; prints its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Month(pub u32);

/// A day of the week, 0 is Sunday; prints its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weekday(pub u32);

impl Time {
    /// Returns the current time in the system's zone, by the caller's clock if there is one.
    pub(crate) fn now(clock: Option<&Now>) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the default clock of templates; callers replace it with `Env::now`"
        )]
        let utc = clock.map_or_else(Utc::now, |now| now());
        Self {
            utc,
            zone: Zone::Local,
        }
    }

    /// Returns Go's zero time: the first second of year 1.
    pub(crate) fn zero() -> Self {
        Self {
            utc: year_one().and_utc(),
            zone: Zone::Utc,
        }
    }

    /// Returns the time at a number of seconds since 1970.
    pub(crate) fn from_unix(seconds: i64, zone: Zone) -> Result<Self, TimeError> {
        let utc = DateTime::from_timestamp(seconds, 0).ok_or(TimeError::OutOfRange)?;
        Ok(Self { utc, zone })
    }

    /// Returns the time at which clocks in a zone show this date and time.
    fn at(local: NaiveDateTime, zone: Zone) -> Option<Self> {
        Self::at_offset(local, zone.offset_of_local(local), zone)
    }

    /// Returns the time at which clocks with an offset from UTC, in seconds, show this date and
    /// time.
    fn at_offset(local: NaiveDateTime, offset: i32, zone: Zone) -> Option<Self> {
        let utc = local.checked_sub_signed(TimeDelta::seconds(offset.into()))?;
        Some(Self {
            utc: utc.and_utc(),
            zone,
        })
    }

    /// Parses a time by a layout. Without a zone in the text, or with one that equals the offset or
    /// name of `zone` at that time, the result is in `zone`.
    pub(crate) fn parse(layout: &str, text: &str, zone: &Zone) -> Result<Self, TimeError> {
        read::parse(layout, text, zone)
    }

    /// Formats the time by a layout.
    pub(crate) fn format(&self, layout: &str) -> String {
        layout::format(self, layout)
    }

    /// Formats the time like Go's JSON encoder.
    pub(crate) fn rfc3339(&self) -> String {
        self.format("2006-01-02T15:04:05.999999999Z07:00")
    }

    pub(crate) fn zone(&self) -> &Zone {
        &self.zone
    }

    /// Returns the same instant in another zone.
    pub(crate) fn in_zone(&self, zone: Zone) -> Self {
        Self {
            utc: self.utc,
            zone,
        }
    }

    pub(crate) fn cmp_instant(&self, other: &Self) -> Ordering {
        self.utc.cmp(&other.utc)
    }

    /// Returns the result of a Go method without parameters that returns a number.
    pub(crate) fn number(&self, method: &str) -> Option<i64> {
        let local = self.local();
        Some(match method {
            "Year" => local.year().into(),
            "Day" => local.day().into(),
            "Hour" => local.hour().into(),
            "Minute" => local.minute().into(),
            "Second" => local.second().into(),
            "Nanosecond" => local.nanosecond().into(),
            "YearDay" => local.ordinal().into(),
            "Unix" => self.unix(),
            "UnixMilli" => self.utc.timestamp_millis(),
            "UnixMicro" => self.utc.timestamp_micros(),
            "UnixNano" => self.utc.timestamp_nanos_opt().unwrap_or(0),
            _ => return None,
        })
    }

    /// Returns the seconds since 1970.
    pub(crate) fn unix(&self) -> i64 {
        self.utc.timestamp()
    }

    pub(crate) fn month(&self) -> Month {
        Month(self.local().month())
    }

    pub(crate) fn weekday(&self) -> Weekday {
        Weekday(self.local().weekday().num_days_from_sunday())
    }

    /// Adds a duration.
    pub(crate) fn add(&self, nanos: i64) -> Result<Self, TimeError> {
        let moved = self.utc.checked_add_signed(TimeDelta::nanoseconds(nanos));
        Ok(Self {
            utc: moved.ok_or(TimeError::OutOfRange)?,
            zone: self.zone.clone(),
        })
    }

    /// Returns the duration since `other`, limited to the range of a duration.
    pub(crate) fn since(&self, other: &Self) -> i64 {
        let nanos = (self.utc - other.utc).num_nanoseconds();
        nanos.unwrap_or(if self.utc < other.utc {
            i64::MIN
        } else {
            i64::MAX
        })
    }

    /// Adds years, months and days; days past the end of a month overflow into the next.
    pub(crate) fn add_date(&self, years: i64, months: i64, days: i64) -> Result<Self, TimeError> {
        let local = self.local();
        let moved = || {
            let months = i64::from(local.year())
                .checked_add(years)?
                .checked_mul(12)?
                .checked_add(local.month0().into())?
                .checked_add(months)?;
            let year = i32::try_from(months.div_euclid(12)).ok()?;
            let month = u32::try_from(months.rem_euclid(12)).ok()? + 1;
            let days = TimeDelta::try_days(days.checked_add(local.day0().into())?)?;
            let date = NaiveDate::from_ymd_opt(year, month, 1)?.checked_add_signed(days)?;
            Self::at(date.and_time(local.time()), self.zone.clone())
        };
        moved().ok_or(TimeError::OutOfRange)
    }

    /// Rounds down to a multiple of a duration, counted from year 1.
    pub(crate) fn truncate(&self, nanos: i64) -> Result<Self, TimeError> {
        match self.remainder(nanos) {
            Some(over) => self.add(-over),
            None => Ok(self.clone()),
        }
    }

    /// Rounds to the nearest multiple of a duration, halves up.
    pub(crate) fn round(&self, nanos: i64) -> Result<Self, TimeError> {
        match self.remainder(nanos) {
            Some(over) if over < nanos - over => self.add(-over),
            Some(over) => self.add(nanos - over),
            None => Ok(self.clone()),
        }
    }

    fn remainder(&self, nanos: i64) -> Option<i64> {
        let since = self.utc.naive_utc() - year_one();
        let seconds = i128::from(since.num_seconds()) * i128::from(duration::SECOND);
        let total = seconds + i128::from(since.subsec_nanos());
        (nanos > 0)
            .then(|| i64::try_from(total.rem_euclid(i128::from(nanos))).ok())
            .flatten()
    }

    /// Returns the local date and time of its zone.
    fn local(&self) -> NaiveDateTime {
        let utc = self.utc.naive_utc();
        let offset = TimeDelta::seconds(self.zone.offset(utc).into());
        utc.checked_add_signed(offset).unwrap_or(utc)
    }
}

fn year_one() -> NaiveDateTime {
    NaiveDate::from_ymd_opt(1, 1, 1).unwrap_or_default().into()
}

/// Prints as Go's `String`.
impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.format("2006-01-02 15:04:05.999999999 -0700 MST"))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name(&MONTHS, self.0.wrapping_sub(1)))
    }
}

impl fmt::Display for Weekday {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(name(&WEEKDAYS, self.0))
    }
}

fn name(names: &[&'static str], index: u32) -> &'static str {
    let found = usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index));
    found.copied().unwrap_or_default()
}

/// Quotes a text like the errors of Go's `time` package: bytes other than printable ASCII are
/// escaped, unlike in Go's `%q`.
fn quote(text: &str) -> String {
    let mut out = String::from('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=0x7f => out.push(char::from(byte)),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

/// Returns the first three letters of a name.
fn short(name: &str) -> &str {
    name.get(..3).unwrap_or(name)
}

#[cfg(test)]
mod tests;
