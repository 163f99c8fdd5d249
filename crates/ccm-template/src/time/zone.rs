//! Time zones: offset and short name at any instant.
//!
//! Named zones come from the database built into the program, so that a template gives the same
//! result on every node, even without an installed database. [`Zone::Local`] is the system's zone.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use chrono::{Local, NaiveDateTime, Offset, TimeDelta, TimeZone as _};
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::TimeError;

/// A time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    Utc,
    Local,
    Named(TimeZone),
    /// Seconds east of UTC, and a name that may be empty.
    Fixed(i32, Arc<str>),
}

impl Zone {
    /// Returns the zone with a name such as `Europe/Berlin`.
    pub(crate) fn load(name: &str) -> Result<Self, TimeError> {
        match name {
            "" | "UTC" => Ok(Self::Utc),
            "Local" => Ok(Self::Local),
            // The database ignores case; file names, which upstream looks up, do not.
            _ => match TimeZoneDatabase::bundled().get(name) {
                Ok(zone) if zone.iana_name() == Some(name) => Ok(Self::Named(zone)),
                _ => Err(TimeError::Zone(name.into())),
            },
        }
    }

    /// Returns the seconds east of UTC at an instant.
    pub(super) fn offset(&self, utc: NaiveDateTime) -> i32 {
        match self {
            Self::Utc => 0,
            Self::Fixed(seconds, _) => *seconds,
            Self::Local => Local.offset_from_utc_datetime(&utc).fix().local_minus_utc(),
            Self::Named(zone) => zone.to_offset(timestamp(utc)).seconds(),
        }
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
                let info = zone.to_offset_info(timestamp(utc));
                info.abbreviation().to_owned().into()
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

/// Returns the instant; one outside the years -9999 to 9999 becomes the first or last second of them.
fn timestamp(utc: NaiveDateTime) -> Timestamp {
    let seconds = utc.and_utc().timestamp();
    let limit = if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_second(seconds).unwrap_or(limit)
}

impl fmt::Display for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Utc => "UTC",
            Self::Local => "Local",
            Self::Named(zone) => zone.iana_name().unwrap_or_default(),
            Self::Fixed(_, name) => name,
        })
    }
}
