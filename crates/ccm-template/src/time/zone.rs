//! Time zones: offset and short name at any instant.
//!
//! Named zones come from the database built into the program, so that a template gives the same
//! result on every node, even without an installed database. [`Zone::Local`] is the system's zone.
//! The database has no transitions after the year 2100.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use chrono::{Local, NaiveDateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::{OffsetName, Tz};

use super::TimeError;

/// A time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    Utc,
    Local,
    Named(Tz),
    /// Seconds east of UTC, and a name that may be empty.
    Fixed(i32, Arc<str>),
}

impl Zone {
    /// Returns the zone with a name such as `Europe/Berlin`.
    pub(crate) fn load(name: &str) -> Result<Self, TimeError> {
        match name {
            "" | "UTC" => Ok(Self::Utc),
            "Local" => Ok(Self::Local),
            _ => match name.parse() {
                Ok(zone) => Ok(Self::Named(zone)),
                Err(_) => Err(TimeError::Zone(name.into())),
            },
        }
    }

    /// Returns the seconds east of UTC at an instant.
    pub(super) fn offset(&self, utc: NaiveDateTime) -> i32 {
        let offset = match self {
            Self::Utc => return 0,
            Self::Fixed(seconds, _) => return *seconds,
            Self::Local => Local.offset_from_utc_datetime(&utc).fix(),
            Self::Named(zone) => zone.offset_from_utc_datetime(&utc).fix(),
        };
        offset.local_minus_utc()
    }

    /// Returns the short name at an instant, such as `CET`; empty if unknown.
    pub(super) fn abbreviation(&self, utc: NaiveDateTime) -> Cow<'_, str> {
        match self {
            Self::Utc => "UTC".into(),
            Self::Fixed(_, name) => name.as_ref().into(),
            // The name of the local zone is not available.
            Self::Local if self.offset(utc) == 0 => "UTC".into(),
            Self::Local => "".into(),
            Self::Named(zone) => {
                let offset = zone.offset_from_utc_datetime(&utc);
                match offset.abbreviation() {
                    Some(name) => name.to_owned().into(),
                    None => numeric(offset.fix().local_minus_utc()).into(),
                }
            }
        }
    }

    /// Returns the offset at the time when clocks show `local`. In the gap and the repeated hour of
    /// a clock change it chooses like Go.
    pub(super) fn offset_of_local(&self, local: NaiveDateTime) -> i32 {
        // Near a clock change the first guess may be the offset of the other side.
        let guess = self.offset(local);
        self.offset(earlier(local, guess))
    }

    /// Returns the offset of a short name when clocks show `local`. The name of summer time is
    /// accepted in winter too.
    pub(super) fn offset_of_name(&self, name: &str, local: NaiveDateTime) -> Option<i32> {
        const HALF_A_YEAR: TimeDelta = TimeDelta::days(182);
        let around = [
            Some(local),
            local.checked_add_signed(HALF_A_YEAR),
            local.checked_sub_signed(HALF_A_YEAR),
        ];
        let offsets = around
            .into_iter()
            .flatten()
            .filter(|utc| self.abbreviation(*utc) == name)
            .map(|utc| self.offset(utc));
        let is_in_effect = |offset: &i32| self.abbreviation(earlier(local, *offset)) == name;
        offsets
            .clone()
            .find(is_in_effect)
            .or(offsets.clone().next())
    }
}

fn earlier(local: NaiveDateTime, seconds: i32) -> NaiveDateTime {
    let delta = TimeDelta::seconds(seconds.into());
    local.checked_sub_signed(delta).unwrap_or(local)
}

/// Returns the name of a zone that the database names by its offset: `-03`, `+0530`.
fn numeric(offset: i32) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    let minutes = offset.unsigned_abs() / 60;
    match (minutes / 60, minutes % 60) {
        (hours, 0) => format!("{sign}{hours:02}"),
        (hours, minutes) => format!("{sign}{hours:02}{minutes:02}"),
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Utc => "UTC",
            Self::Local => "Local",
            Self::Named(zone) => zone.name(),
            Self::Fixed(_, name) => name,
        })
    }
}
