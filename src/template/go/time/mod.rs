//! A moment and the zone it is shown in, as Go's `time.Time`.
//!
//! Layouts such as `2006-01-02` are in `layout` and `read`, spans such as `1h30m` in `span`. There is no
//! clock here: see `sprig::date` for `now`.

mod layout;
mod read;
pub mod span;

use std::fmt;

use chrono::{DateTime, Datelike, FixedOffset, Local, Months, NaiveDate, NaiveDateTime};
use chrono::{Offset, SecondsFormat, TimeDelta, TimeZone, Utc};
use chrono_tz::{OffsetName, Tz};

/// A moment and the zone it is shown in.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    utc: DateTime<Utc>,
    zone: Zone,
}

/// Where a time is shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Zone {
    Utc,
    Local,
    Named(Tz),
    /// Seconds east of UTC and, where the text gave one, a name.
    Fixed(i32, String),
}

impl Zone {
    /// Returns the zone of a name, or UTC when nobody knows it, as sprig does.
    pub fn named(name: &str) -> Self {
        match name {
            "" | "UTC" => Self::Utc,
            "Local" => Self::Local,
            name => name.parse().map_or(Self::Utc, Self::Named),
        }
    }
}

impl Time {
    pub fn new(utc: DateTime<Utc>, zone: Zone) -> Self {
        Self { utc, zone }
    }

    /// Returns the moment that many seconds after 1970, or nothing beyond the calendar.
    pub fn from_unix(seconds: i64, zone: Zone) -> Option<Self> {
        DateTime::from_timestamp(seconds, 0).map(|utc| Self { utc, zone })
    }

    /// Returns Go's zero time: the first second of year 1.
    pub fn zero() -> Self {
        let utc = NaiveDate::from_ymd_opt(1, 1, 1)
            .and_then(|date| date.and_hms_opt(0, 0, 0))
            .unwrap_or_default()
            .and_utc();
        Self {
            utc,
            zone: Zone::Utc,
        }
    }

    /// Reads a time by a Go layout; a text without a zone is of this host's zone.
    pub fn parse(layout: &str, text: &str) -> Result<Self, String> {
        read::parse(layout, text)
    }

    /// Returns the time by a Go layout.
    pub fn format(&self, layout: &str) -> String {
        layout::format(self, layout)
    }

    pub fn unix(&self) -> i64 {
        self.utc.timestamp()
    }

    pub fn unix_millis(&self) -> i64 {
        self.utc.timestamp_millis()
    }

    /// Returns nanoseconds since 1970, of any year.
    pub fn nanos(&self) -> i128 {
        i128::from(self.utc.timestamp()) * 1_000_000_000
            + i128::from(self.utc.timestamp_subsec_nanos())
    }

    pub fn in_zone(&self, zone: Zone) -> Self {
        Self {
            utc: self.utc,
            zone,
        }
    }

    pub fn in_utc(&self) -> Self {
        self.in_zone(Zone::Utc)
    }

    pub fn in_local(&self) -> Self {
        self.in_zone(Zone::Local)
    }

    /// Returns the time `nanos` later, or nothing beyond the calendar.
    pub fn add_nanos(&self, nanos: i64) -> Option<Self> {
        let utc = self.utc.checked_add_signed(TimeDelta::nanoseconds(nanos))?;
        Some(Self {
            utc,
            zone: self.zone.clone(),
        })
    }

    /// Returns the date moved by years, months and days; a day past the end of its month runs
    /// into the next, as in Go.
    pub fn add_date(&self, years: i64, months: i64, days: i64) -> Option<Self> {
        let wall = self.wall();
        let months = years.checked_mul(12)?.checked_add(months)?;
        let size = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
        let first = wall.date().with_day(1)?;
        let moved = if months < 0 {
            first.checked_sub_months(size)?
        } else {
            first.checked_add_months(size)?
        };
        let days = TimeDelta::try_days(days.checked_add(wall.day0().into())?)?;
        let date = moved.checked_add_signed(days)?;
        at_wall(date.and_time(wall.time()), &self.zone)
    }

    pub fn rfc3339(&self) -> String {
        let fixed = FixedOffset::east_opt(self.offset()).unwrap_or_else(|| Utc.fix());
        self.utc
            .with_timezone(&fixed)
            .to_rfc3339_opts(SecondsFormat::AutoSi, true)
    }

    /// Returns what a clock on the wall of the zone shows.
    fn wall(&self) -> NaiveDateTime {
        let shift = TimeDelta::seconds(self.offset().into());
        let wall = self.utc.naive_utc();
        wall.checked_add_signed(shift).unwrap_or(wall)
    }

    /// Returns seconds east of UTC.
    fn offset(&self) -> i32 {
        let naive = self.utc.naive_utc();
        match &self.zone {
            Zone::Utc => 0,
            Zone::Local => Local
                .offset_from_utc_datetime(&naive)
                .fix()
                .local_minus_utc(),
            Zone::Named(zone) => zone
                .offset_from_utc_datetime(&naive)
                .fix()
                .local_minus_utc(),
            Zone::Fixed(offset, _) => *offset,
        }
    }

    /// Returns the short name of the zone: `CET`, or its offset where there is no name.
    fn zone_name(&self) -> String {
        let offset = self.offset();
        let sign = if offset < 0 { '-' } else { '+' };
        let (hours, minutes) = (
            offset.unsigned_abs() / 3600,
            offset.unsigned_abs() / 60 % 60,
        );
        match &self.zone {
            Zone::Utc => "UTC".into(),
            Zone::Named(zone) => {
                let known = zone.offset_from_utc_datetime(&self.utc.naive_utc());
                match known.abbreviation() {
                    Some(name) => name.to_owned(),
                    // Zones without letters are called by their hours.
                    None if minutes == 0 => format!("{sign}{hours:02}"),
                    None => format!("{sign}{hours:02}{minutes:02}"),
                }
            }
            Zone::Fixed(_, name) if !name.is_empty() => name.clone(),
            // The standard library does not tell the name of the local zone.
            Zone::Local if offset == 0 => "UTC".into(),
            _ => format!("{sign}{hours:02}{minutes:02}"),
        }
    }
}

/// Returns the moment when a clock on the wall of a zone shows `wall`.
fn at_wall(wall: NaiveDateTime, zone: &Zone) -> Option<Time> {
    let utc = match zone {
        Zone::Utc => wall.and_utc(),
        Zone::Local => earliest(Local.from_local_datetime(&wall))?,
        Zone::Named(zone) => earliest(zone.from_local_datetime(&wall))?,
        Zone::Fixed(offset, _) => {
            earliest(FixedOffset::east_opt(*offset)?.from_local_datetime(&wall))?
        }
    };
    Some(Time::new(utc, zone.clone()))
}

fn earliest<Z: TimeZone>(found: chrono::MappedLocalTime<DateTime<Z>>) -> Option<DateTime<Utc>> {
    found.earliest().map(|time| time.to_utc())
}

/// Prints as Go's `String`: `2006-01-02 15:04:05.999999999 -0700 MST`.
impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.format("2006-01-02 15:04:05.999999999 -0700 MST"))
    }
}
